"""The group coordinator: one method per API, and what its driver tells it. Pure: no clock, no socket, no disk.

See `headrace.groups.outcome` for the order in which a driver must do things.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from headrace.coordination import Caller, Reply, error_after_failed_write
from headrace.errors import ErrorCode
from headrace.groups import answers
from headrace.groups.administration import Administration
from headrace.groups.config import GroupConfig
from headrace.groups.fetching import OffsetFetches
from headrace.groups.group_offsets import NO_PRODUCER_ID
from headrace.groups.loading import LoadReport
from headrace.groups.membership import Membership
from headrace.groups.offsets import OffsetCommits, TopicLookup
from headrace.groups.outcome import Outcome, Timer, TimerKind
from headrace.groups.rebalance import Rebalances
from headrace.groups.shards import Shards
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest


class GroupCoordinator:
    """All groups of the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(self, config: GroupConfig, rng: random.Random, topics: TopicLookup) -> None:
        self._config = config
        self._shards = Shards(config.offsets_topic_partitions)
        self._rebalances = Rebalances(config)
        self._membership = Membership(config, rng, self._shards, self._rebalances)
        self._offsets = OffsetCommits(config, self._shards, self._rebalances, topics)
        self._fetches = OffsetFetches(self._shards, topics)
        self._administration = Administration(config, self._shards, self._offsets)

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps this group."""
        return self._shards.partition_of(group_id)

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def begin_load(self, partition: int) -> Outcome:
        """This broker leads that partition now. Until `loaded`, requests get COORDINATOR_LOAD_IN_PROGRESS."""
        out = self.unload(partition)
        self._shards.begin(partition)
        return out

    def load(self, partition: int, key: bytes, value: bytes | None, producer_id: int = NO_PRODUCER_ID) -> None:
        """Replay one record, in the order of the log. Of a transactional batch, `producer_id` is the batch's.

        A marker that ends a transaction goes to `complete_transaction`.
        """
        shard = self._shards.get(partition)
        if shard is None:
            shard = self._shards.begin(partition)
        if shard.loader is None:
            raise ValueError(f"partition {partition} of __consumer_offsets is loaded already: call begin_load first")
        shard.loader.add(key, value, producer_id)

    def loaded(self, partition: int, now_ms: int) -> Outcome:
        """All is replayed: serve the partition. Members that were there have a whole session to be heard from."""
        out = Outcome()
        shard = self._shards.get(partition)
        if shard is None:
            shard = self._shards.begin(partition)
        loader, shard.loader = shard.loader, None
        if loader is None:
            return out
        for group in loader.groups(partition):
            self._shards.add(shard, group)
        for found in loader.offsets():
            self._shards.number(shard, found.offset)
            self._shards.apply_offset(
                shard, found.group_id, found.topic, found.partition, found.offset, found.producer_id
            )
        shard.report = loader.report
        for group in list(shard.groups.values()):
            for member in group.members.values():
                self._rebalances.keep_alive(out, group, member, now_ms)
            if len(group.members) > self._config.max_size:
                # The limit was lowered: as the members rejoin, the last ones find no place.
                reason = f"it was loaded with {len(group.members)} members, and {self._config.max_size} are allowed"
                self._rebalances.prepare(out, group, now_ms, reason)
        self._administration.schedule_expiry(out, shard, now_ms)
        return out

    def load_report(self, partition: int) -> LoadReport | None:
        """What the partition held when it was loaded, None when it is not served."""
        shard = self._shards.get(partition)
        return None if shard is None or shard.loader is not None else shard.report

    def unload(self, partition: int) -> Outcome:
        """This broker no longer leads the partition: whoever waits is sent to look for the new coordinator."""
        out = Outcome()
        shard = self._shards.end(partition)
        if shard is None:
            return out
        for group in shard.groups.values():
            group.cancel_timers(out)
            for member in group.members.values():
                waiting = group.set_join(member, None)
                if waiting is not None:
                    answers.join_error(out, waiting, ErrorCode.NOT_COORDINATOR, member.member_id)
                if member.sync is not None:
                    answers.sync_error(out, member.sync, ErrorCode.NOT_COORDINATOR)
                    member.sync = None
        if shard.loader is None:
            self._administration.cancel_expiry(out, shard)
        return out

    def is_loaded(self, partition: int) -> bool:
        """Whether this coordinator knows all that the partition holds."""
        shard = self._shards.get(partition)
        return shard is not None and shard.loader is None

    def complete_transaction(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker that ends this producer's transaction is in the partition's log (or is replayed from it)."""
        shard = self._shards.get(partition)
        if shard is None:
            return
        if shard.loader is not None:
            shard.loader.end_transaction(producer_id, committed)
        else:
            self._shards.end_transaction(shard, producer_id, committed)

    # --- what became of an outcome ------------------------------------------------------------------------------------

    def written(self, outcome: Outcome, now_ms: int) -> Outcome:
        """The outcome's records are in the log. Gives its replies, and what else follows."""
        out = Outcome(replies=outcome.replies)
        for effect in outcome.effects:
            effect.written(out, now_ms)
        return out

    def failed(self, outcome: Outcome, error: ErrorCode | Mapping[int, ErrorCode], now_ms: int) -> Outcome:
        """The outcome's records were not written: none of them, or not those of some partitions (the rest were)."""
        errors = dict(error) if isinstance(error, Mapping) else {r.partition: error for r in outcome.records}
        if not errors:
            return self.written(outcome, now_ms)
        told = {partition: error_after_failed_write(code) for partition, code in errors.items()}
        out = Outcome(replies=[self._refused(reply, told) for reply in outcome.replies])
        for effect in outcome.effects:
            if effect.partition in told:
                effect.failed(out, told[effect.partition], now_ms)
            else:
                effect.written(out, now_ms)
        return out

    def _refused(self, reply: Reply, told: Mapping[int, ErrorCode]) -> Reply:
        def of_group(group_id: str) -> ErrorCode:
            return told.get(self.partition_of(group_id), ErrorCode.NONE)

        # Only DeleteGroups writes to several partitions; all others wait for one, which is the one that failed.
        return answers.refused(reply, of_group, next(iter(told.values())))

    def on_timer(self, timer: Timer, now_ms: int) -> Outcome:
        """A timer fired. Firing early, late, or after it was cancelled does no harm."""
        out = Outcome()
        if timer.kind is TimerKind.EXPIRY:
            shard = self._shards.get(timer.partition)
            if shard is not None and shard.loader is None:
                self._administration.on_expiry_timer(out, shard, now_ms)
            return out
        group = self._shards.groups.get(timer.group_id)
        if group is None:
            return out
        if timer.kind is TimerKind.SESSION:
            self._rebalances.on_session_timer(out, group, timer.member_id, now_ms)
        elif timer.kind is TimerKind.JOIN:
            self._rebalances.on_join_timer(out, group, now_ms)
        else:
            self._rebalances.on_sync_timer(out, group, now_ms)
        return out

    # --- membership ---------------------------------------------------------------------------------------------------

    def join_group(self, caller: Caller, request: JoinGroupRequest, now_ms: int) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        if error == ErrorCode.NONE and not (
            self._config.min_session_timeout_ms <= request.session_timeout_ms <= self._config.max_session_timeout_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        if error == ErrorCode.NONE:
            self._membership.join(out, caller, request, now_ms)
        else:
            answers.join_error(out, caller, error, request.member_id)
        return out

    def sync_group(self, caller: Caller, request: SyncGroupRequest, now_ms: int) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        if error == ErrorCode.NONE:
            self._membership.sync(out, caller, request, now_ms)
        else:
            answers.sync_error(out, caller, error)
        return out

    def heartbeat(self, caller: Caller, request: HeartbeatRequest, now_ms: int) -> Outcome:
        out = Outcome()
        group = self._shards.groups.get(request.group_id)
        if group is not None and request.group_id:
            error = self._membership.heartbeat(out, group, request, now_ms)
        else:
            error = self._reachable(request.group_id)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                error = ErrorCode.NONE  # nobody's session runs meanwhile
            elif error == ErrorCode.NONE:
                error = ErrorCode.UNKNOWN_MEMBER_ID
        out.reply(caller, HeartbeatResponse(error_code=error))
        return out

    def leave_group(self, caller: Caller, request: LeaveGroupRequest, now_ms: int) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        if error == ErrorCode.NONE:
            self._membership.leave(out, caller, request, now_ms)
        else:
            out.reply(caller, LeaveGroupResponse(error_code=error))
        return out

    def _reachable(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if group_id in self._shards.groups else self._shards.error_for(group_id)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def offset_commit(self, caller: Caller, request: OffsetCommitRequest, now_ms: int) -> Outcome:
        out = Outcome()
        self._offsets.commit(out, caller, request, now_ms)
        return out

    def txn_offset_commit(self, caller: Caller, request: TxnOffsetCommitRequest, now_ms: int) -> Outcome:
        """Its records belong to the transaction of `outcome.producer`; whether that is open is not asked here."""
        out = Outcome()
        self._offsets.commit_in_transaction(out, caller, request, now_ms)
        return out

    def offset_fetch(self, caller: Caller, request: OffsetFetchRequest, now_ms: int) -> Outcome:
        out = Outcome()
        out.reply(caller, self._fetches.fetch(caller, request))
        return out

    def offset_delete(self, caller: Caller, request: OffsetDeleteRequest, now_ms: int) -> Outcome:
        out = Outcome()
        self._offsets.delete(out, caller, request)
        return out

    def topics_deleted(self, topics: Mapping[str, bytes], now_ms: int) -> Outcome:
        """These topics (name → id) are gone, and with them all offsets in them."""
        out = Outcome()
        self._offsets.topics_deleted(out, dict(topics))
        return out

    # --- administration -----------------------------------------------------------------------------------------------

    def list_groups(self, caller: Caller, request: ListGroupsRequest, now_ms: int) -> Outcome:
        out = Outcome()
        out.reply(caller, self._administration.list(request))
        return out

    def describe_groups(self, caller: Caller, request: DescribeGroupsRequest, now_ms: int) -> Outcome:
        out = Outcome()
        out.reply(caller, self._administration.describe(caller, request))
        return out

    def delete_groups(self, caller: Caller, request: DeleteGroupsRequest, now_ms: int) -> Outcome:
        out = Outcome()
        self._administration.delete(out, caller, request)
        return out
