"""The produce of one small client: the common shape, to a log that takes it without a wait.

Where many clients each send a little, what comes in one turn of the event loop is appended together: one write and one
change of the log for all of them, and then the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.dispatch import PUT_OFF, PutOff
from headrace.broker.fetch_at_once import name_of
from headrace.broker.partition import Partition
from headrace.cluster.topic_names import INTERNAL_TOPICS
from headrace.errors import (
    CorruptMessageError,
    HeadraceError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    MessageTooLargeError,
    NotLeaderOrFollowerError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from headrace.log import Appended, Checked, RecordsRejectedError
from headrace.protocol.common_shapes import (
    PRODUCE_SINCE_VERSION,
    TOPIC_IDS_SINCE_VERSION,
    read_small_produce,
    small_produce_answer,
)
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.records.batch import ATTRIBUTES_AT, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL_BIT
from headrace.runtime import BUSY, Buffer, DiskError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.connection import ServerConnection
    from headrace.broker.pipeline import Route

#: So many are appended together at most: about half a millisecond's work.
TOGETHER_MAX = 64
MAGIC_AT, MAGIC = 16, 2
_new_tuple = tuple.__new__
NO_TOPIC_ID = bytes(16)
# What is told where there is no other leader to tell. It is never changed, so that all answers can share it.
NO_LEADER = LeaderIdAndEpoch()


class TooNewCodecError(UnsupportedCompressionTypeError):
    """A codec that the version of the request does not have."""


# Refusals that say nothing about the log; all others tell where it starts, as Kafka does.
_WITHOUT_LOG_START = (
    UnknownTopicOrPartitionError,
    NotLeaderOrFollowerError,
    MessageTooLargeError,
    RecordListTooLargeError,
    CorruptMessageError,
    KafkaStorageError,
    InvalidTopicError,
    InvalidRequiredAcksError,
    TooNewCodecError,
)


class _Waiting(NamedTuple):
    """One client's batch that waits for the end of the turn. `topic` is as it stood in the request."""

    connection: ServerConnection
    route: Route
    correlation_id: int
    topic: bytes
    partition: int
    records: memoryview
    frame_bytes: int


class TurnAppends:
    """What is put off in the present turn, by partition."""

    def __init__(self) -> None:
        self._groups: dict[Partition, list[_Waiting]] = {}
        self._count = 0

    def put(self, partition: Partition, waiting: _Waiting) -> bool:
        """False, having done nothing, when no other connection is read in this turn."""
        group = self._groups.get(partition)
        if group is not None:
            group.append(waiting)
        elif self._groups or waiting.connection.at_turn_end(self.finish):
            self._groups[partition] = [waiting]
        else:
            return False
        waiting.connection.is_put_off = True
        self._count += 1
        if self._count >= TOGETHER_MAX:
            self.finish()
        return True

    def finish(self) -> None:
        """Append all that waits, and answer."""
        groups, self._groups, self._count = self._groups, {}, 0
        for partition, group in groups.items():
            try:
                outcomes: Sequence[Appended | KafkaError | None] = [None] * len(group)
                if partition.takes_at_once(-1):  # in the same turn it may have been deleted, or its disk have failed
                    outcomes = append_together(partition, [waiting[5] for waiting in group])
                answers = [_answer(partition, *both) for both in zip(group, outcomes)]
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost these connections, not the others
                for waiting in group:
                    waiting.connection.fail(error)
                continue
            now = group[0].connection.acceptor.now()
            for waiting, answer in zip(group, answers):
                waiting[0].answer_put_off(waiting[1], answer, waiting[6], now)


