"""ListOffsets (key 2): offsets at the ends of a partition, or at a time.

Serves versions 1-11. Special times: -1 latest, -2 earliest, -3 the largest timestamp (from version 7), -4 earliest
local (8), -5 latest tiered (9) and -6 earliest pending upload (11), the last two of which do not exist here and are
answered with -1. A look-up by time reads and unpacks batches, so it runs beside what else takes long.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.broker.partitions.checks import Checks
from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.leadership import Isolation
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics
from headrace.errors import (
    CorruptMessageError,
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
)
from headrace.log import TimeAndOffset
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError, OverloadedError

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID = -1, -2
NOT_AVAILABLE_SINCE_VERSION = 5
_ISOLATION_LEVELS = (0, 1)


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11), requires=(on_topics(Operation.DESCRIBE, "topics.name"),))
async def list_offsets(
    request: ListOffsetsRequest, context: RequestContext, leaders: Leaders, checks: Checks
) -> ListOffsetsResponse:
    if request.isolation_level not in _ISOLATION_LEVELS:
        return _refuse(request)
    response = ListOffsetsResponse()
    answers: dict[str, ListOffsetsTopicResponse] = {}
    mentions = Counter((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)
    for topic in request.topics:
        for part in topic.partitions:
            times = mentions.pop((topic.name, part.partition_index), 0)
            if times == 0:
                continue  # answered already
            result = ListOffsetsPartitionResponse(partition_index=part.partition_index)
            answer = answers.get(topic.name)
            if answer is None:
                answer = answers[topic.name] = ListOffsetsTopicResponse(name=topic.name)
                response.topics.append(answer)
            answer.partitions.append(result)
            if times > 1:
                result.error_code = ErrorCode.INVALID_REQUEST
                continue
            try:
                found = await _find(leaders, checks, context, request, topic.name, part)
            except OffsetNotAvailableError as error:
                too_old = context.api_version < NOT_AVAILABLE_SINCE_VERSION
                result.error_code = ErrorCode.LEADER_NOT_AVAILABLE if too_old else error.code
                continue
            except KafkaError as error:
                result.error_code = error.code
                continue
            if found is not None:
                result.timestamp, result.offset, result.leader_epoch = (
                    found.timestamp_ms,
                    found.offset,
                    found.leader_epoch,
                )
    return response


def _refuse(request: ListOffsetsRequest) -> ListOffsetsResponse:
    """The same error for everything that was asked for."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, error_code=ErrorCode.INVALID_REQUEST
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _find(
    leaders: Leaders,
    checks: Checks,
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    part: ListOffsetsPartition,
) -> TimeAndOffset | None:
    when = part.timestamp
    if when < EARLIEST_PENDING_UPLOAD or context.api_version < _SINCE_VERSION.get(when, 0):
        raise UnsupportedVersionError(f"ListOffsets v{context.api_version} does not know timestamp {when}")
    partition = leaders.partition_here(topic, part.partition_index)
    if request.replica_id == DEBUGGING_REPLICA_ID:
        partition.check_epoch(part.current_leader_epoch)
    else:
        partition.check_leader(part.current_leader_epoch)
    log = partition.log
    end = _end(partition, request)
    is_consumer = request.replica_id == CONSUMER_REPLICA_ID
    if when == LATEST:
        if is_consumer:
            partition.check_settled()
        return TimeAndOffset(-1, end, partition.leader_epoch)
    if when in (EARLIEST, EARLIEST_LOCAL):
        return TimeAndOffset(-1, log.start_offset, log.epochs.epoch_for(log.start_offset))
    if when in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    look_up: Any = log.max_timestamp if when == MAX_TIMESTAMP else lambda: log.find_by_time(when)
    try:
        found: TimeAndOffset | None = await checks.submit(context.connection, None, look_up)
    except (DiskError, OverloadedError) as error:
        raise KafkaStorageError(f"{partition.key}: {error}") from error
    except CorruptBatchError as error:
        raise CorruptMessageError(f"{partition.key}: {error}") from error
    if found is not None and 0 <= found.offset < end:
        return found
    if is_consumer:
        partition.check_settled()  # what was found may be committed, and only this leader does not know yet
    return None if found is None or found.offset >= end else found


def _end(partition: Partition, request: ListOffsetsRequest) -> int:
    """Where the log ends for who asks: replicas see all of it, consumers what is committed as they read it."""
    if request.replica_id != CONSUMER_REPLICA_ID:
        return partition.log.end_offset
    return partition.end_for(Isolation.READ_UNCOMMITTED if request.isolation_level == 0 else Isolation.READ_COMMITTED)
