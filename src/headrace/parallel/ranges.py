"""Model 2: several readers on one partition, each with a client of its own, on its own range of offsets.

The member of the group holds the partitions but does not read them. It hands out ranges; a reader begins at its range's
start and handles it in order. What is committed is the end of the finished prefix.

A range begins with a fetch (milliseconds, where many readers share the interpreter), so a reader is given the next one
shortly before it is through with the last, and has it fetched meanwhile. What is held up so may be taken by others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import ConsumerRecord
from headrace.client.ranges import OnLoss, RangeReader, pass_loss, refuse_loss, without_group
from headrace.errors import RetriableError
from headrace.functions import check_has_run
from headrace.parallel.core import make_entries
from headrace.parallel.engine import Engine
from headrace.parallel.finished import Interval
from headrace.parallel.handling import HANDLER, Handling
from headrace.parallel.member import Member
from headrace.parallel.retries import damage_of
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.work import Entry, Run, WorkChunk
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_POLL_S = 0.2
_POLL_RECORDS = 500
_RANGE_MIN = 10
"""Offsets in a range when little is left: each costs a fetch, so a range is not to be shorter without need."""
_LOOK_S = 0.05
"""How often the ends of the partitions are asked for while readers have nothing to do."""
_ENDS_TIMEOUT_S = 5.0
"""For that question; it is asked again."""
_FETCH_BYTES = 64 * 1024
"""Asked for at a time, unless it is configured: what lies behind a range's end is fetched for nothing."""
_AHEAD_RECORDS = 2
"""When so many records (or one batch) of a range are left, the next one is asked for. More would overlap no more of a
fetch where handlers take a millisecond, and keep more from others where they take long."""
_STAY_RANGES = 2
"""How many ranges a partition may be ahead of the others, for readers that need not fetch anew there."""
_TAKE_OVER_S = 0.1
"""A range that a reader was given ahead and has not begun for so long is anybody's."""
_ENTRIES_PER_READER = 3
"""Ranges of one partition that are under way, given ahead, or finished behind one that is not, for each reader."""

Range = tuple[Entry, list[Interval]]
"""What a reader reads, and the offsets in it that were finished before."""


class _Reader:
    """One reader of ranges, and where it is."""

    __slots__ = ("_on_loss", "_reader", "did_other", "partition", "position")

    def __init__(self, reader: RangeReader, on_loss: OnLoss) -> None:
        self._reader = reader
        self._on_loss = on_loss
        self.partition: TopicPartition | None = None
        self.did_other = False
        """Whether the last it did was not a range: what is tried again and ranges take turns."""
        self.position = 0
        """The next offset: what was fetched beyond a range is there if the next one begins here."""

    def turn_ahead_to(self, partition: TopicPartition, position: int, end: int) -> None:
        """Read there next: ask for it, and do not wait for the answer."""
        if (partition, position) == (self.partition, self.position):
            self._reader.extend(partition, end)
            return
        self.turn_to(partition, position, end)
        self._reader.ask()

    def turn_to(self, partition: TopicPartition, position: int, end: int) -> None:
        """Read this partition from there, and no other. What is there was readable before: it is a range's."""
        if (partition, position) == (self.partition, self.position):
            self._reader.extend(partition, end)
            return
        self._reader.begin({partition: (position, end)}, on_loss=self._on_loss, was_written=True, ahead=True)
        self.partition, self.position = partition, position

    def poll(self, records_max: int) -> list[ConsumerRecord]:
        """The next records; where there are none (compaction, transactions) only the position says so."""
        assert self.partition is not None
        found = self._reader.poll_records(_POLL_S, records_max)
        self.position = max(self.position, self._reader.position(self.partition))
        return found

    def pass_to(self, position: int, end: int) -> None:
        """Go on from there."""
        assert self.partition is not None
        self.turn_to(self.partition, position, end)

    def close(self) -> None:
        self._reader.close()


