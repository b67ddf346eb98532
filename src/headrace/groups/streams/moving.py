"""What moves a streams group on: members that enter and go, epochs, its topology, targets and reconciliation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.coordination import Caller, Now, Timer, TimerChange
from headrace.errors import ErrorCode
from headrace.groups.classic.records import group_tombstone
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.epochs.finding import served_group
from headrace.groups.epochs.member import MemberProgress, UnknownStateError
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.epochs.targets import Targets
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.settings import GroupSettings, number
from headrace.groups.shards import Shards
from headrace.groups.streams import records
from headrace.groups.streams.config import StreamsGroupConfig
from headrace.groups.streams.group import NOT_VALIDATED, StreamsGroup, StreamsMember
from headrace.groups.streams.plan import STANDBY_REPLICAS, plan_of
from headrace.groups.streams.reconcile import TaskGoal, next_position
from headrace.groups.streams.tasks import NO_TARGET, TargetTasks
from headrace.groups.streams.topology import ConfiguredTopology, StreamsTopology, configure
from headrace.groups.topics import TopicLookup

Begin = Callable[[GroupStep[StreamsGroup]], None]
Then = Callable[[GroupStep[StreamsGroup]], None]


class StreamsMoves:
    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: StreamsGroupConfig,
        hashes: TopicHashes,
    ) -> None:
        self.shards = shards
        self.settings = settings
        self.config = config
        self._targets: Targets[StreamsGroup] = Targets(shards)
        self._topics = topics
        self._hashes = hashes

    # --- groups -------------------------------------------------------------------------------------------------------

    def new_group(self, group_id: str, partition: int) -> StreamsGroup:
        return StreamsGroup(
            group_id,
            partition,
            session_timeout_of=lambda name: number(self.settings, name, "streams.session.timeout.ms"),
            topic_name=self._topics.topic_name,
        )

    def group_to_join(self, group_id: str) -> tuple[StreamsGroup, Begin | None]:
        """The group that somebody joins. If it is not there yet, it is once `Begin` was called."""
        found = served_group(self.shards, group_id)
        if isinstance(found, StreamsGroup):
            return found, None
        partition = self.shards.serving(group_id).partition if found is None else found.partition
        group = self.new_group(group_id, partition)
        if found is None:
            return group, self._begin
        if isinstance(found, ClassicGroup) and found.is_empty:
            return group, lambda step: self._begin_instead(step, found)
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")

    def _begin(self, step: GroupStep[StreamsGroup]) -> None:
        self.shards.add(self.shards.serving(step.group.group_id), step.group)

    def _begin_instead(self, step: GroupStep[StreamsGroup], old: ClassicGroup) -> None:
        """In place of an empty classic group, with its offsets."""
        old.give_up(step.out)
        self.shards.replace(old, step.group)
        if old.is_recorded:
            tombstone = group_tombstone(old)
            step.put_encoded(tombstone.key, tombstone.value)

    # --- members ------------------------------------------------------------------------------------------------------

    def drop(
        self,
        out: Outcome,
        group: StreamsGroup,
        members: Sequence[StreamsMember],
        at: Now,
        why: str,
        reply: tuple[Caller, object] | None = None,
    ) -> None:
        """Members leave, or are put out: their tasks are free."""
        step = GroupStep(self.shards, out, group, at)
        for member in members:
            step.note(f"member {member.member_id} {why}")
            group.cancel_member_timers(out, member)
            group.remove_member(member)
            step.put(records.no_current(group.group_id, member.member_id))
            step.put(records.target(group.group_id, member.member_id, None))
            step.put(records.no_member(group.group_id, member.member_id))
        group.epoch += 1
        step.put(group.epoch_record())
        if not group.members:
            self._end_delay(out, group)
        if reply is not None:
            out.reply(*reply)
        step.end()

    # --- epochs -------------------------------------------------------------------------------------------------------

    def configured(self, group: StreamsGroup, topology: StreamsTopology) -> ConfiguredTopology:
        """The topology over the topics as they are now. Raises what makes it impossible; changes nothing."""
        if group.configured is not None and group.topology is topology and not group.topics_changed:
            return group.configured
        return configure(topology, self._topics.partition_count)

    def bump_if(self, step: GroupStep[StreamsGroup], is_other: bool, configured: ConfiguredTopology) -> None:
        """Begin a new epoch, if the group is another than before, its topics are, or it is assigned otherwise."""
        group = step.group
        assert group.topology is not None
        group.configured = configured
        if group.topics_changed:
            group.topics_changed = False
            there = [name for name in group.topology.required_topics if self._topics.topic_id(name) is not None]
            metadata_hash = self._hashes.of(there)
            if metadata_hash != group.metadata_hash:
                group.metadata_hash = metadata_hash
                is_other = True
        validated = group.topology.epoch if configured.is_ready else NOT_VALIDATED
        configs = {STANDBY_REPLICAS: str(number(self.settings, group.group_id, "streams.num.standby.replicas"))}
        if is_other or validated != group.validated_topology_epoch or configs != group.assignment_configs:
            group.validated_topology_epoch, group.assignment_configs = validated, configs
            group.epoch += 1
            step.put(group.epoch_record())

    # --- targets ------------------------------------------------------------------------------------------------------

    def begin_delay(self, step: GroupStep[StreamsGroup]) -> None:
        """The first member is there: others may come, so tasks are given out a little later."""
        group = step.group
        delay_ms = number(self.settings, group.group_id, "streams.initial.rebalance.delay.ms")
        if delay_ms > 0 and group.delayed_until_ms is None:
            group.delayed_until_ms = step.at.monotonic_ms + delay_ms
            step.out.timers.append(TimerChange(_delay_timer(group), group.delayed_until_ms))

    def _end_delay(self, out: Outcome, group: StreamsGroup) -> None:
        if group.delayed_until_ms is not None:
            group.delayed_until_ms = None
            out.timers.append(TimerChange(_delay_timer(group), None))

    def delay_is_over(self, out: Outcome, group: StreamsGroup, at: Now) -> None:
        group.delayed_until_ms = None
        if group.members and group.configured is not None:
            step = GroupStep(self.shards, out, group, at)
            self._targets.refresh(step, 0, plan_of, _nothing, partial(_refuse_nobody, group))

    def waits_for(self, group: StreamsGroup, at: Now) -> str | None:
        """Why there is no newer target now, though there should be one."""
        if group.delayed_until_ms is not None:
            return "Assignment delayed due to the configured initial rebalance delay."
        if group.epoch <= group.assignment_epoch or group.assigned_at_ms is None:
            return None
        is_early = at.monotonic_ms - group.assigned_at_ms < self._interval_ms(group)
        return "Assignment delayed due to the configured assignment interval." if is_early else None

    def refresh(self, step: GroupStep[StreamsGroup], then: Then, refuse: Callable[[Outcome, ErrorCode], None]) -> None:
        """Compute a target if it is time to; then go on, and end the step."""
        if step.group.delayed_until_ms is not None:
            then(step)
            step.end()
            return
        self._targets.refresh(step, self._interval_ms(step.group), plan_of, then, refuse)

    def _interval_ms(self, group: StreamsGroup) -> int:
        return number(self.settings, group.group_id, "streams.assignment.interval.ms")

    def reconcile(self, step: GroupStep[StreamsGroup], member: StreamsMember, owned: TargetTasks | None) -> None:
        """Bring a member one step nearer to its target."""
        group = step.group
        if member.is_reconciled_to(group.assignment_epoch):
            return
        target = NO_TARGET if group.delayed_until_ms is not None else group.targets.get(member.member_id, NO_TARGET)
        process_id = member.process_id
        goal = TaskGoal(
            group.assignment_epoch,
            target,
            group.is_active,
            partial(group.is_held_in, process_id),
            partial(group.is_passive_in, process_id),
        )
        now = member.position
        try:
            position = next_position(now, goal, owned)
        except UnknownStateError:
            raise RefusedError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
            ) from None
        if position == now:
            return
        group.place(member, position)
        step.put(group.current_record(member))
        waits = position.state is MemberProgress.UNREVOKED_PARTITIONS
        deadline_ms = step.at.monotonic_ms + member.rebalance_timeout_ms if waits else None
        group.set_revoke_timer(step.out, member, deadline_ms)


def _delay_timer(group: StreamsGroup) -> Timer:
    return Timer(TimerKind.DELAY, group.partition, group.group_id)


def _nothing(step: GroupStep[StreamsGroup]) -> None:
    """Nobody waits for this target; members hear of it with their next heartbeats."""


def _refuse_nobody(group: StreamsGroup, out: Outcome, error: ErrorCode) -> None:
    out.notes.append(f"group {group.group_id}: no tasks were given out after the initial delay: {error.name}")
