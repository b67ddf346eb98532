"""One partition: which of its records are unfinished, hence how far may be committed, and with what note."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.parallel.finished import Interval, encode_finished
from headrace.parallel.turns import PartitionLine
from headrace.topics import TopicPartition

if TYPE_CHECKING:
    from headrace.parallel.queues import Lane
    from headrace.parallel.work import Entry

NO_EPOCH = -1
"""Of what was read, the leader epoch is not known: a commit names none."""


class PartitionTracker:
    """A partition for as long as it is ours. When it comes back after a rebalance it gets another tracker."""

    __slots__ = (
        "alive",
        "bytes",
        "committed",
        "dirty",
        "diverting",
        "draining",
        "entries",
        "epochs",
        "held",
        "held_bytes",
        "in_flight",
        "is_retry",
        "lanes",
        "line",
        "next_offset",
        "partition",
        "paused",
        "restored",
        "unfinished",
    )

    def __init__(self, partition: TopicPartition, committed: int | None, note: str, finished: list[Interval]) -> None:
        self.partition = partition
        self.alive = True
        self.draining = False
        """About to be given up: what runs may end, nothing new is begun."""
        self.paused = False
        self.is_retry = False
        self.dirty = False
        self.entries: deque[Entry] = deque()
        """From the first unfinished record on, in order; finished ones stay until all before them are."""
        self.next_offset = committed
        """Where reading goes on. None: nothing was committed and nothing read yet."""
        self.restored = deque(finished)
        """Finished before this tracker was made, and not passed yet."""
        self.committed: tuple[int, str] | None = None if committed is None else (committed, note)
        self.lanes: dict[Hashable, Lane] = {}
        self.line = PartitionLine()
        self.epochs: list[tuple[int, int]] = []
        """(first offset, leader epoch): where the epoch of what was read changes."""
        self.unfinished = 0
        self.bytes = 0
        self.in_flight = 0
        self.diverting = 0
        self.held = 0
        """Records of the retry topic that are not due yet."""
        self.held_bytes = 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def is_restored(self, offset: int) -> bool:
        """Whether that record was finished before. Asked in ascending order; forgets what it has passed."""
        restored = self.restored
        while restored and restored[0][1] <= offset:
            restored.popleft()
        return bool(restored) and restored[0][0] <= offset

    def saw_epochs(self, records: Sequence[Any], next_epoch: int | None) -> None:
        """Of records that were read, before `next_offset` is moved behind them. One poll may bring several epochs.

        What lies before a record and is none (markers, what compaction removed) counts as of that record's epoch, not
        of an earlier one: that may have ended before, and a commit which names it would look like one of a log that was
        truncated since.
        """
        first, last = records[0], records[-1]
        self.saw_epoch(first.offset if self.next_offset is None else self.next_offset, first.leader_epoch)
        if last.leader_epoch != first.leader_epoch:
            for before, record in pairwise(records):
                self.saw_epoch(before.offset + 1, record.leader_epoch)
        if next_epoch is not None:
            self.saw_epoch(last.offset + 1, next_epoch)

    def saw_epoch(self, offset: int, epoch: int) -> None:
        """From this offset on, what was read is of that epoch."""
        if not self.epochs or self.epochs[-1][1] != epoch:
            self.epochs.append((offset, epoch))

    # --- finishing --------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Let go of the finished records at the front."""
        entries = self.entries
        while entries and entries[0].done:
            entries.popleft()

    @property
    def start(self) -> int | None:
        """The first offset that is not finished."""
        return self.entries[0].offset if self.entries else self.next_offset

    def _passable(self) -> int | None:
        """What may be committed: the first offset that is not finished, nor leaves with this commit."""
        for entry in self.entries:
            if not (entry.done or entry.leaving):
                return entry.offset
        return self.next_offset

    def finished_beyond(self, start: int) -> list[Interval]:
        """Offsets after the start that need no handling: finished, or without a record."""
        intervals: list[Interval] = []
        position = start
        for entry in self.entries:
            if not (entry.done or entry.leaving):
                if entry.offset > position:
                    intervals.append((position, entry.offset))
                position = entry.end
        end = start if self.next_offset is None else self.next_offset
        if end > position:
            intervals.append((position, end))
        for first, last in self.restored:
            if last <= end:
                continue
            first = max(first, end)
            if intervals and first <= intervals[-1][1]:
                intervals[-1] = (intervals[-1][0], last)
            else:
                intervals.append((first, last))
        return intervals

    def commit(self) -> Commit | None:
        """What to commit now; None if that is committed already."""
        start = self._passable()
        if start is None:
            return None
        note, is_whole = encode_finished(start, self.finished_beyond(start))
        if self.committed == (start, note):
            return None
        return Commit(self, start, note, self._epoch_before(start), is_whole)

    def _epoch_before(self, offset: int) -> int | None:
        index = bisect_right(self.epochs, (offset - 1, 1 << 62)) - 1
        if index < 0:
            return None
        del self.epochs[:index]
        epoch = self.epochs[0][1]
        return epoch if epoch > NO_EPOCH else None


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset to commit, with its note."""

    tracker: PartitionTracker
    offset: int
    note: str
    leader_epoch: int | None
    is_whole: bool
    """Whether the note has all that is finished."""
