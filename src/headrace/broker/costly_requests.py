"""Requests that may keep the event loop busy for long, and how they leave room for all others.

What costs nothing is small, or answered at once; what is larger may take tens of milliseconds (`element_bound`), and a
peer may send it on any number of connections. So of these only as many are begun in one turn of the loop as take a few
milliseconds together; the others wait for the next turns, one a turn, and whatever else has arrived is handled in
between. Of those that wait, the connection goes first that has had the least time lately.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.time_used import TimeUsed

if TYPE_CHECKING:
    from headrace.broker.connection import ServerConnection

COSTLY_FROM_BYTES = 512
TURN_S = 0.01


class CostlyRequests:
    """Says who may begin a costly request now, and resumes the others when it is their turn."""

    def __init__(self, used: TimeUsed) -> None:
        self._used = used
        self._spent_s = 0.0
        self._waiting: dict[ServerConnection, None] = {}
        self._chosen: ServerConnection | None = None
        self._is_scheduled = False

    def may_begin(self, connection: ServerConnection) -> bool:
        """Whether this connection may begin one; otherwise it is resumed when it may."""
        if connection is self._chosen:
            return True
        if not self._waiting and self._spent_s < TURN_S:
            return True
        self._waiting[connection] = None
        self._schedule()
        return False

    def took(self, connection: ServerConnection, seconds: float) -> None:
        """A costly request of this connection has had so much of the loop's time."""
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
        chosen = min(self._waiting, key=self._used.order)
        del self._waiting[chosen]
        self._chosen = chosen
        try:
            chosen.resume()
        finally:
            self._chosen = None
        if self._waiting:
            self._schedule()
