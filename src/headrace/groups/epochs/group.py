"""A group that the coordinator assigns by itself: consumer, share and streams groups alike.

Three epochs tell how far things are: the group's (what is wanted), that of its target assignment (what was computed
from it), and each member's (what it has reached).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.coordination import CoordinatorRecord, Now, Timer, TimerChange
from headrace.errors import ErrorCode
from headrace.groups.epochs.member import EpochMember
from headrace.groups.group import Group
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.sessions import end_session, keep_alive

NEW_GROUP_EPOCH = 1

MemberT = TypeVar("MemberT", bound=EpochMember)
TargetT = TypeVar("TargetT")
KeyAndValue = tuple[Any, Any]
"""A key of a record and its value (None: a tombstone), as messages."""


@dataclass(slots=True)
class Waiting:
    """Who waits for a target that is being computed; `refuse` answers instead when that can never be."""

    epoch: int
    refuse: Any  # Callable[[Outcome, ErrorCode], None]
    renamed: dict[str, str] = field(default_factory=dict)  # members that are back under other ids since it began


@dataclass(slots=True, eq=False)
class EpochGroup(Group, Generic[MemberT, TargetT]):
    """One group with its members, their targets and its offsets."""

    epoch: int = NEW_GROUP_EPOCH
    metadata_hash: int = 0  # of its topics, as they were when the epoch was last looked at
    assignment_epoch: int = 0
    assigned_at_ms: int | None = None  # by the monotonic clock; None: not since it was loaded
    members: dict[str, MemberT] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id → member id
    targets: dict[str, TargetT] = field(default_factory=dict)
    topic_counts: dict[str, int] = field(default_factory=dict)  # how many members are subscribed to a topic
    topics_changed: bool = True  # whether its topics may be others by now
    waiting: Waiting | None = None

    # --- members ------------------------------------------------------------------------------------------------------

    def put_member(self, member: MemberT) -> None:
        """A member that is new. One that is there already is changed by whoever changes it."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.count_topics(member.topics, +1)

    def remove_member(self, member: MemberT) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]
        self.targets.pop(member.member_id, None)
        self.count_topics(member.topics, -1)

    def set_topics(self, member: MemberT, topics: frozenset[str]) -> None:
        self.count_topics(member.topics, -1)
        member.topics = topics
        self.count_topics(topics, +1)

    def count_topics(self, topics: Iterable[str], by: int) -> None:
        for topic in topics:
            count = self.topic_counts.get(topic, 0) + by
            if count > 0:
                self.topic_counts[topic] = count
            else:
                self.topic_counts.pop(topic, None)

    def static_member(self, instance_id: str) -> MemberT | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    # --- records ------------------------------------------------------------------------------------------------------

    def mend_epoch(self) -> None:
        """It was loaded: if its epoch could not be written, but what followed from it could, another one begins.

        Else the next epoch would be one that a target was computed for already, and nobody would hear of the new one.
        """
        reached = max((self.assignment_epoch, *(member.epoch for member in self.members.values())))
        if reached > self.epoch:
            from headrace.groups.epochs.steps import encoded

            self.epoch = reached + 1
            key, value = encoded(*self.epoch_record())
            self.book.unwritten[key] = value

    @abstractmethod
    def epoch_record(self) -> KeyAndValue:
        """Of the group's epoch."""

    @abstractmethod
    def target_epoch_record(self, now_ms: int) -> KeyAndValue:
        """Of the epoch of the target assignment."""

    @abstractmethod
    def target_record(self, member_id: str) -> KeyAndValue:
        """Of a member's part of the target assignment; a tombstone when it has none."""

    # --- timers -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def session_timeout_ms(self, member: MemberT) -> int: ...

    def heard_from(self, out: Outcome, member: MemberT, at: Now) -> None:
        """From now on it has its whole session again."""
        deadline_ms = at.monotonic_ms + self.session_timeout_ms(member)
        keep_alive(out, self, member.member_id, member.session, deadline_ms)

    def set_revoke_timer(self, out: Outcome, member: MemberT, deadline_ms: int | None) -> None:
        """Until when it has to give up what it was told to; None: there is nothing to wait for."""
        if deadline_ms is not None or member.revoke_deadline_ms is not None:
            member.revoke_deadline_ms = deadline_ms
            timer = Timer(TimerKind.REVOKE, self.partition, self.group_id, member.member_id)
            out.timers.append(TimerChange(timer, deadline_ms))

    def cancel_member_timers(self, out: Outcome, member: MemberT) -> None:
        end_session(out, self, member.member_id, member.session)
        self.set_revoke_timer(out, member, None)

    def start_timers(self, out: Outcome, at: Now) -> None:
        for member in self.members.values():
            self.heard_from(out, member, at)

    def cancel_timers(self, out: Outcome) -> None:
        for member in self.members.values():
            self.cancel_member_timers(out, member)

    def give_up(self, out: Outcome) -> None:
        self.cancel_timers(out)
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.refuse(out, ErrorCode.NOT_COORDINATOR)

    # --- what all kinds of groups are asked ---------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def type_name(self) -> str:
        return self.kind.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_vacant(self) -> bool:
        return False

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts

    def may_delete_offsets(self) -> ErrorCode:
        return ErrorCode.NONE

    def unwanted_since_ms(self, offset: CommittedOffset) -> int | None:
        return offset.commit_timestamp_ms

    @abstractmethod
    def records_of_end(self) -> list[KeyAndValue]:
        """The tombstones of all that the log has of it but its offsets."""

    def tombstones(self) -> list[CoordinatorRecord]:
        from headrace.groups.epochs.steps import encoded

        return [CoordinatorRecord(self.partition, *encoded(key, None)) for key, _ in self.records_of_end()]
