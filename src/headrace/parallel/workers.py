"""Those who call handlers: threads, coroutines on a loop, or threads that each lead a process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable
from typing import Protocol

from headrace.parallel.errors import TooManyHangingHandlersError
from headrace.parallel.handling import Handling, forget_cancelling
from headrace.parallel.member import Member
from headrace.parallel.work import WorkChunk
from headrace.runtime.loops import make_loop

log = logging.getLogger("headrace.parallel")

_JOIN_S = 5.0


class HandlerWorkers(Protocol):
    """All workers of one member."""

    def start(self) -> None: ...

    def replace(self, chunk: WorkChunk) -> None:
        """The worker that has this chunk hangs: do without it."""
        ...

    def stop(self, seconds: float) -> None:
        """They were told to end: wait for them a little. Who hangs is left behind."""
        ...


class Threads:
    """Plain functions, a thread for each worker. A thread that hangs cannot be ended: another takes its place."""

    def __init__(self, member: Member, handling: Handling, count: int, hanging_max: int) -> None:
        self._member = member
        self._handling = handling
        self._count = count
        self._hanging_max = hanging_max
        self._threads: list[threading.Thread] = []
        self._hanging: list[threading.Thread] = []

    def start(self) -> None:
        self._handling.prepare()
        for _ in range(self._count):
            self._start_one()

    def _start_one(self) -> None:
        # Daemon: a handler that hangs for ever must not keep the process from ending.
        name = f"headrace-{self._member.group}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        member, handling = self._member, self._handling
        me = threading.current_thread()
        chunk: WorkChunk | None = None
        try:
            while (chunk := member.exchange(chunk, me)) is not None:
                handling.work(chunk)
        except BaseException as error:  # noqa: BLE001 - a defect of ours: no worker must end unheard of
            member.broke(error)

    def replace(self, chunk: WorkChunk) -> None:
        thread = chunk.worker
        self._hanging = [one for one in self._hanging if one.is_alive()]
        if thread in self._threads:
            self._threads.remove(thread)
            self._hanging.append(thread)
        if len(self._hanging) > self._hanging_max:
            raise TooManyHangingHandlersError(
                f"{len(self._hanging)} handlers hang, more than Limits.hanging={self._hanging_max}: have them time out "
                "(a thread cannot be ended from outside), or run them in processes, which can"
            )
        self._start_one()

    def stop(self, seconds: float) -> None:
        deadline = self._member.clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._member.clock.monotonic()))


class Coroutines:
    """`async def` handlers: so many coroutines on one loop, in a thread of its own or on a loop that is given."""

    def __init__(
        self, member: Member, handling: Handling, count: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._member = member
        self._handling = handling
        self._count = count
        self._given = loop
        self._loop: asyncio.AbstractEventLoop | None = loop
        self._thread: threading.Thread | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._given_up: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._to_wake = 0
        self._turns = 0
        """Of the loop, counted while there is work."""
        self._counts_turn = False

    def start(self) -> None:
        self._handling.prepare()
        if self._given is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace-handlers", daemon=True)
            self._thread.start()
            ready.wait()
        assert self._loop is not None
        self._member.wake_workers = self._wake
        self._loop.call_soon_threadsafe(self._begin)

    def _run(self, ready: threading.Event) -> None:
        loop = make_loop()
        self._loop = loop
        loop.call_soon(ready.set)
        try:
            while not self._is_stopping:
                try:
                    loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    # Out of a callback or a task that a handler left behind: the others are to go on.
                    log.error("something that a handler started ended in %r", error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _begin(self) -> None:
        for _ in range(self._count):
            self._start_one()

    def _start_one(self) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._work())
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No worker must end unheard of."""
        self._tasks.pop(task, None)
        error = asyncio.CancelledError("a worker's task was cancelled") if task.cancelled() else task.exception()
        if error is not None and not self._member.is_closed and task not in self._given_up:
            self._member.broke(error)
        self._given_up.discard(task)

    async def _work(self) -> None:
        member, handling = self._member, self._handling
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        chunk: WorkChunk | None = None
        while True:
            done, chunk = chunk, member.exchange_now(chunk, me)
            if done is not None and done.abandoned:
                return
            if chunk is None:
                if member.is_closed:
                    return
                future: asyncio.Future[None] = loop.create_future()
                self._idle.append(future)
                await self._wait(future)
                continue
            if not self._counts_turn:
                self._counts_turn = True
                loop.call_soon(self._turned)
            turns = self._turns
            await handling.work_async(chunk)
            if turns == self._turns:
                # A handler that never waits would otherwise keep the loop to itself. One that did has let the others
                # on already: another turn would only add the time of all that are ready to each record's.
                await self._wait(asyncio.sleep(0))

    async def _wait(self, awaited: Awaitable[None]) -> None:
        """A wait of ours. Who cancels this task (its own handler, or all tasks of the loop) ends the wait, not the
        worker: the member says when it is over."""
        try:
            await awaited
        except asyncio.CancelledError:
            me = asyncio.current_task()
            assert me is not None
            if me in self._given_up:
                raise
            await forget_cancelling(me)

    def _turned(self) -> None:
        self._turns += 1
        self._counts_turn = False

    def _wake(self, count: int) -> None:
        """Called with the member's lock held, by any thread."""
        self._to_wake += count
        self._member.idle -= min(count, self._member.idle)
        if self._to_wake == count and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_now)

    def _wake_now(self) -> None:
        with self._member.lock:
            count, self._to_wake = self._to_wake, 0
        while self._idle and (count > 0 or self._member.is_closed):
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    def replace(self, chunk: WorkChunk) -> None:
        assert self._loop is not None

        def swap() -> None:
            if not chunk.worker.done():
                self._given_up.add(chunk.worker)
                chunk.worker.cancel()
            self._start_one()

        self._loop.call_soon_threadsafe(swap)

    def stop(self, seconds: float) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        ended = threading.Event()

        def begin() -> None:
            loop.create_task(self._end(seconds, ended))

        loop.call_soon_threadsafe(begin)
        ended.wait(seconds + _JOIN_S)
        self._is_stopping = True
        if self._given is None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_JOIN_S)

    async def _end(self, seconds: float, ended: threading.Event) -> None:
        self._wake_now()
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.001, seconds))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        ended.set()
