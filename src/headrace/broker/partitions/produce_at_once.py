"""The produce of one small client: the common shape, to a log that takes it without a wait.

Where many clients each send a little, what comes in one turn of the event loop is appended together: one write and one
change of the log for all of them, and then the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.broker.partitions.fetch_at_once import name_of
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.dispatch import PUT_OFF, PutOff
from headrace.broker.requests.rights import Operation, Resource
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
from headrace.log import (
    Appended,
    Checked,
    PlainFields,
    RecordsRejectedError,
    newest_without_producers,
    plain_checked,
    plain_fields,
)
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.records import Codec
from headrace.records.batch import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL_BIT
from headrace.runtime import BUSY, Buffer, DiskError

if TYPE_CHECKING:
    from headrace.broker.partitions.replicas import Replicas
    from headrace.broker.requests.pipeline import Route
    from headrace.broker.server.connection import ServerConnection
    from headrace.broker.view import ClusterView

TOPIC_IDS_SINCE_VERSION = 13
ZSTD_SINCE_VERSION = 7
#: So many are appended together at most: about half a millisecond's work.
TOGETHER_MAX = 64
MAGIC_AT, MAGIC = 16, 2
NO_TOPIC_ID = bytes(16)
NO_APPEND_TIME = -1
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


#: One client's batch that waits for the end of the turn: who sent it, its route, the correlation id, the topic as it
#: stands in the request, the partition, the batch where it lies in the connection's buffer, and the size of the frame.
_Waiting: TypeAlias = "tuple[ServerConnection, Route, int, bytes, int, memoryview, int]"


class TurnAppends:
    """What is put off in the present turn, by partition."""

    def __init__(self, now_ms: Callable[[], int], cluster: ClusterView, replicas: Replicas) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self._now_ms = now_ms
        self._groups: dict[Partition, list[_Waiting]] = {}
        self._count = 0

    def put(self, partition: Partition, waiting: _Waiting) -> bool:
        """Append it when the turn ends; False when no other connection is read in it."""
        groups, connection = self._groups, waiting[0]
        group = groups.get(partition)
        if group is None:
            if not groups and not connection.at_turn_end(self.finish):
                return False
            groups[partition] = [waiting]
        else:
            group.append(waiting)
        connection.put_off_until = self.finish
        self._count += 1
        if self._count >= TOGETHER_MAX:
            self.finish()
        return True

    def finish(self) -> None:
        """Append all that waits, and answer."""
        groups, self._groups, self._count = self._groups, {}, 0
        for partition, group in groups.items():
            now = group[0][0].acceptor.now
            turn_began = now()
            try:
                answers = _append_and_answer(partition, group, self._now_ms())
                ran = now()
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost these connections, not the others
                for waiting in group:
                    waiting[0].fail(error)
                continue
            _send(group, answers, ran, (ran - turn_began) / len(group))


def _send(group: Sequence[_Waiting], answers: Sequence[bytes | None], ran: float, used_s: float) -> None:
    """Send the answers, and count what was answered, for each API version together; each has `used_s`."""
    sent: dict[Route, tuple[list[float], list[int]]] = {}
    for (connection, route, _, _, _, _, frame_bytes), answer in zip(group, answers):
        if connection.answer_put_off(route, answer, frame_bytes, ran, used_s):
            assert answer is not None
            counted = sent.get(route)
            if counted is None:
                counted = sent[route] = ([], [0, 0])
            counted[0].append(connection.frame_began)
            counted[1][0] += frame_bytes
            counted[1][1] += len(answer)
    now = group[0][0].acceptor.now()
    for route, (began, (request_bytes, response_bytes)) in sent.items():
        route.metrics.add_together(request_bytes, response_bytes, began, ran, now)


def _append_and_answer(partition: Partition, group: Sequence[_Waiting], now_ms: int) -> list[bytes | None]:
    """None: it goes the way of all others."""
    if not partition.takes_at_once(-1):  # in the same turn it may have been deleted, or its disk have failed
        return [None] * len(group)
    batches = [waiting[5] for waiting in group]
    found = look_at(partition, batches, now_ms)
    first = append_plain(partition, batches, found)
    if first is None:
        return _answers(partition, group, append_together(partition, batches, found))
    if isinstance(first, KafkaError):
        return _answers(partition, group, [first] * len(group))
    log_start = partition.log.view.start_offset
    return [
        route.shape.answer(correlation_id, topic, index, offset, NO_APPEND_TIME, log_start)
        for offset, (_, route, correlation_id, topic, index, _, _) in enumerate(group, first)
    ]


def look_at(partition: Partition, batches: Sequence[memoryview], now_ms: int) -> list[PlainFields | None]:
    """Of each batch what `plain_fields` says of it; None where that cannot be asked, or it is something else."""
    config = partition.log.config
    if not config.takes_as_is:
        return [None] * len(batches)
    return [plain_fields(records, config, now_ms) for records in batches]


def append_plain(
    partition: Partition, batches: Sequence[memoryview], found: Sequence[PlainFields | None]
) -> int | KafkaError | None:
    """As `append_together`, where all are plain records without a producer's id: the offset of the first, which the
    others follow. An error: all are refused. None, having done nothing: they are not like that, or do not fit."""
    newest_ms = newest_without_producers(found)
    if newest_ms is None:
        return None
    log, epoch = partition.log, partition.leadership.leader_epoch
    try:
        first = partition.writer.try_inline(log.append_plain, batches, newest_ms, epoch)
    except DiskError as error:
        return partition.failed(error)
    except KafkaError as error:
        return error
    assert first is not BUSY, "whoever calls this has looked"
    if first is not None:
        last_offset = first + len(batches) - 1
        appended = Appended(last_offset, last_offset, NO_APPEND_TIME, log.view.start_offset)
        partition.committed_alone(appended, sum(map(len, batches)))
    return first


def append_together(
    partition: Partition, batches: Sequence[memoryview], found: Sequence[PlainFields | None]
) -> list[Appended | KafkaError | None]:
    """As `Partition.append_at_once`, of a batch each of several clients, where it `takes_at_once`; for each its fate.

    `found` is what `look_at` has said of them. None: nothing was done, because it takes long to look at, or cannot be.
    An error: it is refused.
    """
    log = partition.log
    outcomes: list[Appended | KafkaError | None] = []
    places: list[int] = []
    good: list[Checked] = []
    for place, (records, fields) in enumerate(zip(batches, found)):
        outcome = None
        try:
            good.append(log.check(records, short=True) if fields is None else plain_checked(records, fields))
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


def _answers(
    partition: Partition, group: Sequence[_Waiting], outcomes: Sequence[Appended | KafkaError | None]
) -> list[bytes | None]:
    """None: it goes the way of all others."""
    answers: list[bytes | None] = []
    for (_, route, correlation_id, topic, index, records, _), outcome in zip(group, outcomes):
        if isinstance(outcome, Appended):
            answers.append(route.shape.answer(correlation_id, topic, index, outcome[0], outcome[2], outcome[3]))
        elif outcome is None:
            answers.append(None)
        else:
            response = _refusal(partition, topic, index, records, outcome, route.api_version)
            answers.append(route.encode_refusal(response, correlation_id))
    return answers


def produce_at_once(
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    connection: ServerConnection,
    may_put_off: bool,
    appends: TurnAppends,
) -> bytes | ProduceResponse | PutOff | None:
    """One client's batch in a request of the common shape, to a log that takes it (or refuses it) without a wait.

    None, with nothing written, for whatever is not as simple.
    """
    found = route.shape.read(frame, position)
    if found is None:
        return None
    topic, acks, _, index, records = found
    if (acks != -1 and acks != 1) or len(records) < HEADER_BYTES:
        return None
    version = route.api_version
    attributes = records[ATTRIBUTES_AT + 1]
    if attributes & TRANSACTIONAL_BIT or (version < ZSTD_SINCE_VERSION and attributes & CODEC_MASK >= Codec.ZSTD):
        return None
    name = name_of(appends.cluster, topic, route)
    partition = appends.replicas.partitions.get((name, index))
    rights = connection.rights
    if partition is None or name in INTERNAL_TOPICS or rights is None:
        return None
    if not rights.may(Operation.WRITE, Resource.TOPIC, name):
        return None
    if (
        may_put_off
        and partition.state is None
        and appends.put(partition, (connection, route, correlation_id, topic, index, records, len(frame)))
    ):
        return PUT_OFF
    try:
        appended = partition.append_at_once(records, acks)
    except KafkaError as error:
        return _refusal(partition, topic, index, records, error, version)
    if appended is None:
        return None
    answer: bytes = route.shape.answer(correlation_id, topic, index, appended[0], appended[2], appended[3])
    return answer


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
