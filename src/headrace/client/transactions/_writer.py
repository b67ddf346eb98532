"""Batches of one producer epoch to partitions, in order and without gaps: what is written within a transaction.

The numbers follow the producer's rules (`producer._sequences`). A batch keeps its number and its bytes until its
outcome is known; while one is sent again, nothing newer of its partition is. Up to five batches of a partition are
under way, which is how many a broker remembers to know a repetition by. When one fails in a way that may pass,
everything from it on is sent again, one by one. One that is too large for its topic is halved, if no attempt of it can
have been written: sequences count records, so those behind it stay as they are. What has failed for good ends the
writer, and with it the transaction: a number would be missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.client.cluster import BlockingClient
from headrace.client.errors import ProducerFencedError, TransactionStateError
from headrace.client.producer._sequences import NEVER_WRITTEN
from headrace.client.producer.config import PRODUCER_CONFIGS
from headrace.client.transactions._coordinator_calls import FENCED
from headrace.client.transactions._requests import ProducerIdentity
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
from headrace.topics import TopicPartition

PRODUCE_VERSION_MAX = 11
"""From 12 on, producing itself adds a partition to the transaction. Here every partition is enlisted before."""

_IN_FLIGHT_MAX = 5
_ALL_REPLICAS = -1
RECORD_OVERHEAD_BYTES = 24
"""About what a record takes in a batch beside its key, value and headers."""


_OF_WRITING = frozenset(
    {
        "batch.size",
        "buffer.memory",
        "compression.type",
        "request.timeout.ms",
        "delivery.timeout.ms",
        *(f"compression.{codec.name.lower()}.level" for codec in Codec),
    }
) & set(PRODUCER_CONFIGS.names)


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
        """From keys by Kafka's names; those that are no producer's are passed over."""
        given = PRODUCER_CONFIGS.parse_given({name: kafka[name] for name in kafka if name in _OF_WRITING})
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
    is_doubtful: bool = False
    """Whether an attempt that failed may have been written all the same."""


@dataclass(slots=True)
class _Lane:
    """One partition. `unanswered` are batches that have a number and are not settled, in order."""

    partition: TopicPartition
    batch_bytes: int
    """As much as goes into a batch: less once the topic refused one as too large."""
    sequence: int = 0
    is_known: bool = False
    """Whether the partition has taken a batch of ours. Before that a broker would take any sequence for the first, so
    a second batch may only follow when the first is in."""
    unanswered: deque[_Sent] = field(default_factory=deque)


class TransactionalWriter:
    """Writes to enlisted partitions that nobody else writes to under this identity. Sequences begin at 0."""

    def __init__(
        self, client: BlockingClient, settings: WriteSettings, transactional_id: str, identity: ProducerIdentity
    ) -> None:
        self.identity = identity
        self._client = client
        self._settings = settings
        self._transactional_id = transactional_id
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._in_flight_bytes = 0
        self._failure: HeadraceError | None = None
        self._clock = client.core.clock

    def write(self, partition: TopicPartition, columns: Columns) -> None:
        """Send rows, in as many batches as they need. Returns before they are answered; `finish` waits."""
        self._check()
        try:
            lane = self._lane(partition)
            for start, end in cut(record_sizes(columns), lane.batch_bytes):
                self._send(lane, _rows(columns, start, end))
        except HeadraceError as error:
            self._failure = error
            raise

    def finish(self) -> None:
        """Wait until everything is acknowledged; raises the first failure."""
        self._check()
        try:
            for lane in self._lanes.values():
                while lane.unanswered:
                    self._settle(lane)
        except HeadraceError as error:
            self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise TransactionStateError(
                f"a batch of this transaction failed, so nothing more can be written in it: {self._failure} Fence, and "
                "begin again"
            ) from self._failure

    # --- one lane -----------------------------------------------------------------------------------------------------

    def _lane(self, partition: TopicPartition) -> _Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane(partition, self._settings.batch_bytes)
            core = self._client.core
            if core.view.leader_of(*partition) is None:
                core.add_topic(partition.topic)
                self._client.ensure_metadata(self._clock.monotonic() + self._settings.request_timeout_ms / 1000)
        return lane

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
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
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
        error = self._outcome(lane, lane.unanswered[0])
        if error is not None:
            self._resend(lane, error)
            return
        self._taken(lane)

    def _taken(self, lane: _Lane) -> None:
        self._in_flight_bytes -= len(lane.unanswered.popleft().records)
        lane.is_known = True

    def _outcome(self, lane: _Lane, sent: _Sent) -> HeadraceError | None:
        """None when the batch is in the log; an error that may pass; raises one that does not."""
        call = sent.call
        if call is None:
            return RequestTimedOutError(f"{lane.partition} has no leader, or does not exist")
        self._client.wait(call, timeout_ms=3 * self._settings.request_timeout_ms)
        if call.error is not None:
            sent.is_doubtful = True
            if not isinstance(call.error, RetriableError):
                raise call.error
            return call.error
        answer = call.response.responses[0].partition_responses[0]
        code = answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return None
        if code not in NEVER_WRITTEN:
            sent.is_doubtful = True
        error = error_for(code, answer.error_message)
        if code in FENCED:
            raise ProducerFencedError(f"writing to {lane.partition}: {error}") from error
        if isinstance(error, RetriableError) or (isinstance(error, MessageTooLargeError) and not sent.is_doubtful):
            return error
        raise _about(error, lane.partition)

    def _halve(self, lane: _Lane, error: MessageTooLargeError) -> None:
        """Two batches instead of the oldest, which its topic takes for too large, and has not taken before."""
        oldest = lane.unanswered[0]
        batch = Batch(memoryview(oldest.records))
        count = batch.count
        if count < 2:
            raise _about(error, lane.partition)
        columns, sequence, half = decode_columns(batch), batch.header().base_sequence, count // 2
        halves = [
            _Sent(self._built(_rows(columns, 0, half), sequence), None),
            _Sent(self._built(_rows(columns, half, count), increment_sequence(sequence, half)), None),
        ]
        self._in_flight_bytes += sum(len(one.records) for one in halves) - len(oldest.records)
        lane.unanswered.popleft()
        lane.unanswered.extendleft(reversed(halves))
        lane.batch_bytes = max(1, min(lane.batch_bytes, len(oldest.records) // 2))

    def _resend(self, lane: _Lane, error: HeadraceError) -> None:
        """Everything from the oldest on once more, one after the other, until it is acknowledged or time is over."""
        self._wait_for_rest(lane)
        failures, began = 0, self._clock.monotonic()
        failure: HeadraceError | None = error
        while lane.unanswered:
            if isinstance(failure, MessageTooLargeError):
                self._halve(lane, failure)
            elif failure is not None:
                self._find_leader(lane, failures, began, failure)
                failures += 1
            oldest = lane.unanswered[0]
            oldest.call = self._submit(lane, oldest.records)
            failure = self._outcome(lane, oldest)
            if failure is None:
                self._taken(lane)
                failures, began = 0, self._clock.monotonic()

    def _wait_for_rest(self, lane: _Lane) -> None:
        """No attempt of what is about to be sent again is under way any more."""
        for sent in lane.unanswered:
            if sent.call is not None:
                self._client.wait(sent.call, timeout_ms=3 * self._settings.request_timeout_ms)
                sent.is_doubtful |= sent.call.error is not None or _code(sent.call) not in NEVER_WRITTEN

    def _find_leader(self, lane: _Lane, failures: int, began: float, error: HeadraceError) -> None:
        core = self._client.core
        now, deadline = self._clock.monotonic(), began + self._settings.delivery_timeout_ms / 1000
        try:
            if now < deadline:
                core.add_topic(lane.partition.topic)
                wait_s = core.config.retry_backoff.wait_ms(failures, core.rng) / 1000
                self._client.poll_until(lambda: False, min(now + wait_s, deadline))
                self._client.ensure_metadata(deadline)
                return
        except RequestTimedOutError as silence:
            # What kept the batch from being taken says more than that nothing new was heard since.
            error.__cause__ = silence
        raise RequestTimedOutError(
            f"{lane.partition} took no batch for delivery.timeout.ms={self._settings.delivery_timeout_ms}: {error}"
        ) from error


def _rows(columns: Columns, start: int, end: int) -> Columns:
    """Neighbouring rows, counted from 0 as those of a batch are."""
    return replace(columns.rows(start, end), offsets=columns.offsets[: end - start])


def _code(call: Call) -> int:
    code: int = call.response.responses[0].partition_responses[0].error_code
    return code


def _about(error: KafkaError, partition: TopicPartition) -> KafkaError:
    return type(error)(f"writing to {partition}: {error.message}")


def record_sizes(columns: Columns) -> Any:
    """About how many bytes each row takes in a batch."""
    import numpy as np

    lengths = np.asarray(columns.values.lengths).clip(0).astype(np.int64) + np.asarray(columns.keys.lengths).clip(0)
    if columns.headers is not None:
        lengths += np.asarray(columns.headers.lengths).clip(0)
    return lengths + RECORD_OVERHEAD_BYTES


def cut(sizes: Any, room: int) -> list[tuple[int, int]]:
    """Neighbouring rows that fit into a batch of so many bytes, as (start, end); at least one row each."""
    import numpy as np

    ends = np.cumsum(np.asarray(sizes, np.int64))
    parts: list[tuple[int, int]] = []
    start, before = 0, 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, before + room, side="right")))
        parts.append((start, end))
        before = int(ends[end - 1])
        start = end
    return parts
