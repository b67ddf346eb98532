"""One after the other: who uses a log, and who has to wait while it is exchanged for another.

Every change goes through the writer of the log's directory, at once while the disk is quiet.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from headrace.errors import KafkaStorageError
from headrace.log import Log
from headrace.runtime import BUSY, DirectoryWriter, DiskError, OverloadedError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LogTurns:
    """What is under way on one log. What was begun is finished, also when whoever waits for it gives up."""

    __slots__ = ("_changed", "_failed", "_under_way", "held", "log", "writer")

    def __init__(
        self,
        log: Log,
        writer: DirectoryWriter,
        failed: Callable[[DiskError | OverloadedError], KafkaStorageError],
        changed: Callable[[], None],
    ) -> None:
        """`failed` is told what the disk said, and makes of it what is answered; `changed` that readers look again."""
        self.log = log
        self.writer = writer
        self._failed = failed
        self._changed = changed
        # Tasks that use the log or wait for its disk.
        self._under_way: dict[asyncio.Task[Any], None] = {}
        #: While the log is exchanged: what begins when that is over.
        self.held: deque[Callable[[], None]] | None = None

    async def in_turn(self, change: Callable[[*Ts], T], *args: *Ts) -> T:
        """Change the log in order with everything else that does: at once, unless the disk is busy.

        After an exchange the log is another: the change looks whether it still is the one that it was meant for.
        """
        if self.held is not None:
            return await self.hold_back(lambda: self.begin(self._now(change, *args)))
        return await self._now(change, *args)

    async def _now(self, change: Callable[[*Ts], T], *args: *Ts) -> T:
        """As `in_turn`, whether or not the next exchange has begun: that one waits for whatever began before it."""
        try:
            done = self.writer.try_inline(change, *args)
            if done is not BUSY:
                return done
            return await asyncio.shield(self.begin(_result(self.writer.submit(change, *args))))
        except (DiskError, OverloadedError) as error:
            raise self._failed(error) from error

    async def change_log(self, change: Callable[[Log, *Ts], object], *args: *Ts) -> None:
        """Run a change of the log (delete records, retention, truncation) in order with the appends, off the loop."""
        await self._run(lambda: self._change(change, *args))

    async def _change(self, change: Callable[[Log, *Ts], object], *args: *Ts) -> None:
        try:
            await self.writer.submit(change, self.log, *args)
        except (DiskError, OverloadedError) as error:
            raise self._failed(error) from error
        self._changed()

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        await self._run(lambda: self.sync_log(self.log))

    async def sync_log(self, log: Log) -> None:
        """As `sync`, for what has begun to use the log already."""
        try:
            await self.writer.sync((log,))
        except (DiskError, OverloadedError) as error:
            raise self._failed(error) from error

    async def exchange(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something while nobody uses the log, nor can begin to."""
        if self.held is not None:
            raise KafkaStorageError(f"{self.log.partition}: its log is being exchanged already")
        held: deque[Callable[[], None]] = deque()
        self.held = held
        try:
            await self.idle()
            await work()
        finally:
            self.held = None
            while held:
                held.popleft()()

    async def idle(self) -> None:
        """Wait until nothing is under way on the log."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something with the log, for which `exchange` waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._under_way[task]
        if not task.cancelled():
            task.exception()  # is for those who wait, and it is no mistake when nobody does

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Do it now, or when the log may be used again; to its end, also when whoever waits for it gives up."""
        if self.held is None:
            return asyncio.shield(self.begin(work()))
        return self.hold_back(lambda: self.begin(work()))

    def hold_back(self, begin: Callable[[], T | Awaitable[T]]) -> asyncio.Task[T]:
        """Begin it when the log may be used again."""
        assert self.held is not None
        turn: asyncio.Future[T | Awaitable[T]] = asyncio.get_running_loop().create_future()
        self.held.append(functools.partial(_take_turn, turn, begin))
        return asyncio.get_running_loop().create_task(_after_turn(turn))


def _take_turn(turn: asyncio.Future[T], begin: Callable[[], T]) -> None:
    if turn.done():
        return  # whoever wanted it has given up
    try:
        turn.set_result(begin())
    except Exception as error:  # noqa: BLE001 - it is for whoever waits, and those behind have their turn too
        turn.set_exception(error)


async def _after_turn(turn: asyncio.Future[T | Awaitable[T]]) -> T:
    begun = await turn
    if isinstance(begun, asyncio.Future):
        done: T = await asyncio.shield(begun)  # what was begun is finished
        return done
    return begun  # type: ignore[return-value]  # what is no future is the result itself


async def _result(work: asyncio.Future[T]) -> T:
    return await work
