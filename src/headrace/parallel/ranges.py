"""Model 2: several readers on one partition, each with a consumer of its own, on its own range of offsets.

The member of the group holds the partitions but does not read them. It hands out ranges; a reader assigns itself the
partition, seeks to its range's start and handles it in order. What is committed is the end of the finished prefix.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from headrace.client.consumer import Consumer
from headrace.client.consumer_records import ConsumerRecord
from headrace.client.errors import ClientClosed
from headrace.errors import HeadraceError
from headrace.parallel.engine import Engine
from headrace.parallel.errors import RetriesExhausted
from headrace.parallel.finished import Interval
from headrace.parallel.handling import Handling
from headrace.parallel.member import Member
from headrace.parallel.retries import Fate, Outgoing, Verdict, diverted_headers, judge
from headrace.parallel.tracker import PartitionTracker
from headrace.parallel.work import Chunk, Entry, Run
from headrace.topics import TopicPartition

log = logging.getLogger("headrace.parallel")

_POLL_S = 0.2
_POLL_RECORDS = 500
_LOOK_S = 0.05
"""How often the ends of the partitions are asked for while readers have nothing to do."""
_PRODUCE_WAIT_S = 30.0


class RangeReaders:
    """The readers, as the workers of a member. They also take what the member reads itself: the retry topic."""

    def __init__(
        self, member: Member, handling: Handling, count: int, size: int, config: Mapping[str, Any], batch: int
    ) -> None:
        self._member = member
        self._core = member.core
        self._handling = handling
        self._count = count
        self._size = size
        self._batch = batch
        # A range lies before the partition's end, so there is no reason to wait for data; a fetch that waits at the end
        # would only stand before the next range's.
        own = {name: value for name, value in config.items() if name not in ("group.id", "group.instance.id")}
        self._config = {**own, "fetch.max.wait.ms": 1}
        self._threads: list[threading.Thread] = []
        self.ends: dict[TopicPartition, int] = {}
        """Up to where each partition may be read now (set by the engine, under the lock)."""

    # --- as workers -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._handling.prepare()
        for number in range(self._count):
            name = f"headrace-{self._member.group}-range-{number}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def replace(self, chunk: Chunk) -> None:
        raise AssertionError("ranges have no stall threshold")

    def stop(self, seconds: float) -> None:
        deadline = self._member.clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._member.clock.monotonic()))

    # --- handing out ------------------------------------------------------------------------------------------------

    def _allocate(self) -> tuple[Entry, list[Interval]] | None:
        """The next range of the partition that is furthest behind (called with the lock held)."""
        best: PartitionTracker | None = None
        most = 0
        for name, end in self.ends.items():
            tracker = self._core.trackers.get(name)
            if tracker is None or tracker.draining or tracker.next_offset is None:
                continue
            behind = end - tracker.next_offset
            if behind > most and len(tracker.entries) < 2 * self._count:
                best, most = tracker, behind
        if best is None or best.next_offset is None or self._core.stopping:
            return None
        start = best.next_offset
        end = min(start + self._size, self.ends[best.partition])
        skip = [(max(a, start), min(b, end)) for a, b in best.restored if a < end and b > start]
        entry = self._core.add_range(best.partition, start, end, self._member.clock.monotonic())
        return None if entry is None else (entry, skip)

    def _next(self) -> Chunk | tuple[Entry, list[Interval]] | None:
        member = self._member
        with member.lock:
            while not member.is_closed:
                chunk = self._core.take(member.clock.monotonic())
                if chunk is not None:
                    return chunk
                found = self._allocate()
                if found is not None:
                    return found
                member.idle += 1
                try:
                    member.work_came.wait()
                finally:
                    member.idle -= 1
        return None

    # --- reading ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        consumer = Consumer({**self._config, "enable.auto.commit": False})
        try:
            while (work := self._next()) is not None:
                if isinstance(work, Chunk):
                    self._handling.work(work)
                    with self._member.lock:
                        self._core.complete(work, self._member.clock.monotonic())
                    self._member.send_diverted()
                else:
                    self._do_range(consumer, *work)
        except Exception as error:  # noqa: BLE001 - without its consumer a reader is of no use: the poller says why
            self._member.broke(error)
        finally:
            consumer.close()

    def _do_range(self, consumer: Consumer, entry: Entry, skip: list[Interval]) -> None:
        try:
            is_done = self._read_range(consumer, entry, skip)
        except BaseException:
            with self._member.lock:
                self._core.range_dropped(entry)
            raise
        if not is_done:
            with self._member.lock:
                self._core.range_dropped(entry)

    def _read_range(self, consumer: Consumer, entry: Entry, skip: list[Interval]) -> bool:
        """Whether the range was finished; otherwise it is not ours any more."""
        partition, position, end = entry.tracker.partition, entry.offset, entry.end
        consumer.assign([partition])
        consumer.seek(partition, position)
        while position < end:
            found = consumer.poll(_POLL_S, max_records=min(_POLL_RECORDS, end - position)).records(partition)
            wanted = [record for record in found if record.offset < end]
            for first in range(0, len(wanted), self._batch):
                records = wanted[first : first + self._batch]
                if not self._handle(entry, [one for one in records if not _is_within(one.offset, skip)]):
                    return False
                if not self._advance(entry, min(end, records[-1].offset + 1)):
                    return False
            # Where the log has no records (compaction, transactions) only the position says so.
            position = max(position, consumer.position(partition))
            if not self._advance(entry, min(end, position)):
                return False
        return True

    def _advance(self, entry: Entry, offset: int) -> bool:
        """Write down how far the range is; False when it is not to be gone on with."""
        if offset == entry.offset and offset < entry.end:
            return entry.tracker.alive and not entry.tracker.draining
        with self._member.lock:
            if entry.done:
                return True
            return self._core.range_advanced(entry, offset) or entry.done

    # --- handling ---------------------------------------------------------------------------------------------------

    def _handle(self, within: Entry, records: list[ConsumerRecord]) -> bool:
        """Have records handled, with all their retries; False when the range was taken away meanwhile."""
        if not records:
            return True
        now = self._member.clock.monotonic()
        entries = [Entry(one, one.offset, one.offset + 1, 0, within.tracker, now) for one in records]
        failures = self._call(entries)
        is_blamed = not (self._handling.is_batch and len(failures) > 1)
        return all(self._retry(entry, error, is_blamed) for entry, error in failures)

    def _call(self, entries: list[Entry]) -> list[tuple[Entry, BaseException]]:
        run = Run(entries, entries[0].tracker, None)
        chunk = Chunk(_NOTHING, 0.0)
        (self._handling.do_batch if self._handling.is_batch else self._handling.do_records)(chunk, run)
        failures = run.failures or []
        with self._member.lock:
            self._core.counters.polled += len(entries)
            self._core.counters.handled += len(entries) - len(failures)
            self._core.counters.failures += len(failures)
        return failures

    def _retry(self, entry: Entry, error: BaseException, is_blamed: bool) -> bool:
        counters, tracker = self._core.counters, entry.tracker
        retry = self._core.settings.retry
        while True:
            entry.error = error
            entry.tries += int(is_blamed)
            verdict = judge(retry, entry, error) if is_blamed else Verdict(Fate.HERE, retry.local_wait_s(1))
            if verdict.fate is Fate.SKIP:
                counters.skipped += 1
                return True
            if verdict.fate is Fate.STOP:
                with self._member.lock:
                    self._core.fatal = RetriesExhausted(tracker.partition, entry.offset, entry.tries, error)
                    self._core.stop()
                return False
            if verdict.fate is not Fate.HERE:
                return self._divert(entry, verdict)
            counters.local_retries += 1
            if not self._sleep(tracker, verdict.delay_s):
                return False
            failures = self._call([entry])
            if not failures:
                return True
            error, is_blamed = failures[0][1], True

    def _divert(self, entry: Entry, verdict: Verdict) -> bool:
        """Put a record to the other topic and wait until it is there."""
        member, retry = self._member, self._core.settings.retry
        topic = retry.topic if verdict.fate is Fate.RETRY_TOPIC else retry.dead_letters
        assert member.producer is not None
        assert topic is not None
        record = entry.record
        while True:
            headers = diverted_headers(Outgoing(entry, topic, verdict), member.group, member.clock.now_ms())
            try:
                member.producer.send(topic, record.value, record.key, headers=headers).result(_PRODUCE_WAIT_S)
            except ClientClosed:
                return False
            except (HeadraceError, TimeoutError) as error:
                log.error("%s cannot be written: %r", topic, error)
                self._core.counters.produce_failures += 1
                if not self._sleep(entry.tracker, 1.0):
                    return False
                continue
            with member.lock:
                if verdict.fate is Fate.RETRY_TOPIC:
                    self._core.counters.retry_topic += 1
                else:
                    self._core.counters.dead_letters += 1
            return True

    def _sleep(self, tracker: PartitionTracker, seconds: float) -> bool:
        """Wait, unless the partition goes; False then."""
        member = self._member
        until = member.clock.monotonic() + seconds
        with member.lock:
            while tracker.alive and not tracker.draining and not member.is_closed:
                left = until - member.clock.monotonic()
                if left <= 0:
                    return True
                member.work_ended.wait(min(left, _LOOK_S))
        return False


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
        ends = self._undisturbed(lambda: consumer.end_offsets(mine))
        with self.member.lock:
            self.readers.ends = ends
            self.member.work_came.notify_all()


def _is_within(offset: int, intervals: list[Interval]) -> bool:
    return any(first <= offset < last for first, last in intervals)


_NOTHING: Any = ()