class RangeReaders:
    """The readers, as the workers of a member. They also take what the member reads itself: the retry topic."""

    def __init__(
        self,
        member: Member,
        handling: Handling,
        count: int,
        size: int,
        config: Mapping[str, Any],
        batch: int,
        make_reader: Callable[[Mapping[str, Any]], RangeReader] = RangeReader,
    ) -> None:
        self._member = member
        self._make_reader = make_reader
        self._core = member.core
        self._handling = handling
        self._count = count
        self._size = size
        self._batch = batch
        # A range lies before the partition's end, so there is no reason to wait for data; a fetch that waits at the end
        # would only stand before the next range's.
        own = without_group(config)
        self._config = {"max.partition.fetch.bytes": _FETCH_BYTES, **own, "fetch.max.wait.ms": 1}
        # Whoever names no policy wants to hear of a loss; of the others, none means to skip more than what is lost.
        self._on_loss = refuse_loss if config.get("auto.offset.reset") == "none" else pass_loss
        self._threads: list[threading.Thread] = []
        self._ahead: dict[_Reader, Range] = {}
        """Given to readers that are not through with their last one (under the lock)."""
        self.ends: dict[TopicPartition, int] = {}
        """Up to where each partition may be read now (the engine replaces it whole, under the lock)."""
        self._virtual = 0
        """What the partition with something to read that was given least had been given (see `turns`)."""

    # --- as workers -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._handling.prepare()
        for number in range(self._count):
            name = f"headrace-{self._member.group}-range-{number}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def replace(self, chunk: WorkChunk) -> None:
        raise AssertionError("ranges have no stall threshold")

    def stop(self, seconds: float) -> None:
        deadline = self._member.clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._member.clock.monotonic()))

    # --- handing out ------------------------------------------------------------------------------------------------

    def _allocate(self, reader: _Reader) -> Range | None:
        """The next range for a reader (called with the lock held)."""
        best, backlog = self._next_partition(reader)
        if best is None or best.next_offset is None or self._core.stopping:
            return None
        start = best.next_offset
        size = self._size
        if self._count > 1:
            # Shorter towards the end, so that all readers end at about the same time.
            size = min(size, max(_RANGE_MIN, backlog // (2 * self._count)))
        end = min(start + size, self.ends[best.partition])
        best.line.served = max(best.line.served, self._virtual) + end - start
        skip = [(max(a, start), min(b, end)) for a, b in best.restored if a < end and b > start]
        entry = self._core.add_range(best.partition, start, end, self._member.clock.monotonic())
        return None if entry is None else (entry, skip)

    def _next_partition(self, reader: _Reader) -> tuple[PartitionTracker | None, int]:
        """The partition to take a range of, and how much there is to read in all of them.

        It is the one that was given least. A reader stays where it is for a few ranges more: what it has fetched beyond
        its last one need not be fetched again.
        """
        best: PartitionTracker | None = None
        stay: PartitionTracker | None = None
        least = here = backlog = 0
        for name, end in self.ends.items():
            tracker = self._core.trackers.get(name)
            if tracker is None or tracker.draining or tracker.next_offset is None:
                continue
            behind = end - tracker.next_offset
            if behind <= 0:
                continue
            backlog += behind
            if tracker.paused or len(tracker.entries) >= _ENTRIES_PER_READER * self._count:
                continue
            # Who had nothing to read for a while begins where the others are.
            served = max(tracker.line.served, self._virtual)
            if name == reader.partition and tracker.next_offset == reader.position:
                stay, here = tracker, served
            if best is None or served < least:
                best, least = tracker, served
        if best is not None:
            self._virtual = least
        if stay is not None and here <= least + _STAY_RANGES * self._size:
            best = stay
        return best, backlog

    def _given_ahead(self, reader: _Reader) -> Range | None:
        """What this reader was given before, if it is still ours (called with the lock held)."""
        found = self._ahead.pop(reader, None)
        if found is not None and (found[0].tracker.draining or not found[0].tracker.alive):
            self._core.range_dropped(found[0])
            return None
        return found

    def _take_over(self, now: float) -> Range | None:
        """What another reader was given, and is kept from by a record that takes long (called with the lock held)."""
        for other, (entry, _) in self._ahead.items():
            if now >= entry.added_at + _TAKE_OVER_S:
                return self._given_ahead(other)
        return None

    def _next(self, reader: _Reader) -> WorkChunk | Range | None:
        member = self._member
        with member.lock:
            while not member.is_closed:
                now = member.clock.monotonic()
                chunk = None if reader.did_other else self._core.take(now)
                reader.did_other = chunk is not None
                if chunk is not None:
                    return chunk
                found = self._given_ahead(reader) or self._allocate(reader) or self._take_over(now)
                if found is not None:
                    return found
                if self._core.ready:
                    continue
                member.idle += 1
                try:
                    member.work_added.wait()
                finally:
                    member.idle -= 1
        return None

    # --- reading ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        reader: _Reader | None = None
        try:
            reader = _Reader(self._make_reader(self._config), self._on_loss)
            while (work := self._next(reader)) is not None:
                if isinstance(work, WorkChunk):
                    self._do(work)
                else:
                    self._do_range(reader, *work)
        except BaseException as error:  # noqa: BLE001 - without its consumer a reader is of no use: the poller says why
            self._member.broke(error)
        finally:
            if reader is not None:
                with self._member.lock:
                    if (found := self._ahead.pop(reader, None)) is not None:
                        self._core.range_dropped(found[0])
                reader.close()

    def _do(self, chunk: WorkChunk) -> None:
        """What is not a range: another try of a record that failed, or a record of the retry topic."""
        self._handling.work(chunk)
        with self._member.lock:
            self._core.complete(chunk, self._member.clock.monotonic())
        self._member.send_diverted()

    def _do_range(self, reader: _Reader, entry: Entry, skip: list[Interval]) -> None:
        is_done = False
        with self._member.lock:
            self._member.reading += 1
        try:
            is_done = self._read_range(reader, entry, skip)
        finally:
            with self._member.lock:
                self._member.reading -= 1
                if not is_done:
                    self._core.range_dropped(entry)

    def _read_range(self, reader: _Reader, entry: Entry, skip: list[Interval]) -> bool:
        """Whether the range was finished; otherwise it is not ours any more."""
        position, end = entry.offset, entry.end
        reader.turn_to(entry.tracker.partition, position, end)
        while position < end:
            found: list[ConsumerRecord] = []
            try:
                found = reader.poll(min(_POLL_RECORDS, end - position))
            except RecordDeserializationError as error:
                self._pass_damage(reader, entry, error)
            wanted = [one for one in found if one.offset < end and not (skip and _is_within(one.offset, skip))]
            position = reader.position
            if position >= end:
                before = self._before_the_last(wanted)
                if before and not self._handle(entry, wanted[:before]):
                    return False
                self._look_ahead(reader)
                wanted = wanted[before:]
            if wanted and not self._handle(entry, wanted):
                return False
            with self._member.lock:
                is_ours = self._core.range_advanced(entry, min(end, position))
                if entry.done:
                    return True
                chunk = self._core.take(self._member.clock.monotonic()) if is_ours and self._core.ready else None
            if not is_ours:
                return False
            if chunk is not None:
                # All readers may be within ranges, and somebody has to do what is tried again.
                self._do(chunk)
            self._member.send_diverted()
        return entry.done

    def _before_the_last(self, records: list[ConsumerRecord]) -> int:
        """How many to handle before the next range is asked for."""
        if self._handling.is_batch:
            return max(0, len(records) - 1) // self._batch * self._batch
        return max(0, len(records) - _AHEAD_RECORDS)

    def _look_ahead(self, reader: _Reader) -> None:
        """Have the next range fetched."""
        with self._member.lock:
            found = self._allocate(reader)
            if found is None:
                return
            self._ahead[reader] = found
        entry, _ = found
        reader.turn_ahead_to(entry.tracker.partition, entry.offset, entry.end)

    def _pass_damage(self, reader: _Reader, entry: Entry, error: RecordDeserializationError) -> None:
        """A batch that cannot be read is one failed record; the part of it that lies in other ranges is theirs."""
        error.last_offset = min(error.last_offset, entry.end - 1)
        log.error("%s", error)
        damage, record = damage_of(error)
        with self._member.lock:
            now = self._member.clock.monotonic()
            self._core.range_failed(entry, [(record, damage)], damage.last_offset + 1, now)
        reader.pass_to(damage.last_offset + 1, entry.end)

    # --- handling ---------------------------------------------------------------------------------------------------

    def _handle(self, entry: Entry, records: list[ConsumerRecord]) -> bool:
        """Have records handled; False when the range was taken away meanwhile.

        How far it got is written into the entry record by record, without the lock: a number that only this thread
        changes.
        """
        handled = 0
        try:
            if self._handling.is_batch:
                for first in range(0, len(records), self._batch):
                    if entry.tracker.draining or not entry.tracker.alive:
                        return False
                    handled += self._call_batch(entry, records[first : first + self._batch])
                return True
            handler = self._handling.handler
            deserialised = None if self._handling.is_plain else self._handling.deserialised
            tracker = entry.tracker
            for record in records:
                if tracker.draining or not tracker.alive:
                    return False
                try:
                    result = handler(record if deserialised is None else deserialised(record))
                    if result is not None:
                        check_has_run(result, HANDLER)
                except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its record's failure
                    self._failed(entry, [(record, error)], record.offset + 1)
                else:
                    handled += 1
                    entry.offset = record.offset + 1
            return True
        finally:
            with self._member.lock:
                self._core.counters.polled += len(records)
                self._core.counters.handled += handled
                entry.tracker.dirty = True

    def _call_batch(self, entry: Entry, records: list[ConsumerRecord]) -> int:
        """One call with many records; how many of them went well."""
        run = Run(make_entries(entry.tracker, records, 0.0), entry.tracker, None)
        self._handling.do_batch(WorkChunk(deque(), 0.0), run)
        following = records[-1].offset + 1
        failures = [(one.record, error) for one, error in run.failures or ()]
        if failures:
            self._failed(entry, failures, following)
        else:
            entry.offset = following
        return len(records) - len(failures)

    def _failed(self, entry: Entry, failures: list[tuple[ConsumerRecord, BaseException]], upto: int) -> None:
        with self._member.lock:
            self._core.range_failed(entry, failures, upto, self._member.clock.monotonic())


class RangeEngine(Engine):
    """The member of the range model: holds partitions, knows where they end, reads only the retry topic itself."""

    readers: RangeReaders
    _looked_at = 0.0

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        super().on_partitions_assigned(partitions)
        assert self._consumer is not None
        self._consumer.pause([name for name in partitions if not self._reads_itself(name)])
        self._looked_at = 0.0

    def _reads_itself(self, partition: TopicPartition) -> bool:
        return partition.topic in self._core.settings.retry_topics

    def _set_paused(self, consumer: Consumer, changes: Any) -> None:
        super()._set_paused(consumer, [change for change in changes if self._reads_itself(change[0])])

    def _turn(self, consumer: Consumer) -> None:
        super()._turn(consumer)
        now = self._clock.monotonic()
        with self.member.lock:
            is_wanted = self.member.idle > 0 and now >= self._looked_at + _LOOK_S
            mine = [name for name in self._core.trackers if not self._reads_itself(name)]
        if not is_wanted or not mine:
            return
        self._looked_at = now
        try:
            ends = self._undisturbed(lambda: consumer.end_offsets(mine, _ENDS_TIMEOUT_S))
        except RetriableError as error:
            # Readers go on with what they know, and wait for a broker as long as it takes; so does this.
            log.warning("where partitions end is not known: %s", error)
            return
        with self.member.lock:
            self.readers.ends = ends
            self.member.work_added.notify_all()


def _is_within(offset: int, intervals: list[Interval]) -> bool:
    return any(first <= offset < last for first, last in intervals)
