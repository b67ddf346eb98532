"""When a member has to give a sign of life, and what the answers mean. No I/O; two threads may use it.

The blocking consumer's heartbeats come from a thread of their own, so everything here is short and under one lock. What
the membership has to do about an answer is kept as a verdict until the caller's next poll takes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.client.consumer.errors import is_retriable
from headrace.errors import ErrorCode, HeadraceError
from headrace.net.node import Node
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity

_FOREVER = float("inf")
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Who sends heartbeats and commits: a member of a generation, or (with assign) nobody in particular."""

    generation_id: int = -1
    member_id: str = ""
    instance_id: str | None = None


class HeartbeatVerdict(Enum):
    """What a heartbeat brought to light."""

    REJOIN = "the group is rebalancing"
    COORDINATOR_UNKNOWN = "the coordinator does not answer, or is another"
    LOST = "the group does not know this member any more"
    FENCED = "another member has this group.instance.id"
    FAILED = "the coordinator refuses heartbeats"
    POLL_TIMEOUT = "poll() was not called in time"


@dataclass(frozen=True, slots=True)
class News:
    """A verdict, and whom it is about."""

    verdict: HeartbeatVerdict
    identity: GroupIdentity
    code: int = 0


class Heartbeats:
    """The schedule of one member: `start` and `stop` come from the consumer, `next_request` from the sender."""

    def __init__(self, group_id: str, *, interval_ms: int, session_timeout_ms: int, max_poll_interval_ms: int) -> None:
        self._lock = threading.Lock()
        self._group_id = group_id
        self._interval_s = interval_ms / 1000
        self._session_s = session_timeout_ms / 1000
        self._poll_s = max_poll_interval_ms / 1000
        self._identity: GroupIdentity | None = None
        self._node: Node | None = None
        self._next_at = 0.0
        self._answered_at = 0.0
        self._polled_at = 0.0
        self._in_flight = False
        self._sent_to: Node | None = None
        self._news: News | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called (outside the lock) when the sender has to look at the schedule again."""
        self.sent = 0

    # --- the consumer's side ----------------------------------------------------------------------------------------

    def start(self, identity: GroupIdentity, node: Node, now: float) -> None:
        """Send heartbeats for this member from now on, to this coordinator."""
        with self._lock:
            self._identity, self._node = identity, node
            self._answered_at = self._polled_at = now
            self._next_at = now + self._interval_s
            self._in_flight = False
            self._news = None
        self.on_change()

    def stop(self) -> None:
        """Send none until started again; answers that still come are not listened to."""
        with self._lock:
            self._identity = None
            self._news = None

    def moved(self, node: Node, now: float) -> None:
        """The coordinator is another broker now: tell it at once."""
        with self._lock:
            if self._identity is None:
                return
            self._node = node
            self._next_at = self._answered_at = now
            self._in_flight = False
            if self._news is not None and self._news.verdict is HeartbeatVerdict.COORDINATOR_UNKNOWN:
                self._news = None
        self.on_change()

    def polled(self, now: float) -> None:
        """The application is alive."""
        self._polled_at = now

    @property
    def news(self) -> News | None:
        """What has come up; `forget` it when it is acted upon."""
        return self._news

    def forget(self, news: News) -> None:
        """The consumer has acted upon this."""
        with self._lock:
            if self._news is not news:
                return
            if news.verdict is HeartbeatVerdict.COORDINATOR_UNKNOWN:
                # None are sent until the coordinator is found again: this one would only say the same.
                self._node = None
            self._news = None

    @property
    def has_news(self) -> bool:
        return self._news is not None

    @property
    def is_running(self) -> bool:
        return self._identity is not None

    def farewell(self, reason: str) -> tuple[Node, LeaveGroupRequest] | None:
        """What the member says when it leaves its group. A static one leaves nothing: it may come back."""
        with self._lock:
            identity, node = self._identity, self._node
        if identity is None or node is None or identity.instance_id is not None or not identity.member_id:
            return None
        return node, leave_request(self._group_id, identity.member_id, None, reason)

    # --- the sender's side ------------------------------------------------------------------------------------------

    def due_at(self) -> float:
        """When `next_request` should be called again (monotonic seconds)."""
        with self._lock:
            if self._identity is None or self._news_ends_it():
                return _FOREVER
            deadline = self._polled_at + self._poll_s
            if self._node is None:
                return deadline
            if self._in_flight:
                return min(deadline, self._answered_at + self._session_s)
            return min(deadline, self._next_at)

    def _news_ends_it(self) -> bool:
        return self._news is not None and self._news.verdict is not HeartbeatVerdict.REJOIN

    def next_request(self, now: float) -> tuple[Node, Any, GroupIdentity] | None:
        """What to send now, and where; None if nothing is due. Report the answer with `answered`."""
        with self._lock:
            identity, node = self._identity, self._node
            if identity is None or self._news_ends_it():
                return None
            if now >= self._polled_at + self._poll_s:
                self._news = News(HeartbeatVerdict.POLL_TIMEOUT, identity)
                self._identity = None
                if identity.instance_id is not None or node is None:
                    # A static member's place is kept until its session is over: it may come back.
                    return None
                reason = "the time between two polls exceeded max.poll.interval.ms"
                return node, leave_request(self._group_id, identity.member_id, None, reason), identity
            if node is None:
                return None
            if now >= self._answered_at + self._session_s:
                self._news = News(HeartbeatVerdict.COORDINATOR_UNKNOWN, identity)
                return None
            if self._in_flight or now < self._next_at:
                return None
            self._in_flight, self._sent_to = True, node
            self._next_at = now + self._interval_s
            self.sent += 1
            request = HeartbeatRequest(
                group_id=self._group_id,
                generation_id=identity.generation_id,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
            return node, request, identity

    def answered(self, identity: GroupIdentity, code: int | None, error: HeadraceError | None, now: float) -> bool:
        """The answer to a heartbeat: a code, or why there is none. Says whether there is news for the consumer."""
        with self._lock:
            self._in_flight = False
            if identity != self._identity or self._sent_to is not self._node:
                return False
            if error is not None:
                # Tried again soon, on a new connection, until the session is over.
                self._next_at = min(self._next_at, now + _RETRY_S)
                return False
            if not code:
                self._answered_at = now
                return False
            verdict = _VERDICTS.get(code, HeartbeatVerdict.FAILED)
            if verdict is HeartbeatVerdict.FAILED and is_retriable(code):
                self._next_at = min(self._next_at, now + _RETRY_S)
                return False
            if verdict is HeartbeatVerdict.REJOIN:
                # Still a member: heartbeats go on until the rebalance begins.
                self._answered_at = now
            self._news = News(verdict, identity, code)
            return True


_VERDICTS: dict[int, HeartbeatVerdict] = {
    ErrorCode.REBALANCE_IN_PROGRESS: HeartbeatVerdict.REJOIN,
    ErrorCode.NOT_COORDINATOR: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: HeartbeatVerdict.COORDINATOR_UNKNOWN,
    ErrorCode.ILLEGAL_GENERATION: HeartbeatVerdict.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: HeartbeatVerdict.LOST,
    ErrorCode.FENCED_INSTANCE_ID: HeartbeatVerdict.FENCED,
}


def leave_request(group_id: str, member_id: str, instance_id: str | None, reason: str) -> LeaveGroupRequest:
    """A member gives up its place. Versions before 3 know only the first two fields."""
    member = MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason[:255])
    return LeaveGroupRequest(group_id=group_id, member_id=member_id, members=[member])
