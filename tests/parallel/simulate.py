"""Parallel consuming under virtual time: members, workers, rebalances, crashes, failures, all from one seed.

    python -m tests.parallel.simulate 10000

Several cores share partitions of a pretended log. Chance decides who polls, which handler ends well, badly or never,
when offsets are committed (and whether that works), when partitions move, members and workers die, brokers are away,
topics refuse (some letters for good: they are too large), how large records are and how unevenly they are spread. After
every step the promises are held against what truly happened; that nobody starves is one of them.
"""

from __future__ import annotations

import logging
import random
import sys
from asyncio import CancelledError
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from headrace.client.consumer.records import ConsumerRecord
from headrace.errors import MessageTooLargeError
from headrace.parallel import tracker as tracker_module
from headrace.parallel.core import ParallelCore
from headrace.parallel.errors import BatchFailedError, Reject, RetryLater, UnreadableRecordError, WorkerDiedError
from headrace.parallel.finished import decode_finished, encode_finished
from headrace.parallel.letters import messages_of
from headrace.parallel.options import CoreSettings, Limits, Model, Order, Pool, Retry, Window
from headrace.parallel.retries import NextPlace, Outgoing, diverted_headers
from headrace.parallel.tracker import Commit, PartitionTracker
from headrace.parallel.work import Entry, Run, WorkChunk
from headrace.records import TimestampType
from headrace.records.columns import Headers
from headrace.topics import TopicPartition

MAIN, RETRY, DEAD = "orders", "orders.retry", "orders.dead"
STEPS = 150
TURN_RECORDS = 64
"""The most that are taken of one partition in its turn."""
END_STEPS_MAX = 2_500


@dataclass
class Log:
    """A partition: its records, what is truly finished, and what the group has committed."""

    records: list[ConsumerRecord] = field(default_factory=list)
    end: int = 0
    finished: set[int] = field(default_factory=set)
    committed: int | None = None
    note: str = ""

    def open_offsets(self) -> list[int]:
        return [record.offset for record in self.records if record.offset not in self.finished]


@dataclass(eq=False)
class Worker:
    """A chunk in somebody's hands, and how far it got."""

    chunk: WorkChunk
    run: Run | None = None
    hangs: bool = False


class WatchedCore(ParallelCore):
    """Tells when it gives a record up for good (`on_exhausted="skip"`), which nobody outside could see, and how long
    partitions with something to do, and tries that are due, wait for a worker: in records that others were given."""

    def __init__(self, settings: CoreSettings, on_skip: Callable[[Entry], None]) -> None:
        super().__init__(settings)
        self._on_skip = on_skip
        self._skips_seen = 0
        self._waited: Counter[PartitionTracker] = Counter()
        self._due: dict[Entry, int] = {}
        self._given = 0

    def again(self, entry: Entry) -> None:
        super().again(entry)
        self._due[entry] = self._given

    def take(self, now: float) -> WorkChunk | None:
        in_line = [tracker for tracker in self.trackers.values() if len(tracker.line)]
        chunk = super().take(now)
        if chunk is None:
            return None
        taken = sum(len(run.entries) for run in chunk.todo)
        self._given += taken
        served = {run.tracker for run in chunk.todo}
        # One turn of each of the others, three of four turns ahead of them; a turn is a run, or what is taken at once.
        turn = max(2 * self.settings.run_max, TURN_RECORDS if self.settings.chunk_s else 1)
        patience = 5 * len(self.trackers) * turn + taken
        for tracker in in_line:
            self._waited[tracker] = 0 if tracker in served else self._waited[tracker] + taken
            assert self._waited[tracker] <= patience, f"{tracker.partition} waits while others are given {patience}"
        for tracker in set(self._waited) - set(in_line):
            del self._waited[tracker]
        for run in chunk.todo:
            for entry in run.entries:
                since = self._due.pop(entry, self._given)
                failing = sum(1 for one in self._due if one.tracker is entry.tracker)
                waited = self._given - since
                assert waited <= patience * (2 + failing), f"a due try of {entry} waited for {waited} others"
        return chunk

    def passed(self, entry: Entry) -> None:
        if self.counters.skipped > self._skips_seen:
            self._skips_seen = self.counters.skipped
            self._on_skip(entry)
        super().passed(entry)


