"""Consumer groups as their records in `__consumer_offsets` tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.groups.consumer.group import ClassicProtocols, ConsumerGroup, ConsumerMember, ResolvedRegex
from headrace.groups.consumer.reconcile import Partitions
from headrace.groups.epochs.member import MemberProgress
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.protocol.stored.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
)

RECORD_TYPES = frozenset((3, 4, 5, 6, 7, 8, 16))


def loaded_groups(records: Sequence[LoadedRecord], new_group: Callable[[str], ConsumerGroup]) -> Iterable[LoadedGroup]:
    """A member counts when it has a record of its own; what else is told of it may have come to the log before."""
    groups: dict[str, ConsumerGroup] = {}
    latest: dict[str, int] = {}
    members: dict[str, dict[str, ConsumerMember]] = {}
    for key, value, sequence in records:
        group_id = key.group_id
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = new_group(group_id)
            members[group_id] = {}
        latest[group_id] = max(latest.get(group_id, 0), sequence)
        match value:
            case ConsumerGroupMetadataValue():
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupMemberMetadataValue():
                members[group_id][key.member_id] = _member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataValue():
                group.assignment_epoch = value.assignment_epoch
            case ConsumerGroupTargetAssignmentMemberValue():
                found = {part.topic_id: tuple(sorted(part.partitions)) for part in value.topic_partitions}
                group.targets[key.member_id] = found
            case ConsumerGroupRegularExpressionValue():
                resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
                group.regexes[key.regular_expression] = resolved
    for key, value, _ in records:
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            member = members[key.group_id].get(key.member_id)
            if member is not None:
                _place(member, value)
    for group_id, group in groups.items():
        for member in members[group_id].values():
            group.put_member(member)
        for member_id in group.targets.keys() - group.members.keys():
            del group.targets[member_id]
        for regex in group.regexes.keys() - group.regex_counts.keys():
            del group.regexes[regex]
        group.mend_epoch()
        yield LoadedGroup(group, latest[group_id])


def _member(member_id: str, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    classic = None
    if value.classic_member_metadata is not None:
        told = value.classic_member_metadata
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in told.supported_protocols)
        classic = ClassicProtocols(told.session_timeout_ms, protocols)
    return ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        frozenset(value.subscribed_topic_names),
        value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        regex=value.subscribed_topic_regex or "",
        classic=classic,
    )


def _place(member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue) -> None:
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = MemberProgress.of(value.state)
    member.assigned = _partitions(value.assigned_partitions, member.epoch)
    member.revoking = _partitions(value.partitions_pending_revocation, member.epoch)


def _partitions(parts: Sequence[CurrentTopicPartitions], epoch: int) -> Partitions:
    """Kafka before 4.3 did not write since when a member has a partition: then since its epoch."""
    return {
        part.topic_id: dict(zip(part.partitions, part.assignment_epochs or [epoch] * len(part.partitions)))
        for part in parts
    }
