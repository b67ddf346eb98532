"""Share groups as their records in `__consumer_offsets` tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.groups.epochs.member import MemberProgress
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.share.group import ShareGroup, ShareMember, Target, TopicStates
from headrace.protocol.stored.share_groups import (
    GROUP_RECORDS,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTopicPartitions,
    StateTopicPartitions,
)

RECORD_TYPES = frozenset(GROUP_RECORDS)


def loaded_groups(records: Sequence[LoadedRecord], new_group: Callable[[str], ShareGroup]) -> Iterable[LoadedGroup]:
    """A member counts when it has a record of its own."""
    groups: dict[str, ShareGroup] = {}
    latest: dict[str, int] = {}
    members: dict[str, dict[str, ShareMember]] = {}
    for key, value, sequence in records:
        group_id = key.group_id
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = new_group(group_id)
            members[group_id] = {}
        latest[group_id] = max(latest.get(group_id, 0), sequence)
        match value:
            case ShareGroupMetadataValue():
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupMemberMetadataValue():
                members[group_id][key.member_id] = _member(key.member_id, value)
            case ShareGroupTargetAssignmentMetadataValue():
                group.assignment_epoch = value.assignment_epoch
            case ShareGroupTargetAssignmentMemberValue():
                group.targets[key.member_id] = _target(value.topic_partitions)
            case ShareGroupStatePartitionMetadataValue():
                group.begun = _states(value.initialized_topics)
                # As old as can be: whether they have begun is asked anew.
                group.beginning = _states(value.initializing_topics)
                group.deleting = {topic.topic_id: topic.topic_name for topic in value.deleting_topics}
    for key, value, _ in records:
        if isinstance(value, ShareGroupCurrentMemberAssignmentValue):
            member = members[key.group_id].get(key.member_id)
            if member is not None:
                member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
                member.state = MemberProgress.of(value.state)
                member.assigned = _target(value.assigned_partitions)
    for group_id, group in groups.items():
        for member in members[group_id].values():
            group.put_member(member)
        for member_id in group.targets.keys() - group.members.keys():
            del group.targets[member_id]
        group.mend_epoch()
        yield LoadedGroup(group, latest[group_id])


def _member(member_id: str, value: ShareGroupMemberMetadataValue) -> ShareMember:
    return ShareMember(
        member_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def _target(topics: Iterable[ShareTopicPartitions]) -> Target:
    return {topic.topic_id: tuple(sorted(topic.partitions)) for topic in topics}


def _states(topics: Iterable[StateTopicPartitions]) -> dict[bytes, TopicStates]:
    return {topic.topic_id: TopicStates(topic.topic_name, set(topic.partitions)) for topic in topics}
