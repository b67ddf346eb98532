"""Followers that are about to name more partitions in their fetches, since this broker leads those from now on.

A follower has one fetch under way, which waits for news of what it follows so far; only after its answer can it ask for
more. So the answer comes when this broker begins to lead something that the follower has a replica of, and for a moment
the next ones wait hardly at all: perhaps the follower has not heard of the change yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from headrace.broker.partitions.purgatory import Waiter

RECENTLY_S: Final = 1.0
HARDLY_S: Final = 0.05
_NEVER: Final = float("-inf")


class ComingFollowers:
    """See the module. Times are those of the event loop."""

    def __init__(self) -> None:
        self._expected_at: dict[int, float] = {}
        #: In order, which a set's would differ from run to run.
        self._waiting: dict[int, dict[Waiter, None]] = {}

    def expect(self, node_ids: Iterable[int]) -> None:
        """These brokers will fetch something from here that they have not yet."""
        now = asyncio.get_running_loop().time()
        for node_id in node_ids:
            self._expected_at[node_id] = now
            for waiter in self._waiting.get(node_id, ()):
                waiter.wake()

    def expected_since(self, node_id: int, began: float) -> bool:
        """Whether a follower has something new to ask for since a fetch of it began."""
        return self._expected_at.get(node_id, _NEVER) > began

    def wait_s(self, node_id: int, wanted_s: float) -> float:
        """How long a fetch of a follower that begins now should wait."""
        if node_id not in self._expected_at:
            return wanted_s
        if asyncio.get_running_loop().time() - self._expected_at[node_id] < RECENTLY_S:
            return min(wanted_s, HARDLY_S)
        del self._expected_at[node_id]
        return wanted_s

    @contextlib.contextmanager
    def waiting(self, node_id: int, waiter: Waiter) -> Iterator[None]:
        """While a fetch of that follower waits."""
        waiters = self._waiting.setdefault(node_id, {})
        waiters[waiter] = None
        try:
            yield
        finally:
            del waiters[waiter]
            if not waiters and self._waiting.get(node_id) is waiters:
                del self._waiting[node_id]  # anybody can claim to be any broker
