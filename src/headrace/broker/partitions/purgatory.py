"""Requests that wait for something to happen to a partition, without blocking anyone.

A waiter is a future plus the bytes it still wants. An append tells its partition's waiters how many bytes came; a
change that no byte count expresses (leader moved, partition deleted, error) wakes them all. A waiter that is woken
looks at the real state again, so waking one too early costs time, never correctness. One that is woken too late, or
not at all, is a defect: whoever waits has looked in the same step of the loop, or looks again before it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

# Of so many bytes that came to a partition (or came earlier), how many the one who waits can read now.
Readable: TypeAlias = Callable[["Watchers", int], int]


class Watcher(Protocol):
    """Whoever is told what happens to a partition."""

    def on_append(self, watchers: Watchers, nbytes: int) -> None:
        """So many bytes came."""
        ...

    def wake(self) -> None:
        """Something else happened, of which it has to look for itself."""
        ...

    def mark(self) -> None:
        """Something happened that nobody waits for, but that is to be told with the next answer."""
        ...


class Waiter:
    """One waiting request: registered with all its partitions, done at the first reason to look again."""

    __slots__ = ("_loop", "_readable", "_watched", "bytes_wanted", "future")

    def __init__(self, bytes_wanted: int, readable: Readable | None = None) -> None:
        """Without `readable`, whatever comes can be read at once."""
        self._readable = readable
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.bytes_wanted = bytes_wanted
        self._watched: list[Watchers] = []

    def on_append(self, watchers: Watchers, nbytes: int) -> None:
        self.bytes_wanted -= nbytes if self._readable is None else self._readable(watchers, nbytes)
        if self.bytes_wanted <= 0:
            self.wake()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def mark(self) -> None:
        """It waits for something else."""

    async def wait(self, watched: Iterable[Watchers], timeout_s: float) -> None:
        """Return when woken or when the time is over; whichever it was, the caller looks for itself."""
        handle = self._loop.call_later(timeout_s, self.wake)
        try:
            for watchers in watched:
                watchers.add(self)
                self._watched.append(watchers)
            await self.future
        finally:
            handle.cancel()
            for watchers in self._watched:
                watchers.discard(self)
            self._watched.clear()


class Watchers:
    """Those who are told what happens to one partition: requests that wait, and sessions that remember it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # Most partitions have none at any time. A dict keeps their order, which a set's would differ from run to run.
        self._waiters: dict[Watcher, None] | None = None

    def add(self, waiter: Watcher) -> None:
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None

    def discard(self, waiter: Watcher) -> None:
        if self._waiters is not None:
            self._waiters.pop(waiter, None)
            if not self._waiters:
                self._waiters = None

    def on_append(self, nbytes: int) -> None:
        if self._waiters is not None:
            for waiter in tuple(self._waiters):
                waiter.on_append(self, nbytes)

    def wake_all(self) -> None:
        if self._waiters is not None:
            for waiter in tuple(self._waiters):
                waiter.wake()

    def mark_all(self) -> None:
        if self._waiters is not None:
            for waiter in tuple(self._waiters):
                waiter.mark()

    def __len__(self) -> int:
        return 0 if self._waiters is None else len(self._waiters)
