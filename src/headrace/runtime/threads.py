"""Real threads for blocking work: small pools whose results come back to the event loop in batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.runtime.errors import OverloadedError
from headrace.runtime.interface import T, Ts

_OFFLOAD_QUEUED_MAX = 100_000


class ThreadPool:
    """Work in the order given, on up to `threads` threads.

    Differs from concurrent.futures in what matters here: results cross to the loop together (waking the loop costs more
    than a small write), the queue is bounded, and there is one future per piece of work, not two.

    A pool serves one loop at a time.
    """

    def __init__(self, name: str, threads: int, *, queued_max: int):
        if threads < 1:
            raise ValueError(f"pool {name!r} needs at least one thread, not {threads}")
        self._name = name
        self._threads_max = threads
        self._queued_max = queued_max
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outstanding = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        # Written by the threads, emptied by the loop; `_waking` says that the loop has been told and has not come yet.
        self._done: deque[_Done] = deque()
        self._waking = False
        self._waking_lock = threading.Lock()

    def submit(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if self._closed:
            raise RuntimeError(f"pool {self._name!r} is closed")
        if self._outstanding >= self._queued_max:
            raise OverloadedError(f"{self._name}: {self._outstanding} pieces of disk work are waiting; try again later")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._serve(loop)
        future: asyncio.Future[T] = loop.create_future()
        if len(self._threads) < self._threads_max and len(self._threads) <= self._outstanding:
            self._start_thread()
        self._outstanding += 1
        self._idle.clear()
        self._queue.put((future, fn, args))
        return future

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True
        await self._idle.wait()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            # Every thread has nothing left but the None, so this does not wait for work.
            thread.join()
        self._threads.clear()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._outstanding:
            raise RuntimeError(f"pool {self._name!r} still has work of another event loop")
        self._loop = loop
        self._idle = asyncio.Event()  # an event belongs to the loop that first waited for it
        self._idle.set()

    def _start_thread(self) -> None:
        # Daemon: a process that forgot to close must still be able to exit; what was acknowledged was synced before.
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The machine has no room for another thread: fewer do the work, unless there is none at all.
            if not self._threads:
                raise OverloadedError(f"{self._name}: no thread can be started ({error}); try again later") from error
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            future, fn, args = work
            try:
                outcome: _Done = (future, fn(*args), None)
            except BaseException as error:  # noqa: BLE001 - handed to the future: the waiter decides
                outcome = (future, None, error)
            del work, future, fn, args  # an idle thread must not keep the last file or buffer alive
            self._done.append(outcome)
            del outcome
            self._wake()

    def _wake(self) -> None:
        with self._waking_lock:
            if self._waking:
                return
            self._waking = True
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            self._done.clear()

    def _deliver(self) -> None:
        with self._waking_lock:
            self._waking = False
        for _ in range(len(self._done)):
            future, result, error = self._done.popleft()
            self._outstanding -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):
                # A future refuses StopIteration, which would end the generator that awaits it.
                future.set_exception(RuntimeError("disk work raised StopIteration"))
            else:
                future.set_exception(error)
        if self._outstanding == 0:
            self._idle.set()


_Work = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]
_Done = tuple[asyncio.Future[Any], Any, BaseException | None]


class ThreadWorkers:
    """The disk threads of one process (`num.io.threads`), and the pools that were asked for."""

    def __init__(self, io_threads: int):
        self._io = ThreadPool("headrace-io", io_threads, queued_max=_OFFLOAD_QUEUED_MAX)
        self._pools: list[ThreadPool] = [self._io]

    def offload(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        return self._io.submit(fn, *args)

    def pool(self, name: str, threads: int, *, queued_max: int = 10_000) -> ThreadPool:
        made = ThreadPool(name, threads, queued_max=queued_max)
        # Those that were closed since are done with: a session that is begun anew has one each.
        self._pools = [*(pool for pool in self._pools if not pool.is_closed), made]
        return made

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()
