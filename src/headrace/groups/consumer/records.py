"""Records of consumer groups in `__consumer_offsets`, in Kafka's own format, and their tombstones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from headrace.protocol.stored.consumer_offsets import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)

if TYPE_CHECKING:
    from headrace.groups.consumer.group import ConsumerMember, ResolvedRegex
    from headrace.groups.consumer.reconcile import Partitions

KeyAndValue = tuple[Any, Any]


def epoch(group_id: str, group_epoch: int, metadata_hash: int) -> KeyAndValue:
    return no_epoch(group_id)[0], ConsumerGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash)


def no_epoch(group_id: str) -> KeyAndValue:
    return ConsumerGroupMetadataKey(group_id=group_id), None


def no_partition_metadata(group_id: str) -> KeyAndValue:
    """Kafka 4.0 wrote such records; they are only ended since."""
    return ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def member(group_id: str, what: ConsumerMember) -> KeyAndValue:
    classic = None
    if what.classic is not None:
        protocols = [ClassicProtocol(name=name, metadata=metadata) for name, metadata in what.classic.protocols]
        classic = ClassicMemberMetadata(
            session_timeout_ms=what.classic.session_timeout_ms, supported_protocols=protocols
        )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=what.instance_id,
        rack_id=what.rack_id,
        client_id=what.client_id,
        client_host=what.client_host,
        subscribed_topic_names=sorted(what.topics),
        subscribed_topic_regex=what.regex,
        rebalance_timeout_ms=what.rebalance_timeout_ms,
        server_assignor=what.assignor,
        classic_member_metadata=classic,
    )
    return no_member(group_id, what.member_id)[0], value


def no_member(group_id: str, member_id: str) -> KeyAndValue:
    return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_epoch(group_id: str, assignment_epoch: int, now_ms: int) -> KeyAndValue:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=assignment_epoch, assignment_timestamp=now_ms)
    return no_target_epoch(group_id)[0], value


def no_target_epoch(group_id: str) -> KeyAndValue:
    return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target(group_id: str, member_id: str, partitions: Mapping[bytes, Collection[int]] | None) -> KeyAndValue:
    """Without partitions, a tombstone."""
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    if partitions is None:
        return key, None
    topics = [TargetTopicPartitions(topic_id=topic, partitions=list(found)) for topic, found in partitions.items()]
    return key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)


def current(group_id: str, what: ConsumerMember) -> KeyAndValue:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=what.epoch,
        previous_member_epoch=what.previous_epoch,
        state=what.state,
        assigned_partitions=_with_epochs(what.assigned),
        partitions_pending_revocation=_with_epochs(what.revoking),
    )
    return no_current(group_id, what.member_id)[0], value


def no_current(group_id: str, member_id: str) -> KeyAndValue:
    return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def regex(group_id: str, text: str, resolved: ResolvedRegex) -> KeyAndValue:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return no_regex(group_id, text)[0], value


def no_regex(group_id: str, text: str) -> KeyAndValue:
    return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=text), None


def _with_epochs(partitions: Partitions) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id=topic, partitions=list(found), assignment_epochs=list(found.values()))
        for topic, found in partitions.items()
    ]
