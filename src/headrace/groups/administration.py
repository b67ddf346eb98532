"""Listing, describing and deleting groups, and the removal of what is too old to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headrace.coordination import Caller, CoordinatorRecord, Effect, Now, Timer
from headrace.errors import ErrorCode
from headrace.groups.classic.state import ClassicGroup, GroupState
from headrace.groups.config import GroupConfig
from headrace.groups.group import DEAD_STATE, Group
from headrace.groups.group_offsets import NO_EXPIRY, CommittedOffset
from headrace.groups.offsets import OffsetChanges
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.shards import Shard, Shards
from headrace.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from headrace.topics import TopicPartition

NOT_FOUND_VERSION = 6  # of DescribeGroups; before it an unknown group is described as dead
# Without an authorizer everybody may do all that can be done to a group.
GROUP_OPERATIONS = 3400
NEXT_PASS_MS = 1_000  # after a pass that did not get to everything


@dataclass(slots=True)
class _Deletion:
    """A group whose tombstones are being written, and where it is told if they are not."""

    group: Group
    result: DeletableGroupResult | None
    error: ErrorCode = ErrorCode.NONE

    def refuse(self, error: ErrorCode) -> None:
        self.error = error
        if self.result is not None:
            self.result.error_code = error


class Administration:
    def __init__(self, config: GroupConfig, shards: Shards, offsets: OffsetChanges) -> None:
        self._config = config
        self._shards = shards
        self._offsets = offsets

    # --- look ---------------------------------------------------------------------------------------------------------

    def list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        if any(shard.loader is not None for shard in self._shards.all()):
            # A list that leaves groups out would be taken for the truth.
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.type_name,
                group_state=group.state_name,
                group_type=group.kind.value,
            )
            for group in self._shards.groups.values()
            if not group.is_dead
            and (not states or group.state_name.lower() in states)
            and (not types or group.kind.value in types)
        ]
        return ListGroupsResponse(groups=listed)

    def describe(self, caller: Caller, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        groups = [self._describe_one(caller, group_id) for group_id in request.groups]
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    def _describe_one(self, caller: Caller, group_id: str) -> DescribedGroup:
        group = self._shards.groups.get(group_id)
        if not isinstance(group, ClassicGroup) or group.is_dead:
            error = ErrorCode.NONE if group is not None else self._shards.error_for(group_id)
            if error != ErrorCode.NONE:
                return DescribedGroup(group_id=group_id, error_code=error)
            dead = DescribedGroup(group_id=group_id, group_state=DEAD_STATE)
            if caller.api_version >= NOT_FOUND_VERSION:
                is_other = group is not None and not group.is_dead
                dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                dead.error_message = f"Group {group_id} {'is not a classic group' if is_other else 'not found'}."
            return dead
        # Until the next generation has chosen a protocol, members' metadata means nothing.
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=b"" if protocol is None else member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ]
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=members,
        )

    # --- delete -------------------------------------------------------------------------------------------------------

    def steps_of_deletion(self, request: DeleteGroupsRequest) -> Sequence[DeleteGroupsRequest]:
        steps = [DeleteGroupsRequest()]
        room = self._config.tombstones_max
        for group_id in dict.fromkeys(request.groups_names):
            group = self._shards.groups.get(group_id)
            tombstones = 0 if group is None else 1 + group.offsets.count
            if tombstones > room and steps[-1].groups_names:
                steps.append(DeleteGroupsRequest())
                room = self._config.tombstones_max
            room -= tombstones
            steps[-1].groups_names.append(group_id)
        return steps

    def delete(self, out: Outcome, caller: Caller, request: DeleteGroupsRequest) -> None:
        response = DeleteGroupsResponse()
        for group_id in dict.fromkeys(request.groups_names):
            group = self._shards.groups.get(group_id)
            if group is None:
                error = self._shards.error_for(group_id)
                error = ErrorCode.GROUP_ID_NOT_FOUND if error == ErrorCode.NONE else error
            elif group.is_dead:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                error = ErrorCode.NONE
            result = DeletableGroupResult(group_id=group_id, error_code=error)
            response.results.append(result)
            if group is not None and error == ErrorCode.NONE:
                self._delete_one(out, group, result)
        out.reply(caller, response)

    def _delete_one(self, out: Outcome, group: Group, result: DeletableGroupResult | None = None) -> None:
        """Write the tombstones of a group. Until they are written it is dead: nobody may join or commit."""
        deletion = _Deletion(group, result)
        group.is_dead = True
        # Also for offsets that are still being written: their records come before these tombstones.
        self._offsets.write_tombstones(out, group, group.offsets.partitions(), partial(self._offset_stays, deletion))
        tombstones = group.tombstones()
        written = {record.key for record in tombstones}
        # Also of what could not be written so far: some of it may be in the log all the same.
        tombstones += [
            CoordinatorRecord(group.partition, key, None) for key in group.book.unwritten if key not in written
        ]
        out.effects.append(
            Effect(tuple(tombstones), partial(self._deleted, deletion), partial(self._not_deleted, deletion))
        )

    def _offset_stays(self, deletion: _Deletion, out: Outcome, error: ErrorCode, at: Now) -> None:
        deletion.refuse(error)

    def _deleted(self, deletion: _Deletion, out: Outcome, at: Now) -> None:
        if deletion.error == ErrorCode.NONE:
            self._shards.remove(out, deletion.group)
        elif self._shards.is_live(deletion.group):
            # Some of its offsets are still in the log, the group is not: as it would be found there.
            self._shards.replace(deletion.group, ClassicGroup(deletion.group.group_id, deletion.group.partition))

    def _not_deleted(self, deletion: _Deletion, out: Outcome, error: ErrorCode, at: Now) -> None:
        deletion.refuse(error)
        deletion.group.is_dead = False

    # --- expiry -------------------------------------------------------------------------------------------------------

    def schedule_expiry(self, out: Outcome, shard: Shard, at: Now) -> None:
        deadline_ms = at.monotonic_ms + self._config.offsets_retention_check_interval_ms
        out.arm(Timer(TimerKind.EXPIRY, shard.partition), deadline_ms)

    def cancel_expiry(self, out: Outcome, shard: Shard) -> None:
        out.cancel(Timer(TimerKind.EXPIRY, shard.partition))

    def on_expiry_timer(self, out: Outcome, shard: Shard, at: Now) -> None:
        """Remove offsets past their retention, and empty groups that have none left."""
        for group in shard.groups.values():
            self._expire_group(out, group, at)
            if len(out.effects) >= self._config.tombstones_max:
                out.arm(Timer(TimerKind.EXPIRY, shard.partition), at.monotonic_ms + NEXT_PASS_MS)
                return
        self.schedule_expiry(out, shard, at)

    def _expire_group(self, out: Outcome, group: Group, at: Now) -> None:
        if group.is_dead:
            return
        expired: list[TopicPartition] = []
        left = 0
        for topic, partitions in group.offsets.committed.items():
            for index, offset in partitions.items():
                unstable = group.offsets.is_unstable(topic, index)
                if not unstable and self._is_expired(group, topic, offset, at):
                    expired.append(TopicPartition(topic, index))
                else:
                    left += 1
        room = self._config.tombstones_max - len(out.effects)
        is_over = not (left or group.offsets.pending or group.offsets.in_flight)
        if is_over and group.is_empty and not group.is_awaited and len(expired) <= room:
            self._delete_one(out, group)
        else:
            self._offsets.write_tombstones(out, group, expired[:room])

    def _is_expired(self, group: Group, topic: str, offset: CommittedOffset, at: Now) -> bool:
        if self._offsets.is_of_earlier_topic(topic, offset):
            return True
        since_ms = group.unwanted_since_ms(offset)
        if since_ms is None or group.is_subscribed_to(topic):
            return False
        if offset.expire_timestamp_ms != NO_EXPIRY:
            return at.wall_ms >= offset.expire_timestamp_ms
        return at.wall_ms - since_ms >= self._config.offsets_retention_ms
