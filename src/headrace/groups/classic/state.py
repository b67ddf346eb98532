"""A group of the classic protocol: members, state, generation, protocol. Values and their changes, no decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from headrace.coordination import Caller, CoordinatorRecord, Now, Timer, TimerChange
from headrace.errors import ErrorCode, HeadraceError
from headrace.groups.classic import answers
from headrace.groups.classic.records import group_tombstone
from headrace.groups.classic.subscription import subscribed_topics
from headrace.groups.group import CommitClaim, Group, GroupKind
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.sessions import MemberSession, end_session, keep_alive

CONSUMER_PROTOCOL_TYPE = "consumer"

Protocols = tuple[tuple[str, bytes], ...]
"""Names of a member's protocols with their metadata, most preferred first."""


class GroupState(Enum):
    """Kafka's states of a classic group, by the names that it shows to people."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


_REACHED_FROM = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
}


class InvalidTransitionError(HeadraceError):
    """A group was asked to go from one state to another that does not follow it: a defect of the coordinator."""


@dataclass(slots=True)
class Member:
    """One member. `join` and `sync` are its waiting requests, if any."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join: Caller | None = None
    sync: Caller | None = None
    is_new: bool = False
    session: MemberSession = field(default_factory=MemberSession)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it says for that protocol. A group from the log may have none: its members' is then under no name."""
        for name, metadata in self.protocols:
            if name == (protocol_name or ""):
                return metadata
        return b""

    @property
    def heartbeat_not_due(self) -> bool:
        """Whoever waits for the others cannot be late. New members can: nobody may know that they are gone."""
        return not self.is_new and (self.join is not None or self.sync is not None)


