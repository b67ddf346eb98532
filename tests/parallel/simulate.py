"""Parallel consuming under virtual time: members, workers, rebalances, crashes, failures, all from one seed.

    python -m tests.parallel.simulate 10000

Several cores share partitions of a pretended log. Chance decides who polls, which handler ends well, badly or never,
when offsets are committed (and whether that works), when partitions move, members die, topics refuse. After every step
the promises are held against what truly happened.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.client.consumer_records import ConsumerRecord
from headrace.parallel.core import ParallelCore
from headrace.parallel.errors import BatchFailed, Poison, Reject, RetryLater
from headrace.parallel.finished import decode_finished
from headrace.parallel.options import CoreSettings, Limits, Model, Order, Pool, Retry, Window
from headrace.parallel.retries import Fate, Outgoing, diverted_headers
from headrace.parallel.tracker import Commit, PartitionTracker
from headrace.parallel.work import Chunk, Entry, Run
from headrace.records import TimestampType
from headrace.records.columns import Headers
from headrace.topics import TopicPartition

MAIN, RETRY, DEAD = "orders", "orders.retry", "orders.dead"
STEPS = 150
END_STEPS_MAX = 20_000


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

    chunk: Chunk
    run: Run | None = None
    hangs: bool = False


class WatchedCore(ParallelCore):
    """Tells when it gives a record up for good (`on_exhausted="skip"`), which nobody outside could see."""

    def __init__(self, settings: CoreSettings, on_skip: Callable[[Entry], None]) -> None:
        super().__init__(settings)
        self._on_skip = on_skip
        self._skips_seen = 0

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
        self.settings = CoreSettings.of(
            model,
            self.order,
            retry,
            Limits(rng.randint(5, 60), 20_000, rng.randint(5, 60), 5),
            batch,
            rng.randint(1, 6),
        )
        self.workers_max = rng.randint(1, 6)
        self.fail_rate = rng.choice([0.0, 0.05, 0.3])
        self.hang_rate = rng.choice([0.0, 0.0, 0.05])
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
        self.transactional = rng.random() < 0.4
        self.arrivals: Counter[tuple[bytes, Fate, int]] = Counter()
        for partition in self.logs:
            if partition.topic == MAIN:
                self.append(partition, rng.randint(0, 60))
            self.give(partition, rng.choice(self.members))

    # --- the log ----------------------------------------------------------------------------------------------------

    def append(self, partition: TopicPartition, count: int) -> None:
        log = self.logs[partition]
        for _ in range(count):
            # Skewed keys, and some records without one; some offsets have no record.
            key = None if self.rng.random() < 0.1 else b"k%d" % min(int(self.rng.paretovariate(1.0)), 9)
            log.end += self.rng.choice([0, 0, 0, 0, 2])
            self.values += 1
            log.records.append(self.record(partition, log.end, key, b"v%d" % self.values, ()))
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
        if not self.ending and (self.rng.random() < 0.3 if fails is None else fails):
            member.core.failures.end_transaction(transaction, TimeoutError("aborted"), self.now)
            return
        for outgoing in transaction.outgoing:
            self.arrive(outgoing)
        self.take_commits(member, transaction.commits)
        member.core.failures.end_transaction(transaction, None, self.now)

    def commit(self, member: Member, partitions: list[TopicPartition] | None = None, fails: bool | None = None) -> None:
        if self.transactional:
            self.transact(member, fails)
            return
        commits = member.core.commits(partitions)
        if not commits or (self.rng.random() < 0.2 if fails is None else fails):
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
        for partition, owner in self.owners.items():
            if owner is not member or partition in member.paused:
                continue
            log, position = self.logs[partition], member.positions[partition]
            found = [record for record in log.records if record.offset >= position][: self.rng.randint(1, 10)]
            if found:
                member.positions[partition] = found[-1].offset + 1
                member.core.add(partition, found, self.now, self.now_ms)
        slack = 10 * len(self.logs)
        assert member.core.pressure.records <= self.settings.limits.records + slack
        assert member.core.pressure.records >= 0
        assert member.core.pressure.bytes >= 0
        for tracker in member.core.trackers.values():
            assert len(tracker.entries) <= self.settings.limits.ahead + 10

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
            error: BaseException = BatchFailed(bad)
        else:
            error = self.rng.choice(
                [ValueError("no"), ValueError("no"), Reject("never"), RetryLater(2.0)]
                + [Poison(run.tracker.partition, 0, "value", ValueError("bytes"))]
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
        if not self.ending and self.rng.random() < 0.2:
            member.core.failures.produced(outgoing, TimeoutError("refused"), self.now)
            return
        self.arrive(outgoing)
        member.core.failures.produced(outgoing, None, self.now)

    def arrive(self, outgoing: Outgoing) -> None:
        """A diverted record is in its topic."""
        record = outgoing.entry.record
        partition = outgoing.entry.tracker.partition
        headers = tuple(diverted_headers(outgoing, "group", self.now_ms))
        place = (record.value, outgoing.verdict.fate, outgoing.verdict.attempt)
        self.arrivals[place] += 1
        assert not self.transactional or self.arrivals[place] == 1, f"{place} was diverted again"
        if outgoing.verdict.fate is Fate.RETRY_TOPIC:
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
        elif kind < 0.97:
            self.move(rng.choice(list(self.logs)))
        elif kind < 0.98:
            self.crash()
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
                for _ in range(20):
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


def run_seeds(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            Simulation(seed).run()
        except BaseException:
            sys.stderr.write(f"seed {seed}\n")
            raise


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    begin = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    run_seeds(begin, wanted)
    print(f"{wanted} seeds from {begin}: every promise was kept")
