"""ConsumerGroupDescribe: groups with their members, and what these have and are to have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.errors import ErrorCode
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember
from headrace.groups.consumer.moving import Moves
from headrace.groups.shards import Shards
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)

# Without an authorizer everybody may do all that can be done to a group.
GROUP_OPERATIONS = 3400
CONSUMER_MEMBER, CLASSIC_MEMBER = 1, 0


def describe(
    shards: Shards, moves: Moves, topics: TopicLookup, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = [_one(shards, moves, topics, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def _one(shards: Shards, moves: Moves, topics: TopicLookup, group_id: str) -> DescribedConsumerGroup:
    group = shards.groups.get(group_id)
    if not group_id:
        return DescribedConsumerGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    if group is None or group.is_dead or not isinstance(group, ConsumerGroup):
        error = ErrorCode.NONE if group is not None else shards.error_for(group_id)
        if error != ErrorCode.NONE:
            return DescribedConsumerGroup(group_id=group_id, error_code=error, error_message=error.message)
        is_other = group is not None and not group.is_dead
        why = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
        return DescribedConsumerGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=why)
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=moves.assignor_of(group).name,
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: TopicLookup) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(_held(member), topics),
        target_assignment=_assignment(group.targets.get(member.member_id, {}), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _held(member: ConsumerMember) -> dict[bytes, list[int]]:
    """What it may still be reading: also what it has to give up."""
    held = {topic: list(found) for topic, found in member.assigned.items()}
    for topic, found in member.revoking.items():
        held.setdefault(topic, []).extend(found)
    return held


def _assignment(partitions: Mapping[bytes, Collection[int]], topics: TopicLookup) -> DescribedAssignment:
    """Of topics that are there: what was deleted has no name to tell."""
    found = [
        DescribedTopicPartitions(topic_id=topic, topic_name=name, partitions=sorted(indexes))
        for topic, indexes in partitions.items()
        if (name := topics.topic_name(topic)) is not None
    ]
    return DescribedAssignment(topic_partitions=found)
