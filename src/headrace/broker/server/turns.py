"""Connections with many requests at once take turns, so that those who send one at a time hardly wait for them.

A connection that has sent more than fits its turn is greedy until it has sent less: its requests are handled a few at a
time, after those of the greedy ones before it, and all of them together have only a part of a millisecond between two
looks at who else has sent something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headrace.broker.server.watched_connection import WatchedConnection

#: How many requests of a greedy connection are handled before those of the next one.
SLICE: Final = 4
#: How long all of them together have, before others are looked at; and where nobody else has sent anything lately.
SHARED_S: Final = 0.0003
ALONE_S: Final = 0.002
LATELY_S: Final = 0.1


class SharedTurns:
    """The greedy connections of a broker that have something to be done, in their order."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[WatchedConnection, None] = {}
        self._is_scheduled = False
        #: When somebody else than a greedy one has sent something.
        self.modest_at = 0.0

    def wait(self, connection: WatchedConnection) -> None:
        """Handle more of what this one has sent when it is its turn."""
        self._waiting[connection] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def forget(self, connection: WatchedConnection) -> None:
        self._waiting.pop(connection, None)

    def _next(self) -> None:
        self._is_scheduled = False
        now = self._now()
        end = now + (SHARED_S if now - self.modest_at < LATELY_S else ALONE_S)
        try:
            while self._waiting:
                connection = next(iter(self._waiting))
                del self._waiting[connection]
                connection.take_turn()
                if self._now() >= end:
                    break
        finally:
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._next)
