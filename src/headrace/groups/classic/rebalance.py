"""How a group gets from one generation to the next: wait for joins, then for syncs, and drop who is late."""

from __future__ import annotations

from headrace.coordination import Now
from headrace.errors import ErrorCode
from headrace.groups.classic import answers
from headrace.groups.classic.records import group_record
from headrace.groups.classic.state import ClassicGroup, GroupState, Member
from headrace.groups.config import GroupConfig
from headrace.groups.outcome import Outcome, nothing_failed, nothing_written, one_record
from headrace.groups.sessions import end_session, is_over
from headrace.words import plural

CAUSES_MAX = 20


def note_cause(group: ClassicGroup, reason: str) -> None:
    """Keep why a rebalance began, and what else happened while it was under way, for the record of its generation.

    That the others join again is what a rebalance is.
    """
    if len(group.causes) < CAUSES_MAX and (not group.causes or " rejoins" not in reason):
        group.causes.append(reason)


class Rebalances:
    """The steps of a rebalance. Each changes the group and adds to the outcome what follows from it."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config

    # --- the join phase -----------------------------------------------------------------------------------------------

    def prepare_or_complete(self, out: Outcome, group: ClassicGroup, at: Now, reason: str) -> None:
        """Start a rebalance; if one is under way, close its join phase when everyone is there."""
        if group.can_rebalance:
            self.prepare(out, group, at, reason)
        else:
            note_cause(group, reason)
            self.complete_if_joined(out, group, at)

    def prepare(self, out: Outcome, group: ClassicGroup, at: Now, reason: str) -> None:
        """Start a rebalance: whoever waits for an assignment must join again; wait for all, within the time-out."""
        out.notes.append(f"group {group.group_id}: generation {group.generation} ends: {reason}")
        if group.state in (GroupState.STABLE, GroupState.EMPTY):
            group.causes, group.began_ms = [], at.wall_ms
        note_cause(group, reason)
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.fail_sync(out, group, ErrorCode.REBALANCE_IN_PROGRESS, at)
        group.pending_sync.clear()
        group.set_sync_timer(out, None)
        group.storing = None
        was_empty = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, at.wall_ms)
        if was_empty:
            # More members are likely to follow the first one: with a little patience they share one rebalance.
            delay_ms = self._config.initial_rebalance_delay_ms
            group.member_added = False
            group.initial_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            group.set_join_timer(out, at.monotonic_ms + delay_ms)
        elif group.all_joined:
            self.complete_join(out, group, at)
        else:
            group.set_join_timer(out, at.monotonic_ms + group.rebalance_timeout_ms)

    def complete_if_joined(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        """Close the join phase when everyone is there, but never cut the initial delay short."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            self.complete_join(out, group, at)

    def on_join_timer(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        if group.join_deadline_ms is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        if at.monotonic_ms < group.join_deadline_ms:
            group.set_join_timer(out, group.join_deadline_ms)
            return
        group.join_deadline_ms = None
        if group.initial_delay is not None and group.member_added and group.initial_delay[1] > 0:
            delay_ms, left_ms = group.initial_delay
            group.member_added = False
            next_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
            group.initial_delay = (next_ms, max(left_ms - delay_ms, 0))
            group.set_join_timer(out, at.monotonic_ms + next_ms)
        else:
            self.complete_join(out, group, at)

    def complete_join(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        """Close the join phase: without those who did not come, the rest is the next generation."""
        group.set_join_timer(out, None)
        late = [m for m in group.members.values() if m.join is None and m.instance_id is None]
        for member in late:
            out.notes.append(f"group {group.group_id}: member {member.member_id} did not rejoin in time, and is out")
            note_cause(group, f"member {member.member_id} did not rejoin in time, and is out")
            self.drop(out, group, member)
        if group.members and not group.elect_leader():
            # Only static members are left and none came back. They stay until their sessions end. The pause is never
            # zero, so that a time-out of zero does not spin.
            group.set_join_timer(out, at.monotonic_ms + max(group.rebalance_timeout_ms, 1))
            return
        group.initial_delay = None
        group.next_generation(at.wall_ms)
        out.notes.append(
            f"group {group.group_id}: generation {group.generation} has {plural(len(group.members), 'member')}"
        )
        if group.state is GroupState.EMPTY:
            # Should the write fail, the log still has the generation before, whose members time out: no harm.
            out.effects.append(one_record(group_record(group, {}), nothing_written, nothing_failed))
            return
        for member in group.members.values():
            caller = group.set_join(member, None)
            if caller is not None:
                is_leader = member.member_id == group.leader
                answers.join_answer(out, caller, group, member.member_id, with_members=is_leader)
            group.heard_from(out, member, at)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        group.set_sync_timer(out, at.monotonic_ms + group.rebalance_timeout_ms)

    # --- the sync phase -----------------------------------------------------------------------------------------------

    def synced(self, out: Outcome, group: ClassicGroup, member_id: str) -> None:
        """This member has asked for its assignment; when all have, nobody can be late."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            group.set_sync_timer(out, None)

    def on_sync_timer(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        if group.sync_deadline_ms is None:
            return
        if at.monotonic_ms < group.sync_deadline_ms:
            group.set_sync_timer(out, group.sync_deadline_ms)
            return
        group.sync_deadline_ms = None
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        late = [group.members[member_id] for member_id in sorted(group.pending_sync)]
        for member in late:
            self.drop(out, group, member)
        names = ", ".join(member.member_id for member in late)
        self.prepare(out, group, at, f"no SyncGroup in time from {names}")

    def hand_out(self, out: Outcome, group: ClassicGroup, at: Now) -> None:
        """Give every member that waits its assignment."""
        for member in group.members.values():
            caller, member.sync = member.sync, None
            if caller is not None:
                answers.sync_answer(out, caller, group, member)
                group.heard_from(out, member, at)

    def fail_sync(self, out: Outcome, group: ClassicGroup, error: ErrorCode, at: Now) -> None:
        """There will be no assignment in this generation."""
        for member in group.members.values():
            member.assignment = b""
            caller, member.sync = member.sync, None
            if caller is not None:
                answers.sync_error(out, caller, error)
                group.heard_from(out, member, at)

    # --- members ------------------------------------------------------------------------------------------------------

    def drop(self, out: Outcome, group: ClassicGroup, member: Member) -> None:
        """Forget a member; if it is still there, it learns from its waiting request that it has to begin again."""
        caller = group.set_join(member, None)
        if caller is not None:
            answers.join_error(out, caller, ErrorCode.UNKNOWN_MEMBER_ID, "")
        if member.sync is not None:
            answers.sync_error(out, member.sync, ErrorCode.UNKNOWN_MEMBER_ID)
            member.sync = None
        end_session(out, group, member.member_id, member.session)
        group.remove(member.member_id)

    def drop_pending(self, out: Outcome, group: ClassicGroup, member_id: str) -> None:
        session = group.pending.pop(member_id)
        end_session(out, group, member_id, session)

    def after_loss(self, out: Outcome, group: ClassicGroup, at: Now, reason: str) -> None:
        """Someone is gone: rebalance without them, or stop waiting for them."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(out, group, at, reason)
            return
        note_cause(group, reason)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            # Also during the initial delay: the last one to wait for may just have gone.
            self.complete_join(out, group, at)

    def on_session_timer(self, out: Outcome, group: ClassicGroup, member_id: str, at: Now) -> None:
        member = group.members.get(member_id)
        session = group.pending.get(member_id) if member is None else member.session
        if session is None:
            return
        if not is_over(out, group, member_id, session, at.monotonic_ms):
            return
        if member is None:
            del group.pending[member_id]
            if group.state is GroupState.PREPARING_REBALANCE:
                self.after_loss(out, group, at, f"member {member_id} never joined")
        elif not member.heartbeat_not_due:
            self.drop(out, group, member)
            self.after_loss(out, group, at, f"member {member_id} was not heard from for {member.session_timeout_ms} ms")
