"""Where reading begins: committed offsets, the reset policy, and positions held against a new leader (KIP-320)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.client.cluster.core import ClientCore
from headrace.client.cluster.list_offsets import OffsetLookup
from headrace.client.consumer._commits import OffsetCommits
from headrace.client.consumer._subscription import NO_EPOCH, Subscriptions, TopicPartitionState
from headrace.client.consumer.config import ConsumerSettings, OffsetResetStrategy
from headrace.client.consumer.errors import LogTruncationError, NoOffsetForPartitionError, is_retriable, say
from headrace.client.flows import All, Flow
from headrace.errors import (
    HeadraceError,
    RetriableError,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
    error_for,
)
from headrace.net.connection import Call
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.client.consumer")

_CONSUMER = -1
_LATEST = -1
#: So often metadata are asked for that are as new as a position, about half a minute. A topic that was created again
#: where there are no topic ids begins with lower epochs for good.
_OLDER_METADATA_MAX = 30


class Positions:
    """Gives every assigned partition a position that can be fetched from. One round at a time; what fails waits."""

    def __init__(
        self,
        core: ClientCore,
        subscriptions: Subscriptions,
        settings: ConsumerSettings,
        lookup: OffsetLookup,
        commits: OffsetCommits | None,
        notify: Callable[[], None],
    ) -> None:
        self._core = core
        self._subscriptions = subscriptions
        self._settings = settings
        self._lookup = lookup
        self._commits = commits
        self._notify = notify

    def pending(self, now: float, also: TopicPartitionState | None = None) -> tuple[bool, float]:
        """Whether a round has something to do now, and when it will have at the latest.

        A partition that the rebalance listener is being told of is left alone, unless (`also`) its position is asked
        for from there.
        """
        due = float("inf")
        for state in self._subscriptions.states():
            if (state.in_callback and state is not also) or state.is_revoked:
                continue
            if state.position is None or state.reset is not None or state.validating:
                if state.retry_at <= now:
                    return True, now
                due = min(due, state.retry_at)
        return False, due

    def round(self, also: TopicPartitionState | None = None) -> Flow[None]:
        """One round for all partitions that need something. Raises what the user has to decide."""
        states = [
            s
            for s in self._subscriptions.states()
            if (s is also or not s.in_callback) and not s.is_revoked and self._is_due(s)
        ]
        unknown = [s for s in states if s.position is None and s.reset is None]
        if unknown:
            yield from self._begin(unknown)
        resets = [s for s in states if s.reset is not None]
        if resets:
            yield from self._reset(resets)
        validating = [s for s in states if s.validating and s.has_position]
        if validating:
            yield from self._validate(validating)

    def _is_due(self, state: TopicPartitionState) -> bool:
        return state.retry_at <= self._core.clock.monotonic()

    def _is_current(self, state: TopicPartitionState) -> bool:
        return self._subscriptions.get(state.partition) is state

    # --- the beginning ----------------------------------------------------------------------------------------------

    def _begin(self, states: list[TopicPartitionState]) -> Flow[None]:
        committed = {}
        if self._commits is not None:
            committed = yield from self._commits.fetch([state.partition for state in states])
        without: list[TopicPartition] = []
        for state in states:
            if not self._is_current(state) or state.position is not None or state.reset is not None:
                continue
            found = committed.get(state.partition)
            if found is not None:
                epoch = NO_EPOCH if found.leader_epoch is None else found.leader_epoch
                log.info("%s goes on at its committed offset %s", state.partition, found.offset)
                state.seek(found.offset, epoch)
            elif self._settings.reset is not None:
                state.request_reset(self._settings.reset)
            else:
                without.append(state.partition)
        if without:
            raise NoOffsetForPartitionError(without)

    # --- the policy -------------------------------------------------------------------------------------------------

    def _reset(self, states: list[TopicPartitionState]) -> Flow[None]:
        now_ms = self._core.clock.now_ms()
        asked: dict[TopicPartition, OffsetResetStrategy] = {}
        for state in states:
            if state.reset is not None:
                asked[state.partition] = state.reset
        epochs = {partition: self._lookup.leader_epoch(partition) for partition in asked}
        yield from self._lookup.wait_for_leaders(asked)
        timestamps = {partition: policy.resolve(now_ms) for partition, policy in asked.items()}
        topic_ids = {partition: self._topic_id(partition) for partition in asked}
        found, errors = yield from self._lookup.round(timestamps)
        # No record is young enough for a time in the past: the end is where the next ones will be.
        # (Of a start or an end that was asked for, it would be the wrong one: that is asked for again.)
        late = {partition: _LATEST for partition, one in found.items() if one is None and timestamps[partition] >= 0}
        if late:
            ends, late_errors = yield from self._lookup.round(late)
            found.update(ends)
            errors.update(late_errors)
        for state in states:
            partition = state.partition
            if not self._is_current(state) or state.reset is not asked.get(partition):
                continue
            if self._topic_id(partition) != topic_ids[partition]:
                # Deleted and created again meanwhile: asked once more, as an offset of one means nothing in the other.
                continue
            answer = found.get(partition)
            if answer is not None:
                log.info("%s is reset to offset %s (%s)", partition, answer.offset, asked[partition].name)
                epoch = NO_EPOCH if answer.leader_epoch is None else answer.leader_epoch
                state.seek(answer.offset, epoch)
                # The leader itself said so: there is nothing to hold against it. But it may have said so of a topic
                # that was deleted, which only the next metadata tell.
                state.current_epoch, state.topic_id = max(epochs[partition], epoch), topic_ids[partition]
            else:
                self._failed(state, errors.get(partition))

    def _failed(self, state: TopicPartitionState, error: HeadraceError | None) -> None:
        if error is not None and not isinstance(error, RetriableError):
            raise (
                say(error, f"looking up where to begin in {state.partition}")
                if isinstance(error, TopicAuthorizationFailedError)
                else error
            )
        self._core.refresh_metadata()
        self._back_off(state)

    def _back_off(self, state: TopicPartitionState) -> None:
        wait_ms = self._settings.retry_backoff.wait_ms(state.failures, self._core.rng)
        state.failures += 1
        state.retry_at = self._core.clock.monotonic() + wait_ms / 1000

    # --- truncation -------------------------------------------------------------------------------------------------

    def _validate(self, states: list[TopicPartitionState]) -> Flow[None]:
        by_node: dict[int, list[tuple[TopicPartitionState, int, int, int]]] = {}
        gone = [state for state in states if self._is_recreated(state)]
        self._give_up(gone)
        for state in states:
            if state in gone:
                continue
            leader = self._core.view.leader_of(*state.partition)
            if leader is None:
                self._failed(state, None)
                continue
            assert state.position is not None
            epoch = self._lookup.leader_epoch(state.partition)
            if NO_EPOCH < epoch < state.offset_epoch and state.failures < _OLDER_METADATA_MAX:
                # Who leads by these metadata was replaced: it would not know the epoch, as if it had been cut off.
                self._failed(state, None)
                continue
            by_node.setdefault(leader.id, []).append((state, state.position, state.offset_epoch, epoch))
        calls = {node_id: self._ask(node_id, asked) for node_id, asked in by_node.items()}
        if not calls:
            return
        yield All(list(calls.values()))
        truncated: dict[TopicPartition, int] = {}
        divergent: dict[TopicPartition, int] = {}
        for node_id, call in calls.items():
            answers = {}
            if call.error is None:
                answers = {
                    TopicPartition(topic.topic, one.partition): one
                    for topic in call.response.topics
                    for one in topic.partitions
                }
            for state, position, offset_epoch, epoch in by_node[node_id]:
                if not self._is_current(state) or not state.validating:
                    continue
                if state.position != position or state.offset_epoch != offset_epoch:
                    continue
                if self._is_recreated(state):
                    # Deleted and created again meanwhile: the next round gives the position up.
                    continue
                if isinstance(call.error, UnsupportedVersionError):
                    # A broker before 2.0 cannot tell: go on as consumers did then.
                    state.validating, state.current_epoch = False, epoch
                    continue
                self._judge(state, answers.get(state.partition), epoch, truncated, divergent)
        if truncated:
            raise LogTruncationError(truncated, divergent)

    def _is_recreated(self, state: TopicPartitionState) -> bool:
        return state.is_in_another(self._topic_id(state.partition))

    def _topic_id(self, partition: TopicPartition) -> bytes:
        topic = self._core.view.topics.get(partition.topic)
        return ZERO_UUID if topic is None else topic.topic_id

    def _give_up(self, states: list[TopicPartitionState]) -> None:
        """Positions in topics that were deleted and created again: offsets of one log mean nothing in the other."""
        for state in states:
            log.warning("%s was deleted and created again: position %s is void", state.partition, state.position)
            if self._settings.reset is not None:
                state.request_reset(self._settings.reset)
            else:
                # The position stays in question until the user decides.
                self._back_off(state)
        if states and self._settings.reset is None:
            raise LogTruncationError({state.partition: state.position or 0 for state in states}, {})

    def _ask(self, node_id: int, asked: list[tuple[TopicPartitionState, int, int, int]]) -> Call:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for state, _, offset_epoch, epoch in asked:
            name, index = state.partition
            topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name, partitions=[]))
            topic.partitions.append(
                OffsetForLeaderPartition(partition=index, current_leader_epoch=epoch, leader_epoch=offset_epoch)
            )
        request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        return self._core.submit(node_id, request, lambda _: self._notify())

    def _judge(
        self,
        state: TopicPartitionState,
        answer: EpochEndOffset | None,
        epoch: int,
        truncated: dict[TopicPartition, int],
        divergent: dict[TopicPartition, int],
    ) -> None:
        if answer is None or answer.error_code:
            if answer is not None and answer.error_code and not is_retriable(answer.error_code):
                raise say(error_for(answer.error_code), f"checking the position in {state.partition}")
            self._failed(state, None)
            return
        position = state.position
        assert position is not None
        if answer.end_offset >= position:
            state.validating, state.current_epoch = False, epoch
            state.clear_backoff()
            return
        log.warning(
            "the log of %s was truncated: read up to %s, it has %s", state.partition, position, answer.end_offset
        )
        known = answer.end_offset >= 0 and answer.leader_epoch >= 0
        if self._settings.reset is None:
            truncated[state.partition] = position
            if known:
                divergent[state.partition] = answer.end_offset
            # The position stays in question until the user decides.
            self._back_off(state)
        elif known:
            # What was read beyond is gone; the log goes on from where both are still the same.
            topic_id = state.topic_id
            state.seek(answer.end_offset, answer.leader_epoch)
            # Still of the same topic: should there be another of its name by now, this offset means nothing in it.
            state.current_epoch, state.topic_id = epoch, topic_id
        else:
            state.request_reset(self._settings.reset)
