"""A streams group: its members, its topology, and which of them has which task. Values and changes, no decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.coordination import Now
from headrace.errors import ErrorCode
from headrace.groups.epochs.group import EpochGroup, KeyAndValue
from headrace.groups.epochs.member import EpochMember
from headrace.groups.group import CommitClaim, GroupKind
from headrace.groups.outcome import Outcome
from headrace.groups.streams import records
from headrace.groups.streams.reconcile import TaskPosition
from headrace.groups.streams.tasks import MemberTasks, TargetTasks
from headrace.groups.streams.topology import ConfiguredTopology, StreamsTopology

EPOCH_COMMIT_VERSION = 9  # of OffsetCommit: the first that knows of member epochs
FIRST_ASSIGNMENT_EPOCH = 1
NOT_VALIDATED = -1

Task = tuple[str, int]
"""Subtopology and number."""


@dataclass(slots=True, eq=False)
class StreamsMember(EpochMember):
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    client_tags: dict[str, str] = field(default_factory=dict)
    assigned: MemberTasks = field(default_factory=MemberTasks)
    revoking: MemberTasks = field(default_factory=MemberTasks)
    owned: TargetTasks | None = None  # as it said last
    answered_ms: int = 0  # when it was last answered what it has, by the monotonic clock

    @property
    def position(self) -> TaskPosition:
        return TaskPosition(self.state, self.epoch, self.previous_epoch, self.assigned, self.revoking)

    @property
    def told(self) -> tuple[object, ...]:
        """What it says of itself, and its record keeps."""
        return (
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.topology_epoch,
            self.process_id,
            self.endpoint,
            tuple(sorted(self.client_tags.items())),
        )


@dataclass(slots=True, eq=False)
class StreamsGroup(EpochGroup[StreamsMember, TargetTasks]):
    kind: ClassVar[GroupKind] = GroupKind.STREAMS

    session_timeout_of: Callable[[str], int] = field(kw_only=True)
    topic_name: Callable[[bytes], str | None] = field(kw_only=True)
    assignment_epoch: int = FIRST_ASSIGNMENT_EPOCH
    validated_topology_epoch: int = 0
    assignment_configs: dict[str, str] = field(default_factory=dict)
    topology: StreamsTopology | None = None
    configured: ConfiguredTopology | None = None
    shutdown_asked_by: str | None = None
    endpoint_epoch: int = 0
    delayed_until_ms: int | None = None  # by the monotonic clock: no tasks before, more members may come
    active_holders: dict[Task, set[str]] = field(default_factory=dict)
    passive_holders: dict[Task, set[str]] = field(default_factory=dict)  # standby and warm-up tasks

    # --- members ------------------------------------------------------------------------------------------------------

    def put_member(self, member: StreamsMember) -> None:
        EpochGroup.put_member(self, member)
        self._hold(member)

    def remove_member(self, member: StreamsMember) -> None:
        self._let_go(member)
        EpochGroup.remove_member(self, member)
        if not self.members:
            self.shutdown_asked_by = None

    def place(self, member: StreamsMember, position: TaskPosition) -> None:
        """The member is there now."""
        self._let_go(member)
        member.state, member.epoch, member.previous_epoch, member.assigned, member.revoking = position
        self._hold(member)

    def _hold(self, member: StreamsMember) -> None:
        for holders, task in self._held(member):
            holders.setdefault(task, set()).add(member.member_id)

    def _let_go(self, member: StreamsMember) -> None:
        for holders, task in self._held(member):
            found = holders.get(task)
            if found is not None:
                found.discard(member.member_id)
                if not found:
                    del holders[task]

    def _held(self, member: StreamsMember) -> list[tuple[dict[Task, set[str]], Task]]:
        found: list[tuple[dict[Task, set[str]], Task]] = []
        for tasks in (member.assigned, member.revoking):
            found += ((self.active_holders, (name, n)) for name, numbers in tasks.active.items() for n in numbers)
            for roles in (tasks.standby, tasks.warmup):
                found += ((self.passive_holders, (name, n)) for name, numbers in roles.items() for n in numbers)
        return found

    def is_active(self, name: str, number: int) -> bool:
        """Whether somebody runs the task, or has yet to give it up."""
        return (name, number) in self.active_holders

    def is_passive_in(self, process_id: str, name: str, number: int) -> bool:
        return self._is_in(self.passive_holders.get((name, number)), process_id)

    def is_held_in(self, process_id: str, name: str, number: int) -> bool:
        """Whether a process has the task, in whatever role."""
        task = name, number
        return self._is_in(self.active_holders.get(task), process_id) or self._is_in(
            self.passive_holders.get(task), process_id
        )

    def _is_in(self, member_ids: set[str] | None, process_id: str) -> bool:
        return any(self.members[member_id].process_id == process_id for member_id in member_ids or ())

    # --- records ------------------------------------------------------------------------------------------------------

    def epoch_record(self) -> KeyAndValue:
        return records.epoch(self)

    def target_epoch_record(self, now_ms: int) -> KeyAndValue:
        return records.target_epoch(self.group_id, self.assignment_epoch, now_ms)

    def target_record(self, member_id: str) -> KeyAndValue:
        return records.target(self.group_id, member_id, self.targets.get(member_id))

    def member_record(self, member: StreamsMember) -> KeyAndValue:
        return records.member(self.group_id, member)

    def current_record(self, member: StreamsMember) -> KeyAndValue:
        return records.current(self.group_id, member)

    def records_of_end(self) -> list[KeyAndValue]:
        ids = list(self.members)
        return [
            *(records.no_current(self.group_id, member_id) for member_id in ids),
            *(records.target(self.group_id, member_id, None) for member_id in ids),
            records.no_target_epoch(self.group_id),
            *(records.no_member(self.group_id, member_id) for member_id in ids),
            records.no_epoch(self.group_id),
            records.no_topology(self.group_id),
        ]

    # --- what all kinds of groups are asked ---------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        if self.members and (self.topology is None or self.topology.epoch != self.validated_topology_epoch):
            return "NotReady"
        return EpochGroup.state_name.fget(self)  # type: ignore[attr-defined,no-any-return]  # a property's getter

    def session_timeout_ms(self, member: StreamsMember) -> int:
        return self.session_timeout_of(self.group_id)

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    def may_commit(self, claim: CommitClaim) -> ErrorCode:
        """In a group without members anyone may who claims no epoch."""
        if claim.epoch < 0 and not self.members:
            return ErrorCode.NONE
        if claim.is_transactional and claim.epoch == -1 and not claim.member_id and claim.instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(claim.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not claim.is_transactional and claim.api_version < EPOCH_COMMIT_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.STALE_MEMBER_EPOCH if claim.epoch > member.epoch else ErrorCode.NONE

    def may_commit_partition(self, claim: CommitClaim, topic_id: bytes, partition: int) -> ErrorCode:
        """A member may commit by an older epoch for a task that it has had since then."""
        member = self.members.get(claim.member_id)
        if member is None or claim.epoch == member.epoch:
            return ErrorCode.NONE
        name = self.topic_name(topic_id)
        subtopology = None if self.topology is None or name is None else self.topology.sources.get(name)
        if subtopology is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        since = member.assigned.active.get(subtopology, {}).get(partition)
        if since is None:
            since = member.revoking.active.get(subtopology, {}).get(partition)
        return ErrorCode.NONE if since is not None and since <= claim.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def start_timers(self, out: Outcome, at: Now) -> None:
        EpochGroup.start_timers(self, out, at)
        for member in self.members.values():
            if not member.revoking.is_empty:
                self.set_revoke_timer(out, member, at.monotonic_ms + member.rebalance_timeout_ms)
