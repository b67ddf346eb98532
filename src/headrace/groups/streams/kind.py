"""Streams groups (KIP-1071): members bring a topology, the coordinator hands its tasks out, and makes its topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.coordination import Caller, Now, Timer
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.kinds import LoadedGroup, LoadedRecord
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.sessions import is_over
from headrace.groups.settings import GroupSettings
from headrace.groups.shards import Shards
from headrace.groups.streams.config import StreamsGroupConfig
from headrace.groups.streams.describing import describe
from headrace.groups.streams.group import StreamsGroup
from headrace.groups.streams.heartbeats import StreamsHeartbeats
from headrace.groups.streams.loading import RECORD_TYPES, loaded_groups
from headrace.groups.streams.moving import StreamsMoves
from headrace.groups.topics import TopicLookup
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from headrace.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest


class StreamsGroups:
    """The kind, and the requests that only groups of this kind are asked."""

    record_types = RECORD_TYPES

    def __init__(
        self,
        shards: Shards,
        topics: TopicLookup,
        settings: GroupSettings,
        config: StreamsGroupConfig,
        hashes: TopicHashes,
    ) -> None:
        self._shards = shards
        self._moves = StreamsMoves(shards, topics, settings, config, hashes)
        self._heartbeats = StreamsHeartbeats(self._moves)

    # --- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(self, caller: Caller, request: StreamsGroupHeartbeatRequest, at: Now) -> Outcome:
        out = Outcome()
        self._heartbeats.heartbeat(out, caller, request, at)
        return out

    def describe(self, caller: Caller, request: StreamsGroupDescribeRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, describe(self._shards, request))
        return out

    def topics_to_create(self, group_id: str) -> list[CreatableTopic]:
        """The internal topics that an application waits for."""
        group = self._shards.groups.get(group_id)
        if not isinstance(group, StreamsGroup) or group.configured is None:
            return []
        return [topic.creatable for topic in group.configured.missing]

    # --- the kind -----------------------------------------------------------------------------------------------------

    def loaded(self, partition: int, records: Sequence[LoadedRecord]) -> Iterable[LoadedGroup]:
        return loaded_groups(records, lambda group_id: self._moves.new_group(group_id, partition))

    def served(self, out: Outcome, group: StreamsGroup, at: Now) -> None:
        group.start_timers(out, at)

    def on_timer(self, out: Outcome, group: StreamsGroup, timer: Timer, at: Now) -> None:
        if timer.kind is TimerKind.DELAY:
            if group.delayed_until_ms is not None and at.monotonic_ms >= group.delayed_until_ms:
                self._moves.delay_is_over(out, group, at)
            return
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
            waited_ms = member.rebalance_timeout_ms
            self._moves.drop(out, group, [member], at, f"did not give up tasks within {waited_ms} ms, and is out")

    def topics_changed(self, names: frozenset[str], at: Now) -> None:
        for group in self._shards.groups.values():
            if isinstance(group, StreamsGroup) and group.topology is not None:
                group.topics_changed |= not names.isdisjoint(group.topology.required_topics)
