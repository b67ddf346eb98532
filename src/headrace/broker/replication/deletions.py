"""Deletions of records that wait for the other replicas: a deletion is over when no live replica has the records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.replication.acks import AckWaiters
from headrace.broker.replication.leader import UNKNOWN, LeaderState
from headrace.errors import NotLeaderOrFollowerError, RequestTimedOutError


class Deletions:
    """Those of one partition, in one leader epoch."""

    __slots__ = ("_low_watermark", "_waiting")

    def __init__(self, low_watermark: Callable[[], int]) -> None:
        self._low_watermark = low_watermark
        self._waiting: AckWaiters[asyncio.Future[None]] = AckWaiters()

    async def wait(self, offset: int, timeout_s: float) -> int:
        """Wait until every live replica begins at `offset` or after it; where the one that begins first does."""
        if self._low_watermark() < offset:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(offset, waiting)
            try:
                async with asyncio.timeout(timeout_s):
                    await waiting
            except TimeoutError:
                raise RequestTimedOutError(
                    f"some replicas still have records below {offset}; they are deleted when those have caught up"
                ) from None
            finally:
                if waiting.cancelled():
                    self._waiting.gave_up()
        return self._low_watermark()

    def look(self) -> None:
        """A replica may have deleted its records, or count no longer."""
        if self._waiting:
            for waiting in self._waiting.committed(self._low_watermark()):
                waiting.set_result(None)

    def end(self, reason: str) -> None:
        """Nobody here knows any more what the other replicas have."""
        for waiting in self._waiting.drain():
            waiting.set_exception(NotLeaderOrFollowerError(reason))


def low_watermark(state: LeaderState | None, start_offset: int, is_alone: bool, is_alive: Callable[[int], bool]) -> int:
    """Where the log begins at the live replica that has the oldest records; -1 while that is not known of others."""
    if state is None:
        return start_offset if is_alone else UNKNOWN
    others = (one.start_offset for one in state.progress.values() if is_alive(one.broker_id))
    return min([start_offset, *others])
