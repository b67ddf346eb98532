"""Who may go next: records in no order, or in lanes (a partition, or a key of it) that each go one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from headrace.parallel.options import Order
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.work import Entry, Run

_WHOLE_PARTITION = object()
_HOT_IN_A_ROW = 3
_LANE_RUN_MAX = 64
"""Records of a lane that a worker takes at once: what may be repeated after a crash stays little."""


class Lane:
    """Records that wait for one another. It is ready (in line for a worker), taken, or blocked by a record's retry."""

    __slots__ = ("key", "queue", "tracker")

    def __init__(self, key: Hashable, tracker: PartitionTracker) -> None:
        self.key = key
        self.tracker = tracker
        self.queue: deque[Entry] = deque()


class Unordered:
    """First come, first served."""

    def __init__(self, run_max: int) -> None:
        self._run_max = run_max
        self._ready: deque[Entry] = deque()
        self.total = 0

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, tracker: PartitionTracker, entries: Sequence[Entry]) -> None:
        self._ready.extend(entries)

    def take(self, budget: int) -> Run:
        """A run for a worker that has time for so many records."""
        ready = self._ready
        entry = ready.popleft()
        entries = [entry]
        tracker = entry.tracker
        if self._run_max > 1 and not entry.alone:
            while len(entries) < self._run_max and ready and ready[0].tracker is tracker and not ready[0].alone:
                entries.append(ready.popleft())
        return Run(entries, tracker, None)

    def put_back(self, run: Run, entries: Sequence[Entry]) -> None:
        """What a worker took and did not begin: first in line."""
        self._ready.extendleft(reversed(entries))

    def again(self, entry: Entry) -> None:
        """A record whose wait for the next try is over."""
        self._ready.appendleft(entry)

    def release(self, run: Run) -> None:
        """The worker is through with a run, and nothing of it waits for another try."""

    def passed(self, entry: Entry) -> None:
        """A record that was waiting for another try went another way."""

    def drop(self, trackers: set[PartitionTracker]) -> None:
        self._ready = deque(entry for entry in self._ready if entry.tracker not in trackers)


class Lanes:
    """One record of a lane at a time (one run), lanes side by side: what is slow holds up its own lane only.

    A lane so long that all would wait for it in the end goes first when it is its turn again; but of every few turns
    one is for the others.
    """

    def __init__(self, run_max: int, *, by_key: bool, is_extensible: bool = False, workers: int = 1) -> None:
        self._run_max = run_max
        self._workers = workers
        self._hot: deque[Lane] = deque()
        self._hot_in_a_row = 0
        self.total = 0
        """All unfinished records, of all lanes; kept by the core."""
        self._is_extensible = is_extensible
        self._by_key = by_key
        self._ready: deque[Lane] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._hot)

    def add(self, tracker: PartitionTracker, entries: Sequence[Entry]) -> None:
        lanes, by_key = tracker.lanes, self._by_key
        new: list[Lane] = []
        for entry in entries:
            key: Hashable = entry.record[5] if by_key else _WHOLE_PARTITION
            if key is None:
                # No key: nobody to wait for. The lane is its own.
                key = entry
            lane = lanes.get(key)
            if lane is None:
                lanes[key] = lane = Lane(key, tracker)
                new.append(lane)
            entry.lane = lane
            lane.queue.append(entry)
        # One that is more than half a worker's share of all there is begins at once.
        long = max(2, self.total / (2 * self._workers))
        for lane in new:
            (self._hot if len(lane.queue) >= long else self._ready).append(lane)

    def take(self, budget: int) -> Run:
        lane = self._next_lane()
        queue = lane.queue
        entry = queue.popleft()
        entries = [entry]
        most = min(budget, _LANE_RUN_MAX) if self._is_extensible else self._run_max
        if most > 1 and queue and not entry.alone:
            while len(entries) < most and queue and not queue[0].alone:
                entries.append(queue.popleft())
        return Run(entries, lane.tracker, lane)

    def _next_lane(self) -> Lane:
        if self._hot and (self._hot_in_a_row < _HOT_IN_A_ROW or not self._ready):
            self._hot_in_a_row += 1
            return self._hot.popleft()
        self._hot_in_a_row = 0
        return self._ready.popleft()

    def put_back(self, run: Run, entries: Sequence[Entry]) -> None:
        lane = run.lane
        assert lane is not None
        lane.queue.extendleft(reversed(entries))
        if len(entries) == len(run.entries):
            # Nothing of it was begun, so the lane is ready as before.
            self._ready.appendleft(lane)

    def again(self, entry: Entry) -> None:
        lane = entry.lane
        assert lane is not None
        lane.queue.appendleft(entry)
        self._ready.append(lane)

    def release(self, run: Run) -> None:
        assert run.lane is not None
        self._go_on(run.lane)

    def passed(self, entry: Entry) -> None:
        if entry.lane is not None:
            self._go_on(entry.lane)

    def _go_on(self, lane: Lane) -> None:
        if lane.queue:
            # What is left when the line has moved up to the lane: it must not begin only then what takes longest.
            waiting = len(self._ready)
            left = self.total - waiting * min(self._run_max, self.total // (waiting + 1))
            is_hot = len(lane.queue) * 2 * self._workers >= left
            (self._hot if is_hot else self._ready).append(lane)
        else:
            lane.tracker.lanes.pop(lane.key, None)

    def drop(self, trackers: set[PartitionTracker]) -> None:
        self._ready = deque(lane for lane in self._ready if lane.tracker not in trackers)
        self._hot = deque(lane for lane in self._hot if lane.tracker not in trackers)
        for tracker in trackers:
            tracker.lanes.clear()


Queue = Unordered | Lanes


def make_queue(order: Order, run_max: int, *, is_extensible: bool = False, workers: int = 1) -> Queue:
    if order is Order.NONE:
        return Unordered(run_max)
    return Lanes(run_max, by_key=order is Order.KEY, is_extensible=is_extensible, workers=workers)
