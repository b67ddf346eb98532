"""What `flush()` waits for: every batch, and every row held for its topic's metadata, that there was when it began."""

from __future__ import annotations

from collections.abc import Callable
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
