"""A client whose brokers answer as a test says: one partition, read without a network and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headrace.protocol.messages.fetch import PartitionData
from headrace.protocol.schema import ZERO_UUID
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


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class ScriptedClient:
    """`fetched(node, offset, number)` answers the n-th fetch; `log_end` and `earliest` what else is asked."""

    def __init__(
        self, fetched: Callable[[int, int, int], PartitionData], *, log_end: int = 100, earliest: int = 0
    ) -> None:
        self.fetched, self.log_end, self.earliest = fetched, log_end, earliest
        self.asked: list[tuple[int, int]] = []
        self.racks: list[str] = []
        self.others: list[str] = []
        leader = SimpleNamespace(id=LEADER)
        topic = SimpleNamespace(topic_id=ZERO_UUID, partitions={0: SimpleNamespace(leader_epoch=EPOCH)})
        view = SimpleNamespace(
            leader_of=lambda name, index: leader,
            topics={"t": topic},
            nodes={LEADER: leader, REPLICA: SimpleNamespace(id=REPLICA)},
        )
        self.core = SimpleNamespace(
            clock=Clock(),
            view=view,
            config=SimpleNamespace(request_timeout_ms=30_000),
            refresh_metadata=lambda: None,
            add_topic=lambda name: None,
        )

    def submit(self, node: int, request: Any, version_max: int | None = None) -> Any:
        self.core.clock.now += 0.5
        offset = request.topics[0].partitions[0].fetch_offset
        self.asked.append((node, offset))
        self.racks.append(request.rack_id)
        data = self.fetched(node, offset, len(self.asked))
        return SimpleNamespace(error=None, response=SimpleNamespace(error_code=0, responses=[_topic(data)]))

    def request(self, node: int, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.others.append(name)
        given = self.log_end if name == "OffsetForLeaderEpoch" else self.earliest
        data = SimpleNamespace(error_code=0, end_offset=given, offset=given)
        return SimpleNamespace(topics=[_topic(data)])

    def wait(self, call: Any, timeout_ms: float) -> None:
        return None

    def poll_until(self, is_done: Callable[[], bool], until: float) -> None:
        self.core.clock.now = max(self.core.clock.now, until)


def _topic(data: Any) -> Any:
    return SimpleNamespace(partitions=[data])