class Member:
    """One core with its positions and workers."""

    def __init__(self, settings: CoreSettings, on_skip: Callable[[Entry], None]) -> None:
        self.core = WatchedCore(settings, on_skip)
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.workers: list[Worker] = []
        self.producing: list[Outgoing] = []


class Simulation:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 1_000.0
        self.order = rng.choice(list(Order))
        batch = rng.choice([None, None, 3])
        model: Model = Pool(stall_s=5.0) if rng.random() < 0.5 else Window(rng.randint(1, 6), rng.randint(1, 8), 5.0)
        retry = Retry(
            local=rng.randint(0, 2),
            backoff_s=(0.1, 1.0),
            topic=RETRY if rng.random() < 0.7 else None,
            attempts=rng.randint(1, 3),
            topic_backoff_s=(1.0, 4.0),
            dead_letters=DEAD if rng.random() < 0.8 else None,
            on_exhausted="skip",
        )
        # Some worlds have a backlog in one partition, more than all bounds.
        self.has_backlog = rng.random() < 0.4
        limits = Limits(rng.randint(5, 60), 20_000, rng.randint(5, 60), 5)
        if self.has_backlog:
            limits = Limits(rng.randint(300, 500), rng.choice([20_000, 10_000_000]), 600, 5)
        self.settings = CoreSettings.of(model, self.order, retry, limits, batch, rng.randint(1, 6))
        # In some, handlers never count as quick: everything is handed out one by one.
        if rng.random() < 0.5:
            self.settings = replace(self.settings, chunk_s=0.0)
        self.letter_bytes_max = rng.choice([1 << 30, 2_000])
        self.outage_until = 0.0
        tracker_module.encode_finished = partial(  # type: ignore[attr-defined]  # a note has room for less in some worlds
            encode_finished, bytes_max=rng.choice([4_096, 4_096, 20, 18])
        )
        self.workers_max = rng.randint(1, 6)
        self.fail_rate = rng.choice([0.0, 0.05, 0.3])
        self.hang_rate = rng.choice([0.0, 0.0, 0.05])
        self.crash_rate = rng.choice([0.0, 0.0, 0.3])
        partitions = rng.randint(1, 3)
        self.logs = {TopicPartition(MAIN, number): Log() for number in range(partitions)}
        if retry.topic:
            self.logs[TopicPartition(RETRY, 0)] = Log()
        self.owners: dict[TopicPartition, Member] = {}
        self.members = [Member(self.settings, self.skip) for _ in range(rng.randint(1, 3))]
        self.dead: list[ConsumerRecord] = []
        self.values = 0
        self.skipped: set[bytes] = set()
        self.times_done: Counter[tuple[TopicPartition, int]] = Counter()
        self.repeats_allowed: Counter[tuple[TopicPartition, int]] = Counter()
        self.handled_values: set[bytes] = set()
        self.done_by: defaultdict[PartitionTracker, set[int]] = defaultdict(set)
        self.ending = False
        self.transactional = rng.random() < 0.5
        self.arrivals: Counter[tuple[bytes, NextPlace, int]] = Counter()
        for partition in self.logs:
            if partition.topic == MAIN:
                self.append(partition, rng.randint(0, 60))
                if self.has_backlog and partition.partition == 0:
                    self.append(partition, 700)
            self.give(partition, rng.choice(self.members))

    # --- the log ----------------------------------------------------------------------------------------------------

    def append(self, partition: TopicPartition, count: int) -> None:
        log = self.logs[partition]
        for _ in range(count):
            # Skewed keys, and some records without one; some offsets have no record.
            key = None if self.rng.random() < 0.1 else b"k%d" % min(int(self.rng.paretovariate(1.0)), 9)
            log.end += self.rng.choice([0, 0, 0, 0, 2])
            self.values += 1
            value = b"v%d" % self.values
            if self.rng.random() < 0.05:
                value += b" " * self.rng.choice([500, 3_000])
            log.records.append(self.record(partition, log.end, key, value, ()))
            log.end += 1

    def record(
        self, partition: TopicPartition, offset: int, key: bytes | None, value: bytes, headers: Headers
    ) -> ConsumerRecord:
        return ConsumerRecord(
            partition.topic, partition.partition, offset, 0, TimestampType.CREATE_TIME, key, value, headers, 0
        )

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)

    # --- the group --------------------------------------------------------------------------------------------------

    def give(self, partition: TopicPartition, member: Member) -> None:
        log = self.logs[partition]
        self.owners[partition] = member
        member.core.assign(partition, log.committed, log.note)
        member.positions[partition] = log.committed or 0
        member.paused.discard(partition)

    def move(self, partition: TopicPartition) -> None:
        """A rebalance moves one partition: in order (drained as far as time goes, committed), or lost."""
        owner = self.owners[partition]
        if self.rng.random() < 0.7:
            owner.core.begin_revoke([partition])
            for _ in range(self.rng.randint(0, 20)):
                if owner.core.is_drained([partition]):
                    break
                self.work(owner)
                self.deliver(owner)
            if self.rng.random() < 0.9:
                self.commit(owner, [partition], fails=False)
            owner.core.end_revoke([partition])
        else:
            owner.core.lose([partition])
        self.give_away(partition)

    def give_away(self, partition: TopicPartition) -> None:
        """What was done and is in no commit may be done again by the next owner; nothing else may."""
        log = self.logs[partition]
        kept = decode_finished(log.committed, log.note) if log.committed is not None else []
        assert kept is not None
        for record in log.records:
            offset = record.offset
            if offset < (log.committed or 0) or any(first <= offset < last for first, last in kept):
                continue
            self.repeats_allowed[partition, offset] += 1
        self.give(partition, self.rng.choice(self.members))

    def crash(self) -> None:
        """A member dies: its workers may still end, but nobody hears of it. A new one takes its place."""
        index = self.rng.randrange(len(self.members))
        gone, self.members[index] = self.members[index], Member(self.settings, self.skip)
        for partition, owner in list(self.owners.items()):
            if owner is gone:
                self.give_away(partition)

    def transact(self, member: Member, fails: bool | None) -> None:
        """What is diverted and the offsets that pass it: both, or neither."""
        transaction = member.core.failures.begin_transaction()
        if transaction is None:
            return
        if self.is_outage or (not self.ending and (self.rng.random() < 0.3 if fails is None else fails)):
            member.core.failures.end_transaction(transaction, TimeoutError("aborted"), self.now)
            return
        if any(self.is_too_large(outgoing) for outgoing in transaction.outgoing):
            member.core.failures.end_transaction(transaction, MessageTooLargeError("a letter is too large"), self.now)
            return
        for outgoing in transaction.outgoing:
            self.arrive(outgoing)
        self.take_commits(member, transaction.commits)
        for outgoing in transaction.outgoing:
            log, offset = self.logs[outgoing.entry.tracker.partition], outgoing.entry.offset
            kept = decode_finished(log.committed or 0, log.note) or []
            is_kept = offset < (log.committed or 0) or any(first <= offset < last for first, last in kept)
            assert is_kept, f"{outgoing.entry} was diverted, and what is committed does not say so"
        member.core.failures.end_transaction(transaction, None, self.now)

    def commit(self, member: Member, partitions: list[TopicPartition] | None = None, fails: bool | None = None) -> None:
        if self.transactional:
            self.transact(member, fails)
            return
        commits = member.core.commits(partitions)
        if not commits or self.is_outage or (self.rng.random() < 0.2 if fails is None else fails):
            return
        self.take_commits(member, commits)
        member.core.committed(commits)

    def take_commits(self, member: Member, commits: list[Commit]) -> None:
        for commit in commits:
            partition = commit.tracker.partition
            log = self.logs[partition]
            assert self.owners[partition] is member
            self.check_commit(log, commit.offset, commit.note)
            self.check_note_has_all(commit)
            log.committed, log.note = commit.offset, commit.note

    def check_commit(self, log: Log, offset: int, note: str) -> None:
        unfinished = log.open_offsets()
        assert not unfinished or offset <= unfinished[0], f"committed {offset}, but {unfinished[0]} is unfinished"
        assert len(note) <= 4096
        intervals = decode_finished(offset, note)
        assert intervals is not None
        for first, last in intervals:
            assert first >= offset
            assert not [one for one in unfinished if first <= one < last], f"the note {intervals} covers {unfinished}"
        assert all(a[1] < b[0] for a, b in pairwise(intervals))

    def check_note_has_all(self, commit: Commit) -> None:
        """With nothing in flight, all that this owner finished is kept by the commit."""
        if commit.tracker.in_flight or not commit.is_whole:
            return
        intervals = decode_finished(commit.offset, commit.note) or []
        for offset in self.done_by[commit.tracker]:
            is_kept = offset < commit.offset or any(first <= offset < last for first, last in intervals)
            assert is_kept, f"{offset} is finished, but the commit of {commit.offset} with {intervals} forgets it"

    # --- a member's turn --------------------------------------------------------------------------------------------

    def poll(self, member: Member) -> None:
        for partition, pause in member.core.pauses():
            (member.paused.add if pause else member.paused.discard)(partition)
        self.check_pauses(member)
        most = self.rng.randint(1, 100 if self.has_backlog else 10)
        for partition, owner in self.owners.items():
            if owner is not member or partition in member.paused or self.is_outage:
                continue
            log, position = self.logs[partition], member.positions[partition]
            first = bisect_left(log.records, position, key=lambda record: record.offset)
            found = log.records[first : first + min(most, max(1, member.core.pressure.room()))]
            if found:
                member.positions[partition] = found[-1].offset + 1
                member.core.add(partition, found, self.now, self.now_ms)
        slack = 100 * len(self.logs) if self.has_backlog else 10 * len(self.logs)
        assert member.core.pressure.records <= self.settings.limits.records + slack
        trackers = member.core.trackers.values()
        assert member.core.pressure.records == sum(one.unfinished - one.held for one in trackers)
        assert member.core.pressure.bytes == sum(one.bytes - one.held_bytes for one in trackers)
        for tracker in trackers:
            assert len(tracker.entries) <= self.settings.limits.ahead + slack
            assert tracker.unfinished >= tracker.held >= 0

    def check_pauses(self, member: Member) -> None:
        """Whatever others hold, a partition that holds nothing is read."""
        for tracker in member.core.trackers.values():
            assert not tracker.paused or tracker.entries, f"{tracker.partition} is paused for what others hold"
            if tracker.is_retry:
                held = {timer[3] for timer in member.core.failures._timers if timer[2].name == "DUE"}
                sizes = [entry.size for entry in tracker.entries if entry in held]
                assert (tracker.held, tracker.held_bytes) == (len(sizes), sum(sizes)), "what is held counts by itself"

    def work(self, member: Member) -> None:
        """One worker does one thing: takes work, handles a record, or is through."""
        if len(member.workers) < self.workers_max and self.rng.random() < 0.5:
            chunk = member.core.take(self.now)
            if chunk is not None:
                member.workers.append(Worker(chunk))
        ready = [worker for worker in member.workers if not worker.hangs]
        if not ready:
            return
        worker = self.rng.choice(ready)
        if worker.run is None:
            worker.run = worker.chunk.next_run()
            if worker.run is None:
                member.workers.remove(worker)
                member.core.complete(worker.chunk, self.now)
                return
        if not self.ending and self.rng.random() < self.hang_rate:
            worker.hangs = True
            return
        self.handle(worker, worker.run)
        if worker.run.failures and self.rng.random() < self.crash_rate:
            # The process died at that record: what is behind it, and what was not begun, is for others.
            worker.chunk.finished.append(worker.run)
            member.workers.remove(worker)
            member.core.complete(worker.chunk, self.now)
            return
        if worker.run.done == len(worker.run.entries) or (worker.run.failures and self.order is not Order.NONE):
            worker.chunk.finished.append(worker.run)
            worker.run = None

    def handle(self, worker: Worker, run: Run) -> None:
        is_live = run.tracker.alive and not worker.chunk.abandoned
        if self.settings.is_batch:
            entries = run.entries
        else:
            entries = run.entries[run.done : run.done + 1]
        if is_live:
            for entry in entries:
                self.check_order(run, entry.record, entries)
        fails = self.rng.random() < self.fail_rate
        bad = set(range(len(entries)))
        if fails and self.settings.is_batch and self.rng.random() < 0.5:
            bad = {self.rng.randrange(len(entries))}
            error: BaseException = BatchFailedError(bad)
        else:
            error = self.rng.choice(
                [
                    ValueError("no"),
                    CancelledError(),
                    Reject("never"),
                    RetryLater(2.0),
                    SystemExit(1),
                    WorkerDiedError("gone"),
                ]
                + [
                    WorkerDiedError("gone"),
                    UnreadableRecordError(run.tracker.partition, 0, "value", ValueError("bytes")),
                ]
            )
        for index, entry in enumerate(entries):
            if fails and index in bad:
                run.failed(entry, error)
            elif is_live:
                self.done_by[run.tracker].add(entry.offset)
                self.done(run.tracker.partition, entry.record)
        run.done += len(entries)

    def check_order(self, run: Run, record: ConsumerRecord, together: list[Entry]) -> None:
        if self.order is Order.NONE or (self.order is Order.KEY and record.key is None):
            return
        log = self.logs[run.tracker.partition]
        mates = {entry.offset for entry in together}
        for earlier in log.records:
            if earlier.offset >= record.offset:
                break
            if self.order is Order.KEY and earlier.key != record.key:
                continue
            if self.is_held(run, earlier.offset):
                continue
            assert earlier.offset in log.finished or earlier.offset in mates, (
                f"{record.offset} (key {record.key!r}) was begun before {earlier.offset} was finished"
            )

    def is_held(self, run: Run, offset: int) -> bool:
        """A record of the retry topic that is not due yet: later ones may be due earlier, and do not wait for it."""
        return run.tracker.partition.topic == RETRY

    def done(self, partition: TopicPartition, record: ConsumerRecord) -> None:
        self.logs[partition].finished.add(record.offset)
        self.handled_values.add(record.value)
        place = (partition, record.offset)
        self.times_done[place] += 1
        # A stalled or failed-in-a-batch try does not count as done, so what is done twice was done unseen before.
        assert self.times_done[place] <= 1 + self.repeats_allowed[place], f"{place} was done again without need"

    def skip(self, entry: Entry) -> None:
        self.logs[entry.tracker.partition].finished.add(entry.offset)
        self.skipped.add(entry.record.value)

    def deliver(self, member: Member) -> None:
        """The producer takes what is diverted, and acknowledges or refuses it."""
        if self.transactional:
            return
        member.producing.extend(member.core.failures.outbox)
        member.core.failures.outbox.clear()
        if not member.producing or self.rng.random() < 0.3:
            return
        outgoing = member.producing.pop(self.rng.randrange(len(member.producing)))
        if self.is_outage or (not self.ending and self.rng.random() < 0.2):
            member.core.failures.produced(outgoing, TimeoutError("refused"), self.now)
            return
        if self.is_too_large(outgoing):
            member.core.failures.produced(outgoing, MessageTooLargeError("a letter is too large"), self.now)
            return
        self.arrive(outgoing)
        member.core.failures.produced(outgoing, None, self.now)

    @property
    def is_outage(self) -> bool:
        return self.now < self.outage_until

    def is_too_large(self, outgoing: Outgoing) -> bool:
        messages = messages_of(outgoing, "group", self.now_ms)
        return any(len(value or b"") > self.letter_bytes_max for _, value, _, _ in messages)

    def arrive(self, outgoing: Outgoing) -> None:
        """A diverted record is in its topic."""
        record = outgoing.entry.record
        partition = outgoing.entry.tracker.partition
        headers = tuple(diverted_headers(outgoing, "group", self.now_ms))
        place = (record.value, outgoing.verdict.fate, outgoing.verdict.attempt)
        self.arrivals[place] += 1
        assert not self.transactional or self.arrivals[place] == 1, f"{place} was diverted again"
        if outgoing.verdict.fate is NextPlace.RETRY_TOPIC:
            log = self.logs[TopicPartition(RETRY, 0)]
            log.records.append(self.record(TopicPartition(RETRY, 0), log.end, record.key, record.value, headers))
            log.end += 1
        else:
            self.dead.append(record._replace(headers=headers))
        if outgoing.entry.tracker.alive:
            self.logs[partition].finished.add(record.offset)

    # --- running ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        self.now += rng.choice([0.0, 0.01, 0.1, 0.5])
        member = rng.choice(self.members)
        kind = rng.random()
        if kind < 0.25:
            self.poll(member)
        elif kind < 0.7:
            for _ in range(rng.randint(1, 8)):
                self.work(member)
        elif kind < 0.8:
            self.tick(member)
        elif kind < 0.88:
            self.deliver(member)
        elif kind < 0.95:
            self.commit(member)
            # Some follow at once: little has changed, or nothing that a note has room for.
            for _ in range(rng.choice([0, 0, 4])):
                self.work(member)
                self.commit(member)
        elif kind < 0.97:
            self.move(rng.choice(list(self.logs)))
        elif kind < 0.98:
            self.crash()
        elif kind < 0.985:
            self.outage_until = self.now + rng.choice([1.0, 10.0, 100.0])
        else:
            self.append(rng.choice([p for p in self.logs if p.topic == MAIN]), rng.randint(0, 10))

    def tick(self, member: Member) -> None:
        given_up = set(member.core.tick(self.now))
        for worker in list(member.workers):
            if worker.chunk in given_up:
                # The thread hangs on for a while, or for ever; when it comes back its result is dropped.
                member.workers.remove(worker)
                if self.rng.random() < 0.5:
                    if worker.run is not None:
                        worker.run.done = len(worker.run.entries)
                        worker.chunk.finished.append(worker.run)
                    member.core.complete(worker.chunk, self.now)

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.ending = True
        self.fail_rate = 0.0
        for _ in range(END_STEPS_MAX):
            if all(self.is_through(partition) for partition in self.logs):
                break
            self.now += 0.2
            for member in self.members:
                self.poll(member)
                for _ in range(200 if self.has_backlog else 20):
                    self.work(member)
                self.tick(member)
                self.deliver(member)
                self.commit(member)
        self.check_end()

    def is_through(self, partition: TopicPartition) -> bool:
        log = self.logs[partition]
        last = log.records[-1].offset + 1 if log.records else 0
        return not log.records or (log.committed is not None and log.committed >= last and not log.note)

    def check_end(self) -> None:
        for partition, log in self.logs.items():
            assert self.is_through(partition), f"{partition} is stuck at {log.committed}, open: {log.open_offsets()}"
            assert not log.open_offsets()
        dead = {record.value for record in self.dead}
        for partition, log in self.logs.items():
            for record in log.records:
                where = self.handled_values | dead | self.skipped
                assert record.value in where, f"{partition}@{record.offset} was never handled"


def run_seeds(first: int, count: int, *, is_quiet: bool = False) -> None:
    try:
        for seed in range(first, first + count):
            try:
                Simulation(seed).run()
            except BaseException:
                if not is_quiet:
                    sys.stderr.write(f"seed {seed}\n")
                raise
    finally:
        tracker_module.encode_finished = encode_finished  # type: ignore[attr-defined]  # as it was before


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    begin = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    run_seeds(begin, wanted)
    print(f"{wanted} seeds from {begin}: every promise was kept")
