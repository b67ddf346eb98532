"""A broker as a conversation over one raw connection sees it, with what most conversations need to be there."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode
from tests.waiting import eventually

from .wire import Wire, batch

NONE = ErrorCode.none
_numbers = itertools.count()


class World:
    """A broker, a connection to it, and what most conversations need to be there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        cluster = wire.ask("describe_cluster", 0)
        self.cluster_id: str = cluster.cluster_id
        self.node_id: int = cluster.brokers[0].broker_id
        self.host, self.port = cluster.brokers[0].host, cluster.brokers[0].port

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        return self.wire.ask(api, version, **fields)

    def name(self, kind: str = "wire") -> str:
        return f"{kind}-{next(_numbers)}-{uuid.uuid4().hex[:6]}"

    def topic(self, partitions: int = 1, **configs: str) -> tuple[str, uuid.UUID]:
        """A new topic and its id."""
        name = self.name("topic")
        entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        entries.append({"name": "retention.ms", "value": "-1"})
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": entries}
        created = self.ask("create_topics", 7, topics=[new], timeout=10_000).topics[0]
        assert created.error_code == NONE, created
        return name, created.topic_id

    def filled(self, *values: bytes) -> tuple[str, uuid.UUID]:
        """A new topic with a batch of these values in its one partition."""
        name, topic_id = self.topic()
        self.append(name, batch(*(values or (b"a", b"b", b"c"))))
        return name, topic_id

    def append(self, topic: str, records: bytes, transactional_id: str | None = None) -> Any:
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
        answer = self.ask("produce", 9, acks=-1, timeout=5000, topic_data=data, transactional_id=transactional_id)
        result = answer.responses[0].partition_responses[0]
        assert result.error_code == NONE, result
        return result

    def read(self, topic: str) -> list[bytes | None]:
        fetched = self.ask("fetch", 11, **fetch_of(topic, None))
        return values_of(fetched.responses[0].partitions[0].records)

    def member(self, group: str, version: int = 5) -> tuple[str, int]:
        """The only member of a group, joined and synced: its id and generation."""
        joined = self.join(group, version)
        synced = self.ask(
            "sync_group",
            3,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
        )
        assert synced.error_code == NONE
        return joined.member_id, joined.generation_id

    def join(self, group: str, version: int) -> Any:
        self.coordinator(group)
        fields = {
            "group_id": group,
            "session_timeout": 6000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"subscription"}],
            "reason": "a test",
        }
        joined = self.ask("join_group", version, member_id="", **fields)
        if joined.error_code == ErrorCode.member_id_required:
            assert version >= 4
            joined = self.ask("join_group", version, member_id=joined.member_id, **fields)
        assert joined.error_code == NONE, joined
        return joined

    def coordinator(self, group: str) -> None:
        """Wait until the group's partition of the offsets topic is there and loaded."""
        eventually(lambda: self.ask("find_coordinator", 1, key=group).error_code == NONE, what="a coordinator")
        eventually(
            lambda: (
                self.ask("offset_fetch", 5, group_id=group, topics=None).error_code
                not in (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)
            ),
            what="a loaded coordinator",
        )

    def commit(self, group: str, topic: str, offset: int, metadata: str = "note") -> None:
        self.coordinator(group)
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
        topics = [{"name": topic, "partitions": [part]}]
        answer = self.ask("offset_commit", 7, group_id=group, topics=topics, generation_id_or_member_epoch=-1)
        assert answer.topics[0].partitions[0].error_code == NONE

    def committed(self, group: str, topic: str) -> tuple[int, str | None]:
        answer = self.ask("offset_fetch", 5, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}])
        found = answer.topics[0].partitions[0]
        return found.committed_offset, found.metadata

    def producer(self, transactional_id: str) -> tuple[int, int]:
        eventually(
            lambda: self.ask("find_coordinator", 1, key=transactional_id, key_type=1).error_code == NONE,
            what="a transaction coordinator",
        )
        retriable = (
            ErrorCode.coordinator_load_in_progress,
            ErrorCode.not_coordinator,
            ErrorCode.concurrent_transactions,
        )

        def asked() -> Any:
            answer = self.ask("init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000)
            return None if answer.error_code in retriable else answer

        answer = eventually(asked, what="a transactional producer")
        assert answer.error_code == NONE, answer
        return answer.producer_id, answer.producer_epoch


def fetch_of(topic: str | None, topic_id: uuid.UUID | None, offset: int = 0, isolation: int = 0) -> dict[str, Any]:
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 2**20,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
        "last_fetched_epoch": -1,
    }
    return {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic or "", "topic_id": topic_id, "partitions": [part]}],
        "forgotten_topics_data": [],
    }


def values_of(records: bytes | None) -> list[bytes | None]:
    assert records is not None
    found: list[bytes | None] = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at + 8 : at + 12], "big") + 12
        parsed = DefaultRecordBatch(bytearray(records[at : at + size]))
        assert parsed.validate_crc()
        if not parsed.is_control_batch:
            found += [record.value for record in parsed]
        at += size
    return found
