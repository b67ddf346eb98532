"""Who may go next: records in no order, or in lanes (a partition, or a key of it) that each go one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

from headrace.parallel.options import Order
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.turns import PartitionTurns
from headrace.parallel.work import Entry, Run

_WHOLE_PARTITION = object()
_LANE_RUN_MAX = 64
"""Records of a lane that a worker takes at once: what may be repeated after a crash stays little."""
_TURN_RECORDS_MIN, _TURN_RECORDS_MAX = 16, 64
_NEVER = float("inf")


class Lane:
    """Records that wait for one another. It is ready (in line for a worker), taken, or blocked by a record's retry."""

    __slots__ = ("key", "queue", "tracker")

    def __init__(self, key: Hashable, tracker: PartitionTracker) -> None:
        self.key = key
        self.tracker = tracker
        self.queue: deque[Entry] = deque()


class Unordered:
    """First come, first served within a partition; partitions take turns."""

    def __init__(self, run_max: int) -> None:
        self._run_max = run_max
        self._count = 0
        self.turns = PartitionTurns()
        self.total = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tracker: PartitionTracker, entries: Sequence[Entry]) -> None:
        if entries:
            tracker.line.ready.extend(entries)
            self._count += len(entries)
            self.turns.enter(tracker.line)

    def fill(self, todo: deque[Run], runs: int, records: int) -> None:
        """Runs for a worker that has time for so many runs, or records."""
        turns, run_max = self.turns, self._run_max
        quantum = _quantum(min(runs * run_max, records), len(turns))
        while runs > 0 and records > 0 and self._count:
            line, source = turns.next(quantum)
            if run_max == 1:
                taken = min(len(source), runs, records, turns.left)
                for _ in range(taken):
                    entry = source.popleft()
                    todo.append(Run([entry], entry.tracker, None))
                runs -= taken
            else:
                run = self._take_run(source)
                todo.append(run)
                taken = len(run.entries)
                runs -= 1
            self._count -= taken
            records -= taken
            turns.served(line, taken)

    def _take_run(self, source: deque[Entry]) -> Run:
        entry = source.popleft()
        entries = [entry]
        if not entry.alone:
            while len(entries) < self._run_max and source and not source[0].alone:
                entries.append(source.popleft())
        return Run(entries, entry.tracker, None)

    def put_back(self, run: Run, entries: Sequence[Entry]) -> None:
        """What a worker took and did not begin: first in line."""
        line = run.tracker.line
        line.ready.extendleft(reversed(entries))
        self.turns.given_back(line, len(entries))
        self._count += len(entries)
        self.turns.enter(line)

    def again(self, entry: Entry) -> None:
        """A record whose wait for the next try is over."""
        line = entry.tracker.line
        line.due.append(entry)
        self._count += 1
        self.turns.enter(line, ahead=True)

    def release(self, run: Run) -> None:
        """The worker is through with a run, and nothing of it waits for another try."""

    def passed(self, entry: Entry) -> None:
        """A record that was waiting for another try went another way."""

    def drop(self, trackers: set[PartitionTracker]) -> None:
        for tracker in trackers:
            self._count -= len(tracker.line)
            tracker.line.clear()


