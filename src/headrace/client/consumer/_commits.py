"""Committed offsets: kept at the group's coordinator, in order, and read back.

Asynchronous commits are a queue: their callbacks run in the order of the commits, on the caller's thread, and all of
them before a later synchronous commit returns (SPEC 3.4).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.cluster.coordinator import NOT_THE_COORDINATOR
from headrace.client.cluster.list_offsets import NOWHERE_S
from headrace.client.consumer._coordinator import CoordinatorLink
from headrace.client.consumer._heartbeats import GroupIdentity
from headrace.client.consumer._subscription import Subscriptions
from headrace.client.consumer.errors import CommitFailedError, IllegalStateError, RetriableCommitFailedError, say
from headrace.client.consumer.records import OffsetAndMetadata
from headrace.client.flows import Flow, Pause, When
from headrace.errors import (
    ErrorCode,
    FencedInstanceIdError,
    HeadraceError,
    RebalanceInProgressError,
    RetriableError,
    StaleMemberEpochError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    error_for,
)
from headrace.functions import check_has_run
from headrace.net.connection import Call
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.client.consumer._membership import Membership

log = logging.getLogger("headrace.client.consumer")

Offsets = dict[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[HeadraceError | None, Offsets], Any]

_NO_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
ASYNC_COMMITS_MAX = 10_000
_VERSION_WITH_NAMES_MAX = 9  # of OffsetCommit, and of OffsetFetch: later ones name topics by their ids
_FOREVER = float("inf")
_PASSING = (RetriableError, StaleMemberEpochError)
"""A stale epoch passes, too: the next heartbeat brings the new one, or says that this is no member any more."""
_LEFT_WORDS = (
    "the group has rebalanced and given the partitions to other members. Usually the time between two polls was longer "
    "than max.poll.interval.ms: raise it, or lower max.poll.records"
)


class _Pending:
    """An asynchronous commit: waiting for the coordinator, under way, or done and waiting for its callback's turn."""

    __slots__ = ("call", "callback", "done", "error", "identity", "is_told", "offsets")

    def __init__(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        self.offsets = offsets
        self.callback = callback
        self.identity = GroupIdentity()
        self.call: Call | None = None
        self.done = False
        self.error: HeadraceError | None = None
        self.is_told = False
        """Whether its callback was called, which is done once, whatever it does."""


class OffsetCommits:
    """Commits and reads offsets of one group."""

    def __init__(
        self,
        link: CoordinatorLink,
        subscriptions: Subscriptions,
        membership: Membership,
        *,
        require_stable: bool,
        on_commit: Callable[[Offsets], None] = lambda _: None,
    ) -> None:
        self._link = link
        self._subscriptions = subscriptions
        self._membership = membership
        self._require_stable = require_stable
        self._on_commit = on_commit
        self._queue: deque[_Pending] = deque()
        self.commits = 0

    def consumed(self) -> Offsets:
        """The position of every assigned partition that has one."""
        return {
            state.partition: OffsetAndMetadata(
                state.position, "", state.offset_epoch if state.offset_epoch >= 0 else None
            )
            for state in self._subscriptions.states()
            if state.position is not None and state.has_position
        }

    # --- committing -------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets) -> Flow[None]:
        """Commit, trying again what may pass; then every earlier asynchronous commit is done as well."""
        nowhere_by = self._link.core.clock.monotonic() + NOWHERE_S
        while offsets:
            yield from self._link.find()
            self._send_queued()
            identity = self._membership.identity_for_commit()
            call = self._link.submit(
                _request(self._link.group_id, offsets, identity), version_max=_VERSION_WITH_NAMES_MAX
            )
            if call is None:
                continue
            yield call
            error = self._judge(call, identity)
            if error is None:
                self._on_commit(offsets)
                self.commits += 1
                break
            is_nowhere = isinstance(error, UnknownTopicOrPartitionError)
            if not isinstance(error, _PASSING) or (is_nowhere and self._link.core.clock.monotonic() >= nowhere_by):
                raise error
            self._link.core.retried = error
            log.info("a commit is tried again: %s", error)
            yield Pause(self._link.next_try())
        self._link.succeeded()
        yield from self.drain()

    def commit_async(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """Queue a commit, and send it if the coordinator is known; `run_callbacks` tells how it went."""
        if len(self._queue) >= ASYNC_COMMITS_MAX:
            raise IllegalStateError(
                f"{ASYNC_COMMITS_MAX} asynchronous commits are under way: poll() to let them end, or commit less"
            )
        self._queue.append(_Pending(dict(offsets), callback))
        self._send_queued()

    @property
    def has_unsent(self) -> bool:
        """Whether commits wait for the coordinator to be found."""
        return any(one.call is None and not one.done for one in self._queue)

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def has_one_for(self, callback: CommitCallback) -> bool:
        """Whether an asynchronous commit with this callback is not done yet."""
        return any(one.callback == callback for one in self._queue)

    def drain(self) -> Flow[None]:
        """Until every asynchronous commit is done and its callback has been called."""
        while self._queue:
            self._send_queued()
            if self.has_unsent:
                try:
                    yield from self._link.find()
                except HeadraceError as error:
                    self.fail_unsent(error)
                continue
            head = self._queue[0]
            yield When(lambda head=head: _is_done(head), _FOREVER)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            self.run_callbacks()

    def fail_unsent(self, error: HeadraceError) -> None:
        """There is no coordinator to be had for these: that is their outcome, and they are not to wait for another."""
        for one in self._queue:
            if one.call is None and not one.done:
                one.done, one.error = True, error

    def _send_queued(self) -> None:
        for one in self._queue:
            if one.call is not None or one.done:
                continue
            if not one.offsets:
                one.done = True
                continue
            if self._link.key is None:
                return
            try:
                one.identity = self._membership.identity_for_commit()
            except HeadraceError as error:
                one.done, one.error = True, error
                continue
            request = _request(self._link.group_id, one.offsets, one.identity)
            one.call = self._link.submit(request, version_max=_VERSION_WITH_NAMES_MAX)

    def run_callbacks(self) -> None:
        """Call back for every commit that is done, in order. Call this only on the user's thread."""
        self._send_queued()
        while self._queue and _is_done(self._queue[0]):
            one = self._queue[0]
            if not one.is_told:
                self._call_back(one)
            # A callback may commit, and so have come by here itself; one that raises is not called again.
            if self._queue and self._queue[0] is one:
                self._queue.popleft()

    def _call_back(self, one: _Pending) -> None:
        error = one.error
        if error is None and one.call is not None:
            error = self._judge(one.call, one.identity)
        if error is None:
            self.commits += 1
            if one.offsets:
                self._on_commit(one.offsets)
        elif isinstance(error, _PASSING):
            failed = RetriableCommitFailedError(f"the commit failed and is not tried again by itself: {error}")
            failed.__cause__ = error
            error = failed
        one.is_told = True
        if one.callback is not None:
            check_has_run(one.callback(error, one.offsets), "commit_async's callback")
        elif error is not None:
            log.warning("an asynchronous commit of %s partitions failed: %s", len(one.offsets), error)

    def _judge(self, call: Call, identity: GroupIdentity) -> HeadraceError | None:
        if call.error is not None:
            if isinstance(call.error, RetriableError):
                self._link.forget(str(call.error))
            return call.error
        response: OffsetCommitResponse = call.response
        unauthorized: list[str] = []
        for topic in response.topics:
            for one in topic.partitions:
                code = one.error_code
                if not code:
                    continue
                partition = TopicPartition(topic.name, one.partition_index)
                if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    unauthorized.append(topic.name)
                    continue
                return self._refused(code, partition, identity)
        if unauthorized:
            return say(
                error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED), f"committing to {', '.join(sorted(set(unauthorized)))}"
            )
        return None

    def _refused(self, code: int, partition: TopicPartition, identity: GroupIdentity) -> HeadraceError:
        if code in NOT_THE_COORDINATOR or code == ErrorCode.REQUEST_TIMED_OUT:
            self._link.forget(ErrorCode(code).name)
            return error_for(code)
        self._membership.commit_refused(code, identity)
        if code in _NO_MEMBER:
            return CommitFailedError(f"the commit was refused ({ErrorCode(code).name}): {_LEFT_WORDS}")
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return RebalanceInProgressError(
                "the commit was refused because the group is rebalancing: poll() to take part in it, then commit again"
            )
        if code == ErrorCode.FENCED_INSTANCE_ID:
            return FencedInstanceIdError(
                f"another consumer joined with group.instance.id={identity.instance_id}: give each its own"
            )
        return say(error_for(code), f"committing {partition}")

    # --- reading back -----------------------------------------------------------------------------------------------

    def fetch(self, partitions: Iterable[TopicPartition]) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
        """The committed offsets; None where there is none. Tried again until the coordinator answers."""
        wanted = list(partitions)
        while wanted:
            yield from self._link.find()
            request = _fetch_request(self._link.group_id, wanted, self._require_stable)
            call = self._link.submit(request, version_max=_VERSION_WITH_NAMES_MAX)
            if call is None:
                continue
            yield call
            found = self._read(call, set(wanted))
            if found is not None:
                self._link.succeeded()
                return found
            yield Pause(self._link.next_try())
        return {}

    def _read(self, call: Call, wanted: set[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None] | None:
        """None: ask again."""
        if call.error is not None:
            if not isinstance(call.error, RetriableError):
                raise call.error
            self._link.forget(str(call.error))
            return None
        response: OffsetFetchResponse = call.response
        answer = response.groups[0] if response.groups else response
        if answer.error_code:
            error = error_for(answer.error_code)
            if answer.error_code in NOT_THE_COORDINATOR:
                self._link.forget(error.code.name)
            elif not isinstance(error, RetriableError):
                raise say(error, f"reading the committed offsets of group {self._link.group_id}")
            return None
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
        for topic in answer.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                if one.error_code:
                    error = error_for(one.error_code)
                    if isinstance(error, UnstableOffsetCommitError):
                        # A transaction is about to change it: its outcome decides where to begin.
                        return None
                    raise say(error, f"reading the committed offset of {partition}")
                if one.committed_offset >= 0:
                    epoch = one.committed_leader_epoch if one.committed_leader_epoch >= 0 else None
                    found[partition] = OffsetAndMetadata(one.committed_offset, one.metadata or "", epoch)
        return found


def _is_done(one: _Pending) -> bool:
    return one.done or (one.call is not None and one.call.done)


def _request(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], identity: GroupIdentity
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for partition, one in offsets.items():
        topic = topics.setdefault(partition.topic, OffsetCommitRequestTopic(name=partition.topic, partitions=[]))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=one.offset,
                committed_leader_epoch=-1 if one.leader_epoch is None else one.leader_epoch,
                committed_metadata=one.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=list(topics.values()),
    )


def _fetch_request(group_id: str, partitions: list[TopicPartition], require_stable: bool) -> OffsetFetchRequest:
    indexes: dict[str, list[int]] = {}
    for partition in partitions:
        indexes.setdefault(partition.topic, []).append(partition.partition)
    old = [OffsetFetchRequestTopic(name=name, partition_indexes=found) for name, found in indexes.items()]
    new = [OffsetFetchRequestTopics(name=name, partition_indexes=found) for name, found in indexes.items()]
    return OffsetFetchRequest(
        group_id=group_id,
        topics=old,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=new)],
        require_stable=require_stable,
    )
