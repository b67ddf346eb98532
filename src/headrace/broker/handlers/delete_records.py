"""DeleteRecords (key 21): move the start of a partition's log forward.

Serves versions 0-2. -1 stands for the high watermark. A topic that is only compacted refuses (POLICY_VIOLATION), and
so do the broker's own (INVALID_TOPIC_EXCEPTION). Each partition is answered once: its last mention counts. It is
answered when every live replica has deleted the records; with REQUEST_TIMED_OUT, and how far all have come, when that
takes too long.
"""

from __future__ import annotations

import asyncio

from headrace.broker.partitions.leaders import Leaders
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_topics
from headrace.broker.view import ClusterView
from headrace.cluster.topic_names import is_internal
from headrace.errors import (
    InvalidTopicError,
    KafkaError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    RequestTimedOutError,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

UP_TO_HIGH_WATERMARK = -1


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2), requires=(on_topics(Operation.DELETE, "topics.name"),))
async def delete_records(
    request: DeleteRecordsRequest, context: RequestContext, cluster: ClusterView, leaders: Leaders
) -> DeleteRecordsResponse:
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        for part in topic.partitions:
            wanted.setdefault(topic.name, {})[part.partition_index] = part.offset
    response = DeleteRecordsResponse()
    timeout_s = max(0, request.timeout_ms) / 1000
    deletions = []
    for name, offsets in wanted.items():
        answer = DeleteRecordsTopicResult(name=name)
        response.topics.append(answer)
        for index, before in offsets.items():
            result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
            answer.partitions.append(result)
            deletions.append(_answer(cluster, leaders, name, result, before, timeout_s))
    # At the same time, as each may have to wait for other replicas.
    await asyncio.gather(*deletions)
    return response


async def _answer(
    cluster: ClusterView,
    leaders: Leaders,
    topic: str,
    result: DeleteRecordsPartitionResult,
    before: int,
    timeout_s: float,
) -> None:
    try:
        partition = _led_here(cluster, leaders, topic, result.partition_index)
        before = _checked(partition, before)
    except KafkaError as error:
        result.error_code = error.code
        return
    try:
        result.low_watermark = await partition.delete_records(before, timeout_s)
    except RequestTimedOutError as error:
        result.error_code, result.low_watermark = error.code, partition.low_watermark()
    except KafkaError as error:
        result.error_code = error.code


def _led_here(cluster: ClusterView, leaders: Leaders, topic: str, index: int) -> Partition:
    if is_internal(topic) and cluster.image.partition(topic, index) is not None:
        raise InvalidTopicError(f"{topic} is the broker's own: its records cannot be deleted")
    partition = leaders.partition_here(topic, index)
    partition.check_leader()
    return partition


def _checked(partition: Partition, before: int) -> int:
    """The offset before which records are deleted."""
    if not partition.log.config.delete:
        raise PolicyViolationError(
            f"{partition.key}: cleanup.policy has no 'delete', so records cannot be deleted by offset"
        )
    if before == UP_TO_HIGH_WATERMARK:
        before = partition.high_watermark
    if not 0 <= before <= partition.high_watermark:
        raise OffsetOutOfRangeError(
            f"{partition.key}: {before} is not within 0 and the high watermark {partition.high_watermark}"
        )
    return before
