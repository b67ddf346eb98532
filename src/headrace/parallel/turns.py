"""Whose turn it is: partitions with something to do are served in turn, record for record, whatever each has in line.

Each partition's line counts the records that were taken from it. The one that was given least is next. Who comes back
after having had nothing to do begins where the others are: it has saved up nothing, and owes what it took too much.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Any

_AHEAD_IN_A_ROW = 3
_AHEAD_RECORDS = 2
"""How far beyond its turn a partition may be served for what should not wait."""
_LOOKED_AT = 2
_ALL = 1 << 60


class PartitionLine:
    """What of one partition waits for a worker: records, or lanes of them."""

    __slots__ = ("due", "hot", "hot_in_a_row", "is_ahead", "is_in_line", "ready", "served")

    def __init__(self) -> None:
        self.due: deque[Any] = deque()
        """Another try is due: before all others."""
        self.hot: deque[Any] = deque()
        """Lanes that are so long that all would wait for them in the end."""
        self.ready: deque[Any] = deque()
        self.served = 0
        """Records taken, plus those of others while there was nothing to take here."""
        self.hot_in_a_row = 0
        self.is_in_line = False
        self.is_ahead = False

    def __len__(self) -> int:
        return len(self.due) + len(self.hot) + len(self.ready)

    def clear(self) -> None:
        self.due.clear()
        self.hot.clear()
        self.ready.clear()


class PartitionTurns:
    """The lines of all partitions that have something to do. Who takes calls `next`, then `served`."""

    __slots__ = (
        "_ahead",
        "_ahead_in_a_row",
        "_current",
        "_is_free",
        "_lines",
        "_numbers",
        "_virtual",
        "is_end_near",
        "left",
    )

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, PartitionLine]] = []
        """A heap by what each was given when it was put there; who is empty by now is left out when it comes up."""
        self._numbers = itertools.count()
        self._ahead: deque[PartitionLine] = deque()
        """Those with a due try or a hot lane, which need not wait for the partition's turn."""
        self._ahead_in_a_row = 0
        self._current: PartitionLine | None = None
        self._virtual = 0
        """What the one whose turn it was last had been given by then."""
        self.left = 0
        """Records that are still to be taken from the current one before its turn is over."""
        self._is_free = False
        self.is_end_near = True
        """Whether all that there is has been read: then the longest lanes go first, or all would wait for them in the
        end. With more to come there is no end, and nobody gets more than its turns."""

    def __len__(self) -> int:
        return len(self._lines)

    def enter(self, line: PartitionLine, *, ahead: bool = False) -> None:
        """Something came into this line; with `ahead`, something that should not wait for its turn."""
        if ahead and not line.is_ahead:
            line.is_ahead = True
            self._ahead.append(line)
        if not line.is_in_line:
            line.is_in_line = True
            line.served = max(line.served, self._virtual)
            heapq.heappush(self._lines, (line.served, next(self._numbers), line))
            self.left = 0

    def next(self, quantum: int) -> tuple[PartitionLine, deque[Any]]:
        """Whose turn it is for so many records (see `left`), and which of its lines. Somebody is in line."""
        if self._ahead and self._ahead_in_a_row < _AHEAD_IN_A_ROW:
            found = self._next_ahead()
            if found is not None:
                self._ahead_in_a_row += 1
                self._current = None
                self.left = quantum
                return found
        self._ahead_in_a_row = 0
        self._is_free = False
        line = self._current
        if line is None or self.left <= 0 or not line:
            line = self._choose(quantum)
        self._virtual = line.served
        if line.due:
            return line, line.due
        if line.ready:
            line.hot_in_a_row = 0
            return line, line.ready
        return line, line.hot

    def _choose(self, quantum: int) -> PartitionLine:
        lines = self._lines
        while True:
            served, _, line = lines[0]
            if not line:
                heapq.heappop(lines)
                line.is_in_line = False
            elif served < line.served:
                heapq.heapreplace(lines, (line.served, next(self._numbers), line))
            else:
                self._current = line
                self.left = quantum if len(lines) > 1 else _ALL
                return line

    def _next_ahead(self) -> tuple[PartitionLine, deque[Any]] | None:
        """What goes ahead of its partition's turn, where the partition can still afford that."""
        ahead = self._ahead
        for _ in range(min(len(ahead), _LOOKED_AT)):
            line = ahead[0]
            if not line.due and not line.hot:
                ahead.popleft()
                line.is_ahead = False
                continue
            ahead.rotate(-1)
            can_afford = len(self._lines) == 1 or line.served <= self._virtual + _AHEAD_RECORDS
            if line.due and can_afford:
                self._is_free = False
                return line, line.due
            # What is not free comes out of the partition's turns, of which its other lanes are to have some.
            can_afford = can_afford and (line.hot_in_a_row < _AHEAD_IN_A_ROW or not line.ready)
            if line.hot and (can_afford or self.is_end_near):
                self._is_free = self.is_end_near
                line.hot_in_a_row += 1
                return line, line.hot
        return None

    def given_back(self, line: PartitionLine, records: int) -> None:
        """So many that were taken were not begun. (What was free of charge is not to become a credit.)"""
        line.served = max(line.served - records, min(line.served, self._virtual))

    def served(self, line: PartitionLine, records: int) -> None:
        """So many were taken."""
        if not self._is_free:
            line.served += records
        self.left -= records
