"""Requests that may keep the event loop busy for long, and how they leave room for all others.

What costs nothing is small, or answered at once; what is larger may take tens of milliseconds (`element_bound`), and a
peer may send it on any number of connections. So of these only as many are begun in one turn of the loop as take a few
milliseconds together; the others wait for the next turns, one a turn, and whatever else has arrived is handled in
between. Of those that wait the cheapest goes first, by what such requests have cost its connection, or all if it is
new, and every other time the one that has waited longest: so hundreds of costly ones delay a cheap one by two of them,
and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.time_used import TimeUsed

if TYPE_CHECKING:
    from headrace.broker.connection import ServerConnection

COSTLY_FROM_BYTES = 512
TURN_S = 0.01
# How many of those that wait are looked at for the cheapest.
LOOKED_AT_MAX = 500
# What the latest request counts for what the next one is expected to cost.
LATEST_SHARE = 0.25


class CostlyRequests:
    """Says who may begin a costly request now, and resumes the others when it is their turn."""

    def __init__(self, used: TimeUsed) -> None:
        self._used = used
        self._spent_s = 0.0
        self._waiting: dict[ServerConnection, tuple[float, tuple[float, float]]] = {}
        self._s_per_byte: dict[int, float] = {}
        self._chosen: ServerConnection | None = None
        self._is_scheduled = False
        self._takes_cheapest = False

    def may_begin(self, connection: ServerConnection, frame: memoryview) -> bool:
        """Whether this connection may begin this request; otherwise it is resumed when it may."""
        if connection is self._chosen:
            return True
        if not self._waiting and self._spent_s < TURN_S:
            return True
        rate = connection.costly_s_per_byte
        if rate is None:
            rate = self._s_per_byte.get(_api_key(frame), 0.0)
        self._waiting[connection] = (round(rate * len(frame), 3), self._used.order(connection))
        self._schedule()
        return False

    def took(self, connection: ServerConnection, frame_bytes: int, api_key: int, seconds: float) -> None:
        """A costly request of this connection has had so much of the loop's time."""
        rate = seconds / frame_bytes
        before = connection.costly_s_per_byte
        connection.costly_s_per_byte = rate if before is None else before + (rate - before) * LATEST_SHARE
        of_all = self._s_per_byte.get(api_key, rate)
        self._s_per_byte[api_key] = of_all + (rate - of_all) * LATEST_SHARE
        self._used.add(connection, seconds)
        self._spent_s += seconds
        self._schedule()

    def forget(self, connection: ServerConnection) -> None:
        """A connection that is lost waits for nothing."""
        self._waiting.pop(connection, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        if not self._waiting:
            return
        self._takes_cheapest = not self._takes_cheapest
        if self._takes_cheapest:
            chosen = min(islice(self._waiting, LOOKED_AT_MAX), key=self._waiting.__getitem__)
        else:
            chosen = next(iter(self._waiting))
        del self._waiting[chosen]
        self._chosen = chosen
        try:
            chosen.resume()
        finally:
            self._chosen = None
        if self._waiting:
            self._schedule()


def _api_key(frame: memoryview) -> int:
    return frame[0] << 8 | frame[1]
