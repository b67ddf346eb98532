"""What moves a consumer group on: members that enter, are replaced and go, epochs, targets and reconciliation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.assignors.server import ServerAssignor
from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.groups.classic.records import group_tombstone
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.consumer import records
from headrace.groups.consumer.config import ConsumerGroupConfig
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember
from headrace.groups.consumer.migration import Rebalance, downgrade, from_classic, upgrade
from headrace.groups.consumer.plan import ConsumerPlan, plan_of, subscribed_ids
from headrace.groups.consumer.reconcile import Goal, Target, next_position
from headrace.groups.epochs.finding import served_group
from headrace.groups.epochs.member import STATIC_LEAVING_EPOCH, MemberProgress, UnknownStateError
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.epochs.targets import Targets
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.group import Group
from headrace.groups.outcome import Outcome
from headrace.groups.sessions import MemberSession
from headrace.groups.settings import GroupSettings, number
from headrace.groups.shards import Shards
from headrace.groups.topics import TopicLookup

SESSION_TIMEOUT = "consumer.session.timeout.ms"

Begin = Callable[[GroupStep[ConsumerGroup]], None]


class ClassicSide(NamedTuple):
    """What a group needs to become a classic one: how many members such a group may have, and how one rebalances."""

    max_size: int
    rebalance: Rebalance


class Moves:
    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: ConsumerGroupConfig,
        assignors: Mapping[str, ServerAssignor],
        hashes: TopicHashes,
        classic: ClassicSide,
    ) -> None:
        """`assignors` are by the names that members know them by; the first is the default."""
        self.shards = shards
        self.settings = settings
        self.config = config
        self.assignors = assignors
        self.targets: Targets[ConsumerGroup] = Targets(shards)
        self._topics = topics
        self._hashes = hashes
        self._classic = classic
        self._default_assignor = next(iter(assignors))

    # --- groups -------------------------------------------------------------------------------------------------------

    def new_group(self, group_id: str, partition: int) -> ConsumerGroup:
        return ConsumerGroup(group_id, partition, session_timeout_of=self._session_timeout_ms)

    def _session_timeout_ms(self, group_id: str) -> int:
        return number(self.settings, group_id, SESSION_TIMEOUT)

    def group_to_join(self, group_id: str) -> tuple[ConsumerGroup, Begin | None]:
        """The group that somebody joins. If it is not there yet, it is once `Begin` was called, which writes it."""
        found = served_group(self.shards, group_id)
        if isinstance(found, ConsumerGroup):
            return found, None
        partition = self.shards.serving(group_id).partition if found is None else found.partition
        group = self.new_group(group_id, partition)
        if found is None:
            return group, self._begin
        if not isinstance(found, ClassicGroup):
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        old = found
        if old.is_empty:
            return group, lambda step: self._begin_instead(step, old)
        self._check_upgrade(old)
        from_classic(old, group, self._topics)
        return group, lambda step: upgrade(step, self.shards, old)

    def _check_upgrade(self, group: ClassicGroup) -> None:
        why = None
        if not self.config.migration_policy.allows_upgrade:
            why = "online upgrade is disabled"
        elif not group.is_consumer_group:
            why = "the group does not use the consumer embedded protocol"
        elif len(group.members) > self.config.max_size:
            why = "the group size exceeds the consumer group maximum size"
        if why is not None:
            message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def maybe_downgrade(self, step: GroupStep[ConsumerGroup], *, is_left: bool) -> bool:
        """Let the group be a classic one if only members of that protocol are left; whether it is one now."""
        group = step.group
        count = len(group.members)
        if not count or group.classic_count < count or count > self._classic.max_size:
            return False
        if not self.config.migration_policy.allows_downgrade:
            return False
        downgrade(step, self.shards, self._topics, self._classic.rebalance if is_left else None)
        return True

    def _begin(self, step: GroupStep[ConsumerGroup]) -> None:
        self.shards.add(self.shards.serving(step.group.group_id), step.group)
        step.put(step.group.epoch_record())

    def _begin_instead(self, step: GroupStep[ConsumerGroup], old: ClassicGroup) -> None:
        """In place of an empty classic group, with its offsets."""
        old.give_up(step.out)
        self.shards.replace(old, step.group)
        if old.is_recorded:
            tombstone = group_tombstone(old)
            step.put_encoded(tombstone.key, tombstone.value)
        step.put(step.group.epoch_record())

    # --- members ------------------------------------------------------------------------------------------------------

    def replace_static(self, step: GroupStep[ConsumerGroup], old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id: it has what it had, and what it was to have."""
        group = step.group
        target = group.targets.get(old.member_id)
        self._end_member(step, old)
        member = copy.copy(old)
        member.member_id = member_id
        member.session = MemberSession()
        member.revoke_deadline_ms = member.join_deadline_ms = member.sync_deadline_ms = None
        member.epoch = member.previous_epoch = 0
        group.put_member(member)
        step.put(group.member_record(member))
        if target is not None:
            group.targets[member_id] = target
            step.put(group.target_record(member_id))
        if group.waiting is not None:
            group.waiting.renamed[old.member_id] = member_id
        step.put(group.current_record(member))
        step.note(f"member {member_id} takes the place of {old.member_id}, which has the same instance id")
        return member

    def set_away(self, step: GroupStep[ConsumerGroup], member: ConsumerMember) -> None:
        """A static member leaves and says that it will be back: what it has stays its own for its session."""
        group = step.group
        group.set_revoke_timer(step.out, member, None)
        group.place(member, member.position._replace(epoch=STATIC_LEAVING_EPOCH, revoking={}))
        step.put(group.current_record(member))

    def drop(
        self,
        out: Outcome,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        at: Now,
        why: str,
        reply: tuple[Caller, object] | None = None,
    ) -> None:
        """Members leave, or are put out: what they had is free."""
        step = GroupStep(self.shards, out, group, at)
        for member in members:
            step.note(f"member {member.member_id} {why}")
            self._end_member(step, member)
        had_others = any(member.classic is None for member in members)
        if not (had_others and self.maybe_downgrade(step, is_left=True)):
            self.bump_if(step, True)
        if reply is not None:
            out.reply(*reply)
        step.end()

    def _end_member(self, step: GroupStep[ConsumerGroup], member: ConsumerMember) -> None:
        group, member_id = step.group, member.member_id
        group.cancel_member_timers(step.out, member)
        group.remove_member(member)
        step.put(records.no_current(group.group_id, member_id))
        step.put(records.target(group.group_id, member_id, None))
        step.put(records.no_member(group.group_id, member_id))
        self.forget_unused(step, member.regex)

    def forget_unused(self, step: GroupStep[ConsumerGroup], regex: str) -> None:
        """An expression that no member has any more is not looked at any more."""
        group = step.group
        if regex and regex not in group.regex_counts and regex in group.regexes:
            group.set_resolved(regex, None)
            step.put(records.no_regex(group.group_id, regex))

    # --- epochs, targets ----------------------------------------------------------------------------------------------

    def bump_if(self, step: GroupStep[ConsumerGroup], is_other: bool) -> None:
        """Begin a new epoch, if the group is another than before, or its topics are."""
        group = step.group
        if is_other or group.topics_changed:
            group.topics_changed = False
            metadata_hash = self._hashes.of(group.topic_counts)
            if metadata_hash != group.metadata_hash:
                group.metadata_hash = metadata_hash
                is_other = True
        if is_other:
            group.epoch += 1
            step.put(group.epoch_record())

    def assignor_of(self, group: ConsumerGroup) -> ServerAssignor:
        """The one that most members would like. One that is not configured any more is not asked."""
        default = self.assignors[self._default_assignor]
        return self.assignors.get(group.preferred_assignor(self._default_assignor), default)

    def plan(self, group: ConsumerGroup) -> ConsumerPlan:
        return plan_of(group, self.assignor_of(group), self._topics)

    def reconcile(
        self, step: GroupStep[ConsumerGroup], member: ConsumerMember, owned: Target | None, subscription_changed: bool
    ) -> None:
        """Bring a member one step nearer to its target."""
        group = step.group
        if member.is_reconciled_to(group.assignment_epoch) and not subscription_changed:
            return
        now = member.position
        subscribed = subscribed_ids(group, member, self._topics)
        target = group.targets.get(member.member_id, {})
        goal = Goal(group.assignment_epoch, target, subscribed, group.held_by_another(member))
        try:
            position = next_position(now, goal, owned, subscription_changed)
        except UnknownStateError:
            message = "The member is in an unknown state. It must abandon all its partitions and rejoin."
            raise RefusedError(ErrorCode.FENCED_MEMBER_EPOCH, message) from None
        if position == now:
            return
        group.place(member, position)
        step.put(group.current_record(member))
        if member.classic is None:
            waits = position.state is MemberProgress.UNREVOKED_PARTITIONS
            deadline_ms = step.at.monotonic_ms + member.rebalance_timeout_ms if waits else None
            group.set_revoke_timer(step.out, member, deadline_ms)

    def is_served(self, group: Group) -> bool:
        return self.shards.is_live(group)
