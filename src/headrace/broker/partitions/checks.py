"""Looking into batches beside the event loop: what takes long does not keep waiting what is quick, nor one client
others.

A check cannot be interrupted, and of a batch of a million records it takes a second. So long ones have a thread of
their own. Of those that wait for a thread the shortest goes first, of equal ones that of the peer that has had the
least time lately, and every other time the connection that has waited longest.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from headrace.broker.requests.client import Client
from headrace.broker.server.time_used import TimeUsed
from headrace.errors import HeadraceError
from headrace.runtime.interface import T, Ts, WorkerPool, Workers

QUICK_THREADS = 2
LONG_THREADS = 1
LONG_FROM_RECORDS = 50_000

# Records between which no difference is made, and how many of those that wait are looked at.
MUCH_MORE_RECORDS = 5_000
LOOKED_AT_MAX = 500

_Waiting = tuple[asyncio.Future[Any], int, Callable[..., Any], tuple[Any, ...]]


class Checks:
    """Work on batches that may take long, on threads."""

    def __init__(self, workers: Workers, used: TimeUsed, monotonic: Callable[[], float]) -> None:
        self._quick = _Lane(workers.pool("headrace-checks", QUICK_THREADS), QUICK_THREADS, used, monotonic)
        self._long = _Lane(workers.pool("headrace-long-checks", LONG_THREADS), LONG_THREADS, used, monotonic)

    def submit(self, connection: Client, records: int | None, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Do it for this connection; `records` is how many there are to look at, None if nobody knows."""
        is_quick = records is not None and records < LONG_FROM_RECORDS
        return (self._quick if is_quick else self._long).submit(connection, records or 0, fn, *args)


class _Lane:
    """The threads for one kind of work, and who waits for one."""

    def __init__(self, pool: WorkerPool, threads: int, used: TimeUsed, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._free = threads
        self._used = used
        self._now = monotonic
        self._waiting: dict[Client, deque[_Waiting]] = {}
        self._takes_shortest = False

    def submit(self, connection: Client, records: int, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append((future, records // MUCH_MORE_RECORDS, fn, args))
        self._begin()
        return future

    def _begin(self) -> None:
        """Begin as many as there are threads."""
        while self._free and self._waiting:
            self._takes_shortest = not self._takes_shortest
            if self._takes_shortest:
                connection = min(islice(self._waiting, LOOKED_AT_MAX), key=self._order)
            else:
                connection = next(iter(self._waiting))
            # What else it wants has waited for less long than others: behind them.
            waiting = self._waiting.pop(connection)
            future, _, fn, args = waiting.popleft()
            if waiting:
                self._waiting[connection] = waiting
            if future.done():
                continue  # nobody waits for it any more
            try:
                work = self._pool.submit(fn, *args)
            except (HeadraceError, RuntimeError) as error:
                # Too much waits, or the pool is closed with the broker: who waits is told, and so are those behind.
                future.set_exception(error)
                continue
            self._free -= 1
            work.add_done_callback(functools.partial(self._ended, connection, future, self._now()))

    def _order(self, connection: Client) -> tuple[float, ...]:
        return self._waiting[connection][0][1], *self._used.order(connection)

    def _ended(self, connection: Client, future: asyncio.Future[Any], began: float, work: asyncio.Future[Any]) -> None:
        self._free += 1
        self._used.add(connection, self._now() - began)
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if not future.done():
            if error is None:
                future.set_result(work.result())
            elif isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
        self._begin()
