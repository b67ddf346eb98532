"""One after the other: who uses a log, and who has to wait while it is exchanged for another."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LogTurns:
    """What is under way on one log. What was begun is finished, also when whoever waits for it gives up."""

    __slots__ = ("_under_way", "held")

    def __init__(self) -> None:
        # Tasks that use the log or wait for its disk.
        self._under_way: dict[asyncio.Task[Any], None] = {}
        #: While the log is exchanged: what begins when that is over.
        self.held: deque[Callable[[], None]] | None = None

    async def exchange(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something while nobody uses the log, nor can begin to."""
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

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
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
        done: T = await begun
        return done
    return begun  # type: ignore[return-value]  # what is no future is the result itself
