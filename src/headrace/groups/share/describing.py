"""ShareGroupDescribe: groups with their members, and what these have."""

from __future__ import annotations

from headrace.assignors.server.simple import SIMPLE_NAME
from headrace.errors import ErrorCode
from headrace.groups.shards import Shards
from headrace.groups.share.group import ShareGroup, ShareMember
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)

# Without an authorizer everybody may do all that can be done to a group.
GROUP_OPERATIONS = 3400


def describe(shards: Shards, topics: TopicLookup, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    groups = [_one(shards, topics, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ShareGroupDescribeResponse(groups=groups)


def _one(shards: Shards, topics: TopicLookup, group_id: str) -> DescribedGroup:
    group = shards.groups.get(group_id)
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    if group is None or group.is_dead or not isinstance(group, ShareGroup):
        error = ErrorCode.NONE if group is not None else shards.error_for(group_id)
        if error != ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=error, error_message=error.message)
        is_other = group is not None and not group.is_dead
        why = f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found."
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=why)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE_NAME,
        members=[_member(member, topics) for member in group.members.values()],
    )


def _member(member: ShareMember, topics: TopicLookup) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(partitions))
                for topic_id, partitions in member.assigned.items()
                if (name := topics.topic_name(topic_id)) is not None
            ]
        ),
    )
