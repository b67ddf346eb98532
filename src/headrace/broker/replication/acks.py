"""Appends that wait to be committed: who is told what when the high watermark moves, or no longer will.

Waiters are kept in the order of their offsets; those that have given up stay until they are half of all, so that
neither a wait nor its end costs a search.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar

_GIVEN_UP_MIN: Final = 16


class AckWaiter(Protocol):
    def done(self) -> bool:
        """Whether it has given up, or was told already."""
        ...


W = TypeVar("W", bound=AckWaiter)


class AckWaiters(Generic[W]):
    """The waiters of one partition in one leader epoch."""

    __slots__ = ("_given_up", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, W]] = []
        self._number = 0
        self._given_up = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, end_offset: int, waiter: W) -> None:
        """Wait until everything below `end_offset` is committed."""
        self._number += 1
        heapq.heappush(self._heap, (end_offset, self._number, waiter))

    def committed(self, high_watermark: int) -> list[W]:
        """Those whose wait is over, in the order of their offsets."""
        heap = self._heap
        over = []
        while heap and heap[0][0] <= high_watermark:
            waiter = heapq.heappop(heap)[2]
            if not waiter.done():
                over.append(waiter)
        if not heap:
            self._given_up = 0
        return over

    def gave_up(self) -> None:
        """One of them no longer waits."""
        self._given_up += 1
        if self._given_up > _GIVEN_UP_MIN and self._given_up * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._given_up = 0

    def drain(self) -> list[W]:
        """All of them: the epoch is over, and nobody knows what becomes of what they appended."""
        left = [waiter for _, _, waiter in sorted(self._heap, key=lambda entry: entry[:2]) if not waiter.done()]
        self._heap.clear()
        self._given_up = 0
        return left