def append_together(partition: Partition, batches: Sequence[Buffer]) -> list[Appended | KafkaError | None]:
    """As `Partition.append_at_once`, of a batch each of several clients, where it `takes_at_once`; for each its fate.

    None: nothing was done, because it takes long to look at, or cannot be. An error: it is refused.
    """
    log = partition.log
    outcomes: list[Appended | KafkaError | None] = []
    places: list[int] = []
    good: list[Checked] = []
    for place, records in enumerate(batches):
        outcome = None
        try:
            good.append(log.check(records, short=True))
            places.append(place)
        except KafkaError as error:
            outcome = error
        except Exception:  # noqa: BLE001 - it takes long; or a defect, which there costs its own connection alone
            pass
        outcomes.append(outcome)
    appended = partition.writer.try_inline(log.append_together, good, partition.leadership.leader_epoch)
    assert appended is not BUSY, "whoever calls this has looked"
    last: Appended | None = None
    nbytes, rolled = 0, False
    for place, one in zip(places, appended):
        if not isinstance(one, Appended):
            outcomes[place] = partition.failed(one) if isinstance(one, DiskError) else one
            continue
        outcomes[place] = one
        if not one.duplicate:
            last = one
            nbytes += len(batches[place])
            rolled = rolled or one.rolled
    if last is not None:
        partition.committed_alone(last._replace(rolled=True) if rolled else last, nbytes)
    return outcomes


def _answer(partition: Partition, waiting: _Waiting, outcome: Appended | KafkaError | None) -> bytes | None:
    """None: it goes the way of all others."""
    if outcome is None:
        return None
    _, route, correlation_id, topic, index, records, _ = waiting
    if isinstance(outcome, KafkaError):
        response = _refusal(partition, topic, index, records, outcome, route.api_version)
        return route.encode_refusal(response, correlation_id)
    return small_produce_answer(correlation_id, topic, index, outcome[0], outcome[2], outcome[3])


def produce_at_once(
    broker: Broker,
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    connection: ServerConnection | None,
) -> bytes | ProduceResponse | PutOff | None:
    """One client's batch in a request of the common shape, to a log that takes it (or refuses it) without a wait.

    None, with nothing written, for whatever is not as simple. With a connection it may be put off.
    """
    version = route.api_version
    if version < PRODUCE_SINCE_VERSION:
        return None
    found = read_small_produce(frame, position, version)
    if found is None:
        return None
    topic, acks, index, records = found
    if (acks != -1 and acks != 1) or len(records) < HEADER_BYTES or records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_BIT:
        return None
    name = name_of(broker, topic, version)
    partition = broker.replicas.partitions.get((name, index))
    if partition is None or name in INTERNAL_TOPICS:
        return None
    if connection is not None and partition.state is None:
        waiting = _new_tuple(_Waiting, (connection, route, correlation_id, topic, index, records, len(frame)))
        if broker.turn_appends.put(partition, waiting):
            return PUT_OFF
    try:
        appended = partition.append_at_once(records, acks)
    except KafkaError as error:
        return _refusal(partition, topic, index, records, error, version)
    if appended is None:
        return None
    return small_produce_answer(correlation_id, topic, index, appended[0], appended[2], appended[3])


def _refusal(
    partition: Partition, topic: bytes, index: int, records: Buffer, error: KafkaError, version: int
) -> ProduceResponse:
    result = PartitionProduceResponse(index=index, base_offset=-1, current_leader=NO_LEADER)
    fill_error(result, error, partition if is_one_batch(records) else None)
    topic_id = NO_TOPIC_ID if version < TOPIC_IDS_SINCE_VERSION else topic
    refused = TopicProduceResponse(name=partition.key.topic, topic_id=topic_id, partition_responses=[result])
    return ProduceResponse(responses=[refused])


def is_one_batch(records: Buffer | None) -> bool:
    """Whether these bytes are one batch of today's format, whatever is wrong inside it."""
    if records is None or len(records) < HEADER_BYTES or records[MAGIC_AT] != MAGIC:
        return False
    return int.from_bytes(records[8:12], "big") + PREFIX_BYTES == len(records)


def fill_error(result: PartitionProduceResponse, error: HeadraceError, partition: Partition | None) -> None:
    if not isinstance(error, KafkaError):
        raise error
    if partition is not None and not isinstance(error, _WITHOUT_LOG_START):
        result.log_start_offset = partition.log.start_offset
    result.error_code = error.code
    # Of a partition that is not here the code says it all; whom to ask instead has a place of its own.
    is_elsewhere = isinstance(error, (NotLeaderOrFollowerError, UnknownTopicOrPartitionError))
    result.error_message = None if is_elsewhere else error.message or None
    if isinstance(error, RecordsRejectedError):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
