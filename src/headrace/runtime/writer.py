"""The writer of one log directory: appends inline while the disk is quiet, on its own thread while a sync runs.

A write beside a running fdatasync of the same device waits for it (ten times as long at the 99.9th percentile), and
the event loop must not. Without a sync under way a write is a copy into memory, and a hop to a thread costs more.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Literal, Protocol

from headrace.runtime.errors import DiskError, OverloadedError
from headrace.runtime.interface import Runtime, T, Ts

#: Whether work that changes what a writer owns is checked to be the writer's. For tests: it costs a little.
CHECK_OWNERS: Final = os.environ.get("HEADRACE_CHECK_OWNERS", "") not in ("", "0")


class Busy(Enum):
    BUSY = "busy"


#: What `DirectoryWriter.try_inline` returns when the work has to be submitted instead.
BUSY: Final = Busy.BUSY


class Syncable(Protocol):
    """What can be made durable: a file, or something made of files."""

    def sync(self) -> None: ...


_Waiter = tuple[asyncio.Future[None], tuple[Syncable, ...]]


class DirectoryWriter:
    """Call every method from the event loop.

    The produce path:

        position = writer.try_inline(file.append, parts)
        if position is BUSY:
            position = await writer.submit(file.append, parts)

    Work is done in the order of the calls, whichever of the two ways each takes, and the first steps of those who wait
    for submitted work run before any later inline work: no one overtakes.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        *,
        sync_threads: int = 8,
        queued_max: int = 10_000,
        syncs_max: int = 100_000,
    ):
        self.directory = directory
        self._lane = runtime.workers.pool(f"writer-{directory}", 1, queued_max=queued_max)
        # One more than the files of a round can never be needed, so this pool's own bound is only a backstop.
        self._syncers = runtime.workers.pool(f"sync-{directory}", sync_threads, queued_max=syncs_max)
        self._syncs_max = syncs_max
        self._submitted = 0
        # The running round: who asked, which files failed, how many are left. Then the next round: who waits, for what.
        self._syncing = False
        self._asked: list[_Waiter] = []
        self._failed: dict[Syncable, BaseException] = {}
        self._syncs_left = 0
        self._waiting: list[_Waiter] = []
        self._wanted: dict[Syncable, None] = {}
        self._closed = False
        self._quiet: asyncio.Event | None = None  # set when a close waits for the last round
        self.loop_thread = threading.get_ident()  # only for the check of owners

    @property
    def busy(self) -> bool:
        """Whether work has to be submitted now: a sync is under way, earlier work is still queued, or all is over."""
        return self._submitted > 0 or self._syncing or self._closed

    def try_inline(self, fn: Callable[[*Ts], T], *args: *Ts) -> T | Literal[Busy.BUSY]:
        """Do the work now and return its result, or BUSY (having done nothing) when it has to be submitted."""
        if self._submitted or self._syncing or self._closed:
            return BUSY
        return fn(*args) if not CHECK_OWNERS else self._as_owner(fn, *args)

    def submit(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Queue the work for the writer thread. Raises `OverloadedError` when the queue is full.

        Cancelling the future does not stop the work, nor let anything overtake it.
        """
        self._check_open()
        work = self._lane.submit(fn, *args) if not CHECK_OWNERS else self._lane.submit(self._on_lane, fn, *args)
        self._submitted += 1
        # Not the lane's own future: a caller that is cancelled cancels what it awaits, and the work still runs.
        future: asyncio.Future[T] = work.get_loop().create_future()
        work.add_done_callback(functools.partial(self._finished, future))
        return future

    def sync(self, files: Iterable[Syncable]) -> asyncio.Future[None]:
        """A future that is done when all that was written to `files` is durable.

        "Was written" means writes that have finished when this is called, not those still queued.

        Requests that come while a sync runs share the next one. If a file cannot be synced, those who asked for it, and
        only those, get its `DiskError`.
        """
        self._check_open()
        asked = tuple(files)
        if len(self._wanted) + len(asked) > self._syncs_max or len(self._waiting) >= self._syncs_max:
            raise OverloadedError(f"{self.directory}: {len(self._waiting)} syncs are waiting; try again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not asked:
            future.set_result(None)
            return future
        self._waiting.append((future, asked))
        self._wanted.update(dict.fromkeys(asked))
        if not self._syncing:
            self._syncing = True
            # One turn later, so that all who ask in this turn of the loop share the round.
            loop.call_soon(self._start_round)
        return future

    async def close(self) -> None:
        """Finish queued work and syncs, then end the threads. Idempotent."""
        self._closed = True
        if self._syncing:
            self._quiet = asyncio.Event()
            await self._quiet.wait()
        await self._lane.close()
        await self._syncers.close()

    def _start_round(self) -> None:
        """Sync every wanted file once, in parallel. Callbacks, not a task: nothing can cancel a round half-way."""
        self._asked, self._waiting = self._waiting, []
        files, self._wanted = list(self._wanted), {}
        self._syncs_left = len(files)
        self._failed = {}
        for file in files:
            try:
                syncing = self._syncers.submit(file.sync)
            except OverloadedError as error:
                self._note(file, error)  # those who asked are told; the others' files are synced all the same
            else:
                syncing.add_done_callback(functools.partial(self._synced, file))

    def _synced(self, file: Syncable, outcome: asyncio.Future[None]) -> None:
        self._note(file, outcome.exception())

    def _note(self, file: Syncable, error: BaseException | None) -> None:
        """A file has been synced, or could not be; the last one of a round ends it."""
        if error is not None:
            self._failed[file] = error
        self._syncs_left -= 1
        if self._syncs_left:
            return
        asked, self._asked = self._asked, []
        for future, files in asked:
            if not future.done():
                _settle(future, files, self._failed)
        if self._waiting:
            self._start_round()
        else:
            self._syncing = False
            if self._quiet is not None:
                self._quiet.set()

    def _finished(self, future: asyncio.Future[T], work: asyncio.Future[T]) -> None:
        error = work.exception()
        if not future.done():
            if error is None:
                future.set_result(work.result())
            else:
                future.set_exception(error)
        # Counted down one turn later: those who wait for the future are called in this turn, and inline work must not
        # come before them.
        work.get_loop().call_soon(self._release)

    def _release(self) -> None:
        self._submitted -= 1

    def _on_lane(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        _owner.on_lane = True
        try:
            return self._as_owner(fn, *args)
        finally:
            _owner.on_lane = False

    def _as_owner(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        before, _owner.writer = current_writer(), self
        try:
            return fn(*args)
        finally:
            _owner.writer = before

    def _check_open(self) -> None:
        if self._closed:
            raise DiskError("write", self.directory, None, detail="its writer is closed")


_owner = threading.local()


def current_writer() -> DirectoryWriter | None:
    """The writer whose work this thread is doing; known only with `CHECK_OWNERS`."""
    writer: DirectoryWriter | None = getattr(_owner, "writer", None)
    return writer


def is_on_lane() -> bool:
    """Whether this is work that was submitted to a writer; known only with `CHECK_OWNERS`."""
    return getattr(_owner, "on_lane", False)


def _settle(future: asyncio.Future[None], asked: tuple[Syncable, ...], failed: dict[Syncable, BaseException]) -> None:
    for file in asked:
        if file in failed:
            future.set_exception(failed[file])
            return
    future.set_result(None)
