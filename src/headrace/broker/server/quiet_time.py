"""A time in which a client is not heard, because it has used more than it may. What it sends waits in the kernel."""

from __future__ import annotations

import asyncio

from headrace.broker.server.watched_connection import WatchedConnection


class QuietTime:
    """Of one connection."""

    __slots__ = ("_connection", "timer")

    def __init__(self, connection: WatchedConnection) -> None:
        self._connection = connection
        #: None: it is heard.
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, ends: str | None) -> None:
        """`ends` is why the connection is closed after that. Several at once last as long as the longest."""
        loop = asyncio.get_running_loop()
        if self.timer is not None:
            if ends is None and self.timer.when() >= loop.time() + seconds:
                return
            self.timer.cancel()
        self.timer = loop.call_later(seconds, self._end, ends)

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def _end(self, ends: str | None) -> None:
        self.timer = None
        if ends is not None:
            self._connection.close(ends)
        else:
            self._connection.resume()
