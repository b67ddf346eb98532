"""Batches of one producer epoch to partitions, in order and without gaps: what tasks and the driver write within a
transaction.

Up to five batches of a partition are under way, which is how many a broker remembers to know a repetition by. When one
fails in a way that may pass, everything from it on is sent again, one by one, byte for byte the same. One that is too
large for its topic is halved: sequences count records, so those behind it stay as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.producer._batch import slice_columns
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    MessageTooLargeError,
    RequestTimedOutError,
    RetriableError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.records import Batch, Codec, decode_columns
from headrace.records.batch import increment_sequence
from headrace.records.build import build_batch_from_columns
from headrace.records.columns import Columns
from headrace.spark.lanes import cut
from headrace.spark.once import Fenced, Identity
from headrace.topics import TopicPartition

PRODUCE_VERSION_MAX = 11
"""From 12 on, producing itself adds a partition to the transaction. Here every partition is added before the first
task starts, so that the abort that fences a batch reaches partitions which its tasks had not written to yet."""

_IN_FLIGHT_MAX = 5
_ALL_REPLICAS = -1
_RETRY_S = 0.1
_RECORD_OVERHEAD_BYTES = 24
_FENCED = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How batches are made and sent; from a producer's configuration."""

    batch_bytes: int
    in_flight_bytes: int
    codec: Codec
    level: int | None
    request_timeout_ms: int
    delivery_timeout_ms: int

    @classmethod
    def of(cls, kafka: Mapping[str, Any]) -> WriteSettings:
        given = PRODUCER_CONFIGS.parse_given({name: kafka[name] for name in kafka if name in PRODUCER_CONFIGS})
        codec: Any = given.get("compression.type", "none")
        level: Any = given.get(f"compression.{codec}.level")
        numbers: dict[str, Any] = dict(given)
        return cls(
            batch_bytes=numbers.get("batch.size", 900_000),
            in_flight_bytes=numbers.get("buffer.memory", 32 * 1024 * 1024),
            codec=Codec[codec.upper()],
            level=level,
            request_timeout_ms=numbers.get("request.timeout.ms", 30_000),
            delivery_timeout_ms=numbers.get("delivery.timeout.ms", 120_000),
        )


@dataclass(slots=True)
class _Sent:
    records: bytearray
    call: Call | None


@dataclass(slots=True)
class _Lane:
    partition: TopicPartition
    batch_bytes: int
    """As much as goes into a batch: less once the topic refused one as too large."""
    sequence: int = 0
    is_known: bool = False
    """Whether the partition has taken a batch of ours. Before that a broker would take any sequence for the first, so
    a second batch may only follow when the first is in."""
    unanswered: deque[_Sent] = field(default_factory=deque)


