"""A consumer group: its members, and which of them has which partition. Values and their changes, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from headrace.coordination import Now, Timer, TimerChange
from headrace.errors import ErrorCode
from headrace.groups.consumer import records
from headrace.groups.consumer.reconcile import MemberPosition, Partitions
from headrace.groups.epochs.group import EpochGroup, KeyAndValue
from headrace.groups.epochs.member import EpochMember
from headrace.groups.group import CommitClaim, GroupKind
from headrace.groups.outcome import Outcome, TimerKind

EPOCH_COMMIT_VERSION = 9  # of OffsetCommit: the first that knows of member epochs
NO_EPOCH = -1

Target = dict[bytes, tuple[int, ...]]
"""Topic id → partitions, sorted."""


class ClassicProtocols(NamedTuple):
    """What a member says that speaks the classic protocol: names of protocols with their metadata, preferred first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def name(self) -> str:
        return self.protocols[0][0]


@dataclass(slots=True, eq=False)
class ConsumerMember(EpochMember):
    assignor: str | None = None  # the one that it would like
    regex: str = ""  # "" for none
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    classic: ClassicProtocols | None = None  # None: it speaks the consumer protocol
    join_deadline_ms: int | None = None  # until when a classic member has to join again
    sync_deadline_ms: int | None = None  # and to ask for its assignment
    is_told_late: bool = False  # whether its last answer had to wait for a target

    @property
    def position(self) -> MemberPosition:
        return MemberPosition(self.state, self.epoch, self.previous_epoch, self.assigned, self.revoking)


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched, when the cluster's topics were last looked at."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup(EpochGroup[ConsumerMember, Target]):
    kind: ClassVar[GroupKind] = GroupKind.CONSUMER

    #: The session time-out of members of a group; those of the classic protocol have their own.
    session_timeout_of: Callable[[str], int] = field(kw_only=True)
    holders: dict[bytes, dict[int, str]] = field(default_factory=dict)  # who has a partition, or has to give it up
    regex_counts: dict[str, int] = field(default_factory=dict)  # how many members have an expression
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    assignor_counts: dict[str, int] = field(default_factory=dict)
    classic_count: int = 0
    protocol_counts: dict[str, int] = field(default_factory=dict)  # of its classic members
    is_matching: bool = False  # whether its expressions are being matched
    matched_at_ms: int | None = None  # by the monotonic clock; None: not since it was loaded
    matched_changes: int = 0  # how often topics had come or gone by then

    # --- members ------------------------------------------------------------------------------------------------------

    def put_member(self, member: ConsumerMember) -> None:
        EpochGroup.put_member(self, member)
        self._count_wishes(member, +1)
        self.hold(member)

    def remove_member(self, member: ConsumerMember) -> None:
        self.let_go(member)
        self._count_wishes(member, -1)
        EpochGroup.remove_member(self, member)

    def replace_wishes(self, member: ConsumerMember, assignor: str | None, regex: str) -> None:
        _count(self.assignor_counts, (member.assignor,), -1)
        _count(self.assignor_counts, (assignor,), +1)
        member.assignor = assignor
        if regex != member.regex:
            self.count_topics(self.topics_of_regex(member.regex), -1)
            _count(self.regex_counts, (member.regex or None,), -1)
            member.regex = regex
            _count(self.regex_counts, (regex or None,), +1)
            self.count_topics(self.topics_of_regex(regex), +1)

    def set_classic(self, member: ConsumerMember, classic: ClassicProtocols | None) -> None:
        if classic != member.classic:
            self._count_classic(member, -1)
            member.classic = classic
            self._count_classic(member, +1)

    def _count_wishes(self, member: ConsumerMember, by: int) -> None:
        _count(self.assignor_counts, (member.assignor,), by)
        _count(self.regex_counts, (member.regex or None,), by)
        self.count_topics(self.topics_of_regex(member.regex), by)
        self._count_classic(member, by)

    def _count_classic(self, member: ConsumerMember, by: int) -> None:
        if member.classic is not None:
            self.classic_count += by
            _count(self.protocol_counts, {name for name, _ in member.classic.protocols}, by)

    def topics_of_regex(self, regex: str) -> frozenset[str]:
        """What an expression is known to match; nothing while nobody has looked."""
        resolved = self.regexes.get(regex)
        return frozenset() if resolved is None else resolved.topics

    def set_resolved(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """An expression matches other topics than before; without any, it is forgotten."""
        count = self.regex_counts.get(regex, 0)
        before = self.topics_of_regex(regex)
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved
        after = self.topics_of_regex(regex)
        if count and before != after:
            for _ in range(count):
                self.count_topics(before, -1)
                self.count_topics(after, +1)

    def wanted_topics(self, member: ConsumerMember) -> frozenset[str]:
        """All that it is subscribed to, by name or by an expression."""
        return member.topics | self.topics_of_regex(member.regex) if member.regex else member.topics

    def preferred_assignor(self, default: str) -> str:
        """The one that most members name."""
        return max(self.assignor_counts, key=self.assignor_counts.__getitem__, default=default)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def place(self, member: ConsumerMember, position: MemberPosition) -> None:
        """The member is there now."""
        self.let_go(member)
        member.state, member.epoch, member.previous_epoch, member.assigned, member.revoking = position
        self.hold(member)

    def hold(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic, indexes in partitions.items():
                holders = self.holders.setdefault(topic, {})
                for index in indexes:
                    holders[index] = member.member_id

    def let_go(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic, indexes in partitions.items():
                holders = self.holders.get(topic, {})
                for index in indexes:
                    if holders.get(index) == member.member_id:
                        del holders[index]
                if not holders:
                    self.holders.pop(topic, None)

    def held_by_another(self, member: ConsumerMember) -> Callable[[bytes, int], bool]:
        holders, own = self.holders, member.member_id

        def is_held(topic: bytes, partition: int) -> bool:
            return holders.get(topic, {}).get(partition, own) != own

        return is_held

    # --- records ------------------------------------------------------------------------------------------------------

    def epoch_record(self) -> KeyAndValue:
        return records.epoch(self.group_id, self.epoch, self.metadata_hash)

    def target_epoch_record(self, now_ms: int) -> KeyAndValue:
        return records.target_epoch(self.group_id, self.assignment_epoch, now_ms)

    def target_record(self, member_id: str) -> KeyAndValue:
        return records.target(self.group_id, member_id, self.targets.get(member_id))

    def member_record(self, member: ConsumerMember) -> KeyAndValue:
        return records.member(self.group_id, member)

    def current_record(self, member: ConsumerMember) -> KeyAndValue:
        return records.current(self.group_id, member)

    def records_of_end(self) -> list[KeyAndValue]:
        ids = list(self.members)
        return [
            *(records.no_current(self.group_id, member_id) for member_id in ids),
            *(records.target(self.group_id, member_id, None) for member_id in ids),
            records.no_target_epoch(self.group_id),
            *(records.no_member(self.group_id, member_id) for member_id in ids),
            *(records.no_regex(self.group_id, regex) for regex in self.regexes),
            records.no_partition_metadata(self.group_id),
            records.no_epoch(self.group_id),
        ]

    # --- timers -------------------------------------------------------------------------------------------------------

    def session_timeout_ms(self, member: ConsumerMember) -> int:
        return self.session_timeout_of(self.group_id) if member.classic is None else member.classic.session_timeout_ms

    def set_join_timer(self, out: Outcome, member: ConsumerMember, deadline_ms: int | None) -> None:
        if deadline_ms is not None or member.join_deadline_ms is not None:
            member.join_deadline_ms = deadline_ms
            timer = Timer(TimerKind.JOIN, self.partition, self.group_id, member.member_id)
            out.timers.append(TimerChange(timer, deadline_ms))

    def set_sync_timer(self, out: Outcome, member: ConsumerMember, deadline_ms: int | None) -> None:
        if deadline_ms is not None or member.sync_deadline_ms is not None:
            member.sync_deadline_ms = deadline_ms
            timer = Timer(TimerKind.SYNC, self.partition, self.group_id, member.member_id)
            out.timers.append(TimerChange(timer, deadline_ms))

    def cancel_member_timers(self, out: Outcome, member: ConsumerMember) -> None:
        EpochGroup.cancel_member_timers(self, out, member)
        self.set_join_timer(out, member, None)
        self.set_sync_timer(out, member, None)

    # --- what all kinds of groups are asked ---------------------------------------------------------------------------

    def may_commit(self, claim: CommitClaim) -> ErrorCode:
        """In a group without members anyone may who claims no epoch."""
        if claim.epoch < 0 and not self.members:
            return ErrorCode.NONE
        if claim.is_transactional and claim.epoch < 0 and not claim.member_id:
            return ErrorCode.NONE  # by a producer older than KIP-447, which does not say for whom
        member = self.members.get(claim.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is not None or claim.is_transactional:
            return ErrorCode.NONE if claim.epoch == member.epoch else ErrorCode.ILLEGAL_GENERATION
        if claim.api_version < EPOCH_COMMIT_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        if claim.epoch > member.epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def may_commit_partition(self, claim: CommitClaim, topic_id: bytes, partition: int) -> ErrorCode:
        """A member may commit by an older epoch what it has had since then: nobody else had it in between."""
        member = self.members.get(claim.member_id)
        if member is None or claim.epoch == member.epoch:
            return ErrorCode.NONE
        since = member.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic_id, {}).get(partition)
        return ErrorCode.NONE if since is not None and since <= claim.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def is_own(self, member_id: str, owned: Mapping[bytes, Collection[int]] | None) -> bool:
        """Whether these are partitions that the member was assigned, all of them."""
        if owned is None:
            return False
        assigned = self.members[member_id].assigned
        return all(index in assigned.get(topic, ()) for topic, indexes in owned.items() for index in indexes)

    def start_timers(self, out: Outcome, at: Now) -> None:
        EpochGroup.start_timers(self, out, at)
        for member in self.members.values():
            if member.classic is None and member.revoking:
                self.set_revoke_timer(out, member, at.monotonic_ms + member.rebalance_timeout_ms)


def _count(counts: dict[str, int], names: Iterable[str | None], by: int) -> None:
    for name in names:
        if name is not None:
            count = counts.get(name, 0) + by
            if count > 0:
                counts[name] = count
            else:
                counts.pop(name, None)
