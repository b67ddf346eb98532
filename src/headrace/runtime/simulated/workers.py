"""Simulated threads: blocking work is done after a virtual delay, in an order that threads could have had.

Each piece of it in one go, or interleaved with the loop and with each other (`interleaving.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.runtime.errors import OverloadedError
from headrace.runtime.interface import T, Ts
from headrace.runtime.simulated.interleaving import Interleaver, Strand
from headrace.runtime.simulated.loop import SimulatedLoop, incarnation

_OFFLOAD_QUEUED_MAX = 100_000


@dataclass(slots=True, frozen=True)
class WorkModel:
    """How long a piece of disk work takes: mostly a little, sometimes long."""

    usual_s_max: float = 0.001
    slow_s_max: float = 0.2
    slow_probability: float = 0.01

    def draw(self, rng: random.Random) -> float:
        return rng.uniform(0.0, self.slow_s_max if rng.random() < self.slow_probability else self.usual_s_max)


class _WorkResult(asyncio.Future[T]):
    """What disk work gave. When the host that asked for it dies, there is nobody to look at it."""

    def __init__(self, *, loop: SimulatedLoop):
        super().__init__(loop=loop)
        self.life = incarnation.get()


class SimulatedPool:
    """Takes effect some time after it was started, and is known to be finished some time after that."""

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        model: WorkModel,
        name: str,
        threads: int,
        *,
        queued_max: int,
        interleaver: Interleaver | None = None,
    ):
        if threads < 1:
            raise ValueError(f"pool {name!r} needs at least one thread, not {threads}")
        self._loop = loop
        self._rng = rng
        self.model = model
        self._interleaver = interleaver
        self._name = name
        self._free = threads
        self._queued_max = queued_max
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._outstanding = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def is_of(self, name: str) -> bool:
        """Whether these threads are meant by that name, or its beginning."""
        return self._name.startswith(name)

    def submit(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if self._closed:
            raise RuntimeError(f"pool {self._name!r} is closed")
        if self._outstanding >= self._queued_max:
            raise OverloadedError(f"{self._name}: {self._outstanding} pieces of disk work are waiting; try again later")
        future: _WorkResult[T] = _WorkResult(loop=self._loop)
        self._outstanding += 1
        self._idle.clear()
        self._queue.append((future, fn, args))
        self._start()
        return future

    async def close(self) -> None:
        self._closed = True
        await self._idle.wait()

    def _start(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            self._loop.call_later(self.model.draw(self._rng), self._do, *self._queue.popleft())

    def _do(self, future: asyncio.Future[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._interleaver is not None:
            self._step(future, self._interleaver.start(fn, args))
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = fn(*args)
        except BaseException as raised:  # noqa: BLE001 - handed to the future, as a thread would
            error = raised
        self._loop.call_later(self.model.draw(self._rng), self._finish, future, result, error)

    def _step(self, future: asyncio.Future[Any], strand: Strand) -> None:
        if not strand.done:
            strand.step()
        delay_s = self.model.draw(self._rng)
        if strand.done:
            self._loop.call_later(delay_s, self._finish, future, strand.result, strand.error)
        else:
            assert self._interleaver is not None
            self._loop.call_later(delay_s * self._interleaver.pace_of(strand), self._step, future, strand)

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._free += 1
        self._outstanding -= 1
        if not future.cancelled():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if self._outstanding == 0:
            self._idle.set()
        self._start()


class SimulatedWorkers:
    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        io_threads: int,
        model: WorkModel | None = None,
        interleaver: Interleaver | None = None,
    ):
        self._loop = loop
        self._interleaver = interleaver
        self._rng = rng
        self._model = model or WorkModel()
        self._pools: list[SimulatedPool] = []
        self._io = self.pool("headrace-io", io_threads, queued_max=_OFFLOAD_QUEUED_MAX)

    def offload(self, fn: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        return self._io.submit(fn, *args)

    def pool(self, name: str, threads: int, *, queued_max: int = 10_000) -> SimulatedPool:
        made = SimulatedPool(
            self._loop,
            self._rng,
            self._model,
            name,
            threads,
            queued_max=queued_max,
            interleaver=self._interleaver,
        )
        self._pools.append(made)
        return made

    def use(self, model: WorkModel, of: str | None = None) -> None:
        """Take as long as that model says from now on; with `of`, the pools whose names begin so."""
        if of is None:
            self._model = model
        for pool in self._pools:
            if of is None or pool.is_of(of):
                pool.model = model

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()
