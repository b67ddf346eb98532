"""DescribeShareGroupOffsets (key 90): where share groups have got to in partitions.

Serves versions 0-1. 1 adds the lag. Without topics, all partitions are told of which the group has a state. What does
not exist has no offset, which is no error.
"""

from __future__ import annotations

from headrace.broker.coordinators.group_service import GroupService
from headrace.broker.requests.dispatch import RequestContext, handles
from headrace.broker.requests.rights import Operation, on_groups, on_topics
from headrace.broker.share_groups.offsets import NO_LAG, ShareOffset, ShareOffsets
from headrace.broker.share_groups.service import ShareGroupService
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode
from headrace.groups.share.state_records import NO_OFFSET
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

_NOTHING = ShareOffset(NO_OFFSET, 0, NO_LAG, ErrorCode.NONE)


@handles(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    versions=(0, 1),
    requires=(
        on_groups(Operation.DESCRIBE, "groups.group_id"),
        on_topics(Operation.DESCRIBE, "groups.topics.topic_name", conditional=True),
    ),
)
async def describe_share_group_offsets(
    request: DescribeShareGroupOffsetsRequest,
    context: RequestContext,
    groups: GroupService,
    shares: ShareGroupService,
    offsets: ShareOffsets,
    cluster: ClusterView,
) -> DescribeShareGroupOffsetsResponse:
    response = DescribeShareGroupOffsetsResponse()
    for group in request.groups:
        answer = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, topics=[])
        response.groups.append(answer)
        if not shares.is_enabled:
            answer.error_code = ErrorCode.UNSUPPORTED_VERSION
            continue
        topics = _all_of(groups, cluster, group.group_id) if group.topics is None else group.topics
        wanted = _existing(cluster, topics)
        found = await offsets.describe(group.group_id, wanted) if wanted else {}
        answer.topics = [_topic(cluster, topic, found) for topic in topics]
    return response


def _all_of(groups: GroupService, cluster: ClusterView, group_id: str) -> list[DescribeShareGroupOffsetsRequestTopic]:
    topics: dict[str, DescribeShareGroupOffsetsRequestTopic] = {}
    for topic_id, partition in groups.coordinator.share.state_partitions(group_id):
        name = cluster.topic_name(topic_id)
        if name is not None:
            if name not in topics:
                topics[name] = DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[])
            topics[name].partitions.append(partition)
    return list(topics.values())


def _existing(cluster: ClusterView, topics: list[DescribeShareGroupOffsetsRequestTopic]) -> list[tuple[bytes, int]]:
    found = []
    for topic in topics:
        topic_id, count = cluster.topic_id(topic.topic_name), cluster.partition_count(topic.topic_name)
        if topic_id is not None and count is not None:
            found += [(topic_id, index) for index in topic.partitions if 0 <= index < count]
    return found


def _topic(
    cluster: ClusterView,
    topic: DescribeShareGroupOffsetsRequestTopic,
    found: dict[tuple[bytes, int], ShareOffset],
) -> DescribeShareGroupOffsetsResponseTopic:
    topic_id = cluster.topic_id(topic.topic_name)
    answer = DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=[])
    if topic_id is not None:
        answer.topic_id = topic_id
    for index in topic.partitions:
        start_offset, leader_epoch, lag, error = found.get((topic_id or b"", index), _NOTHING)
        answer.partitions.append(
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=start_offset,
                leader_epoch=leader_epoch,
                lag=lag,
                error_code=error,
                error_message=None if error is ErrorCode.NONE else error.message,
            )
        )
    return answer
