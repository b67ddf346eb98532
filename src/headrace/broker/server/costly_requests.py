"""Requests that may keep the event loop busy for long, and how they leave room for all others.

What costs nothing is answered at once, or small; what is larger may take tens of milliseconds (`element_bound`), and a
peer may send it on any number of connections. Small ones count as costly where they were found to be: on their
connection, or, if that is new, of their API key (those that ask for all topics, or for a broker's configuration). Of
costly ones only as many are begun in one turn of the loop as take a few milliseconds together; the others wait for the
next turns, one a turn, and whatever else has arrived is handled in between. Of those that wait the cheapest goes first,
by what such requests have cost its connection, or all if it is new, and every other time the one that has waited
longest: so hundreds of costly ones delay a cheap one by two of them, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from headrace.broker.server.time_used import TimeUsed
from headrace.broker.server.watched_connection import WatchedConnection

COSTLY_FROM_BYTES = 512
TURN_S = 0.01
# From which time on small requests are costly; and for how long all are measured after one that may be.
SLOW_S = 0.001
MEASURED_S = 1.0
# After one that took so long others have the loop for themselves, for a part of that time.
LONG_S = 0.005
PAUSE_SHARE = 0.5
PAUSE_S_MAX = 0.02
# How many of those that wait are looked at for the cheapest.
LOOKED_AT_MAX = 500
# What the latest request counts for what the next one is expected to cost.
LATEST_SHARE = 0.25
# The same of a connection's small ones, if it took longer than expected, or less.
RISING_SHARE, FALLING_SHARE = 0.5, 0.1


class CostlyRequests:
    """Says who may begin a costly request now, and resumes the others when it is their turn."""

    def __init__(self, used: TimeUsed, cpu: Callable[[], float] = float) -> None:
        """`cpu` is what requests are measured by: on a busy machine the clock tells of others."""
        self._used = used
        self.cpu = cpu
        #: Until then all requests are measured by it, which takes a microsecond or two each time.
        self.measured_until = 0.0
        self._spent_s = 0.0
        self._waiting: dict[WatchedConnection, tuple[float, tuple[float, float]]] = {}
        self._s_per_byte: dict[int, float] = {}
        #: By API key, what small requests take, where that is much.
        self.slow_s: dict[int, float] = {}
        self._chosen: WatchedConnection | None = None
        self._chosen_s = 0.0
        self._is_scheduled = False
        self._takes_cheapest = False

    def is_chosen(self, connection: WatchedConnection) -> bool:
        """Whether it is the turn of a connection's costly request, which it has waited for."""
        return connection is self._chosen

    def is_slow(self, connection: WatchedConnection, frame: memoryview) -> bool:
        """Whether a small request is expected to be costly; where much has been spent already, also what may be."""
        return self._slow_s_of(connection, frame) > (SLOW_S if self._spent_s < TURN_S else SLOW_S / 4)

    def _slow_s_of(self, connection: WatchedConnection, frame: memoryview) -> float:
        own = connection.slow_s
        return self.slow_s.get(api_key_of(frame), 0.0) if own is None else own

    def may_begin(self, connection: WatchedConnection, frame: memoryview) -> bool:
        """Whether this connection may begin this request; otherwise it is resumed when it may."""
        if connection is self._chosen:
            return True
        if len(frame) > COSTLY_FROM_BYTES:
            rate = connection.costly_s_per_byte
            if rate is None:
                rate = self._s_per_byte.get(api_key_of(frame), 0.0)
            expected_s = rate * len(frame)
        else:
            expected_s = self._slow_s_of(connection, frame)
        # Who is known for what costs little does not wait, as long as nobody makes use of that.
        if self._spent_s < TURN_S and (expected_s < SLOW_S or not self._waiting):
            return True
        self._waiting[connection] = (round(expected_s, 3), self._used.order(connection))
        self._schedule()
        return False

    def used_s(self, began: float, now: float, cpu_before: float | None) -> float:
        """What a request has had of the CPU, or somewhat more. `cpu_before` is None where that was not measured."""
        if now - began <= SLOW_S:
            return now - began
        self.measured_until = now + MEASURED_S
        # Perhaps others had it meanwhile: those that follow are measured.
        return SLOW_S if cpu_before is None else self.cpu() - cpu_before

    def took(self, connection: WatchedConnection, frame_bytes: int, api_key: int, seconds: float) -> None:
        """A request of this connection has had so much of the loop's time."""
        if frame_bytes > COSTLY_FROM_BYTES:
            rate = seconds / frame_bytes
            connection.costly_s_per_byte = _average(connection.costly_s_per_byte, rate)
            self._s_per_byte[api_key] = _average(self._s_per_byte.get(api_key), rate)
        else:
            # Cheap ones between costly ones do not make these cheap.
            is_more = connection.slow_s is not None and seconds > connection.slow_s
            connection.slow_s = _average(connection.slow_s, seconds, RISING_SHARE if is_more else FALLING_SHARE)
            of_all = self.slow_s[api_key] = _average(self.slow_s.get(api_key), seconds)
            if of_all <= SLOW_S:
                del self.slow_s[api_key]
        self._used.add(connection, seconds)
        if connection is self._chosen:
            self._chosen_s += seconds
        else:
            self._spent_s += seconds
            self._schedule()

    def forget(self, connection: WatchedConnection) -> None:
        """A connection that is lost waits for nothing."""
        self._waiting.pop(connection, None)

    def _schedule(self, after_s: float = 0.0) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            if after_s:
                loop.call_later(after_s, self._next_turn)
            else:
                loop.call_soon(self._next_turn)

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
        self._chosen_s = 0.0
        try:
            chosen.resume()
        finally:
            self._chosen = None
            if self._waiting:
                # What others do takes several turns: they are to have some between two that take long.
                is_long = self._chosen_s > LONG_S
                self._schedule(min(self._chosen_s * PAUSE_SHARE, PAUSE_S_MAX) if is_long else 0.0)


def _average(before: float | None, latest: float, share: float = LATEST_SHARE) -> float:
    return latest if before is None else before + (latest - before) * share


def api_key_of(frame: memoryview) -> int:
    """The one that a request begins with; -1 where it is too short to have any."""
    return frame[0] << 8 | frame[1] if len(frame) > 1 else -1
