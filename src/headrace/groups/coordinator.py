"""The group coordinator: one method per API, and what its driver tells it. Pure: no clock, no socket, no disk.

See `headrace.coordination.outcome` for the order in which a driver must do things.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.coordination import Caller, Coordinator, Now, Reply, Timer, is_storable
from headrace.errors import ErrorCode
from headrace.groups.administration import Administration
from headrace.groups.classic import answers
from headrace.groups.classic.kind import ClassicGroups
from headrace.groups.classic.membership import GroupMemberships
from headrace.groups.classic.rebalance import Rebalances
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.config import GroupConfig
from headrace.groups.consumer.group import ConsumerGroup
from headrace.groups.consumer.kind import ConsumerGroups
from headrace.groups.consumer.moving import ClassicSide
from headrace.groups.deleted_topics import DeletedTopics
from headrace.groups.epochs.topic_hash import TopicHashes
from headrace.groups.fetching import OffsetFetches
from headrace.groups.group import Group, GroupKind
from headrace.groups.kinds import KindOfGroup
from headrace.groups.offsets import OffsetChanges
from headrace.groups.outcome import Outcome, TimerKind
from headrace.groups.refusals import refused
from headrace.groups.settings import DefaultSettings, GroupSettings
from headrace.groups.shards import Shard, Shards
from headrace.groups.share.kind import ShareGroups
from headrace.groups.streams.kind import StreamsGroups
from headrace.groups.topics import TopicLookup
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


class GroupCoordinator(Coordinator[Outcome, Shard]):
    """All groups of the partitions of `__consumer_offsets` that this broker leads."""

    _shards: Shards

    def __init__(
        self, config: GroupConfig, rng: random.Random, topics: TopicLookup, settings: GroupSettings | None = None
    ) -> None:
        """`settings` are those of single groups; without any, all have the defaults."""
        super().__init__(CONSUMER_OFFSETS, Outcome, Shards(config.offsets_topic_partitions))
        settings = settings or DefaultSettings()
        self._config = config
        self._rebalances = Rebalances(config)
        self._membership = GroupMemberships(config, rng, self._shards, self._rebalances)
        hashes = TopicHashes(topics)
        #: What only groups of one kind are asked.
        self.consumer = ConsumerGroups(
            self._shards,
            topics,
            settings,
            config.consumer,
            hashes,
            rng,
            ClassicSide(config.max_size, self._rebalances.prepare),
        )
        self.share = ShareGroups(self._shards, topics, settings, config.share, hashes)
        self.streams = StreamsGroups(self._shards, topics, settings, config.streams, hashes)
        self._kinds: dict[GroupKind, KindOfGroup] = {
            GroupKind.CLASSIC: ClassicGroups(config, self._rebalances),
            GroupKind.CONSUMER: self.consumer,
            GroupKind.SHARE: self.share,
            GroupKind.STREAMS: self.streams,
        }
        self._offsets = OffsetChanges(config, self._shards, topics)
        self._deleted_topics = DeletedTopics(config, self._shards, self._offsets, topics)
        self._fetches = OffsetFetches(self._shards, topics)
        self._administration = Administration(config, self._shards, self._offsets)

    def groups(self) -> Iterable[Group]:
        """All that are served, whatever their state."""
        return self._shards.groups.values()

    def partition_keeping(self, group_id: str) -> int:
        """The partition in which the group is recorded, or will be: see `Shards.add` for when it is not its own."""
        group = self._shards.groups.get(group_id)
        return self.partition_of(group_id) if group is None else group.partition

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def _serve(self, out: Outcome, shard: Shard, at: Now) -> None:
        """Members that were there have a whole session to be heard from."""
        loader, shard.loader = shard.loader, None
        assert loader is not None
        for group in loader.groups(shard.partition, self._kinds.values()):
            self._replace(out, shard, group.group_id)
            self._shards.add(shard, group)
        for found in loader.offsets():
            self._replace(out, shard, found.group_id)
            self._shards.number(shard, found.offset)
            self._shards.apply_offset(
                shard, found.group_id, found.topic, found.partition, found.offset, found.producer_id
            )
        for group in list(shard.groups.values()):
            self._kinds[group.kind].served(out, group, at)
        self._administration.schedule_expiry(out, shard, at)

    def _replace(self, out: Outcome, shard: Shard, group_id: str) -> None:
        """A group was found in its own partition: one of that name that was served from another is given up."""
        known = self._shards.groups.get(group_id)
        if known is not None and known.partition != shard.partition and self._shards.is_own(shard, group_id):
            known.give_up(out)

    def _give_up(self, out: Outcome, shard: Shard) -> None:
        for group in shard.groups.values():
            group.give_up(out)
        self._administration.cancel_expiry(out, shard)

    def ending_transaction(self, partition: int, producer_id: int, committed: bool) -> Callable[[], None] | None:
        """A marker is about to be appended to the partition: what is to be called when it is in the log.

        None when the partition is not served: the marker would overtake the offsets that it ends, which are still being
        read. It must be called in its turn, after `written` or `failed` of whatever was appended before the marker.
        """
        shard = self._shards.served(partition)
        if shard is None:
            return None

        def end() -> None:
            if not shard.is_unloaded:  # whoever serves the partition now finds the marker in the log
                self._shards.end_transaction(shard, producer_id, committed)

        return end

    # --- what became of an outcome ------------------------------------------------------------------------------------

    def _refused(self, reply: Reply, error: ErrorCode) -> Reply:
        return refused(reply, error)

    def on_timer(self, timer: Timer, at: Now) -> Outcome:
        out = Outcome()
        if timer.kind is TimerKind.EXPIRY:
            shard = self._shards.served(timer.partition)
            if shard is not None:
                self._administration.on_expiry_timer(out, shard, at)
            return out
        if timer.kind is TimerKind.DELETED_TOPICS:
            self._deleted_topics.go_on(out, at)
            return out
        group = self._shards.groups.get(timer.name)
        if group is not None:
            self._kinds[group.kind].on_timer(out, group, timer, at)
        return out

    # --- membership ---------------------------------------------------------------------------------------------------

    def join_group(self, caller: Caller, request: JoinGroupRequest, at: Now) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        if error == ErrorCode.NONE and not (
            self._config.min_session_timeout_ms <= request.session_timeout_ms <= self._config.max_session_timeout_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        group = self._shards.groups.get(request.group_id)
        if error != ErrorCode.NONE:
            answers.join_error(out, caller, error, request.member_id)
        elif isinstance(group, ConsumerGroup) and not group.is_empty:
            self.consumer.classic_members.join(out, caller, group, request, at)
        elif group is not None and not isinstance(group, ClassicGroup | ConsumerGroup):
            answers.join_error(out, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        else:
            self.consumer.make_room(out, request.group_id, at)
            self._membership.join(out, caller, request, at)
        return out

    def sync_group(self, caller: Caller, request: SyncGroupRequest, at: Now) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        group = self._shards.groups.get(request.group_id)
        if error != ErrorCode.NONE:
            answers.sync_error(out, caller, error)
        elif isinstance(group, ConsumerGroup):
            self.consumer.classic_members.sync(out, caller, group, request, at)
        else:
            self._membership.sync(out, caller, request, at)
        return out

    def heartbeat(self, caller: Caller, request: HeartbeatRequest, at: Now) -> Outcome:
        out = Outcome()
        group = self._shards.groups.get(request.group_id)
        if isinstance(group, ClassicGroup) and request.group_id:
            error = self._membership.heartbeat(out, group, request, at)
        elif isinstance(group, ConsumerGroup):
            error = self.consumer.classic_members.heartbeat(out, group, request, at)
        else:
            error = self._reachable(request.group_id)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                error = ErrorCode.NONE  # nobody's session runs meanwhile
            elif error == ErrorCode.NONE:
                error = ErrorCode.UNKNOWN_MEMBER_ID
        out.reply(caller, HeartbeatResponse(error_code=error))
        return out

    def leave_group(self, caller: Caller, request: LeaveGroupRequest, at: Now) -> Outcome:
        out = Outcome()
        error = self._reachable(request.group_id)
        group = self._shards.groups.get(request.group_id)
        if error != ErrorCode.NONE:
            out.reply(caller, LeaveGroupResponse(error_code=error))
        elif isinstance(group, ConsumerGroup):
            self.consumer.classic_members.leave(out, caller, group, request, at)
        else:
            self._membership.leave(out, caller, request, at)
        return out

    def _reachable(self, group_id: str) -> ErrorCode:
        if not group_id or not is_storable(group_id):
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if group_id in self._shards.groups else self._shards.error_for(group_id)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def offset_commit(self, caller: Caller, request: OffsetCommitRequest, at: Now) -> Outcome:
        out = Outcome()
        self._offsets.commit(out, caller, request, at)
        return out

    def txn_offset_commit(
        self, caller: Caller, request: TxnOffsetCommitRequest, at: Now, refused: ErrorCode = ErrorCode.NONE
    ) -> Outcome:
        """Its records belong to the transaction of `outcome.producer`. Whether that is open is not asked here: the
        caller has, and says in `refused` why nothing can be committed."""
        out = Outcome()
        self._offsets.commit_in_transaction(out, caller, request, at, refused)
        return out

    def offset_fetch(self, caller: Caller, request: OffsetFetchRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, self._fetches.fetch(caller, request))
        return out

    def offset_delete(self, caller: Caller, request: OffsetDeleteRequest, at: Now) -> Outcome:
        out = Outcome()
        self._offsets.delete(out, caller, request)
        return out

    def topics_deleted(self, topics: Mapping[str, bytes], at: Now) -> Outcome:
        """These topics (name → id) are gone, and with them all offsets in them."""
        out = Outcome()
        self._deleted_topics.forget(out, topics, at)
        return out

    def topics_changed(self, names: frozenset[str], at: Now) -> Outcome:
        """These topics came, went, or have other partitions than before."""
        for kind in self._kinds.values():
            kind.topics_changed(names, at)
        return Outcome()

    # --- administration -----------------------------------------------------------------------------------------------

    def list_groups(self, caller: Caller, request: ListGroupsRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, self._administration.list(request))
        return out

    def describe_groups(self, caller: Caller, request: DescribeGroupsRequest, at: Now) -> Outcome:
        out = Outcome()
        out.reply(caller, self._administration.describe(caller, request))
        return out

    def steps_of_deletion(self, request: DeleteGroupsRequest) -> Sequence[DeleteGroupsRequest]:
        """The same in parts, of as many groups as are deleted in one step; one at least."""
        return self._administration.steps_of_deletion(request)

    def delete_groups(self, caller: Caller, request: DeleteGroupsRequest, at: Now) -> Outcome:
        out = Outcome()
        self._administration.delete(out, caller, request)
        return out
