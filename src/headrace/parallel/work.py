"""Pieces of work: a record that is not finished yet, a run of them for one worker, a chunk of runs taken at once.

The core owns all of these under one lock. A worker, without the lock, only takes runs out of its chunk's `todo`, counts
`done` in the run, and appends finished runs: single operations on a deque or an attribute, which threads may share.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.parallel.queues import Lane
    from headrace.parallel.tracker import PartitionTracker


class Entry:
    """One unfinished record (or, in the range model, one range of offsets)."""

    __slots__ = (
        "added_at",
        "alone",
        "done",
        "end",
        "error",
        "lane",
        "leaving",
        "offset",
        "record",
        "size",
        "tracker",
        "tries",
    )

    def __init__(
        self, record: Any, offset: int, end: int, size: int, tracker: PartitionTracker, added_at: float
    ) -> None:
        self.record = record
        self.offset = offset
        self.end = end
        self.size = size
        self.tracker = tracker
        self.added_at = added_at
        self.done = False
        self.alone = False
        """To be handed out by itself: it failed together with others, or before."""
        self.leaving = False
        """In a transaction that is under way: what is committed with it passes this record."""
        self.tries = 0
        self.lane: Lane | None = None
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.tracker.partition}@{self.offset}{' done' if self.done else ''}>"


class Run:
    """Records that one worker handles in a row. All are of one partition, and of one lane where there is order."""

    __slots__ = ("cancelled", "done", "entries", "failures", "lane", "settled", "tracker")

    def __init__(self, entries: list[Entry], tracker: PartitionTracker, lane: Lane | None) -> None:
        self.entries = entries
        self.tracker = tracker
        self.lane = lane
        self.done = 0
        """How many were handled, from the first on, well or not."""
        self.failures: list[tuple[Entry, BaseException]] | None = None
        self.cancelled = False
        """Set by the core when the partition goes: the worker is to end the record it is at, and begin no other."""
        self.settled = False
        """Whether the core has taken in what became of it."""

    def failed(self, entry: Entry, error: BaseException) -> None:
        if self.failures is None:
            self.failures = []
        self.failures.append((entry, error))


class WorkChunk:
    """Runs that a worker took at once."""

    __slots__ = (
        "abandoned",
        "current",
        "finished",
        "seen_done",
        "seen_run",
        "since",
        "stalled_at",
        "started",
        "todo",
        "worker",
    )

    def __init__(self, todo: deque[Run], now: float) -> None:
        self.todo = todo
        self.current: Run | None = None
        """The run that the worker is in. Set before it is begun; what is current and unfinished is what hangs."""
        self.finished: deque[Run] = deque()
        self.abandoned = False
        """Set by the core when the worker hangs: nothing it still brings counts."""
        self.started = now
        self.seen_run: Run | None = None
        self.seen_done = 0
        self.since = now
        """When progress was last seen."""
        self.stalled_at = ""
        """Once it is abandoned: the record that its worker hangs at."""
        self.worker: Any = None

    def next_run(self) -> Run | None:
        """For the worker: what to do next."""
        try:
            run = self.todo.popleft()
        except IndexError:
            return None
        self.current = run
        return run

    def has_moved(self) -> bool:
        """Whether a record was finished since this was asked before."""
        run = self.current
        done = 0 if run is None else run.done
        if run is self.seen_run and done == self.seen_done:
            return False
        self.seen_run, self.seen_done = run, done
        return True
