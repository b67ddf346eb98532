"""Records of share groups in `__consumer_offsets`, in Kafka's own format, and their tombstones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from headrace.protocol.stored.share_groups import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTopicPartitions,
    StateTopic,
    StateTopicPartitions,
)

if TYPE_CHECKING:
    from headrace.groups.share.group import ShareGroup, ShareMember, TopicStates

KeyAndValue = tuple[Any, Any]


def epoch(group_id: str, group_epoch: int, metadata_hash: int) -> KeyAndValue:
    return no_epoch(group_id)[0], ShareGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash)


def no_epoch(group_id: str) -> KeyAndValue:
    return ShareGroupMetadataKey(group_id=group_id), None


def member(group_id: str, what: ShareMember) -> KeyAndValue:
    value = ShareGroupMemberMetadataValue(
        rack_id=what.rack_id,
        client_id=what.client_id,
        client_host=what.client_host,
        subscribed_topic_names=sorted(what.topics),
    )
    return no_member(group_id, what.member_id)[0], value


def no_member(group_id: str, member_id: str) -> KeyAndValue:
    return ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_epoch(group_id: str, assignment_epoch: int, now_ms: int) -> KeyAndValue:
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=assignment_epoch, assignment_timestamp=now_ms)
    return no_target_epoch(group_id)[0], value


def no_target_epoch(group_id: str) -> KeyAndValue:
    return ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target(group_id: str, member_id: str, partitions: Mapping[bytes, Collection[int]] | None) -> KeyAndValue:
    """Without partitions, a tombstone."""
    key = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    if partitions is None:
        return key, None
    return key, ShareGroupTargetAssignmentMemberValue(topic_partitions=_by_topic(partitions))


def current(group_id: str, what: ShareMember) -> KeyAndValue:
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=what.epoch,
        previous_member_epoch=what.previous_epoch,
        state=what.state,
        assigned_partitions=_by_topic(what.assigned),
    )
    return no_current(group_id, what.member_id)[0], value


def no_current(group_id: str, member_id: str) -> KeyAndValue:
    return ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def states(group: ShareGroup) -> KeyAndValue:
    """Of which partitions the share coordinator has a state, is to have one, or is to have none any more."""
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_stated(group.beginning),
        initialized_topics=_stated(group.begun),
        deleting_topics=[StateTopic(topic_id=topic, topic_name=name) for topic, name in group.deleting.items()],
    )
    return no_states(group.group_id)[0], value


def no_states(group_id: str) -> KeyAndValue:
    return ShareGroupStatePartitionMetadataKey(group_id=group_id), None


def _by_topic(partitions: Mapping[bytes, Collection[int]]) -> list[ShareTopicPartitions]:
    return [ShareTopicPartitions(topic_id=topic, partitions=list(found)) for topic, found in partitions.items()]


def _stated(topics: Mapping[bytes, TopicStates]) -> list[StateTopicPartitions]:
    return [
        StateTopicPartitions(topic_id=topic, topic_name=found.name, partitions=sorted(found.partitions))
        for topic, found in topics.items()
    ]
