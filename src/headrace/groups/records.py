"""Records of `__consumer_offsets` in Kafka's own format: offsets, groups, and the tombstones of both."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordination import CoordinatorRecord
from headrace.groups.group_offsets import NO_EXPIRY, CommittedOffset
from headrace.groups.state import Group, Member
from headrace.protocol.stored.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_record,
)

# What Kafka 4.3 writes. Only version 1 of an offset has an expiry of its own.
OFFSET_VERSION = 4
OFFSET_WITH_EXPIRY_VERSION = 1
GROUP_VERSION = 3


def offset_record(
    group_partition: int, group_id: str, topic: str, partition: int, offset: CommittedOffset
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    version = OFFSET_VERSION if offset.expire_timestamp_ms == NO_EXPIRY else OFFSET_WITH_EXPIRY_VERSION
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(group_partition, *encode_record(key, value, version))


def offset_tombstone(group_partition: int, group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return CoordinatorRecord(group_partition, *encode_record(key, None, OFFSET_VERSION))


def group_record(group: Group, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """The group as it stands, with these assignments; members not named there have an empty one."""
    group.is_recorded = True
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=[_member(group, member, assignments) for member in group.members.values()],
    )
    return CoordinatorRecord(
        group.partition, *encode_record(GroupMetadataKey(group=group.group_id), value, GROUP_VERSION)
    )


def _member(group: Group, member: Member, assignments: Mapping[str, bytes]) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(group.protocol_name),
        assignment=assignments.get(member.member_id, b""),
    )


def new_group_record(group: Group) -> CoordinatorRecord:
    """An empty group that did not exist before, whoever is about to join it."""
    group.is_recorded = True
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=[],
    )
    return CoordinatorRecord(
        group.partition, *encode_record(GroupMetadataKey(group=group.group_id), value, GROUP_VERSION)
    )


def group_tombstone(group: Group) -> CoordinatorRecord:
    return CoordinatorRecord(
        group.partition, *encode_record(GroupMetadataKey(group=group.group_id), None, GROUP_VERSION)
    )
