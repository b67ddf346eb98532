"""Long work on the event loop, a few milliseconds of it in each turn.

A request may name thousands of things, each of which takes some microseconds to look at. What is not done after a slice
waits until it is its turn again, and of all that wait one has its turn in each turn of the loop: so what is long gets
longer, and nobody else waits for more than one slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.broker.dispatch import Pending

R = TypeVar("R")

SLICE_S = 0.004


class Slices:
    """Says when a slice is over, and whose is next."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def begin(self) -> Slice:
        return Slice(self)

    def answer(self, response: R, steps: Iterator[object]) -> R | Pending[R]:
        """Take all steps, each of which puts something into the response: at once if that is quick."""
        part = self.begin()
        for _ in steps:
            if part.is_over:
                return Pending(self._go_on(response, steps, part))
        return response

    async def _go_on(self, response: R, steps: Iterator[object], part: Slice) -> R:
        await part.pause()
        for _ in steps:
            if part.is_over:
                await part.pause()
        return response

    async def turn(self) -> None:
        """Wait for the turn of the next slice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._schedule()
        await future

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # whoever waited may be gone
                future.set_result(None)
                break
        if self._waiting:
            self._schedule()


class Slice:
    """One request's: the present slice of its work."""

    __slots__ = ("_slices", "_until")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._until = slices.now() + SLICE_S

    @property
    def is_over(self) -> bool:
        return self._slices.now() > self._until

    async def pause(self) -> None:
        await self._slices.turn()
        self._until = self._slices.now() + SLICE_S