class Lanes:
    """One record of a lane at a time (one run), lanes side by side: what is slow holds up its own lane only.

    Partitions take turns, and so do the lanes of each. With several workers a lane so long that all would wait for it
    in the end goes first when it is its turn again; but of every few turns one is for the others.
    """

    def __init__(self, run_max: int, *, by_key: bool, is_extensible: bool = False, workers: int = 1) -> None:
        self._run_max = run_max
        self._workers = workers
        self._count = 0
        self.turns = PartitionTurns()
        self.total = 0
        """All unfinished records, of all lanes; kept by the core."""
        self._is_extensible = is_extensible
        self._by_key = by_key

    def __len__(self) -> int:
        return self._count

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
        if not new:
            return
        # One that is more than half a worker's share of all there is begins at once.
        long = max(2, self.total / (2 * self._workers)) if self._workers > 1 else _NEVER
        line = tracker.line
        for lane in new:
            (line.hot if len(lane.queue) >= long else line.ready).append(lane)
        self._count += len(new)
        self.turns.enter(line, ahead=bool(line.hot))

    def fill(self, todo: deque[Run], runs: int, records: int) -> None:
        turns, is_extensible = self.turns, self._is_extensible
        run_max = _LANE_RUN_MAX if is_extensible else self._run_max
        partitions = len(turns)
        quantum = _quantum(min(runs * self._run_max, records), partitions)
        if partitions > 1:
            # A partition with but one lane gives one run, and no more before that is through: of the others a worker is
            # not to take much more meanwhile.
            quantum = min(quantum, max(1, run_max * 3 // 2))
            records = min(records, quantum * partitions)
        while runs > 0 and records > 0 and self._count:
            line, source = turns.next(quantum)
            left, taken = min(records, turns.left), 0
            while source and taken < left and runs > 0:
                lane = source.popleft()
                queue = lane.queue
                entry = queue.popleft()
                entries = [entry]
                if queue and run_max > 1 and not entry.alone:
                    most = min(run_max, left - taken) if is_extensible else run_max
                    while len(entries) < most and queue and not queue[0].alone:
                        entries.append(queue.popleft())
                todo.append(Run(entries, lane.tracker, lane))
                taken += len(entries)
                runs -= 1
                self._count -= 1
            records -= taken
            turns.served(line, taken)

    def put_back(self, run: Run, entries: Sequence[Entry]) -> None:
        lane = run.lane
        assert lane is not None
        lane.queue.extendleft(reversed(entries))
        line = run.tracker.line
        self.turns.given_back(line, len(entries))
        if len(entries) == len(run.entries):
            # Nothing of it was begun, so the lane is ready as before.
            line.ready.appendleft(lane)
            self._count += 1
            self.turns.enter(line)

    def again(self, entry: Entry) -> None:
        lane = entry.lane
        assert lane is not None
        lane.queue.appendleft(entry)
        line = lane.tracker.line
        line.due.append(lane)
        self._count += 1
        self.turns.enter(line, ahead=True)

    def release(self, run: Run) -> None:
        assert run.lane is not None
        self._go_on(run.lane)

    def passed(self, entry: Entry) -> None:
        if entry.lane is not None:
            self._go_on(entry.lane)

    def _go_on(self, lane: Lane) -> None:
        if not lane.queue:
            lane.tracker.lanes.pop(lane.key, None)
            return
        line = lane.tracker.line
        is_hot = self._workers > 1 and self._is_long(lane)
        (line.hot if is_hot else line.ready).append(lane)
        self._count += 1
        self.turns.enter(line, ahead=is_hot)

    def _is_long(self, lane: Lane) -> bool:
        # What is left when the line has moved up to the lane: it must not begin only then what takes longest.
        waiting = self._count
        left = self.total - waiting * min(self._run_max, self.total // (waiting + 1))
        return len(lane.queue) * 2 * self._workers >= left

    def drop(self, trackers: set[PartitionTracker]) -> None:
        for tracker in trackers:
            self._count -= len(tracker.line)
            tracker.line.clear()
            tracker.lanes.clear()


def _quantum(records: int, partitions: int) -> int:
    """How many records of a partition are taken before it is another's turn, by a worker that takes so many in all: one
    by one only where handlers are slow."""
    return max(1, min(records // max(1, partitions), _TURN_RECORDS_MAX), min(records, _TURN_RECORDS_MIN))


Queue = Unordered | Lanes


def make_queue(order: Order, run_max: int, *, is_extensible: bool = False, workers: int = 1) -> Queue:
    if order is Order.NONE:
        return Unordered(run_max)
    return Lanes(run_max, by_key=order is Order.KEY, is_extensible=is_extensible, workers=workers)
