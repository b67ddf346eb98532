"""What a consumer reads: topics or a pattern it subscribed to, the partitions it has, and where it stands in each."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from headrace.client.consumer._chunks import FetchedChunk
from headrace.client.consumer.config import OffsetResetStrategy
from headrace.client.consumer.errors import IllegalStateError
from headrace.net.connection import Call
from headrace.protocol.schema import ZERO_UUID
from headrace.topics import TopicPartition

NO_EPOCH = -1


class RebalanceListener(Protocol):
    """Hears of partitions that come and go. Each method may be a coroutine on `headrace.aio.Consumer`.

    `on_partitions_lost` is called instead of `on_partitions_revoked` when the group has given the partitions to others
    already; without it, `on_partitions_revoked` is called.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These are about to go; while this runs they are still this member's: the place to commit."""
        ...

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These have come; nothing was read of them yet: the place to seek."""
        ...


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A regular expression that the brokers resolve (in RE2's syntax), for `group.protocol=consumer`.

    A topic is read when its whole name matches; `re.compile(…)` is held against the names by the consumer itself.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise ValueError(f"SubscriptionPattern takes a regular expression as text, not {self.pattern!r}")


class SubscriptionKind(Enum):
    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    SERVER_PATTERN = "a pattern that the brokers resolve"
    ASSIGNED = "partitions by hand"


class TopicPartitionState:
    """Where the consumer stands in one partition."""

    __slots__ = (
        "chunks",
        "current_epoch",
        "failures",
        "fetch_call",
        "high_watermark",
        "in_callback",
        "is_revoked",
        "last_stable_offset",
        "leader_until",
        "log_start_offset",
        "offset_epoch",
        "partition",
        "paused",
        "position",
        "preferred_replica",
        "preferred_until",
        "read_end",
        "replica_failures",
        "reset",
        "retry_at",
        "topic_id",
        "validating",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.position: int | None = None
        """The next offset to hand out. None: not known yet."""
        self.offset_epoch = NO_EPOCH
        """The leader epoch of the last record read: what tells later whether the log was cut behind us (KIP-320)."""
        self.current_epoch = NO_EPOCH
        """The leader epoch that the position was held against."""
        self.reset: OffsetResetStrategy | None = None
        """Set while the position has to be looked up by a policy."""
        self.validating = False
        """Whether the position has to be held against a new leader first."""
        self.paused = False
        self.in_callback = False
        """Assigned, but the listener has not been told yet: it may want to seek first."""
        self.is_revoked = False
        """About to be given up: nothing is read from it any more."""
        self.retry_at = 0.0
        self.failures = 0
        self.chunks: deque[FetchedChunk] = deque()
        self.fetch_call: Call | None = None
        """The last fetch that asked for it."""
        self.topic_id = ZERO_UUID
        """Of the topic that the position is in: another one of the same name is another log."""
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.preferred_replica: int | None = None
        self.preferred_until = 0.0
        self.leader_until = 0.0
        """So long the leader is to answer itself: a replica that it named was of no use."""
        self.replica_failures = 0
        self.read_end: int | None = None
        """Where reading ends: nothing behind it is fetched. None: nowhere."""

    @property
    def has_position(self) -> bool:
        return self.position is not None and self.reset is None

    @property
    def fetch_offset(self) -> int:
        """Where the next fetch begins: after all that is buffered.

        Not kept beside that: a signal's handler may raise between two changes, and were this one left behind, the same
        would be fetched again, and be handed out again if the application had it by then.
        """
        return self.chunks[-1].next_offset if self.chunks else self.position or 0

    @property
    def is_fetchable(self) -> bool:
        """Whether its data may be asked for and handed out."""
        return (
            self.position is not None
            and self.reset is None
            and not (self.validating or self.paused or self.in_callback or self.is_revoked)
        )

    @property
    def is_asked_for(self) -> bool:
        """Whether a fetch of it is under way."""
        return self.fetch_call is not None and not self.fetch_call.done

    def append(self, chunk: FetchedChunk) -> None:
        """Keep what a fetch from `fetch_offset` brought."""
        self.chunks.append(chunk)

    def drop_fetched(self) -> None:
        """Fetch again from the position on."""
        self.chunks.clear()

    def is_in_another(self, topic_id: bytes) -> bool:
        """Whether the position is in another topic of this name, of before it was deleted and created again."""
        if self.topic_id == ZERO_UUID:
            self.topic_id = topic_id
        return topic_id not in (ZERO_UUID, self.topic_id)

    def seek(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Go on from there; whatever was fetched is dropped. A known epoch is held against the leader's log first."""
        self.position = offset
        self.offset_epoch = leader_epoch
        self.current_epoch = NO_EPOCH
        self.reset = None
        self.validating = False
        self.topic_id = ZERO_UUID
        self.chunks.clear()
        self.clear_backoff()

    def request_reset(self, policy: OffsetResetStrategy) -> None:
        """Let the position be looked up."""
        self.reset = policy
        self.validating = False
        self.preferred_replica = None
        self.chunks.clear()
        self.clear_backoff()

    def clear_backoff(self) -> None:
        self.failures, self.retry_at = 0, 0.0


