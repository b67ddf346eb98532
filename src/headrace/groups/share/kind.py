"""Share groups (KIP-932): members share partitions, whose records are handed out one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.coordination import Caller, Now, Timer
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.sessions import is_over
from headrace.groups.settings import GroupSettings
from headrace.groups.shards import Shards
from headrace.groups.share.administration import ShareStateChanges
from headrace.groups.share.config import ShareGroupConfig
from headrace.groups.share.describing import describe
from headrace.groups.share.group import ShareGroup
from headrace.groups.share.heartbeats import ShareHeartbeats
from headrace.groups.share.loading import RECORD_TYPES, loaded_groups
from headrace.groups.share.moving import ShareMoves
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


class ShareGroups:
    """The kind, and the requests that only groups of this kind are asked."""

    record_types = RECORD_TYPES

    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: ShareGroupConfig,
        hashes: TopicHashes,
    ) -> None:
        self._shards = shards
        self._topics = topics
        self._moves = ShareMoves(shards, topics, settings, config, hashes)
        self._heartbeats = ShareHeartbeats(self._moves)
        #: Changes of the states of partitions by hand.
        self.changes = ShareStateChanges(self._moves, topics)

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(self, caller: Caller, request: ShareGroupHeartbeatRequest, at: Now) -> Outcome:
        out = Outcome()
        self._heartbeats.heartbeat(out, caller, request, at)
        return out

    def describe(self, caller: Caller, request: ShareGroupDescribeRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, describe(self._shards, self._topics, request))
        return out

    # --- states of partitions -----------------------------------------------------------------------------------------

    def state_partitions(self, group_id: str) -> list[tuple[bytes, int]]:
        """Of which partitions (by topic id) the group has a state; none for a group that is not served here."""
        group = self._shards.groups.get(group_id)
        return group.state_partitions() if isinstance(group, ShareGroup) else []

    def is_deletable(self, group_id: str) -> bool:
        """Whether it is a share group without members."""
        group = self._shards.groups.get(group_id)
        return isinstance(group, ShareGroup) and group.is_empty and not group.is_dead

    def states_begun(self, group_id: str, answers: Mapping[tuple[bytes, int], bool], at: Now) -> Outcome:
        """The share coordinator has begun these states, or has not: those are asked for again."""
        out = Outcome()
        group = self._shards.groups.get(group_id)
        if isinstance(group, ShareGroup) and not group.is_dead:
            step = GroupStep(self._shards, out, group, at)
            for (topic_id, partition), has_begun in answers.items():
                if has_begun:
                    group.has_begun(topic_id, {partition})
                else:
                    group.has_not_begun(topic_id, {partition})
            step.put(group.states_record())
            step.end()
        return out

    def topics_deleted(self, topic_ids: Collection[bytes], at: Now) -> Outcome:
        """Their states are gone with them."""
        out = Outcome()
        for group in list(self._shards.groups.values()):
            if isinstance(group, ShareGroup) and not group.is_dead:
                step = GroupStep(self._shards, out, group, at)
                known = [topic_id for topic_id in topic_ids if group.forget_topic(topic_id)]
                if known:
                    step.put(group.states_record())
                step.end()
        return out

    # --- the kind -----------------------------------------------------------------------------------------------------

    def loaded(self, partition: int, records: Sequence[LoadedRecord]) -> Iterable[LoadedGroup]:
        return loaded_groups(records, lambda group_id: self._moves.new_group(group_id, partition))

    def served(self, out: Outcome, group: ShareGroup, at: Now) -> None:
        # Whoever asked for states before may be gone: with the next heartbeat they are asked for again.
        for states in group.beginning.values():
            states.since_ms = at.monotonic_ms - self._moves.config.begin_retry_ms - 1
        group.start_timers(out, at)

    def on_timer(self, out: Outcome, group: ShareGroup, timer: Timer, at: Now) -> None:
        member = group.members.get(timer.member_id)
        if member is None or timer.kind is not TimerKind.SESSION:
            return
        if is_over(out, group, member.member_id, member.session, at.monotonic_ms):
            waited_ms = group.session_timeout_ms(member)
            self._moves.drop(out, group, [member], at, f"was not heard from for {waited_ms} ms, and is out")

    def topics_changed(self, names: frozenset[str], at: Now) -> None:
        for group in self._shards.groups.values():
            if isinstance(group, ShareGroup) and not names.isdisjoint(group.topic_counts):
                group.topics_changed = True
