"""Consumer groups (KIP-848): members tell what they want, the coordinator assigns, and moves them step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from headrace.assignors.server import server_assignors
from headrace.coordination import Caller, Now, Timer
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.consumer.classic_members import ClassicMembers
from headrace.groups.consumer.config import ConsumerGroupConfig
from headrace.groups.consumer.describing import describe
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember
from headrace.groups.consumer.heartbeats import ConsumerHeartbeats
from headrace.groups.consumer.loading import RECORD_TYPES, loaded_groups
from headrace.groups.consumer.moving import ClassicSide, Moves
from headrace.groups.consumer.regexes import Regexes
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.sessions import is_over
from headrace.groups.settings import GroupSettings
from headrace.groups.shards import Shards
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


class ConsumerGroups:
    """The kind, and the requests that only groups of this kind are asked."""

    record_types = RECORD_TYPES

    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: ConsumerGroupConfig,
        hashes: TopicHashes,
        rng: Random,
        classic: ClassicSide,
    ) -> None:
        self._shards = shards
        self._topics = topics
        self._moves = Moves(shards, topics, settings, config, server_assignors(config.assignors), hashes, classic)
        self._regexes = Regexes(self._moves, topics)
        self._heartbeats = ConsumerHeartbeats(self._moves, self._regexes, rng)
        #: For requests of the classic protocol from members of these groups.
        self.classic_members = ClassicMembers(self._moves, topics, rng)

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(self, caller: Caller, request: ConsumerGroupHeartbeatRequest, at: Now) -> Outcome:
        out = Outcome()
        self._heartbeats.heartbeat(out, caller, request, at)
        return out

    def describe(self, caller: Caller, request: ConsumerGroupDescribeRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, describe(self._shards, self._moves, self._topics, request))
        return out

    # --- the kind -----------------------------------------------------------------------------------------------------

    def loaded(self, partition: int, records: Sequence[LoadedRecord]) -> Iterable[LoadedGroup]:
        return loaded_groups(records, lambda group_id: self._moves.new_group(group_id, partition))

    def served(self, out: Outcome, group: ConsumerGroup, at: Now) -> None:
        group.start_timers(out, at)

    def on_timer(self, out: Outcome, group: ConsumerGroup, timer: Timer, at: Now) -> None:
        member = group.members.get(timer.member_id)
        if member is None:
            return
        if timer.kind is TimerKind.SESSION:
            if is_over(out, group, member.member_id, member.session, at.monotonic_ms):
                waited_ms = group.session_timeout_ms(member)
                self._moves.drop(out, group, [member], at, f"was not heard from for {waited_ms} ms, and is out")
        elif timer.kind is TimerKind.REVOKE:
            deadline_ms = member.revoke_deadline_ms
            if deadline_ms is None:
                return
            if at.monotonic_ms < deadline_ms:
                group.set_revoke_timer(out, member, deadline_ms)
                return
            member.revoke_deadline_ms = None
            self._drop_late(out, group, member, at, "give up partitions")
        elif timer.kind is TimerKind.JOIN and member.join_deadline_ms is not None:
            if at.monotonic_ms < member.join_deadline_ms:
                group.set_join_timer(out, member, member.join_deadline_ms)
                return
            member.join_deadline_ms = None
            self._drop_late(out, group, member, at, "join again")
        elif timer.kind is TimerKind.SYNC and member.sync_deadline_ms is not None:
            if at.monotonic_ms < member.sync_deadline_ms:
                group.set_sync_timer(out, member, member.sync_deadline_ms)
                return
            member.sync_deadline_ms = None
            self._drop_late(out, group, member, at, "ask for its assignment")

    def _drop_late(self, out: Outcome, group: ConsumerGroup, member: ConsumerMember, at: Now, what: str) -> None:
        waited_ms = member.rebalance_timeout_ms
        self._moves.drop(out, group, [member], at, f"did not {what} within {waited_ms} ms, and is out")

    def make_room(self, out: Outcome, group_id: str, at: Now) -> None:
        """A classic member joins: a consumer group without members becomes a classic one, with its offsets."""
        group = self._shards.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and group.is_empty and not group.is_dead:
            step = GroupStep(self._shards, out, group, at)
            for record in group.records_of_end():
                step.put(record)
            self._shards.replace(group, ClassicGroup(group_id, group.partition, state_timestamp_ms=at.wall_ms))
            step.end()

    def topics_changed(self, names: frozenset[str], at: Now) -> None:
        self._regexes.topics_changed()
        for group in self._shards.groups.values():
            if isinstance(group, ConsumerGroup) and not names.isdisjoint(group.topic_counts):
                group.topics_changed = True
