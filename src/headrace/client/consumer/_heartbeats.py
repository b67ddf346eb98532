"""When a member has to give a sign of life, and what the answers mean. No I/O; two threads may use it.

The blocking consumer's heartbeats come from a thread of their own, so everything here is short and under one lock. What
the membership has to do about an answer is kept as a verdict until the caller's next poll takes it. What is sent, and
what the answers are, depends on the group's protocol: see `_classic_heartbeats` and `_consumer_heartbeats`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.errors import HeadraceError
from headrace.net.node import Node

FOREVER = float("inf")
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Who sends heartbeats and commits: a member in a generation (or at a member epoch), or (with assign) nobody."""

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
    message: str | None = None
    """What the coordinator said about it."""
    error: HeadraceError | None = None
    """Why nothing could be asked, where no answer came that says so."""


class Heartbeats(ABC):
    """The schedule of one member: the consumer starts and stops it, a sender asks for `next_request`."""

    def __init__(self, group_id: str, *, session_timeout_ms: int, max_poll_interval_ms: int) -> None:
        self._lock = threading.Lock()
        self._group_id = group_id
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
        """Whoever sends them is to look again when the next one is due."""
        self.sent = 0

    # --- the consumer's side ----------------------------------------------------------------------------------------

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

    @abstractmethod
    def farewell(self, reason: str) -> tuple[Node, Any] | None:
        """What the member says when it leaves its group, and to whom; None when it says nothing."""

    # --- the sender's side ------------------------------------------------------------------------------------------

    def due_at(self) -> float:
        """When `next_request` should be called again (monotonic seconds)."""
        with self._lock:
            if self._identity is None or self._news_ends_it():
                return FOREVER
            deadline = self._polled_at + self._poll_s
            if self._node is None:
                return deadline
            if self._in_flight:
                return min(deadline, self._answered_at + self._session_s)
            return min(deadline, self._next_at)

    def _news_ends_it(self) -> bool:
        return self._news is not None and self._news.verdict is not HeartbeatVerdict.REJOIN

    @abstractmethod
    def next_request(self, now: float) -> tuple[Node, Any, GroupIdentity] | None:
        """What to send now, and where; None if nothing is due. Report the answer with `answered`."""

    @abstractmethod
    def answered(self, identity: GroupIdentity, response: Any, error: HeadraceError | None, now: float) -> bool:
        """The answer to a heartbeat, or why there is none. Says whether there is news for the consumer."""
