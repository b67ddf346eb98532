"""The requests by which members join, sync, stay and leave: what is checked, and which step of a rebalance follows."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from functools import partial

from headrace.coordination import STORED_TEXT_BYTES_MAX, Caller, Now, is_storable
from headrace.errors import ErrorCode
from headrace.groups.classic import answers
from headrace.groups.classic.rebalance import Rebalances
from headrace.groups.classic.records import group_record, new_group_record
from headrace.groups.classic.state import ClassicGroup, GroupState, Member, Protocols
from headrace.groups.config import GroupConfig
from headrace.groups.outcome import Outcome, nothing_written, one_record
from headrace.groups.sessions import MemberSession, end_session, keep_alive
from headrace.groups.shards import Shards
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest

NO_MEMBER_ID = ""
MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9
LEAVE_SEVERAL_VERSION = 3
REASON_SHOWN_MAX = 255
MEMBER_ID_SUFFIX_BYTES = 37  # what a member's id has behind the name that it begins with


class GroupMemberships:
    """Joins, syncs, heartbeats and leaves of groups whose partition is served here."""

    def __init__(self, config: GroupConfig, rng: random.Random, shards: Shards, rebalances: Rebalances) -> None:
        self._config = config
        self._rng = rng
        self._shards = shards
        self._rebalances = rebalances

    # --- join ---------------------------------------------------------------------------------------------------------

    def join(self, out: Outcome, caller: Caller, request: JoinGroupRequest, at: Now) -> None:
        if not _is_storable(caller, request):
            answers.join_error(out, caller, ErrorCode.INVALID_REQUEST, request.member_id)
            return
        group = self._shards.classic(request.group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                answers.join_error(out, caller, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return
            if not request.protocol_type or not request.protocols:
                # Kafka makes the group before it looks; a request that is refused leaves nothing behind here.
                answers.join_error(out, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NO_MEMBER_ID)
                return
            group = self._shards.create(request.group_id, at.wall_ms)
        if not self._accepts(group, request.member_id):
            answers.join_error(out, caller, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
            member = group.members.get(request.member_id)
            if member is not None:
                # It was a member before the limit was lowered, and the places are taken by those who came first.
                self._rebalances.drop(out, group, member)
                self._rebalances.after_loss(out, group, at, f"member {request.member_id} finds no place")
            elif request.member_id in group.pending:
                self._rebalances.drop_pending(out, group, request.member_id)
                self._rebalances.complete_if_joined(out, group, at)
        elif group.is_dead:
            answers.join_error(out, caller, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        elif not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
            answers.join_error(out, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif request.member_id == NO_MEMBER_ID:
            self._join_without_id(out, caller, request, group, at)
        else:
            self._join_with_id(out, caller, request, group, at)
        if is_new_group and not out.effects:
            out.effects.append(one_record(new_group_record(group), nothing_written, partial(self._not_created, group)))

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Those who wait are counted, not all members: so a group above the limit shrinks as it rejoins.
            return (member is not None and member.join is not None) or group.joining < self._config.max_size
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < self._config.max_size
        return True

    def _not_created(self, group: ClassicGroup, out: Outcome, error: ErrorCode, at: Now) -> None:
        """The new group is not in the log. Once it has had a generation, its next record stands for it."""
        if not self._shards.is_live(group) or group.generation > 0:
            return
        for member in group.members.values():
            waiting = group.set_join(member, None)
            if waiting is not None:
                answers.join_error(out, waiting, error, NO_MEMBER_ID)
        self._shards.remove(out, group)

    def _join_without_id(
        self, out: Outcome, caller: Caller, request: JoinGroupRequest, group: ClassicGroup, at: Now
    ) -> None:
        instance_id = request.group_instance_id
        prefix = (caller.client_id or "") if instance_id is None else instance_id
        member_id = f"{prefix}-{uuid.UUID(int=self._rng.getrandbits(128), version=4)}"
        if instance_id is not None:
            existing = group.static_members.get(instance_id)
            if existing is None:
                self._add(out, caller, request, group, member_id, at)
            else:
                self._replace_static(out, caller, request, group, group.members[existing], member_id, at)
        elif caller.api_version >= MEMBER_ID_REQUIRED_VERSION:
            # With an id of its own a client that asks again is known as the same member, and leaves no ghosts behind.
            session = group.pending[member_id] = MemberSession()
            keep_alive(out, group, member_id, session, at.monotonic_ms + request.session_timeout_ms)
            answers.join_error(out, caller, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(out, caller, request, group, member_id, at)

    def _join_with_id(
        self, out: Outcome, caller: Caller, request: JoinGroupRequest, group: ClassicGroup, at: Now
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.group_instance_id is None:
            self._add(out, caller, request, group, member_id, at)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error != ErrorCode.NONE:
            answers.join_error(out, caller, error, member_id)
            return
        member = group.members[member_id]
        is_leader = group.leader == member_id
        same = member.protocols == protocols_of(request)
        if group.state is GroupState.COMPLETING_REBALANCE and same:
            # It may not have received the answer to its first join: tell it again.
            answers.join_answer(out, caller, group, member_id, with_members=is_leader)
        elif group.state is GroupState.STABLE and same and not is_leader:
            answers.join_answer(out, caller, group, member_id, with_members=False)
        else:
            # A leader may always ask for a rebalance: it watches the topics' partitions.
            self._update(out, caller, request, group, member)
            who = "leader" if is_leader else "member"
            self._rebalances.prepare_or_complete(out, group, at, f"{who} {member_id} rejoins{_because(request.reason)}")

    def _add(
        self, out: Outcome, caller: Caller, request: JoinGroupRequest, group: ClassicGroup, member_id: str, at: Now
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            caller.client_id or "",
            caller.client_host,
            _rebalance_timeout_ms(caller, request),
            request.session_timeout_ms,
            protocols_of(request),
            join=caller,
            is_new=True,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.member_added = True
        group.add(member, request.protocol_type)
        keep_alive(out, group, member_id, member.session, at.monotonic_ms + self._config.new_member_join_timeout_ms)
        self._rebalances.prepare_or_complete(out, group, at, f"member {member_id} joins{_because(request.reason)}")

    def _update(
        self, out: Outcome, caller: Caller, request: JoinGroupRequest, group: ClassicGroup, member: Member
    ) -> None:
        group.update(member, protocols_of(request), _rebalance_timeout_ms(caller, request), request.session_timeout_ms)
        before = group.set_join(member, caller)
        if before is not None:
            # It asks again while its join waits: the older request was given up, and is answered so that none stays.
            answers.join_error(out, before, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)

    # --- static members -----------------------------------------------------------------------------------------------

    def _replace_static(
        self,
        out: Outcome,
        caller: Caller,
        request: JoinGroupRequest,
        group: ClassicGroup,
        member: Member,
        new_id: str,
        at: Now,
    ) -> None:
        """A static member came back without its id: whoever had it is fenced. Its assignment stays, if possible."""
        old_leader, old_id = group.leader, member.member_id
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        waiting = group.set_join(member, None)
        if waiting is not None:
            answers.join_error(out, waiting, ErrorCode.FENCED_INSTANCE_ID, old_id)
        if member.sync is not None:
            answers.sync_error(out, member.sync, ErrorCode.FENCED_INSTANCE_ID)
            member.sync = None
        end_session(out, group, old_id, member.session)
        group.rename(member, new_id)
        group.heard_from(out, member, at)
        self._update(out, caller, request, group, member)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            assignments = {m.member_id: m.assignment for m in group.members.values()}
            kept = partial(self._static_kept, group, group.generation, member, caller, old_leader)
            lost = partial(self._static_not_kept, group, group.generation, member, caller, old_leader, old_id, before)
            out.effects.append(one_record(group_record(group, assignments), kept, lost))
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            # While the leader works, it may already assign to the id that is no more.
            reason = f"static member {request.group_instance_id} comes back{_because(request.reason)}"
            self._rebalances.prepare(out, group, at, reason)
        else:
            self._rebalances.complete_if_joined(out, group, at)

    def _still_waits(self, group: ClassicGroup, generation: int, member: Member, caller: Caller) -> bool:
        """Whether nothing came between. If a rebalance did, the join waits for its end like all others."""
        return (
            self._shards.is_live(group)
            and group.state is GroupState.STABLE
            and group.generation == generation
            and group.members.get(member.member_id) is member
            and member.join is caller
        )

    def _static_kept(
        self,
        group: ClassicGroup,
        generation: int,
        member: Member,
        caller: Caller,
        old_leader: str | None,
        out: Outcome,
        at: Now,
    ) -> None:
        if not self._still_waits(group, generation, member, caller):
            return
        group.set_join(member, None)
        is_leader = group.leader == member.member_id
        if caller.api_version >= SKIP_ASSIGNMENT_VERSION:
            answers.join_answer(out, caller, group, member.member_id, with_members=is_leader, skip_assignment=is_leader)
        else:
            # Older clients would assign anew if they were told that they lead: they are told the old id instead.
            answers.join_answer(out, caller, group, member.member_id, with_members=False, leader=old_leader)
        group.heard_from(out, member, at)

    def _static_not_kept(
        self,
        group: ClassicGroup,
        generation: int,
        member: Member,
        caller: Caller,
        old_leader: str | None,
        old_id: str,
        before: tuple[Protocols, int, int],
        out: Outcome,
        error: ErrorCode,
        at: Now,
    ) -> None:
        if not self._still_waits(group, generation, member, caller):
            return
        group.set_join(member, None)
        group.update(member, *before)
        end_session(out, group, member.member_id, member.session)
        group.rename(member, old_id)
        group.leader = old_leader
        group.heard_from(out, member, at)
        answers.join_error(out, caller, error, NO_MEMBER_ID)

    # --- sync ---------------------------------------------------------------------------------------------------------

    def sync(self, out: Outcome, caller: Caller, request: SyncGroupRequest, at: Now) -> None:
        group = self._shards.classic(request.group_id)
        if group is None or (group.state is GroupState.EMPTY and not group.is_dead):
            answers.sync_error(out, caller, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        error = _check_sync(group, request)
        if error != ErrorCode.NONE:
            answers.sync_error(out, caller, error)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            answers.sync_error(out, caller, ErrorCode.REBALANCE_IN_PROGRESS)
            return
        self._rebalances.synced(out, group, member.member_id)
        if group.state is GroupState.STABLE:
            answers.sync_answer(out, caller, group, member)
            return
        if member.sync is not None:
            # The older request was given up, and is answered so that none stays.
            answers.sync_error(out, member.sync, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync = caller
        if member.member_id == group.leader and group.storing is None:
            assignments = {a.member_id: bytes(a.assignment) for a in request.assignments}
            group.storing = group.generation
            stored = partial(self._assignment_stored, group, group.generation, assignments)
            lost = partial(self._assignment_not_stored, group, group.generation)
            out.effects.append(one_record(group_record(group, assignments), stored, lost))

    def _awaits_storing(self, group: ClassicGroup, generation: int) -> bool:
        """Whether the assignment still counts: someone may have joined or gone while it was written."""
        return (
            self._shards.is_live(group)
            and group.state is GroupState.COMPLETING_REBALANCE
            and group.storing == generation == group.generation
        )

    def _assignment_stored(
        self, group: ClassicGroup, generation: int, assignments: Mapping[str, bytes], out: Outcome, at: Now
    ) -> None:
        if not self._awaits_storing(group, generation):
            return
        group.storing = None
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.transition(GroupState.STABLE, at.wall_ms)
        self._rebalances.hand_out(out, group, at)

    def _assignment_not_stored(
        self, group: ClassicGroup, generation: int, out: Outcome, error: ErrorCode, at: Now
    ) -> None:
        if not self._awaits_storing(group, generation):
            return
        group.storing = None
        self._rebalances.fail_sync(out, group, error, at)
        self._rebalances.prepare(out, group, at, f"its assignment could not be stored ({error.name})")

    # --- heartbeat and leave ------------------------------------------------------------------------------------------

    def heartbeat(self, out: Outcome, group: ClassicGroup, request: HeartbeatRequest, at: Now) -> ErrorCode:
        """The hot call: one look-up, and a deadline moved."""
        if group.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.check_member(request.member_id, request.group_instance_id)
        if error != ErrorCode.NONE:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member = group.members[request.member_id]
        group.heard_from(out, member, at)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, out: Outcome, caller: Caller, request: LeaveGroupRequest, at: Now) -> None:
        several = caller.api_version >= LEAVE_SEVERAL_VERSION
        leaving = request.members if several else [MemberIdentity(member_id=request.member_id)]
        group = self._shards.classic(request.group_id)
        if group is None:
            errors = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        elif group.is_dead:
            out.reply(caller, LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        else:
            size = len(group.members)
            errors = [self._leave_one(out, group, who) for who in leaving]
            gone = [
                f"{who.member_id or who.group_instance_id} left{_because(who.reason)}"
                for who, error in zip(leaving, errors)
                if error == ErrorCode.NONE
            ]
            if len(group.members) < size:
                self._rebalances.prepare_or_complete(out, group, at, ", ".join(gone))
            elif group.state is GroupState.PREPARING_REBALANCE:
                self._rebalances.complete_if_joined(out, group, at)
        if several:
            members = [
                MemberResponse(member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=error)
                for who, error in zip(leaving, errors)
            ]
            out.reply(caller, LeaveGroupResponse(members=members))
        else:
            out.reply(caller, LeaveGroupResponse(error_code=errors[0]))

    def _leave_one(self, out: Outcome, group: ClassicGroup, who: MemberIdentity) -> ErrorCode:
        member_id = who.member_id
        if member_id == NO_MEMBER_ID:
            # An administrator names a static member by its instance alone.
            instance_id = who.group_instance_id
            existing = None if instance_id is None else group.static_members.get(instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = existing
        elif member_id in group.pending:
            self._rebalances.drop_pending(out, group, member_id)
            return ErrorCode.NONE
        else:
            error = group.check_member(member_id, who.group_instance_id)
            if error != ErrorCode.NONE:
                return error
        self._rebalances.drop(out, group, group.members[member_id])
        return ErrorCode.NONE


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """The first of each name counts, as in Kafka."""
    by_name: dict[str, bytes] = {}
    for protocol in request.protocols:
        by_name.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(by_name.items())


def _is_storable(caller: Caller, request: JoinGroupRequest) -> bool:
    """Whether the record of a group could hold this member: else no assignment could be stored while it is there."""
    names = (request.protocol_type, *(protocol.name for protocol in request.protocols))
    # Its id begins with one of these.
    prefixes = (caller.client_id, request.group_instance_id)
    room_bytes = STORED_TEXT_BYTES_MAX - MEMBER_ID_SUFFIX_BYTES
    return all(map(is_storable, names)) and all(is_storable(prefix, room_bytes) for prefix in prefixes)


def _because(reason: str | None) -> str:
    """What a client gave as its reason, cut where it would flood the log."""
    return f" ({reason[:REASON_SHOWN_MAX]})" if reason else ""


def _rebalance_timeout_ms(caller: Caller, request: JoinGroupRequest) -> int:
    # The first version has none: members of that time had the session time-out to rejoin.
    return request.session_timeout_ms if caller.api_version == 0 else request.rebalance_timeout_ms


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.check_member(request.member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _differs(asked: str | None, known: str | None) -> bool:
    return asked is not None and known is not None and asked != known
