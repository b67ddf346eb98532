"""The heartbeats of the consumer protocol (KIP-848): they join, say what is subscribed and owned, and bring what is
assigned. A field that has not changed since it was last answered is left out; after a failure everything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.client.consumer._heartbeats import (
    FOREVER,
    RETRY_S,
    GroupIdentity,
    Heartbeats,
    HeartbeatVerdict,
    News,
)
from headrace.client.consumer.errors import is_retriable
from headrace.errors import ErrorCode, HeadraceError, RetriableError
from headrace.net.node import Node
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member goes, and will be back: its partitions are kept for it until its session is over."""

TopicIdPartition = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class SentSubscription:
    """What is subscribed, as the coordinator hears it."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that the coordinator resolves."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetAssignment:
    """What the coordinator wants this member to have; compared by identity, for each is to be put into effect."""

    partitions: frozenset[TopicIdPartition] = field(default_factory=frozenset)


class ConsumerProtocolHeartbeats(Heartbeats):
    """`join` comes from the consumer, with each membership; epochs and assignments come with the answers."""

    def __init__(
        self,
        group_id: str,
        *,
        member_id: str,
        instance_id: str | None,
        rack: str | None,
        assignor: str | None,
        session_timeout_ms: int,
        max_poll_interval_ms: int,
    ) -> None:
        super().__init__(group_id, session_timeout_ms=session_timeout_ms, max_poll_interval_ms=max_poll_interval_ms)
        self.member_id = member_id
        self._instance_id = instance_id
        self._rack = rack
        self._assignor = assignor
        self._rebalance_timeout_ms = max_poll_interval_ms
        self._interval_s = 0.0
        """As the coordinator says with every answer; before the first one, nothing is known of it."""
        self._subscription = SentSubscription()
        self._owned: frozenset[TopicIdPartition] = frozenset()
        self._owned_version = 0
        """Said again for each assignment, though it be the same: silence acknowledges nothing."""
        self._answered_fields: tuple[SentSubscription, int] | None = None
        """What the coordinator has taken note of; None: it is to hear everything."""
        self._sent_fields = (self._subscription, self._owned_version)
        self._is_urgent = False
        """Whether something is to be said at once, when the answer that is awaited has come."""
        self._is_ending = False
        """Whether no more are to be sent."""
        self._target: TargetAssignment | None = None
        self._unseen_target: TargetAssignment | None = None
        self._last_identity = GroupIdentity(0, member_id, instance_id)

    # --- the consumer's side ----------------------------------------------------------------------------------------

    def join(self, subscription: SentSubscription, node: Node, now: float) -> None:
        """Join the group, with nothing owned; and send heartbeats from then on."""
        with self._lock:
            self._node = node
            self._answered_at = self._polled_at = self._next_at = now
            self._in_flight = self._is_urgent = self._is_ending = False
            self._subscription, self._owned = subscription, frozenset()
            self._answered_fields = self._target = self._unseen_target = None
            self._news = None
            # Last of all: with this it has begun, whatever interrupts it before.
            self._identity = self._last_identity = GroupIdentity(0, self.member_id, self._instance_id)
        self.on_change()

    def subscribe(self, subscription: SentSubscription, now: float) -> None:
        """What is subscribed has changed: say so at once."""
        with self._lock:
            self._subscription = subscription
            self._hurry(now)
        self.on_change()

    def takes(self, partitions: Iterable[TopicIdPartition]) -> None:
        """These are about to be the member's, too: a heartbeat that says everything is not to leave them out, or the
        coordinator could give them to others while the listener still hears of them."""
        with self._lock:
            self._owned |= frozenset(partitions)

    def owns(self, partitions: Iterable[TopicIdPartition], now: float) -> None:
        """What the member has now: the coordinator waits to hear what was given up."""
        with self._lock:
            self._owned = frozenset(partitions)
            self._owned_version += 1
            self._hurry(now)
        self.on_change()

    def ask_now(self, now: float) -> None:
        """A commit was refused for its epoch: the next answer brings the right one."""
        with self._lock:
            self._hurry(now)
        self.on_change()

    def end(self) -> None:
        """Send no more, but take in the answer that is under way: a member that may be about to join has to leave."""
        self._is_ending = True

    @property
    def subscription(self) -> SentSubscription:
        return self._subscription

    @property
    def identity(self) -> GroupIdentity:
        """The member and its epoch, 0 before it has joined; of a member that was removed, the last one."""
        return self._last_identity

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight and self._identity is not None

    @property
    def target(self) -> TargetAssignment | None:
        """The newest assignment; None before the first. Looked at, it is no news any more."""
        self._unseen_target = None
        return self._target

    @property
    def has_news(self) -> bool:
        return self._news is not None or self._unseen_target is not None

    def farewell(self, reason: str) -> tuple[Node, ConsumerGroupHeartbeatRequest] | None:
        with self._lock:
            identity, node = self._identity, self._node
        return None if identity is None or node is None else (node, self.leave_request(even_static=False))

    def moved(self, node: Node, now: float) -> None:
        with self._lock:
            self._answered_fields = None
        super().moved(node, now)

    def forget(self, news: News) -> None:
        with self._lock:
            # What was refused, or not answered, is said again as a whole.
            self._answered_fields = None
        super().forget(news)

    def _hurry(self, now: float) -> None:
        if self._in_flight:
            self._is_urgent = True
        else:
            self._next_at = min(self._next_at, now)

    # --- the sender's side ------------------------------------------------------------------------------------------

    def due_at(self) -> float:
        return FOREVER if self._is_ending else super().due_at()

    def next_request(self, now: float) -> tuple[Node, Any, GroupIdentity] | None:
        with self._lock:
            identity, node = self._identity, self._node
            if identity is None or self._is_ending or self._news_ends_it():
                return None
            if now >= self._polled_at + self._poll_s:
                self._news = News(HeartbeatVerdict.POLL_TIMEOUT, identity)
                self._identity = None
                return None if node is None else (node, self.leave_request(even_static=False), identity)
            if node is None:
                return None
            if now >= self._answered_at + self._session_s:
                self._news = News(HeartbeatVerdict.COORDINATOR_UNKNOWN, identity)
                return None
            if self._in_flight or now < self._next_at:
                return None
            self._in_flight, self._sent_to, self._is_urgent = True, node, False
            self._next_at = now + self._interval_s
            self.sent += 1
            return node, self._request(identity), identity

    def _request(self, identity: GroupIdentity) -> ConsumerGroupHeartbeatRequest:
        answered = self._answered_fields
        subscription, owned_version = self._sent_fields = (self._subscription, self._owned_version)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=identity.member_id,
            member_epoch=identity.generation_id,
            instance_id=identity.instance_id,
        )
        if answered is None:
            request.rack_id = self._rack
            request.rebalance_timeout_ms = self._rebalance_timeout_ms
            request.server_assignor = self._assignor
            request.subscribed_topic_names = list(subscription.topics)
            request.subscribed_topic_regex = subscription.pattern
        elif answered[0] != subscription:
            request.subscribed_topic_names = list(subscription.topics)
            # Empty takes back what was said before; null would leave it as it was.
            request.subscribed_topic_regex = subscription.pattern or ("" if answered[0].pattern else None)
        if answered is None or answered[1] != owned_version:
            request.topic_partitions = _by_topic(self._owned)
        return request

    def leave_request(self, *, even_static: bool) -> ConsumerGroupHeartbeatRequest:
        """The member goes: for good, or (a static one) to come back."""
        stays = self._instance_id is not None and not even_static
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_STATIC_EPOCH if stays else LEAVE_EPOCH,
            instance_id=self._instance_id,
        )

    def answered(
        self,
        identity: GroupIdentity,
        response: ConsumerGroupHeartbeatResponse | None,
        error: HeadraceError | None,
        now: float,
    ) -> bool:
        with self._lock:
            self._in_flight = False
            if identity != self._identity or self._sent_to is not self._node:
                self._answered_fields = None
                return self._is_ending
            if response is not None and not response.error_code:
                return self._succeeded(identity, response, now) or self._is_ending
            self._answered_fields = None
            if response is None and isinstance(error, RetriableError):
                # Tried again soon, on a new connection, until the session is over.
                self._next_at = min(self._next_at, now + RETRY_S)
                return self._is_ending
            if response is None:
                self._news = News(HeartbeatVerdict.FAILED, identity, error=error)
                return True
            code = response.error_code
            verdict = _VERDICTS.get(code, HeartbeatVerdict.FAILED)
            if verdict is HeartbeatVerdict.FAILED and is_retriable(code):
                self._next_at = min(self._next_at, now + RETRY_S)
                return self._is_ending
            if code == ErrorCode.GROUP_ID_NOT_FOUND and not identity.generation_id:
                # Who wants to join is told so where there is such a group, but of another type.
                verdict = HeartbeatVerdict.FAILED
            self._news = News(verdict, identity, code, response.error_message)
            return True

    def _succeeded(self, identity: GroupIdentity, response: ConsumerGroupHeartbeatResponse, now: float) -> bool:
        """Whether there is news for the consumer."""
        self._answered_at = now
        self._answered_fields = self._sent_fields
        self._interval_s = response.heartbeat_interval_ms / 1000
        self._next_at = now if self._is_urgent else now + self._interval_s
        has_joined = not identity.generation_id
        if response.member_epoch != identity.generation_id:
            self._identity = GroupIdentity(response.member_epoch, identity.member_id, identity.instance_id)
            self._last_identity = self._identity
        if response.assignment is None:
            return has_joined
        partitions = frozenset(
            (topic.topic_id, partition)
            for topic in response.assignment.topic_partitions
            for partition in topic.partitions
        )
        if self._target is None or self._target.partitions != partitions or partitions != self._owned:
            self._target = self._unseen_target = TargetAssignment(partitions)
            return True
        return has_joined


_VERDICTS: dict[int, HeartbeatVerdict] = {
    ErrorCode.NOT_COORDINATOR: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.FENCED_MEMBER_EPOCH: HeartbeatVerdict.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: HeartbeatVerdict.LOST,
    ErrorCode.GROUP_ID_NOT_FOUND: HeartbeatVerdict.LOST,
    ErrorCode.FENCED_INSTANCE_ID: HeartbeatVerdict.FENCED,
}


def _by_topic(partitions: Iterable[TopicIdPartition]) -> list[HeartbeatTopicPartitions]:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return [HeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in found.items()]