class Subscriptions:
    """The subscription and the assignment. An assignment's object is kept as long as the partition stays assigned."""

    def __init__(self) -> None:
        self.kind = SubscriptionKind.NONE
        self.topics: set[str] = set()
        """The topics subscribed to, or those that the pattern matches."""
        self.group_topics: set[str] = set()
        """As leader of a group: the topics of all members."""
        self.pattern: re.Pattern[str] | None = None
        self.server_pattern: str | None = None
        self.listener: RebalanceListener | None = None
        self.version = 0
        """Counts changes of the assignment and of positions by hand: who holds records taken earlier compares it."""
        self._assigned: OrderedDict[TopicPartition, TopicPartitionState] = OrderedDict()
        """In the order of turns (see `move_to_end`). Changed at one stroke, so that nothing that interrupts a change
        (a signal's handler that raises) leaves a partition out."""

    # --- what to read -----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str], listener: RebalanceListener | None) -> None:
        self._become(SubscriptionKind.TOPICS)
        self.topics = set(topics)
        self.listener = listener

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None) -> None:
        self._become(SubscriptionKind.PATTERN)
        self.pattern = pattern
        self.topics = set()
        self.listener = listener

    def subscribe_server_pattern(self, pattern: str, listener: RebalanceListener | None) -> None:
        if self.kind is not SubscriptionKind.SERVER_PATTERN:
            self._become(SubscriptionKind.SERVER_PATTERN)
            self.topics = set()
        self.server_pattern = pattern
        self.listener = listener

    def assign_by_hand(self, partitions: Iterable[TopicPartition]) -> None:
        self._become(SubscriptionKind.ASSIGNED)
        self.assign(partitions)
        self.topics = {partition.topic for partition in self._assigned}

    def unsubscribe(self) -> None:
        self.kind = SubscriptionKind.NONE
        self.topics, self.group_topics = set(), set()
        self.pattern = self.server_pattern = None
        self.listener = None
        self._assigned = OrderedDict()
        self.version += 1

    def _become(self, kind: SubscriptionKind) -> None:
        if self.kind not in (SubscriptionKind.NONE, kind):
            raise IllegalStateError(
                f"this consumer reads {self.kind.value}; to read {kind.value} instead, call unsubscribe() first"
            )
        self.kind = kind

    @property
    def uses_group(self) -> bool:
        """Whether a group decides what is read."""
        return self.kind not in (SubscriptionKind.NONE, SubscriptionKind.ASSIGNED)

    def match(self, names: Iterable[tuple[str, bool]], *, exclude_internal: bool) -> bool:
        """Hold the pattern against the topics there are (name, is internal); says whether that changed what is read."""
        if self.pattern is None:
            return False
        pattern = self.pattern
        found = {
            name for name, is_internal in names if pattern.fullmatch(name) and not (is_internal and exclude_internal)
        }
        if found == self.topics:
            return False
        self.topics = found
        return True

    # --- what is assigned -------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition], *, in_callback: bool = False) -> list[TopicPartition]:
        """Have exactly these partitions; where one was there before it stays as it is.

        Gives the new ones; with `in_callback` also those of which the listener was to hear before and did not, because
        that was interrupted.
        """
        after: OrderedDict[TopicPartition, TopicPartitionState] = OrderedDict()
        added: list[TopicPartition] = []
        for partition in partitions:
            state = self._assigned.get(partition)
            if state is None:
                state = TopicPartitionState(partition)
                state.in_callback = in_callback
                added.append(partition)
            elif in_callback and state.in_callback:
                added.append(partition)
            after[partition] = state
        self._assigned = after
        for state in after.values():
            # Given up in a rebalance that was interrupted, and given back.
            state.is_revoked = False
        self.version += 1
        return added

    def end_callback(self) -> None:
        for state in self._assigned.values():
            state.in_callback = False

    def assigned(self) -> list[TopicPartition]:
        return list(self._assigned)

    def states(self) -> Iterator[TopicPartitionState]:
        return iter(self._assigned.values())

    def get(self, partition: TopicPartition) -> TopicPartitionState | None:
        return self._assigned.get(partition)

    def state(self, partition: TopicPartition | tuple[str, int]) -> TopicPartitionState:
        found = self._assigned.get(TopicPartition(*partition))
        if found is None:
            raise IllegalStateError(
                f"{TopicPartition(*partition)} is not assigned to this consumer (assigned: "
                f"{', '.join(map(str, self._assigned)) or 'nothing'})"
            )
        return found

    def move_to_end(self, state: TopicPartitionState) -> None:
        """It had its turn: others come first in the next fetch."""
        if state.partition in self._assigned:
            self._assigned.move_to_end(state.partition)

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, leader_epoch: int = NO_EPOCH) -> None:
        self.state(partition).seek(offset, leader_epoch)
        self.version += 1

    def request_reset(self, partition: TopicPartition | tuple[str, int], policy: OffsetResetStrategy) -> None:
        self.state(partition).request_reset(policy)
        self.version += 1
