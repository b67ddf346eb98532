"""Parallel consuming without threads, I/O or a clock: records go in, pieces of work and commits come out.

One object per member of the group. Its driver holds a lock around every call and passes the time in. A record is
finished when its handler returned, or when the topic that it was diverted to acknowledged it; nothing else moves a
partition's start, and only that is committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.parallel.errors import DamagedBatchError, HandlerStalledError, RetriesExhaustedError, place_of
from headrace.parallel.failures import Failures
from headrace.parallel.finished import decode_finished
from headrace.parallel.metrics import Counters, PartitionState
from headrace.parallel.options import CoreSettings, Order
from headrace.parallel.pressure import Pressure
from headrace.parallel.queues import make_queue
from headrace.parallel.retries import due_ms_of
from headrace.parallel.tracker import NO_EPOCH, Commit, PartitionTracker
from headrace.parallel.work import Entry, Run, WorkChunk
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

CHUNK_RUNS_MAX = 256
_ANY = 1 << 60
_CHEAP_S = 50e-6
RECLAIM_S = 0.01
"""A worker that is longer than this in one record gives back what it has not begun."""
_RECORD_OVERHEAD_BYTES = 200


class ParallelCore:
    """The state of one member: what it has read and not finished, and what to do next."""

    def __init__(self, settings: CoreSettings, counters: Counters | None = None) -> None:
        self.settings = settings
        self.counters = Counters() if counters is None else counters
        self.trackers: dict[TopicPartition, PartitionTracker] = {}
        self.running: dict[WorkChunk, None] = {}
        """What workers have, in the order in which they took it."""
        self.pressure = Pressure(settings.limits)
        self.failures = Failures(self)
        self.fatal: RetriesExhaustedError | None = None
        """Set when a record failed for good and has nowhere to go."""
        self.stopping = False
        self._is_ordered = settings.order is not Order.NONE
        # Records of one lane go one after another anyway: where they are cheap, a worker takes several at once.
        self._is_extensible = self._is_ordered and not settings.is_batch and not settings.by_slot
        # Runs may be of any length up to a slot: what a worker takes is then counted in records.
        self._counts_records = self._is_extensible or settings.by_slot
        self._queue = make_queue(
            settings.order, settings.run_max, is_extensible=self._is_extensible, workers=settings.workers
        )
        self._record_s = 1.0
        """How long a handler takes: a guess that falls at once and rises slowly, as waiting for a turn adds to it."""

    # --- partitions that come and go --------------------------------------------------------------------------------

    def assign(self, partition: TopicPartition, committed: int | None, note: str = "") -> None:
        """The partition is ours, from its committed offset on."""
        self._forget([partition])
        finished = [] if committed is None else decode_finished(committed, note)
        if finished is None:
            log.warning("%s: the commit's note is not ours, so all from offset %s on is handled", partition, committed)
            finished = []
        tracker = PartitionTracker(partition, committed, note, finished)
        tracker.is_retry = partition.topic in self.settings.retry_topics
        self.trackers[partition] = tracker
        self.pressure.share_out(self.trackers.values())

    def place(self, partition: TopicPartition, position: int) -> None:
        """Where reading begins in a partition without a commit."""
        tracker = self.trackers.get(partition)
        if tracker is not None and tracker.next_offset is None:
            tracker.next_offset, tracker.dirty = position, True

    def begin_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin nothing new of these; what runs may end."""
        found = {tracker for name in partitions if (tracker := self.trackers.get(name)) is not None}
        for tracker in found:
            tracker.draining = True
        self._take_back_unbegun(found)
        self._queue.drop(found)

    def is_drained(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether nothing of these runs, or is on its way to another topic."""
        self.harvest()
        for name in partitions:
            tracker = self.trackers.get(name)
            if tracker is not None and (tracker.in_flight or tracker.diverting):
                return False
        return True

    def end_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """They are not ours any more: results that still come are dropped, and counted."""
        for tracker in self._forget(partitions):
            self.counters.revoked_unfinished += tracker.unfinished

    lose = end_revoke
    """The group gave them to others already."""

    def stop(self) -> None:
        """Begin nothing new at all."""
        self.stopping = True
        self.begin_revoke(list(self.trackers))

    def _forget(self, partitions: Iterable[TopicPartition]) -> list[PartitionTracker]:
        gone = [tracker for name in partitions if (tracker := self.trackers.pop(name, None)) is not None]
        if not gone:
            return gone
        for tracker in gone:
            tracker.alive = False
            self.pressure.records -= tracker.unfinished - tracker.held
            self.pressure.bytes -= tracker.bytes - tracker.held_bytes
        self.pressure.share_out(self.trackers.values())
        self._take_back_unbegun(set(gone))
        self._queue.drop(set(gone))
        return gone

    def _take_back_unbegun(self, gone: set[PartitionTracker]) -> None:
        """Out of the workers' hands what they have not begun; what belongs to `gone` is dropped."""
        for chunk in self.running:
            current = chunk.current
            if current is not None and current.tracker in gone:
                current.cancelled = True
            if any(run.tracker in gone for run in tuple(chunk.todo)):
                self._reclaim(chunk)

    # --- records that come ------------------------------------------------------------------------------------------

    def add(
        self,
        partition: TopicPartition,
        records: Sequence[Any],
        now: float,
        now_ms: int,
        next_offset: int | None = None,
        next_epoch: int | None = None,
    ) -> None:
        """Records that were read, in order; `next_offset` is where reading goes on, if that is further, and
        `next_epoch` the leader epoch of what lies before it."""
        tracker = self.trackers.get(partition)
        if tracker is None or tracker.draining or not records:
            return
        if tracker.next_offset is not None and records[0].offset < tracker.next_offset:
            # The position went back (a truncated log, a reset): what was tracked is about records that are no more.
            log.warning("%s went back to offset %s", partition, records[0].offset)
            self.assign(partition, None)
            tracker = self.trackers[partition]
        self.counters.polled += len(records)
        made = self._entries(tracker, records, now)
        tracker.saw_epochs(records, next_epoch)
        tracker.next_offset = max(records[-1].offset + 1, next_offset or 0)
        tracker.dirty = True
        tracker.entries.extend(made)
        self._count(tracker, made)
        if tracker.is_retry:
            made = self._hold(tracker, made, now, now_ms)
        self._queue.total = self.pressure.records
        self._queue.add(tracker, made)

    def _count(self, tracker: PartitionTracker, made: list[Entry]) -> None:
        size = sum([entry.size for entry in made])
        tracker.unfinished += len(made)
        tracker.bytes += size
        self.pressure.bytes += size
        self.pressure.records += len(made)

    def _entries(self, tracker: PartitionTracker, records: Sequence[Any], now: float) -> list[Entry]:
        """Of those that are not finished yet, according to the note of the commit that the partition came with."""
        if tracker.restored:
            kept = [record for record in records if not tracker.is_restored(record.offset)]
            self.counters.restored += len(records) - len(kept)
            records = kept
        return make_entries(tracker, records, now)

    def add_damaged(self, damage: DamagedBatchError, record: Any, now: float) -> None:
        """A batch that cannot be read, as one record with its bytes: it has failed before it was begun."""
        tracker = self.trackers.get(damage.partition)
        if tracker is None or tracker.draining:
            return
        self.counters.polled += 1
        # What its header says of the epoch may be damaged as well.
        tracker.saw_epoch(record.offset, NO_EPOCH)
        tracker.next_offset = max(tracker.next_offset or 0, damage.last_offset + 1)
        tracker.dirty = True
        for entry in self._entries(tracker, [record], now):
            entry.end = damage.last_offset + 1
            tracker.entries.append(entry)
            self._count(tracker, [entry])
            self.failures.failed(entry, damage, now)

    def _hold(self, tracker: PartitionTracker, made: list[Entry], now: float, now_ms: int) -> list[Entry]:
        """Keep back what is not due yet; the rest is returned."""
        due_now: list[Entry] = []
        for entry in made:
            wait_ms = due_ms_of(entry.record) - now_ms
            if wait_ms <= 0:
                due_now.append(entry)
                continue
            tracker.held += 1
            tracker.held_bytes += entry.size
            self.pressure.records -= 1
            self.pressure.bytes -= entry.size
            self.failures.hold(entry, now + wait_ms / 1000)
        return due_now

    def add_range(self, partition: TopicPartition, start: int, end: int, now: float) -> Entry | None:
        """A range of offsets that a reader will read and handle by itself; None if the partition is not ours."""
        tracker = self.trackers.get(partition)
        if tracker is None or tracker.draining:
            return None
        entry = Entry(None, start, end, 0, tracker, now)
        tracker.entries.append(entry)
        tracker.unfinished += 1
        tracker.in_flight += 1
        tracker.next_offset = end
        tracker.dirty = True
        self.pressure.records += 1
        return entry

    def range_advanced(self, entry: Entry, offset: int) -> bool:
        """All before this offset of a range is taken care of; says whether the range is still ours."""
        tracker = entry.tracker
        if not tracker.alive:
            return False
        entry.offset = offset
        tracker.dirty = True
        if offset >= entry.end:
            tracker.in_flight -= 1
            self._finish(entry)
        return tracker.alive and not tracker.draining

    def range_failed(self, within: Entry, failures: Sequence[tuple[Any, BaseException]], upto: int, now: float) -> None:
        """Records of a range failed: each is tracked by itself from now on, and the range goes on at `upto`."""
        tracker = within.tracker
        if not tracker.alive:
            return
        # Several failed in one call and nobody knows which one it was: each is tried by itself before it is blamed.
        is_blamed = not (self.settings.is_batch and len(failures) > 1)
        made = make_entries(tracker, [record for record, _ in failures], now)
        self._count(tracker, made)
        within.offset = upto
        tracker.dirty = True
        for entry, (_, error) in zip(made, failures):
            if isinstance(error, DamagedBatchError):
                entry.end = error.last_offset + 1
            tracker.entries.insert(tracker.entries.index(within), entry)
            if not tracker.draining:
                self.failures.failed(entry, error, now, is_blamed=is_blamed)

    def range_dropped(self, entry: Entry) -> None:
        """A reader gave its range up; it stays unfinished from where it got to."""
        entry.tracker.in_flight -= 1

    # --- work -------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many pieces of work wait for a worker."""
        return len(self._queue)

    def take(self, now: float) -> WorkChunk | None:
        """Work for one worker; None when there is none."""
        if self.stopping:
            return None
        if not self._queue:
            self._steal(now)
            if not self._queue:
                return None
        queue, budget = self._queue, self.chunk_runs
        if self._record_s > _CHEAP_S:
            # Each its share: nothing is to wait in one worker's hands while others have nothing to do.
            budget = min(budget, max(1, len(queue) // self.settings.workers))
        todo: deque[Run] = deque()
        # A run may be of any length up to a slot or a batch: what is taken is counted in records, or in calls.
        queue.fill(todo, *((_ANY, budget) if self._counts_records else (budget, _ANY)))
        for run in todo:
            run.tracker.in_flight += len(run.entries)
        chunk = WorkChunk(todo, now)
        self.running[chunk] = None
        return chunk

    @property
    def chunk_runs(self) -> int:
        """How many pieces of work a worker would take now."""
        piece_s = self._record_s * (1 if self._counts_records else self.settings.run_max)
        return min(CHUNK_RUNS_MAX, max(1, int(self.settings.chunk_s / piece_s)))

    def complete(self, chunk: WorkChunk, now: float) -> None:
        """The worker is through with its chunk."""
        self.running.pop(chunk, None)
        if chunk.abandoned:
            self.counters.zombies += 1
            return
        handled = 0
        self._queue.total = self.pressure.records
        while chunk.finished:
            finished = chunk.finished.popleft()
            handled += finished.done
            self._settle(finished, now)
        # An async worker that is cancelled, or a worker thread that ends, leaves things undone.
        for run in reversed(self._unbegun(chunk)):
            self._return(run)
        if handled:
            taken_s = (now - chunk.started) / handled
            self._record_s = max(1e-7, min(taken_s, self._record_s * 1.5))

    def harvest(self, now: float = 0.0) -> None:
        """Count what running workers have finished so far."""
        for chunk in self.running:
            while chunk.finished:
                self._settle(chunk.finished.popleft(), now)

    def _settle(self, run: Run, now: float) -> None:
        """Take in what became of a run."""
        run.settled = True
        tracker, entries = run.tracker, run.entries
        tracker.in_flight -= len(entries)
        if not tracker.alive:
            self.counters.zombies += run.done
            return
        tracker.dirty = True
        if run.failures is None and run.done == len(entries):
            size = 0
            for entry in entries:
                entry.done = True
                entry.record = None
                size += entry.size
            self.pressure.records -= len(entries)
            self.pressure.bytes -= size
            tracker.bytes -= size
            tracker.unfinished -= len(entries)
            self.counters.handled += len(entries)
            if tracker.entries[0].done:
                tracker.advance()
            if tracker.paused and not self.pressure.keeps_paused(tracker):
                self.pressure.resumable = True
            if not tracker.draining:
                self._queue.release(run)
            return
        self._settle_partly(run, now)

    def _settle_partly(self, run: Run, now: float) -> None:
        tracker = run.tracker
        failures = run.failures or []
        failed = {entry for entry, _ in failures}
        for entry in run.entries[: run.done]:
            if entry not in failed:
                self._finish(entry)
                self.counters.handled += 1
        rest = run.entries[run.done :]
        # Several failed in one call and nobody knows which one it was: each is tried by itself before it is blamed.
        is_blamed = not (self.settings.is_batch and len(failures) > 1)
        if self._is_ordered and len(failures) > 1:
            later = [entry for entry, _ in failures[1:]]
            for entry in later:
                entry.alone = True
            rest = later + rest
            failures = failures[:1]
        if tracker.draining:
            self.counters.failures += len(failures)
            return
        if rest:
            self._put_back_part(run, rest)
        if not failures:
            self._queue.release(run)
        for entry, error in failures:
            self.failures.failed(entry, error, now, is_blamed=is_blamed)

    def _put_back_part(self, run: Run, rest: list[Entry]) -> None:
        if run.lane is not None:
            run.lane.queue.extendleft(reversed(rest))
        else:
            self._queue.put_back(run, rest)

    def _finish(self, entry: Entry) -> None:
        tracker = entry.tracker
        entry.done = True
        entry.record = entry.error = None
        self.pressure.records -= 1
        self.pressure.bytes -= entry.size
        tracker.bytes -= entry.size
        tracker.unfinished -= 1
        tracker.dirty = True
        if tracker.entries[0].done:
            tracker.advance()
        if tracker.paused and not self.pressure.keeps_paused(tracker):
            self.pressure.resumable = True

    # --- what failed (see `failures`) -------------------------------------------------------------------------------

    def passed(self, entry: Entry) -> None:
        """A failed record is taken care of; who waited for it goes on."""
        self._finish(entry)
        if not entry.tracker.draining:
            self._queue.passed(entry)

    def again(self, entry: Entry) -> None:
        """A failed record's next try is due."""
        self._queue.again(entry)

    def due(self, entry: Entry) -> None:
        """A record of the retry topic is due."""
        entry.tracker.held -= 1
        entry.tracker.held_bytes -= entry.size
        self.pressure.records += 1
        self.pressure.bytes += entry.size
        if not entry.tracker.draining:
            self._queue.add(entry.tracker, [entry])

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[WorkChunk]:
        """Do what is due. Chunks that come back were given up: their workers hang."""
        self.harvest(now)
        self.failures.wake(now)
        given_up: list[WorkChunk] = []
        for chunk in tuple(self.running):
            if chunk.has_moved():
                chunk.since = now
            elif self.settings.stall_s is not None and now - chunk.since >= self.settings.stall_s:
                self._abandon(chunk, now)
                given_up.append(chunk)
            elif chunk.todo and now - chunk.since >= RECLAIM_S:
                self._reclaim(chunk)
        return given_up

    def _abandon(self, chunk: WorkChunk, now: float) -> None:
        chunk.abandoned = True
        self.running.pop(chunk, None)
        self.counters.stalls += 1
        while chunk.finished:
            self._settle(chunk.finished.popleft(), now)
        for unbegun in reversed(self._unbegun(chunk)):
            self._return(unbegun)
        run = chunk.current
        if run is None or run.settled:
            return
        run.settled = True
        # A copy: the worker may still write into the one it has.
        settled = Run(run.entries, run.tracker, run.lane)
        settled.done = run.done
        settled.failures = None if run.failures is None else list(run.failures)
        stalled = (
            run.entries[settled.done :] if self.settings.is_batch else run.entries[settled.done : settled.done + 1]
        )
        for entry in stalled:
            place = place_of(entry.tracker.partition, entry.offset, entry.record)
            chunk.stalled_at = chunk.stalled_at or place
            settled.failed(
                entry,
                HandlerStalledError(f"the handler did not come back within {self.settings.stall_s} s from {place}"),
            )
        settled.done += len(stalled)
        self._settle(settled, now)

    def _reclaim(self, chunk: WorkChunk) -> None:
        """Take back what a worker has not begun: others can do it now."""
        for run in reversed(self._unbegun(chunk)):
            self.counters.reclaimed += 1
            self._return(run)

    def _steal(self, now: float) -> None:
        """Nothing is in line: take over what a worker has in store and should have done by now."""
        late = [c for c in self.running if c.todo and now - c.started > 2 * self.settings.chunk_s]
        if late:
            self._reclaim(max(late, key=lambda chunk: len(chunk.todo)))

    def _unbegun(self, chunk: WorkChunk) -> list[Run]:
        runs: list[Run] = []
        while True:
            try:
                runs.append(chunk.todo.popleft())
            except IndexError:
                return runs

    def _return(self, run: Run) -> None:
        run.tracker.in_flight -= len(run.entries)
        if run.tracker.alive and not run.tracker.draining:
            self._queue.put_back(run, run.entries)

    # --- commits ----------------------------------------------------------------------------------------------------

    def pauses(self) -> list[tuple[TopicPartition, bool]]:
        """Partitions whose reading is to be paused (True) or to go on (False): changes only."""
        changes = self.pressure.changes(self.trackers.values())
        self._queue.turns.is_end_near = not self.pressure.is_any_paused
        return changes

    def commits(self, partitions: Iterable[TopicPartition] | None = None) -> list[Commit]:
        """What to commit, of every partition where that changed."""
        self.harvest()
        found: list[Commit] = []
        for name in list(self.trackers) if partitions is None else partitions:
            tracker = self.trackers.get(name)
            if tracker is None or not tracker.dirty:
                continue
            commit = tracker.commit()
            if commit is None:
                tracker.dirty = False
                continue
            if not commit.is_whole:
                self.counters.notes_cut += 1
                log.warning("%s: the note does not hold all finished records; a restart repeats some", name)
            found.append(commit)
        return found

    def committed(self, commits: Iterable[Commit]) -> None:
        """These went through."""
        self.counters.commits += 1
        for commit in commits:
            commit.tracker.committed = (commit.offset, commit.note)

    # --- looking ----------------------------------------------------------------------------------------------------

    def states(self, now: float) -> list[PartitionState]:
        return [
            PartitionState(
                partition=name,
                start=tracker.start,
                end=tracker.next_offset,
                incomplete=tracker.unfinished,
                in_flight=tracker.in_flight,
                held=tracker.held,
                oldest_age_s=max(0.0, now - tracker.entries[0].added_at) if tracker.entries else 0.0,
                paused=tracker.paused,
            )
            for name, tracker in sorted(self.trackers.items())
        ]


def make_entries(tracker: PartitionTracker, records: Sequence[Any], now: float) -> list[Entry]:
    """An entry for each record, with what it takes of the bound on bytes."""
    made: list[Entry] = []
    for record in records:
        offset = record[2]
        key, value, headers = record[5], record[6], record[7]
        size = _RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            size += sum(len(name) + len(data or b"") for name, data in headers)
        made.append(Entry(record, offset, offset + 1, size, tracker, now))
    return made
