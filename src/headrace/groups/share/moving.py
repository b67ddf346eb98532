"""What moves a share group on: members that go, epochs, targets, and states of partitions that have to begin."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.coordination import Caller, Now
from headrace.errors import ErrorCode
from headrace.groups.epochs.finding import served_group
from headrace.groups.epochs.refusals import RefusedError
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.epochs.targets import Targets
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.outcome import Outcome, StateBeginning
from headrace.groups.settings import GroupSettings, number
from headrace.groups.shards import Shards
from headrace.groups.share import records
from headrace.groups.share.config import ShareGroupConfig
from headrace.groups.share.group import ShareGroup, ShareMember
from headrace.groups.share.plan import SharePlan, plan_of
from headrace.groups.topics import TopicLookup

SESSION_TIMEOUT = "share.session.timeout.ms"
FROM_SETTINGS = -1
"""As a start offset: where the group's settings say."""


class ShareMoves:
    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: ShareGroupConfig,
        hashes: TopicHashes,
    ) -> None:
        self.shards = shards
        self.settings = settings
        self.config = config
        self.targets: Targets[ShareGroup] = Targets(shards)
        self._topics = topics
        self._hashes = hashes

    # --- groups -------------------------------------------------------------------------------------------------------

    def new_group(self, group_id: str, partition: int) -> ShareGroup:
        return ShareGroup(group_id, partition, session_timeout_of=self._session_timeout_ms)

    def _session_timeout_ms(self, group_id: str) -> int:
        return number(self.settings, group_id, SESSION_TIMEOUT)

    def group_to_join(self, group_id: str) -> tuple[ShareGroup, bool]:
        """The group, and whether it is new: then `begin` writes it."""
        found = served_group(self.shards, group_id)
        if isinstance(found, ShareGroup):
            return found, False
        if found is not None:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return self.new_group(group_id, self.shards.serving(group_id).partition), True

    def begin(self, step: GroupStep[ShareGroup]) -> None:
        self.shards.add(self.shards.serving(step.group.group_id), step.group)
        step.put(step.group.epoch_record())

    # --- members ------------------------------------------------------------------------------------------------------

    def drop(
        self,
        out: Outcome,
        group: ShareGroup,
        members: Sequence[ShareMember],
        at: Now,
        why: str,
        reply: tuple[Caller, object] | None = None,
    ) -> None:
        """Members leave, or are put out. What they have locked stays so: that is between them and the leaders."""
        step = GroupStep(self.shards, out, group, at)
        for member in members:
            step.note(f"member {member.member_id} {why}")
            group.cancel_member_timers(out, member)
            group.remove_member(member)
            step.put(records.no_current(group.group_id, member.member_id))
            step.put(records.target(group.group_id, member.member_id, None))
            step.put(records.no_member(group.group_id, member.member_id))
        self.bump_if(step, True)
        if reply is not None:
            out.reply(*reply)
        step.end()

    # --- epochs, targets ----------------------------------------------------------------------------------------------

    def bump_if(self, step: GroupStep[ShareGroup], is_other: bool) -> None:
        """Begin a new epoch, if the group is another than before, or its topics are."""
        group = step.group
        if not is_other and group.members and group.assignment_epoch >= group.epoch:
            is_other = group.is_unassigned(self._topics)
        if is_other or group.topics_changed:
            group.topics_changed = False
            metadata_hash = self._hashes.of(group.topic_counts)
            if metadata_hash != group.metadata_hash:
                group.metadata_hash = metadata_hash
                is_other = True
        if is_other:
            group.epoch += 1
            step.put(group.epoch_record())

    def plan(self, group: ShareGroup) -> SharePlan:
        return plan_of(group, self._topics)

    def reconcile(self, step: GroupStep[ShareGroup], member: ShareMember) -> None:
        """Nothing is revoked first: a member is where its target is at once."""
        group = step.group
        if member.is_reconciled_to(group.assignment_epoch):
            return
        member.previous_epoch, member.epoch = member.epoch, group.assignment_epoch
        member.assigned = dict(group.targets.get(member.member_id, {}))
        step.put(group.current_record(member))

    # --- states of partitions -----------------------------------------------------------------------------------------

    def begin_states(self, step: GroupStep[ShareGroup]) -> None:
        """Let states begin of partitions that members are subscribed to and that have none."""
        group = step.group
        asked_since_ms = step.at.monotonic_ms - self.config.begin_retry_ms
        asked: dict[tuple[bytes, int], int] = {}
        for name in group.topic_counts:
            topic_id, count = self._topics.topic_id(name), self._topics.partition_count(name)
            if topic_id is None or count is None:
                continue
            missing = set(range(count)) - group.is_known(topic_id, asked_since_ms)
            if missing:
                group.begin(topic_id, name, missing, step.at.monotonic_ms)
                asked.update(((topic_id, partition), FROM_SETTINGS) for partition in sorted(missing))
        if asked:
            step.put(group.states_record())
            step.out.beginnings.append(StateBeginning(group.group_id, group.epoch, asked))
