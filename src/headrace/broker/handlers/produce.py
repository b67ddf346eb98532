"""Produce (key 0): append batches to partitions.

Serves versions 3-13 and advertises 0-13: librdkafka before 2.12 turns compression off when it does not see version 0. A
request of version 0-2 closes the connection, as Apache Kafka does. zstd is refused before version 7. Topics are named
by id from version 13 on. What is transactional needs a transactional id in the request.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from dataclasses import dataclass

from headrace.broker.coordinators.transaction_service import TransactionService
from headrace.broker.partitions.checks import Checks
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.produce_at_once import (
    NO_LEADER,
    ZSTD_SINCE_VERSION,
    TooNewCodecError,
    fill,
    fill_error,
    is_one_batch,
    produce_at_once,
)
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.replication.commits import CommitWait, UncommittedError
from headrace.broker.requests.dispatch import (
    NO_RESPONSE,
    CloseConnectionError,
    NoResponse,
    Pending,
    RequestContext,
    handles,
    settled,
)
from headrace.broker.requests.rights import Operation, on_topics, on_transactional_ids
from headrace.broker.view import ClusterView
from headrace.cluster.topic_names import INTERNAL_TOPICS
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from headrace.log import Checked, Outcome, TakesLongError, Verification, only
from headrace.net.frames import CHUNK_BYTES
from headrace.protocol.api import ApiKey
from headrace.protocol.common_shapes import small_produce
from headrace.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.records import Batch, BatchHeader, Codec
from headrace.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
)
from headrace.runtime import Buffer, OverloadedError
from headrace.topics import TopicPartition
from headrace.transactions import PRODUCE_ADDS_VERSION, QUESTIONS_MAX, produce_error

VALID_ACKS = (-1, 0, 1)
LEADER_SINCE_VERSION = 10

# What the coordinator said about the first batch of a transaction: the guard to write it with, or why it is refused.
_Verified = Verification | ErrorCode
# What is said beside the error of a batch that may not be written, as Kafka does.
_NOT_JOINED = {ErrorCode.INVALID_TXN_STATE: "Partition was not added to the transaction"}
_Pending = tuple[Partition, PartitionProduceResponse, Awaitable[list[Outcome]]]
_Outcomes = asyncio.Future[list[Outcome]]
_Answer = ProduceResponse | NoResponse
_Result = _Answer | Pending[_Answer]


@dataclass(frozen=True, slots=True)
class ProduceRooms:
    """Where produced batches go."""

    cluster: ClusterView
    replicas: Replicas
    leaders: Leaders
    checks: Checks
    transactions: TransactionService


@handles(
    ApiKey.PRODUCE,
    versions=(3, 13),
    advertised_from=0,
    requires=(
        on_transactional_ids(Operation.WRITE, "transactional_id"),
        on_topics(Operation.WRITE, "topic_data.name", "topic_data.topic_id"),
    ),
    at_once=produce_at_once,
    shape=small_produce,
)
def produce(request: ProduceRequest, context: RequestContext, rooms: ProduceRooms) -> _Result:
    if context.connection.uncommitted:
        earlier = _earlier(rooms, context, request)
        if earlier:
            return Pending(_append_after(rooms, context, request, earlier))
    if request.transactional_id is not None:
        unverified = _unverified(rooms, context, request)
        if unverified:
            return Pending(_join_then_append(rooms, context, request, unverified))
    return _append_all(rooms, context, request, {})


def _earlier(rooms: ProduceRooms, context: RequestContext, request: ProduceRequest) -> list[_Outcomes]:
    """What this connection wrote to the same partitions and is not answered yet.

    Of a producer with an id only the last batch is known for certain after a restart, so only one may be unanswered:
    were there two, the first of them would not be taken for a duplicate when it is sent again.
    """
    uncommitted = context.connection.uncommitted
    found = []
    for topic in request.topic_data:
        name, _ = _topic_name(rooms, context, topic.name, topic.topic_id)
        for data in topic.partition_data:
            wait = uncommitted.get(TopicPartition(name, data.index))
            if wait is not None and not wait.done() and _has_producer(data.records):
                found.append(wait)
    return found


def _has_producer(records: Buffer | None) -> bool:
    return records is None or not is_one_batch(records) or Batch(records).header().producer_id >= 0


async def _append_after(
    rooms: ProduceRooms, context: RequestContext, request: ProduceRequest, earlier: list[_Outcomes]
) -> _Answer:
    await asyncio.wait(earlier)
    return await settled(produce(request, context, rooms))


def _append_all(
    rooms: ProduceRooms, context: RequestContext, request: ProduceRequest, verified: dict[TopicPartition, _Verified]
) -> _Result:
    """Append every batch; answer at once unless a disk or a replica has to be waited for."""
    if _is_refused_whole(request):
        return _respond(request.acks, _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), True)
    response = ProduceResponse()
    pending: list[_Pending] = []
    behind: dict[int, int] = {}
    for topic_data in _each_once(request.topic_data):
        answer = TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id)
        response.responses.append(answer)
        name, topic_error = _topic_name(rooms, context, topic_data.name, topic_data.topic_id)
        answer.name = name or answer.name
        for data in topic_data.partition_data:
            result = PartitionProduceResponse(index=data.index, base_offset=-1, current_leader=NO_LEADER)
            answer.partition_responses.append(result)
            if topic_error:
                result.error_code = topic_error
            else:
                guard = verified.get(TopicPartition(name, data.index)) if verified else None
                _append_one(rooms, context, request, name, data, result, pending, guard)
            if result.error_code:
                behind[id(result)] = _place(result, data.records)
    if behind:
        response.responses = _in_order(response.responses, behind)
    if pending:
        # In the log, and waiting for other replicas: what comes next on this connection need not wait for that.
        is_done = all(isinstance(one, CommitWait) for _, _, one in pending)
        for partition, _, wait in pending if is_done else ():
            assert isinstance(wait, CommitWait)
            context.connection.uncommitted[partition.key] = wait
        return Pending(_finish(rooms, context, request.acks, response, pending), is_done=is_done)
    if behind:
        _tell_addresses(rooms, context, response)
    return _respond(request.acks, response, failed=bool(behind))


def _each_once(topics: list[TopicProduceData]) -> list[TopicProduceData]:
    """Each partition once: its last mention counts, unless an earlier one has records that are no batch."""
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return topics
    if all(map(_has_no_repetition, topics)) and (
        len(topics) < 2 or len({(topic.name, topic.topic_id) for topic in topics}) == len(topics)
    ):
        return topics
    merged: dict[tuple[str, bytes], dict[int, PartitionProduceData]] = {}
    for topic in topics:
        for data in topic.partition_data:
            parts = merged.setdefault((topic.name, topic.topic_id), {})
            earlier = parts.get(data.index)
            if earlier is None or earlier.records is None or is_one_batch(earlier.records):
                parts[data.index] = data
    return [
        TopicProduceData(name=name, topic_id=topic_id, partition_data=list(parts.values()))
        for (name, topic_id), parts in merged.items()
    ]


def _has_no_repetition(topic: TopicProduceData) -> bool:
    parts = topic.partition_data
    return len(parts) == 1 or (len(parts) > 1 and len({data.index for data in parts}) == len(parts))


def _place(result: PartitionProduceResponse, records: Buffer | None) -> int:
    """Where Kafka answers about a refusal: behind what came to a log are unknown partitions, then what is no batch."""
    if result.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        return 1
    return 0 if is_one_batch(records) and result.error_code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE else 2


def _in_order(topics: list[TopicProduceResponse], behind: dict[int, int]) -> list[TopicProduceResponse]:
    ordered: dict[tuple[str, bytes], TopicProduceResponse] = {}
    for place in range(3):
        for topic in topics:
            here = [result for result in topic.partition_responses if behind.get(id(result), 0) == place]
            if here:
                answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
                ordered.setdefault((topic.name, topic.topic_id), answer).partition_responses += here
    return list(ordered.values())


def _topic_name(rooms: ProduceRooms, context: RequestContext, name: str, topic_id: bytes) -> tuple[str, int]:
    if context.api_version < 13:
        return name, 0
    found = rooms.cluster.topic_name(topic_id)
    if found is None:
        return "", ErrorCode.UNKNOWN_TOPIC_ID
    return found, 0


def _append_one(
    rooms: ProduceRooms,
    context: RequestContext,
    request: ProduceRequest,
    topic: str,
    data: PartitionProduceData,
    result: PartitionProduceResponse,
    pending: list[_Pending],
    verified: _Verified | None,
) -> None:
    partition, records = None, data.records
    try:
        partition = rooms.replicas.get(topic, data.index)
        _check_allowed(context, request.acks, topic, records)
        if isinstance(verified, ErrorCode):
            result.error_code, result.error_message = verified, _NOT_JOINED.get(verified)
            return
        if partition.turns.held is None:
            partition.check_writable(request.acks)
        try:
            checked = partition.check(records or b"", verification=verified)
        except TakesLongError:
            count = Batch(records or b"").header().count
            check = functools.partial(partition.check, verification=verified, short=False)
            checking = rooms.checks.submit(context.connection, count, check, records or b"")
            pending.append((partition, result, _append_checked(partition, request, checking)))
            return
        # A small one is copied where its disk is busy, so that others may follow it on this connection.
        is_small = len(checked.view) <= CHUNK_BYTES
        outcomes = partition.append_all((checked,), request.acks, request.timeout_ms, are_borrowed=is_small)
        if isinstance(outcomes, list):
            fill(result, only(outcomes))
        else:
            pending.append((partition, result, outcomes))
    except HeadraceError as error:
        if isinstance(error, UnknownTopicOrPartitionError):
            error = rooms.leaders.not_here(topic, data.index, error)
        fill_error(result, error, partition if is_one_batch(records) else None)
        if isinstance(error, NotLeaderOrFollowerError):
            _tell_leader(rooms, topic, result)


async def _append_checked(partition: Partition, request: ProduceRequest, checking: Awaitable[Checked]) -> list[Outcome]:
    """Append a batch that is being looked into on another thread."""
    try:
        checked = await checking
    except OverloadedError as error:
        raise KafkaStorageError(f"{partition.key}: {error}") from error
    outcomes = partition.append_all((checked,), request.acks, request.timeout_ms)
    return outcomes if isinstance(outcomes, list) else await outcomes


def _unverified(
    rooms: ProduceRooms, context: RequestContext, request: ProduceRequest
) -> dict[TopicPartition, tuple[BatchHeader, Verification]]:
    """The partitions that this would be the first batch of its transaction to, each with its guard."""
    found: dict[TopicPartition, tuple[BatchHeader, Verification]] = {}
    for topic in request.topic_data:
        name, error = _topic_name(rooms, context, topic.name, topic.topic_id)
        for data in topic.partition_data:
            partition = rooms.replicas.partitions.get((name, data.index))
            if error or partition is None or data.records is None or not is_one_batch(data.records):
                continue
            header = Batch(data.records).header()
            if not header.is_transactional or header.is_control:
                continue
            guard = partition.log.start_verification(
                header.producer_id,
                header.base_sequence,
                header.producer_epoch,
                from_zero=context.api_version >= PRODUCE_ADDS_VERSION,
            )
            if guard is not None:
                found[partition.key] = (header, guard)
    return found


async def _join_then_append(
    rooms: ProduceRooms,
    context: RequestContext,
    request: ProduceRequest,
    unverified: dict[TopicPartition, tuple[BatchHeader, Verification]],
) -> _Answer:
    """Ask the coordinator first: nothing is written to a partition that is not part of the open transaction.

    The end of the transaction before may have come to a partition meanwhile (the coordinator has to tell it again when
    leaders change), and the guard went with it. Whether the answer is from before or after that nobody can tell, so it
    is asked again.
    """
    verified: dict[TopicPartition, _Verified] = {}
    for _ in range(QUESTIONS_MAX):
        verified |= await _join(rooms, context, request, unverified)
        outdated = [key for key, found in verified.items() if _is_outdated(rooms, key, found)]
        if not outdated:
            break
        for key in outdated:
            # Without a guard a batch may go on with what another batch has begun.
            del verified[key]
        anew = _unverified(rooms, context, request)
        unverified = {key: anew[key] for key in outdated if key in anew}
    return await settled(_append_all(rooms, context, request, verified))


def _is_outdated(rooms: ProduceRooms, key: TopicPartition, verified: _Verified) -> bool:
    partition = rooms.replicas.partitions.get(key)
    return isinstance(verified, Verification) and partition is not None and not partition.log.is_verifying(verified)


async def _join(
    rooms: ProduceRooms,
    context: RequestContext,
    request: ProduceRequest,
    unverified: dict[TopicPartition, tuple[BatchHeader, Verification]],
) -> dict[TopicPartition, _Verified]:
    adds = context.api_version >= PRODUCE_ADDS_VERSION
    producers = {(header.producer_id, header.producer_epoch) for header, _ in unverified.values()}
    if len(producers) > 1:
        # A transactional id has one producer at a time, so what is asked about one says nothing about the other.
        return dict.fromkeys(unverified, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    verified: dict[TopicPartition, _Verified] = {}
    for producer_id, epoch in producers:
        assert request.transactional_id is not None
        errors = await rooms.transactions.join(
            request.transactional_id, producer_id, epoch, list(unverified), adds=adds
        )
        for key, (_, guard) in unverified.items():
            error = produce_error(errors[key], context.api_version)
            verified[key] = error if error else guard
    return verified


def _is_refused_whole(request: ProduceRequest) -> bool:
    """Whether nothing of a request is taken: it has transactional records, but no transactional id."""
    if request.transactional_id is None:
        for topic in request.topic_data:
            for data in topic.partition_data:
                if _attributes(data.records) & TRANSACTIONAL_BIT:
                    return True
    return False


def _refuse(request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, base_offset=-1, error_code=error)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _attributes(records: Buffer | None) -> int:
    """The attributes of the first batch (their lower byte, which has all that counts here), 0 when there is none."""
    return 0 if records is None or len(records) < HEADER_BYTES else records[ATTRIBUTES_AT + 1]


def _check_allowed(context: RequestContext, acks: int, topic: str, records: Buffer | None) -> None:
    """What only the request or its sender can forbid; the rest is for the log to check."""
    if _attributes(records) & CODEC_MASK >= Codec.ZSTD and context.api_version < ZSTD_SINCE_VERSION:
        raise TooNewCodecError(f"zstd needs Produce version {ZSTD_SINCE_VERSION} or later")
    forbidden: KafkaError | None = None
    if acks not in VALID_ACKS:
        forbidden = InvalidRequiredAcksError(f"acks={acks}; it has to be -1, 0 or 1")
    elif topic in INTERNAL_TOPICS:
        forbidden = InvalidTopicError(f"{topic} is the broker's own: clients cannot write to it")
    if forbidden is not None:
        raise forbidden if is_one_batch(records) else InvalidRecordError(f"{topic}: not exactly one batch")


def _tell_leader(rooms: ProduceRooms, topic: str, result: PartitionProduceResponse) -> None:
    """Whom to send it to instead; from version 10 on it travels."""
    known = rooms.leaders.leader_and_epoch(topic, result.index)
    if known is not None:
        result.current_leader = LeaderIdAndEpoch(leader_id=known[0], leader_epoch=known[1])


def _tell_addresses(rooms: ProduceRooms, context: RequestContext, response: ProduceResponse) -> None:
    if context.api_version < LEADER_SINCE_VERSION:
        return
    told = {
        result.current_leader.leader_id
        for topic in response.responses
        for result in topic.partition_responses
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    }
    response.node_endpoints = [
        NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in rooms.leaders.addresses(context.listener, told)
    ]


async def _finish(
    rooms: ProduceRooms,
    context: RequestContext,
    acks: int,
    response: ProduceResponse,
    pending: list[_Pending],
) -> _Answer:
    """Wait for what has to be waited for. Of the request nothing is kept: it has all the records in it."""
    for partition, result, awaitable in pending:
        try:
            fill(result, only(await awaitable))
        except HeadraceError as error:
            fill_error(result, error, partition)
            if isinstance(error, NotLeaderOrFollowerError):
                _tell_leader(rooms, partition.key.topic, result)
            elif isinstance(error, UncommittedError):
                fill(result, error.appended)
        if context.connection.uncommitted.get(partition.key) is awaitable:
            del context.connection.uncommitted[partition.key]
    failed = any(result.error_code for topic in response.responses for result in topic.partition_responses)
    if failed:
        _tell_addresses(rooms, context, response)
    return _respond(acks, response, failed)


def _respond(acks: int, response: ProduceResponse, failed: bool) -> _Answer:
    if acks != 0:
        return response
    if failed:
        # Without an answer, closing is the only way to tell the client that its records were not taken.
        raise CloseConnectionError("a produce with acks=0 failed")
    return NO_RESPONSE
