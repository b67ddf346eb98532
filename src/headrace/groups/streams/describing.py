"""StreamsGroupDescribe: groups with their topologies and members, and which tasks these have and are to have."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.groups.shards import Shards
from headrace.groups.streams.group import StreamsGroup, StreamsMember
from headrace.groups.streams.tasks import NO_TARGET, MemberTasks, TargetTasks, task_ids
from headrace.groups.streams.topology import StreamsTopology
from headrace.protocol.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from headrace.protocol.stored.streams_groups import StreamsTopicInfo

# Without an authorizer everybody may do all that can be done to a group.
GROUP_OPERATIONS = 3400


def describe(shards: Shards, request: StreamsGroupDescribeRequest) -> StreamsGroupDescribeResponse:
    groups = [_one(shards, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return StreamsGroupDescribeResponse(groups=groups)


def _one(shards: Shards, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    group = shards.groups.get(group_id)
    if not isinstance(group, StreamsGroup) or group.is_dead:
        error = ErrorCode.NONE if group is not None else shards.error_for(group_id)
        if error != ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=error, error_message=error.message)
        is_other = group is not None and not group.is_dead
        why = f"Group {group_id} is not a streams group." if is_other else f"Group {group_id} not found."
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=why)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=None if group.topology is None else _topology(group, group.topology),
        members=[_member(group, member) for member in group.members.values()],
    )


def _topology(group: StreamsGroup, topology: StreamsTopology) -> Topology:
    """With the numbers of partitions that were worked out, once they are."""
    counts: dict[str, int] = {}
    if group.configured is not None and group.configured.is_ready:
        counts = group.configured.counts
    return Topology(
        epoch=topology.epoch,
        subtopologies=[
            Subtopology(
                subtopology_id=name,
                source_topics=sorted(one.source_topics),
                repartition_sink_topics=sorted(one.repartition_sink_topics),
                state_changelog_topics=[_topic(topic, counts) for topic in one.state_changelog_topics],
                repartition_source_topics=[_topic(topic, counts) for topic in one.repartition_source_topics],
            )
            for name, one in sorted(topology.subtopologies.items())
        ],
    )


def _topic(topic: StreamsTopicInfo, counts: dict[str, int]) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        partitions=counts.get(topic.name, topic.partitions),
        replication_factor=topic.replication_factor,
        topic_configs=[KeyValue(key=one.key, value=one.value) for one in topic.topic_configs],
    )


def _member(group: StreamsGroup, member: StreamsMember) -> Member:
    endpoint = None if member.endpoint is None else Endpoint(host=member.endpoint[0], port=member.endpoint[1])
    return Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint,
        client_tags=[KeyValue(key=key, value=value) for key, value in sorted(member.client_tags.items())],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.targets.get(member.member_id, NO_TARGET)),
    )


def _assignment(tasks: MemberTasks | TargetTasks) -> Assignment:
    return Assignment(
        active_tasks=task_ids(tasks.active, TaskIds),
        standby_tasks=task_ids(tasks.standby, TaskIds),
        warmup_tasks=task_ids(tasks.warmup, TaskIds),
    )
