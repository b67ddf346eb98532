"""A client whose brokers answer as a test says: one partition, read without a network and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.client.consumer.fake_driver import FakeClient
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import VirtualClock

from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.config import ConfigDefinition
from headrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.records.build import build_batch_from_columns
from headrace.records.columns import Columns, bytes_column, int_column

LEADER, REPLICA = 1, 2
EPOCH = 7


def batch(base: int, count: int) -> bytes:
    columns = Columns(
        int_column("q", list(range(base, base + count))),
        int_column("q", [0] * count),
        bytes_column([None] * count),
        bytes_column([b"x"] * count),
    )
    return bytes(build_batch_from_columns(columns, base_offset=base))


def answer(
    records: bytes = b"", *, watermark: int = 100, stable: int = 100, replica: int = -1, error: int = 0
) -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=watermark,
        last_stable_offset=stable,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=records,
    )


class ScriptedClient(FakeClient):
    """`fetched(node, offset, number)` answers the n-th fetch; `log_end` and `earliest` what else is asked."""

    def __init__(
        self, fetched: Callable[[int, int, int], PartitionData], *, log_end: int = 100, earliest: int = 0
    ) -> None:
        self.fetched, self.log_end, self.earliest = fetched, log_end, earliest
        self.asked: list[tuple[int, int]] = []
        self.racks: list[str] = []
        self.others: list[str] = []
        cluster = FakeGroupCluster(VirtualClock(), 2, {"t": 1})
        cluster.leaders[("t", 0)] = (LEADER, EPOCH)
        cluster.script = self._script
        config = read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": "fake:9001,fake:9002"})
        super().__init__(cluster, ConnectionConfig.of(config))

    def _script(self, node: int, name: str, request: Any) -> Any:
        if name == "Fetch":
            assert (request.session_id, request.session_epoch) == (0, -1), "a task takes no place of a session"
            offset = request.topics[0].partitions[0].fetch_offset
            self.asked.append((node, offset))
            self.racks.append(request.rack_id)
            data = self.fetched(node, offset, len(self.asked))
            topic = FetchableTopicResponse(topic="t", topic_id=self.cluster.topic_ids["t"], partitions=[data])
            return FetchResponse(session_id=0, responses=[topic])
        if name == "OffsetForLeaderEpoch":
            self.others.append(name)
            end = EpochEndOffset(partition=0, leader_epoch=EPOCH, end_offset=self.log_end)
            return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[end])])
        if name == "ListOffsets":
            self.others.append(name)
            found = ListOffsetsPartitionResponse(partition_index=0, offset=self.earliest)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])
        return None
