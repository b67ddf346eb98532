"""Records of streams groups in `__consumer_offsets`, in Kafka's own format, and their tombstones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.groups.streams.tasks import MemberTasks, Numbers, TargetTasks, task_ids
from headrace.groups.streams.topology import StreamsTopology
from headrace.protocol.stored.streams_groups import (
    StreamsCurrentTasks,
    StreamsEndpoint,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsKeyValue,
    StreamsTargetTasks,
)

if TYPE_CHECKING:
    from headrace.groups.streams.group import StreamsGroup, StreamsMember

KeyAndValue = tuple[Any, Any]


def pairs(values: Mapping[str, str]) -> list[StreamsKeyValue]:
    return [StreamsKeyValue(key=key, value=value) for key, value in sorted(values.items())]


def epoch(group: StreamsGroup) -> KeyAndValue:
    value = StreamsGroupMetadataValue(
        epoch=group.epoch,
        metadata_hash=group.metadata_hash,
        validated_topology_epoch=group.validated_topology_epoch,
        last_assignment_configs=pairs(group.assignment_configs),
    )
    return no_epoch(group.group_id)[0], value


def no_epoch(group_id: str) -> KeyAndValue:
    return StreamsGroupMetadataKey(group_id=group_id), None


def member(group_id: str, what: StreamsMember) -> KeyAndValue:
    endpoint = None
    if what.endpoint is not None:
        endpoint = StreamsEndpoint(host=what.endpoint[0], port=what.endpoint[1])
    value = StreamsGroupMemberMetadataValue(
        instance_id=what.instance_id,
        rack_id=what.rack_id,
        client_id=what.client_id,
        client_host=what.client_host,
        rebalance_timeout_ms=what.rebalance_timeout_ms,
        topology_epoch=what.topology_epoch,
        process_id=what.process_id,
        user_endpoint=endpoint,
        client_tags=pairs(what.client_tags),
    )
    return no_member(group_id, what.member_id)[0], value


def no_member(group_id: str, member_id: str) -> KeyAndValue:
    return StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_epoch(group_id: str, assignment_epoch: int, now_ms: int) -> KeyAndValue:
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=assignment_epoch, assignment_timestamp=now_ms)
    return no_target_epoch(group_id)[0], value


def no_target_epoch(group_id: str) -> KeyAndValue:
    return StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target(group_id: str, member_id: str, tasks: TargetTasks | None) -> KeyAndValue:
    """Without tasks, a tombstone."""
    key = StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    if tasks is None:
        return key, None
    return key, StreamsGroupTargetAssignmentMemberValue(
        active_tasks=task_ids(tasks.active, StreamsTargetTasks),
        standby_tasks=task_ids(tasks.standby, StreamsTargetTasks),
        warmup_tasks=task_ids(tasks.warmup, StreamsTargetTasks),
    )


def current(group_id: str, what: StreamsMember) -> KeyAndValue:
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=what.epoch,
        previous_member_epoch=what.previous_epoch,
        state=what.state,
        active_tasks=_with_epochs(what.assigned),
        standby_tasks=_current(what.assigned.standby),
        warmup_tasks=_current(what.assigned.warmup),
        active_tasks_pending_revocation=_with_epochs(what.revoking),
        standby_tasks_pending_revocation=_current(what.revoking.standby),
        warmup_tasks_pending_revocation=_current(what.revoking.warmup),
    )
    return no_current(group_id, what.member_id)[0], value


def no_current(group_id: str, member_id: str) -> KeyAndValue:
    return StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def topology(group_id: str, what: StreamsTopology) -> KeyAndValue:
    return no_topology(group_id)[0], what.record


def no_topology(group_id: str) -> KeyAndValue:
    return StreamsGroupTopologyKey(group_id=group_id), None


def _current(tasks: Numbers) -> list[StreamsCurrentTasks]:
    return task_ids(tasks, StreamsCurrentTasks)


def _with_epochs(tasks: MemberTasks) -> list[StreamsCurrentTasks]:
    return [
        StreamsCurrentTasks(
            subtopology_id=name,
            partitions=sorted(numbers),
            assignment_epochs=[numbers[number] for number in sorted(numbers)],
        )
        for name, numbers in sorted(tasks.active.items())
    ]
