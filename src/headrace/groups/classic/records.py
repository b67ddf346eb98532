"""Records of classic groups in `__consumer_offsets`, in Kafka's own format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.coordination import CoordinatorRecord
from headrace.protocol.stored.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    encode_record,
)

if TYPE_CHECKING:
    from headrace.groups.classic.state import ClassicGroup, Member

CAUSES_HEADER = "headrace.causes"
GROUP_VERSION = 3  # what Kafka 4.3 writes


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
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
    key_and_value = encode_record(GroupMetadataKey(group=group.group_id), value, GROUP_VERSION)
    return CoordinatorRecord(group.partition, *key_and_value, _causes(group))


def _causes(group: ClassicGroup) -> tuple[tuple[str, bytes], ...]:
    """Why this generation came, for who looks at the group's history; a coordinator does not read it."""
    if not group.causes or group.began_ms is None:
        return ()
    return ((CAUSES_HEADER, json.dumps({"began_ms": group.began_ms, "causes": group.causes}).encode()),)


def _member(group: ClassicGroup, member: Member, assignments: Mapping[str, bytes]) -> MemberMetadata:
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


def new_group_record(group: ClassicGroup) -> CoordinatorRecord:
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


def group_tombstone(group: ClassicGroup) -> CoordinatorRecord:
    return CoordinatorRecord(
        group.partition, *encode_record(GroupMetadataKey(group=group.group_id), None, GROUP_VERSION)
    )
