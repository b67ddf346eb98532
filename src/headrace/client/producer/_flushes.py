"""What `flush()` waits for: every batch, and every row held for its topic's metadata, that there was when it began."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class FlushWait:
    """A flush. `left` counts the batches and held rows that it waits for."""

    left: int = 0
    is_done: bool = False
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def join(self, flushes: list[FlushWait]) -> None:
        """Wait for the owner of this list too, unless it is waited for already."""
        if self not in flushes:
            flushes.append(self)
            self.left += 1


def leave(flushes: list[FlushWait]) -> None:
    """The owner of this list is done."""
    for wait in flushes:
        wait.left -= 1
    flushes.clear()


class Flushes:
    """The flushes that are under way."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[FlushWait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def begin(self, owners: Iterable[list[FlushWait]]) -> FlushWait:
        """A flush of everything that has one of these lists."""
        wait = FlushWait()
        for flushes in owners:
            wait.join(flushes)
        if wait.left == 0:
            wait.is_done = True
        else:
            self._waits.append(wait)
        return wait

    def settle(self) -> None:
        """Flushes end with the last of their batches; rows held for an unknown topic count until they are in some."""
        if not self._waits:
            return
        finished = [wait for wait in self._waits if wait.left <= 0]
        self._waits = [wait for wait in self._waits if wait.left > 0]
        for wait in finished:
            wait.is_done = True
            for waiter in wait.waiters:
                waiter()