class TransactionalWriter:
    """Writes to partitions that nobody else writes to under this identity. Sequences begin at 0."""

    def __init__(
        self, client: BlockingClient, settings: WriteSettings, transactional_id: str, identity: Identity
    ) -> None:
        self._client = client
        self._settings = settings
        self._transactional_id = transactional_id
        self._identity = identity
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._in_flight_bytes = 0
        self._clock = client.core.clock

    def write(self, partition: TopicPartition, columns: Columns, sizes: Any) -> None:
        """Send rows, in as many batches as they need. Returns before they are answered; `finish` waits."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane(partition, self._settings.batch_bytes)
        for start, end in cut(sizes, lane.batch_bytes):
            self._send(lane, slice_columns(columns, start, end))

    def finish(self) -> None:
        """Wait until everything is acknowledged; raises the first failure."""
        for lane in self._lanes.values():
            while lane.unanswered:
                self._settle(lane)

    # --- one lane -----------------------------------------------------------------------------------------------------

    def _send(self, lane: _Lane, columns: Columns) -> None:
        records = self._built(columns, lane.sequence)
        lane.sequence = increment_sequence(lane.sequence, len(columns))
        while len(lane.unanswered) >= (_IN_FLIGHT_MAX if lane.is_known else 1):
            self._settle(lane)
        while self._in_flight_bytes and self._in_flight_bytes + len(records) > self._settings.in_flight_bytes:
            self._settle(max(self._lanes.values(), key=lambda one: len(one.unanswered)))
        lane.unanswered.append(_Sent(records, self._submit(lane, records)))
        self._in_flight_bytes += len(records)
        # Answers are taken in when they are there; nobody waits for them here.
        self._client.poll(0)

    def _built(self, columns: Columns, sequence: int) -> bytearray:
        return build_batch_from_columns(
            columns,
            base_offset=0,
            codec=self._settings.codec,
            level=self._settings.level,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def _submit(self, lane: _Lane, records: bytearray) -> Call | None:
        topic, partition = lane.partition
        leader = self._client.core.view.leader_of(topic, partition)
        if leader is None:
            return None
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
            ],
        )
        return self._client.submit(leader.id, request, version_max=PRODUCE_VERSION_MAX)

    def _settle(self, lane: _Lane) -> None:
        """Have the oldest batch of a lane acknowledged."""
        oldest = lane.unanswered[0]
        error = self._outcome(lane, oldest.call)
        if error is not None:
            self._again(lane, error)
            return
        self._taken(lane)

    def _taken(self, lane: _Lane) -> None:
        self._in_flight_bytes -= len(lane.unanswered.popleft().records)
        lane.is_known = True

    def _outcome(self, lane: _Lane, call: Call | None) -> HeadraceError | None:
        """None when the batch is in the log; an error that may pass; raises one that does not."""
        if call is None:
            return RequestTimedOutError(f"{lane.partition} has no leader, or does not exist")
        self._client.wait(call, timeout_ms=3 * self._settings.request_timeout_ms)
        if call.error is not None:
            if not isinstance(call.error, RetriableError):
                raise call.error
            return call.error
        answer = call.response.responses[0].partition_responses[0]
        code = answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return None
        error = error_for(code, answer.error_message)
        if code in _FENCED:
            raise Fenced(f"writing to {lane.partition}: {error}")
        if not isinstance(error, (RetriableError, MessageTooLargeError)):
            raise _about(error, lane.partition)
        return error

    def _halve(self, lane: _Lane, error: HeadraceError) -> None:
        """Two batches instead of the oldest, which its topic takes for too large."""
        oldest = lane.unanswered[0]
        batch = Batch(memoryview(oldest.records))
        count = batch.count
        if count < 2:
            assert isinstance(error, KafkaError)
            raise _about(error, lane.partition)
        columns, sequence, half = decode_columns(batch), batch.header().base_sequence, count // 2
        halves = [
            _Sent(self._built(slice_columns(columns, 0, half), sequence), None),
            _Sent(self._built(slice_columns(columns, half, count), increment_sequence(sequence, half)), None),
        ]
        self._in_flight_bytes += sum(len(one.records) for one in halves) - len(oldest.records)
        lane.unanswered.popleft()
        lane.unanswered.extendleft(reversed(halves))
        lane.batch_bytes = max(1, min(lane.batch_bytes, len(oldest.records) // 2))

    def _again(self, lane: _Lane, error: HeadraceError) -> None:
        """Everything from the oldest on once more, one after the other, until it is acknowledged or time is over."""
        for sent in lane.unanswered:
            if sent.call is not None:
                self._client.wait(sent.call, timeout_ms=3 * self._settings.request_timeout_ms)
        deadline = self._clock.monotonic() + self._settings.delivery_timeout_ms / 1000
        while lane.unanswered:
            if isinstance(error, MessageTooLargeError):
                self._halve(lane, error)
            else:
                self._find_leader(lane, deadline, error)
            failure: HeadraceError | None = None
            while lane.unanswered and failure is None:
                oldest = lane.unanswered[0]
                oldest.call = self._submit(lane, oldest.records)
                failure = self._outcome(lane, oldest.call)
                if failure is None:
                    self._taken(lane)
            if failure is not None:
                error = failure

    def _find_leader(self, lane: _Lane, deadline: float, error: HeadraceError) -> None:
        now = self._clock.monotonic()
        if now >= deadline:
            raise RequestTimedOutError(
                f"{lane.partition} took no batch for delivery.timeout.ms={self._settings.delivery_timeout_ms}: {error}"
            ) from error
        self._client.core.add_topic(lane.partition.topic)
        self._client.poll_until(lambda: False, now + _RETRY_S)
        self._client.ensure_metadata(deadline)


def _about(error: KafkaError, partition: TopicPartition) -> KafkaError:
    return type(error)(f"writing to {partition}: {error.message}")


def record_sizes(columns: Columns) -> Any:
    """About how many bytes each row takes in a batch."""
    import numpy as np

    lengths = np.asarray(columns.values.lengths).clip(0).astype(np.int64) + np.asarray(columns.keys.lengths).clip(0)
    if columns.headers is not None:
        lengths += np.asarray(columns.headers.lengths).clip(0)
    return lengths + _RECORD_OVERHEAD_BYTES


def record_bytes(rows: Any) -> int:
    """The same for Arrow's rows together, whose columns of ends are about eight bytes of a record."""
    return int(rows.nbytes) + (_RECORD_OVERHEAD_BYTES - 8) * int(rows.num_rows)
