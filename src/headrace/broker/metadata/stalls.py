"""Notices that this process did not run for a while, as one that is stopped, or a machine that swaps or is moved.

Others may have taken the broker for dead meanwhile, and lead what it led. It will hear of that; but what waits in its
buffers may come first. Until it has seen what was decided, it does not tell what it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError
from headrace.runtime import Clock

log = logging.getLogger("headrace.broker.metadata.membership")

_RETRY_S = 0.1
_DEFECT_RETRY_S = 1.0
_LOOKS = 2


class Stalls:
    """Whether this process may have missed something, since it was away for longer than `limit_s`."""

    def __init__(self, clock: Clock, limit_s: float, catch_up: Callable[[float], Awaitable[object]]) -> None:
        """`catch_up` returns once all is known here that was decided before a time, and raises otherwise."""
        self._clock = clock
        self._limit_s = limit_s
        self._catch_up = catch_up
        self._seen_at = clock.monotonic()
        self._is_behind = False

    @property
    def is_behind(self) -> bool:
        return self._is_behind or self._clock.monotonic() - self._seen_at > self._limit_s

    async def watch(self) -> None:
        """Look at the clock, again and again."""
        self._seen_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._limit_s / _LOOKS)
            if self.is_behind:
                away_s = self._clock.monotonic() - self._seen_at
                log.warning("this broker did not run for %.1f s: it looks what was decided meanwhile", away_s)
                self._is_behind = True
                await self._until_known()
                self._is_behind = False
            self._seen_at = self._clock.monotonic()

    async def _until_known(self) -> None:
        noticed_at = self._clock.monotonic()
        while True:
            try:
                await self._catch_up(noticed_at)
                return
            except HeadraceError as error:
                # Whoever looks after the session says so, too.
                log.debug("what was decided is not known yet: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                # Without this watch the broker would take itself for one that does not run, for as long as it lives.
                log.exception("what was decided could not be looked up, by a defect: please report it")
                await asyncio.sleep(_DEFECT_RETRY_S)
