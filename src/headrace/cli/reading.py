"""Read ranges of partitions without a group: from an offset to an offset, or on and on.

The small reader of `headrace consume`, on the client's common core; it stops at the ends it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.blocking import BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.connection_core import Call
from headrace.client.security import tls_context
from headrace.config import ConfigDefinition
from headrace.errors import ErrorCode, HeadraceError, OffsetOutOfRangeError, RequestTimedOutError, error_for
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.records import Batch, Columns, ControlType, check, decode_columns, read_control, read_records, split
from headrace.topics import TopicPartition

_MAX_WAIT_MS = 500
_PARTITION_BYTES_MAX = 1024 * 1024
_FETCH_BYTES_MAX = 50 * 1024 * 1024
_RETRY_S = 0.1
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass(slots=True)
class Range:
    """Where reading stands, and where it ends (None: never)."""

    position: int
    end: int | None

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end


class RangeReader:
    """Gives the records of ranges as columns, partition by partition as they arrive."""

    def __init__(
        self,
        config: Mapping[str, Any],
        ranges: Mapping[TopicPartition, Range],
        *,
        read_committed: bool,
        timeout_s: float,
    ) -> None:
        values = read_config(ConfigDefinition(COMMON_KEYS), config)
        self._client = BlockingClient(ConnectionConfig.of(values), tls=tls_context(values))
        self._client.core.allow_auto_topic_creation = False
        self._ranges = dict(ranges)
        self._read_committed = read_committed
        self._timeout_s = timeout_s
        for topic in {partition.topic for partition in ranges}:
            self._client.core.add_topic(topic)

    def close(self) -> None:
        self._client.close()

    def __iter__(self) -> Iterator[tuple[TopicPartition, Columns]]:
        clock = self._client.core.clock
        self._client.ensure_metadata(clock.monotonic() + self._timeout_s)
        last_answer = clock.monotonic()
        while any(not wanted.is_done for wanted in self._ranges.values()):
            calls = self._fetch()
            if not calls:
                self._wait_for_leaders(clock.monotonic() + _RETRY_S)
            deadline = clock.monotonic() + self._timeout_s + _MAX_WAIT_MS / 1000
            self._client.poll_until(lambda: all(call.done for call in calls), deadline)  # noqa: B023
            failed: HeadraceError | None = None
            for call in calls:
                if call.error is not None or not call.done:
                    failed = call.error
                    continue
                last_answer = clock.monotonic()
                yield from self._take(call)
            if clock.monotonic() - last_answer > self._timeout_s:
                raise failed or RequestTimedOutError(f"no broker answered a fetch within {self._timeout_s:.0f} s")
            if failed is not None:
                self._wait_for_leaders(clock.monotonic() + _RETRY_S)

    def _wait_for_leaders(self, until: float) -> None:
        self._client.core.refresh_metadata()
        self._client.poll_until(lambda: False, until)

    def _fetch(self) -> list[Call]:
        """A fetch to every leader of something that is not done."""
        view = self._client.core.view
        by_node: dict[int, dict[str, list[FetchPartition]]] = {}
        for partition, wanted in self._ranges.items():
            leader = None if wanted.is_done else view.leader_of(partition.topic, partition.partition)
            if leader is None:
                continue
            by_node.setdefault(leader.id, {}).setdefault(partition.topic, []).append(
                FetchPartition(
                    partition=partition.partition,
                    fetch_offset=wanted.position,
                    partition_max_bytes=_PARTITION_BYTES_MAX,
                )
            )
        return [
            self._client.submit(
                node_id,
                FetchRequest(
                    max_wait_ms=_MAX_WAIT_MS,
                    min_bytes=1,
                    max_bytes=_FETCH_BYTES_MAX,
                    isolation_level=int(self._read_committed),
                    topics=[
                        FetchTopic(topic=topic, topic_id=view.topics[topic].topic_id, partitions=partitions)
                        for topic, partitions in topics.items()
                    ],
                ),
                timeout_ms=self._timeout_s * 1000,
            )
            for node_id, topics in by_node.items()
        ]

    def _take(self, call: Call) -> Iterator[tuple[TopicPartition, Columns]]:
        if call.response.error_code:
            raise error_for(call.response.error_code)
        for topic in call.response.responses:
            name = topic.topic or self._client.core.view.topic_names.get(topic.topic_id, "")
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                wanted = self._ranges.get(partition)
                if wanted is None:
                    continue
                if data.error_code in _MOVED:
                    self._client.core.refresh_metadata()
                elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise OffsetOutOfRangeError(
                        f"{partition} has no offset {wanted.position}: it starts at {data.log_start_offset} and "
                        f"ends at {data.high_watermark}; choose another --from"
                    )
                elif data.error_code:
                    raise error_for(data.error_code, f"{partition}: {ErrorCode(data.error_code).message}")
                elif data.records:
                    yield from self._read(partition, wanted, data)

    def _read(
        self, partition: TopicPartition, wanted: Range, data: PartitionData
    ) -> Iterator[tuple[TopicPartition, Columns]]:
        assert data.records is not None
        aborted = _AbortedFilter(data) if self._read_committed else None
        for batch in split(data.records):
            check(batch)
            if wanted.is_done:
                return
            if batch.next_offset <= wanted.position:
                continue
            if batch.is_control or (aborted is not None and aborted.drops(batch)):
                if batch.is_control and aborted is not None:
                    aborted.saw_marker(batch)
                wanted.position = batch.next_offset
                continue
            columns = decode_columns(batch)
            position, end = wanted.position, wanted.end
            offsets = columns.offsets
            if batch.base_offset < position or (end is not None and batch.last_offset >= end):
                mask = bytes(int(position <= offset and (end is None or offset < end)) for offset in offsets)
                columns = columns.filter(mask)
            wanted.position = batch.next_offset
            if len(columns):
                yield partition, columns


class _AbortedFilter:
    """Which batches belong to transactions that were aborted, as the broker listed them."""

    def __init__(self, data: PartitionData) -> None:
        self._starts = sorted((t.first_offset, t.producer_id) for t in data.aborted_transactions or ())
        self._open: set[int] = set()

    def drops(self, batch: Batch) -> bool:
        while self._starts and self._starts[0][0] <= batch.last_offset:
            self._open.add(self._starts.pop(0)[1])
        return batch.is_transactional and not batch.is_control and batch.producer_id in self._open

    def saw_marker(self, batch: Batch) -> None:
        """An abort marker ends its producer's transaction; what follows is another one."""
        markers = read_records(batch)
        if markers and read_control(markers[0]).control_type == ControlType.ABORT:
            self._open.discard(batch.producer_id)