@dataclass(slots=True, eq=False)
class ClassicGroup(Group):
    """One group with its members and its offsets."""

    kind: ClassVar[GroupKind] = GroupKind.CLASSIC

    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending: dict[str, MemberSession] = field(default_factory=dict)  # given an id, and expected to join with it
    pending_sync: set[str] = field(default_factory=set)
    subscribed: frozenset[str] | None = None  # None: not known
    joining: int = 0  # how many members' joins wait
    member_added: bool = False  # during the initial delay, which it prolongs
    initial_delay: tuple[int, int] | None = None  # the delay under way, and what is left of the rebalance time-out
    join_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None
    is_recorded: bool = False  # whether the log has a record of it, or is about to
    storing: int | None = None  # the generation whose assignment is being written
    causes: list[str] = field(default_factory=list)  # why the rebalance that led to this generation began
    began_ms: int | None = None  # when it did, by the wall clock
    _support: dict[str, int] = field(default_factory=dict)  # protocol name → how many members have it

    # --- state --------------------------------------------------------------------------------------------------------

    def transition(self, state: GroupState, now_ms: int) -> None:
        if self.state not in _REACHED_FROM[state]:
            raise InvalidTransitionError(f"group {self.group_id!r} cannot go from {self.state.value} to {state.value}")
        self.previous_state, self.state, self.state_timestamp_ms = self.state, state, now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in _REACHED_FROM[GroupState.PREPARING_REBALANCE]

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def type_name(self) -> str:
        return self.protocol_type or ""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_awaited(self) -> bool:
        return bool(self.pending)

    @property
    def is_vacant(self) -> bool:
        was_used = self.generation or self.is_recorded or self.state is not GroupState.EMPTY
        return not (was_used or self.members or self.pending or self.offsets.is_in_use)

    def next_generation(self, now_ms: int) -> None:
        """Everyone has joined: choose the protocol and wait for the assignment; or be empty."""
        self.generation += 1
        self.pending_sync.clear()
        self.storing = None
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition(GroupState.EMPTY, now_ms)
        self.find_subscriptions()

    # --- members ------------------------------------------------------------------------------------------------------

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in; the first one is the leader and says of what type the group is."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, +1)
        if member.join is not None:
            self.joining += 1
        waiting = self.pending.pop(member.member_id, None)
        if waiting is not None:
            member.session = waiting

    def remove(self, member_id: str) -> Member | None:
        """Forget a member or a pending one. If it led, the longest-standing other member leads."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.join is not None:
                self.joining -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_sync.discard(member_id)
        return member

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, +1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id: its old holder is fenced from now on."""
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            self.pending_sync.add(member_id)
        member.member_id = member_id
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def set_join(self, member: Member, caller: Caller | None) -> Caller | None:
        """Let a JoinGroup wait (or, with None, no longer wait); gives the one that waited before."""
        before, member.join = member.join, caller
        self.joining += (caller is not None) - (before is not None)
        return before

    @property
    def all_joined(self) -> bool:
        return self.joining == len(self.members) and not self.pending

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect_leader(self) -> bool:
        """Have a leader that has joined; the old one stays if it did. False when nobody has."""
        if self.leader is None:
            return False
        # A group that was loaded may name a leader that is not among its members.
        leader = self.members.get(self.leader)
        if leader is not None and leader.join is not None:
            return True
        for member in self.members.values():
            if member.join is not None:
                self.leader = member.member_id
                return True
        return False

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ----------------------------------------------------------------------------------------------------

    def _count(self, protocols: Protocols, by: int) -> None:
        for name, _ in protocols:
            count = self._support.get(name, 0) + by
            if count:
                self._support[name] = count
            else:
                self._support.pop(name, None)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols fits in: of the group's type, with one that all members have."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(self._support.get(name, 0) == size for name in names)

    def select_protocol(self) -> str:
        """The vote: of those that all have, each member names its first; most votes win, the eldest's on a tie."""
        size = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if self._support[name] == size), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        if not votes:
            raise InvalidTransitionError(f"the members of group {self.group_id!r} have no protocol in common")
        return max(votes, key=votes.__getitem__)

    def find_subscriptions(self) -> None:
        """Work out which topics are subscribed to; unknown unless it is a group of consumers that can be read."""
        self.subscribed = None
        if not self.is_consumer_group:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol_name is not None:
            self.subscribed = subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())

    def is_subscribed_to(self, topic: str) -> bool:
        """When it is not known, a group of consumers may be subscribed to anything."""
        return self.is_consumer_group if self.subscribed is None else topic in self.subscribed

    # --- timers -------------------------------------------------------------------------------------------------------

    def set_join_timer(self, out: Outcome, deadline_ms: int | None) -> None:
        if deadline_ms is not None or self.join_deadline_ms is not None:
            self.join_deadline_ms = deadline_ms
            out.timers.append(TimerChange(Timer(TimerKind.JOIN, self.partition, self.group_id), deadline_ms))

    def set_sync_timer(self, out: Outcome, deadline_ms: int | None) -> None:
        if deadline_ms is not None or self.sync_deadline_ms is not None:
            self.sync_deadline_ms = deadline_ms
            out.timers.append(TimerChange(Timer(TimerKind.SYNC, self.partition, self.group_id), deadline_ms))

    def start_timers(self, out: Outcome, at: Now) -> None:
        for member in self.members.values():
            self.heard_from(out, member, at)

    def heard_from(self, out: Outcome, member: Member, at: Now) -> None:
        """From now on it has its whole session again."""
        keep_alive(out, self, member.member_id, member.session, at.monotonic_ms + member.session_timeout_ms)

    def cancel_timers(self, out: Outcome) -> None:
        self.set_join_timer(out, None)
        self.set_sync_timer(out, None)
        for member in self.members.values():
            end_session(out, self, member.member_id, member.session)
        for member_id, session in self.pending.items():
            end_session(out, self, member_id, session)

    # --- what all kinds of groups are asked ---------------------------------------------------------------------------

    def may_commit(self, claim: CommitClaim) -> ErrorCode:
        """In a group without members anyone may who claims no generation."""
        if claim.epoch < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if claim.epoch >= 0 or claim.member_id or claim.instance_id is not None:
            error = self.check_member(claim.member_id, claim.instance_id)
            if error != ErrorCode.NONE:
                return error
            if claim.epoch != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not claim.is_transactional and self.state is not GroupState.EMPTY:
            # Producers older than KIP-447 commit into active groups without saying who they are; consumers may not.
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not claim.is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def committed_by(self, out: Outcome, member_id: str, at: Now) -> None:
        member = self.members.get(member_id)
        if member is not None and self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self.heard_from(out, member, at)

    def may_delete_offsets(self) -> ErrorCode:
        if self.state is not GroupState.EMPTY and not self.is_consumer_group:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    def unwanted_since_ms(self, offset: CommittedOffset) -> int | None:
        """Kafka's rule: what counts is since when nobody could want the offset."""
        if self.protocol_type is None:
            return offset.commit_timestamp_ms  # nobody ever joined: only commits tell that someone is there
        if self.state is GroupState.EMPTY:
            return offset.commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        if self.state is GroupState.STABLE and self.is_consumer_group and self.subscribed is not None:
            return offset.commit_timestamp_ms
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        return [group_tombstone(self)]

    def give_up(self, out: Outcome) -> None:
        self.cancel_timers(out)
        for member in self.members.values():
            waiting = self.set_join(member, None)
            if waiting is not None:
                answers.join_error(out, waiting, ErrorCode.NOT_COORDINATOR, member.member_id)
            if member.sync is not None:
                answers.sync_error(out, member.sync, ErrorCode.NOT_COORDINATOR)
                member.sync = None
