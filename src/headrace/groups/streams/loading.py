"""Streams groups as their records in `__consumer_offsets` tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.groups.epochs.member import MemberProgress
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.streams.group import StreamsGroup, StreamsMember
from headrace.groups.streams.tasks import MemberTasks, TargetTasks, told_tasks
from headrace.groups.streams.topology import StreamsTopology
from headrace.protocol.stored.streams_groups import (
    GROUP_RECORDS,
    StreamsCurrentTasks,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyValue,
)

RECORD_TYPES = frozenset(GROUP_RECORDS)


def loaded_groups(records: Sequence[LoadedRecord], new_group: Callable[[str], StreamsGroup]) -> Iterable[LoadedGroup]:
    """A member counts when it has a record of its own; what else is told of it may have come to the log before."""
    groups: dict[str, StreamsGroup] = {}
    latest: dict[str, int] = {}
    members: dict[str, dict[str, StreamsMember]] = {}
    for key, value, sequence in records:
        group = groups.get(key.group_id)
        if group is None:
            group = groups[key.group_id] = new_group(key.group_id)
            members[key.group_id] = {}
        latest[key.group_id] = max(latest.get(key.group_id, 0), sequence)
        match value:
            case StreamsGroupMetadataValue():
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
                group.validated_topology_epoch = value.validated_topology_epoch
                group.assignment_configs = {one.key: one.value for one in value.last_assignment_configs or ()}
            case StreamsGroupMemberMetadataValue():
                members[key.group_id][key.member_id] = _member(key.member_id, value)
            case StreamsGroupTargetAssignmentMetadataValue():
                group.assignment_epoch = value.assignment_epoch
            case StreamsGroupTargetAssignmentMemberValue():
                group.targets[key.member_id] = TargetTasks(
                    told_tasks(value.active_tasks), told_tasks(value.standby_tasks), told_tasks(value.warmup_tasks)
                )
            case StreamsGroupTopologyValue():
                group.topology = StreamsTopology.of_record(value)
    for key, value, _ in records:
        if isinstance(value, StreamsGroupCurrentMemberAssignmentValue):
            member = members[key.group_id].get(key.member_id)
            if member is not None:
                _place(member, value)
    for group_id, group in groups.items():
        for member in members[group_id].values():
            group.put_member(member)
        for member_id in group.targets.keys() - group.members.keys():
            del group.targets[member_id]
        group.mend_epoch()
        yield LoadedGroup(group, latest[group_id])


def _member(member_id: str, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = value.user_endpoint
    return StreamsMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags={tag.key: tag.value for tag in value.client_tags},
    )


def _place(member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue) -> None:
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = MemberProgress.of(value.state)
    member.assigned = MemberTasks(
        _active(value.active_tasks, member.epoch), told_tasks(value.standby_tasks), told_tasks(value.warmup_tasks)
    )
    member.revoking = MemberTasks(
        _active(value.active_tasks_pending_revocation, member.epoch),
        told_tasks(value.standby_tasks_pending_revocation),
        told_tasks(value.warmup_tasks_pending_revocation),
    )


def _active(told: Sequence[StreamsCurrentTasks], epoch: int) -> dict[str, dict[int, int]]:
    """Kafka before 4.3 did not write since when a member has a task: then since its epoch."""
    return {
        one.subtopology_id: dict(zip(one.partitions, one.assignment_epochs or [epoch] * len(one.partitions)))
        for one in told
        if one.partitions
    }
