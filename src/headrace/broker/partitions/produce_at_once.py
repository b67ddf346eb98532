"""The produce of one small client: the common shape, to a log that takes it without a wait.

Where many clients each send a little, what comes in one turn of the event loop is appended together: one write and one
change of the log for all of them, one wait for the disk or for other replicas where there is one, and then the answers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from headrace.broker.partitions.fetch_at_once import name_of
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.replication.commits import UncommittedError
from headrace.broker.requests.client import Client
from headrace.broker.requests.dispatch import PUT_OFF, PutOff
from headrace.broker.requests.rights import Operation, Resource
from headrace.broker.requests.route import Route
from headrace.broker.view import ClusterView
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
from headrace.log import Appended, Checked, Outcome, RecordsRejectedError, TakesLongError, only
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.records import Codec
from headrace.records.batch import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL_BIT
from headrace.runtime import Buffer

TOPIC_IDS_SINCE_VERSION = 13
ZSTD_SINCE_VERSION = 7
#: So many are appended together at most: about half a millisecond's work.
TOGETHER_MAX = 64
MAGIC_AT, MAGIC = 16, 2
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


#: One client's batch that waits for the end of the turn: who sent it, its route, the correlation id, the topic as it
#: stands in the request, the partition, the batch where it lies in the connection's buffer, and the size of the frame.
_Waiting: TypeAlias = tuple[Client, Route, int, bytes, int, memoryview, int]
#: Those that are appended together, and wait together: they have the partition, acks and the time for that in common.
_Group: TypeAlias = tuple[Partition, int, int]


class TurnAppends:
    """What is put off in the present turn."""

    def __init__(self, cluster: ClusterView, replicas: Replicas) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self._groups: dict[_Group, list[_Waiting]] = {}
        self._count = 0

    def put(self, group: _Group, waiting: _Waiting) -> bool:
        """Append it when the turn ends; False when its connection is read for itself."""
        groups, connection = self._groups, waiting[0]
        together = groups.get(group)
        if together is None:
            if not groups and not connection.at_turn_end(self.finish):
                return False
            groups[group] = [waiting]
        else:
            together.append(waiting)
        connection.put_off_until = self.finish
        self._count += 1
        if self._count >= TOGETHER_MAX:
            self.finish()
        return True

    def finish(self) -> None:
        """Append all that waits, and answer what is not waited for."""
        groups, self._groups, self._count = self._groups, {}, 0
        for (partition, acks, timeout_ms), waiting in groups.items():
            try:
                _append(partition, acks, timeout_ms, waiting)
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost these connections, not the others
                for one in waiting:
                    one[0].fail(error)


def _append(partition: Partition, acks: int, timeout_ms: int, group: Sequence[_Waiting]) -> None:
    now = group[0][0].now
    began = now()
    try:
        # In the same turn it may have been deleted, its disk have failed, or another lead.
        partition.check_writable(acks)
    except KafkaError:
        _answer(group, [None] * len(group), began, 0.0)  # who leads instead is told by those who know
        return
    found = partition.log.check_each([waiting[5] for waiting in group])
    good = [one for one in found if not isinstance(one, Exception)]
    try:
        outcomes = partition.append_all(good, acks, timeout_ms, are_borrowed=True) if good else []
    except KafkaError as error:
        outcomes = [error] * len(good)
    if isinstance(outcomes, list):
        answers = _answers(partition, group, found, outcomes)
        ran = now()
        _answer(group, answers, ran, (ran - began) / len(group))
    else:
        _answer_later(partition, group, found, outcomes, (now() - began) / len(group))


def _answer(group: Sequence[_Waiting], answers: Sequence[bytes | None], ran: float, used_s: float) -> None:
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
    now = group[0][0].now()
    for route, (began, (request_bytes, response_bytes)) in sent.items():
        route.metrics.add_together(request_bytes, response_bytes, began, ran, now)


def _answer_later(
    partition: Partition,
    group: Sequence[_Waiting],
    found: Sequence[Checked | Exception],
    outcomes: asyncio.Future[list[Outcome]],
    used_s: float,
) -> None:
    """They wait for a disk, or for other replicas: meanwhile their connections may send more to other partitions."""
    waiting: list[tuple[_Waiting, Callable[[bytes], None]]] = []
    for one, checked in zip(group, found):
        connection, route, correlation_id, _, _, _, frame_bytes = one
        if isinstance(checked, Exception):
            answers = _answers(partition, (one,), (checked,), ())
            _answer((one,), answers, connection.now(), used_s)
            continue
        answer = connection.wait_put_off(route, correlation_id, frame_bytes, used_s)
        if answer is not None:
            connection.uncommitted[partition.key] = outcomes
            waiting.append((one, answer))
    group[0][0].keep(outcomes)
    outcomes.add_done_callback(functools.partial(_written, partition, group, found, waiting))


def _written(
    partition: Partition,
    group: Sequence[_Waiting],
    found: Sequence[Checked | Exception],
    waiting: Sequence[tuple[_Waiting, Callable[[bytes], None]]],
    done: asyncio.Future[list[Outcome]],
) -> None:
    """What they waited for has come: answer them."""
    failure = None if done.cancelled() else done.exception()
    for one, _ in waiting:
        connection = one[0]
        if connection.uncommitted.get(partition.key) is done:
            del connection.uncommitted[partition.key]
        if done.cancelled():
            connection.abort("a request was given up")
        elif failure is not None and not isinstance(failure, KafkaError):
            connection.fail(failure)  # a defect of ours must cost these connections, not the others
    if done.cancelled() or (failure is not None and not isinstance(failure, KafkaError)):
        return
    outcomes: list[Outcome]
    if isinstance(failure, KafkaError):
        outcomes = [failure] * sum(not isinstance(checked, Exception) for checked in found)
    else:
        outcomes = done.result()
    answers = dict(zip(map(id, group), _answers(partition, group, found, outcomes)))
    for one, tell in waiting:
        answer = answers[id(one)]
        assert answer is not None
        tell(answer)


def _answers(
    partition: Partition,
    group: Sequence[_Waiting],
    found: Sequence[Checked | Exception],
    outcomes: Sequence[Outcome],
) -> list[bytes | None]:
    """`found` is what was said of each batch before it was written, `outcomes` what became of those that were good.

    None: it goes the way of all others, as it takes long to look at, or cannot be.
    """
    answers: list[bytes | None] = []
    left = iter(outcomes)
    for (_, route, correlation_id, topic, index, records, _), checked in zip(group, found):
        outcome = checked if isinstance(checked, Exception) else next(left)
        if isinstance(outcome, UncommittedError):
            response = _refusal(partition, topic, index, records, outcome, route.api_version)
            fill(response.responses[0].partition_responses[0], outcome.appended)
            answers.append(route.encode_refusal(response, correlation_id))
        elif isinstance(outcome, Appended):
            answers.append(route.shape.answer(correlation_id, topic, index, outcome[0], outcome[2], outcome[3]))
        elif isinstance(outcome, KafkaError):
            response = _refusal(partition, topic, index, records, outcome, route.api_version)
            answers.append(route.encode_refusal(response, correlation_id))
        else:
            answers.append(None)
    return answers


def produce_at_once(
    frame: memoryview,
    position: int,
    route: Route,
    correlation_id: int,
    connection: Client,
    may_put_off: bool,
    appends: TurnAppends,
) -> bytes | ProduceResponse | PutOff | None:
    """One client's batch in a request of the common shape, to a log that takes it (or refuses it) without a wait.

    None, with nothing written, for whatever is not as simple.
    """
    found = route.shape.read(frame, position)
    if found is None:
        return None
    topic, acks, timeout_ms, index, records = found
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
    if may_put_off:
        waiting = (connection, route, correlation_id, topic, index, records, len(frame))
        if appends.put((partition, acks, timeout_ms), waiting):
            return PUT_OFF
    if not partition.writes_at_once:
        return None
    try:
        partition.check_writable(acks)
        outcomes = partition.append_all((partition.check(records),), acks)
        assert isinstance(outcomes, list)
        appended = only(outcomes)
    except TakesLongError:
        return None
    except NotLeaderOrFollowerError:
        return None  # who leads instead is told by those who know
    except KafkaError as error:
        return _refusal(partition, topic, index, records, error, version)
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


def fill(result: PartitionProduceResponse, appended: Appended) -> None:
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.append_time_ms
    result.log_start_offset = appended.log_start_offset


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
