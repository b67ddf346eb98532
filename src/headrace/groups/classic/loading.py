"""A classic group as its record in `__consumer_offsets` tells it."""

from __future__ import annotations

from headrace.groups.classic.state import ClassicGroup, GroupState, Member
from headrace.protocol.stored.consumer_offsets import GroupMetadataKey, GroupMetadataValue


def loaded_group(partition: int, key: GroupMetadataKey, value: GroupMetadataValue) -> ClassicGroup:
    """A group with members was stable when it was written; one without is empty."""
    group = ClassicGroup(
        key.group,
        partition,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_timestamp_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        generation=value.generation,
        protocol_name=value.protocol,
        leader=value.leader,
        is_recorded=True,
    )
    for stored in value.members:
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            # Records of the first version have no rebalance time-out.
            stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout,
            stored.session_timeout,
            # Only the metadata of the chosen protocol is kept; all that a member supports is known when it rejoins.
            ((value.protocol or "", stored.subscription),),
            stored.assignment,
        )
        group.add(member, value.protocol_type)
    group.protocol_type = value.protocol_type or None
    group.find_subscriptions()
    return group
