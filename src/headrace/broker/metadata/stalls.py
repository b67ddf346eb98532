"""Notices that this process did not run for a while, as one that is stopped, or a machine that swaps or is suspended.

Others may have taken the broker for dead meanwhile, and lead what it led. It will hear of that; but what waits in its
buffers may come first. Until it has seen what was decided, it does not tell what it knows.

A virtual machine that its host has paused counts that time by none of its clocks; but its wall clock is set right when
it goes on. So that is looked at as well: where it was set for another reason, this broker has looked once too often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError
from headrace.runtime import Clock
from headrace.runtime.letting_go import let_go

log = logging.getLogger("headrace.broker.metadata.membership")

_RETRY_S = 0.1
_DEFECT_RETRY_S = 1.0
_LOOKS = 2


class Stalls:
    """Whether this process may have missed something, since it was away for longer than `limit_s`."""

    def __init__(self, clock: Clock, limit_s: float, catch_up: Callable[[float], Awaitable[object]]) -> None:
        """`catch_up` returns once all is known here that was decided before a time, and raises otherwise.

        Times are those of the clock's `boottime`.
        """
        self._clock = clock
        self._limit_s = limit_s
        self._catch_up = catch_up
        self._seen = self._now
        # When it was last noticed that this process had been away, and up to when it is known what was decided.
        self._noticed_at = self._known_at = float("-inf")

    @property
    def is_behind(self) -> bool:
        return self._known_at < self._noticed_at or self._away_s(self._now) > self._limit_s

    @property
    def _now(self) -> tuple[float, int]:
        return self._clock.boottime(), self._clock.now_ms()

    def _away_s(self, now: tuple[float, int]) -> float:
        """How long ago this was last seen to run, by whichever clock says more."""
        (at_s, wall_ms), (seen_s, seen_wall_ms) = now, self._seen
        return max(at_s - seen_s, (wall_ms - seen_wall_ms) / 1000)

    async def watch(self) -> None:
        """Look at the clocks, again and again."""
        self._seen = self._now
        looking: asyncio.Future[None] | None = None
        try:
            while True:
                await asyncio.sleep(self._limit_s / _LOOKS)
                now = self._now
                away_s = self._away_s(now)
                if away_s > self._limit_s:
                    log.warning("this broker did not run for %.1f s: it looks what was decided meanwhile", away_s)
                    self._noticed_at = now[0]
                self._seen = now
                if self._known_at < self._noticed_at and (looking is None or looking.done()):
                    looking = asyncio.ensure_future(self._until_known())
        finally:
            if looking is not None:
                await let_go(looking)

    async def _until_known(self) -> None:
        while self._known_at < self._noticed_at:
            noticed_at = self._noticed_at
            try:
                await self._catch_up(noticed_at)
                self._known_at = noticed_at
            except HeadraceError as error:
                # Whoever looks after the session says so, too.
                log.debug("what was decided is not known yet: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                # Without this watch the broker would take itself for one that does not run, for as long as it lives.
                log.exception("what was decided could not be looked up, by a defect: please report it")
                await asyncio.sleep(_DEFECT_RETRY_S)
