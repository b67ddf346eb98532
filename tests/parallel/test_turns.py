"""Nobody starves: partitions have their share of the bounds and take turns, and what is due goes first."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import cycle

import pytest
from tests.parallel.making import do, record

from headrace.client.consumer.records import ConsumerRecord
from headrace.parallel.core import ParallelCore
from headrace.parallel.options import CoreSettings, Limits, Model, Order, Pool, Retry, Window
from headrace.parallel.retries import DUE_MS
from headrace.parallel.work import WorkChunk
from headrace.topics import TopicPartition

PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
RETRIES = TopicPartition("orders.retry", 0)


def made(
    order: Order,
    model: Model | None = None,
    workers: int = 2,
    limits: Limits | None = None,
    retry: Retry | None = None,
    batch: int | None = None,
) -> ParallelCore:
    settings = CoreSettings.of(model or Pool(), order, retry or Retry(), limits or Limits(), batch, workers)
    core = ParallelCore(settings)
    for partition in PARTITIONS:
        core.assign(partition, 0)
    return core


class Backlogs:
    """Partitions without end, read as the poller does."""

    def __init__(self, core: ParallelCore, keys: list[bytes | None], sizes: list[int], poll: int) -> None:
        self.core, self.keys, self.sizes, self.poll_max = core, keys, sizes, poll
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.paused: set[TopicPartition] = set()

    def rows(self, partition: TopicPartition, count: int) -> list[ConsumerRecord]:
        first = self.next[partition]
        self.next[partition] += count
        value = b"x" * self.sizes[partition.partition]
        key_of = self.keys[partition.partition]
        keys = (b"k%d" % n if key_of is None else key_of for n in range(first, first + count))
        return [record(n, key, partition, value=value) for n, key in zip(range(first, first + count), keys)]

    def poll(self, now: float) -> None:
        for partition, pause in self.core.pauses():
            (self.paused.add if pause else self.paused.discard)(partition)
        # A poll is filled by one partition, if that has enough; then it is the last to be looked at.
        for partition in list(self.next):
            if partition not in self.paused:
                count = max(1, min(self.poll_max, self.core.pressure.room()))
                self.core.add(partition, self.rows(partition, count), now, 0)
                self.next[partition] = self.next.pop(partition)
                return


CASES = [
    pytest.param(order, model, sizes, keys, id=f"{order.value}-{type(model).__name__}-{name}")
    for order in Order
    for model in (Pool(), Window(slot=20, slots=50, stall_s=None))
    for name, sizes, keys in (
        ("distinct-keys", [10] * 4, [None] * 4),
        ("large-records-in-one", [60_000, 10, 10, 10], [None] * 4),
        ("one-key-in-one", [10] * 4, [b"hot", None, None, None]),
        ("one-key-in-all", [10] * 4, [b"a", b"b", b"c", b"d"]),
    )
]


@pytest.mark.parametrize("quick", [False, True], ids=["slow", "quick"])
@pytest.mark.parametrize(("order", "model", "sizes", "keys"), CASES)
def test_partitions_advance_together(
    order: Order, model: Model, sizes: list[int], keys: list[bytes | None], quick: bool
) -> None:
    core = made(order, model, workers=1, limits=Limits(records=2_000, bytes=8 * 1024 * 1024, ahead=1_500))
    backlogs = Backlogs(core, keys, sizes, poll=500)
    # One has been alone before the others come.
    backlogs.paused.update(PARTITIONS[1:])
    for _ in range(10):
        backlogs.poll(0.0)
    backlogs.paused.difference_update(PARTITIONS[1:])
    done: Counter[TopicPartition] = Counter()
    now, turns = 0.0, 3_000
    while done.total() < turns:
        backlogs.poll(now)
        chunk = core.take(now)
        assert chunk is not None
        done.update(run.tracker.partition for run in chunk.todo for _ in run.entries)
        do(chunk)
        now += 1e-6 if quick else 1.0
        core.complete(chunk, now)
        if done.total() > turns // 4:
            assert min(done[one] for one in PARTITIONS) >= max(done.values()) / 2, done


@pytest.mark.parametrize("order", list(Order))
def test_every_partition_has_its_first_record_handled_within_a_round(order: Order) -> None:
    core = made(order, workers=1)
    core.add(PARTITIONS[0], [record(n, b"k%d" % n, PARTITIONS[0]) for n in range(10_000)], 0.0, 0)
    for _ in range(5):
        chunk = core.take(0.0)
        assert chunk is not None
        do(chunk)
        core.complete(chunk, 1.0)
    for partition in PARTITIONS[1:]:
        core.add(partition, [record(0, b"k", partition)], 1.0, 0)
    begun: set[TopicPartition] = set()
    for _ in range(len(PARTITIONS)):
        chunk = core.take(1.0)
        assert chunk is not None
        begun |= {run.tracker.partition for run in chunk.todo}
    assert begun == set(PARTITIONS)


def test_one_partition_cannot_fill_the_bound_of_all() -> None:
    core = made(Order.NONE, limits=Limits(records=800))
    core.add(PARTITIONS[0], [record(n, None, PARTITIONS[0]) for n in range(800)], 0.0, 0)
    assert core.pauses() == [(PARTITIONS[0], True)]
    for partition in PARTITIONS[1:]:
        assert core.pressure.room() >= 100
        core.add(partition, [record(n, None, partition) for n in range(100)], 0.0, 0)
    assert {name for name, pause in core.pauses() if pause} == set(PARTITIONS[1:]), "each has its share now"


def test_one_partition_alone_is_not_kept_to_its_share() -> None:
    core = made(Order.NONE, limits=Limits(records=800))
    core.add(PARTITIONS[0], [record(n, None, PARTITIONS[0]) for n in range(499)], 0.0, 0)
    assert core.pauses() == []


def test_all_partitions_together_have_all_of_the_bound() -> None:
    core = made(Order.NONE, limits=Limits(records=800))
    for partition in PARTITIONS:
        core.add(partition, [record(n, None, partition) for n in range(199)], 0.0, 0)
    assert core.pauses() == []


def test_large_records_of_one_partition_do_not_pause_the_others() -> None:
    core = made(Order.NONE, limits=Limits(bytes=1_000_000))
    core.add(PARTITIONS[0], [record(n, None, PARTITIONS[0], value=b"x" * 100_000) for n in range(12)], 0.0, 0)
    assert core.pauses() == [(PARTITIONS[0], True)]


def test_records_that_wait_in_the_retry_topic_do_not_pause_others_by_their_bytes() -> None:
    core = made(Order.KEY, retry=Retry(topic=RETRIES.topic), limits=Limits(bytes=1_000_000))
    core.assign(RETRIES, 0)
    held = [record(n, b"k%d" % n, RETRIES, value=b"x" * 1_000, headers=((DUE_MS, b"3600000"),)) for n in range(999)]
    core.add(RETRIES, held, 0.0, 0)
    assert core.pauses() == [(RETRIES, True)], "they have as much again for themselves"
    assert core.pressure.bytes == 0
    core.tick(3_600.0)
    assert core.pressure.bytes == core.trackers[RETRIES].bytes > 1_000_000
    assert (RETRIES, False) not in core.pauses()
    while (chunk := core.take(3_600.0)) is not None:
        do(chunk)
        core.complete(chunk, 3_600.0)
    assert core.pauses() == [(RETRIES, False)]
    assert core.pressure.bytes == 0


@pytest.mark.parametrize("order", list(Order))
def test_a_due_try_goes_before_what_is_in_line(order: Order) -> None:
    core = made(order, workers=1, retry=Retry(local=3, backoff_s=(0.1, 0.1)))
    for partition in PARTITIONS:
        core.add(partition, [record(n, b"k%d" % n, partition) for n in range(2_000)], 0.0, 0)
    chunk = core.take(0.0)
    assert chunk is not None
    failed = chunk.todo[0].entries[0]
    do(chunk, fails=ValueError("no"))
    core.complete(chunk, 0.05)
    now = 0.05
    for _ in range(8):
        core.tick(now)
        chunk = core.take(now)
        assert chunk is not None
        if chunk.todo[0].entries[0] is failed:
            break
        do(chunk)
        now += 0.05
        core.complete(chunk, now)
    assert now <= 0.3, "some turns of others, not all that are in line"


def test_a_partition_whose_records_all_fail_gets_no_more_turns_than_others() -> None:
    core = made(Order.NONE, workers=1, retry=Retry(local=1_000, backoff_s=(0.0, 0.0)))
    for partition in PARTITIONS:
        core.add(partition, [record(n, None, partition) for n in range(1_000)], 0.0, 0)
    begun: Counter[TopicPartition] = Counter()
    now = 0.0
    for _ in range(2_000):
        core.tick(now)
        chunk = core.take(now)
        assert chunk is not None
        partition = chunk.todo[0].tracker.partition
        begun[partition] += 1
        do(chunk, fails=ValueError("no") if partition == PARTITIONS[0] else None)
        now += 1.0
        core.complete(chunk, now)
    assert min(begun.values()) >= max(begun.values()) / 2, begun


def test_keys_of_a_partition_take_turns() -> None:
    core = made(Order.KEY, workers=1)
    keys = cycle([b"many", b"many", b"many", b"a", b"b"])
    core.add(PARTITIONS[0], [record(n, key, PARTITIONS[0]) for n, key in zip(range(500), keys)], 0.0, 0)
    begun: Counter[bytes] = Counter()
    now = 0.0
    for _ in range(90):
        chunk = core.take(now)
        assert chunk is not None
        begun.update(entry.record.key for run in chunk.todo for entry in run.entries)
        do(chunk)
        now += 1.0
        core.complete(chunk, now)
    assert min(begun.values()) >= max(begun.values()) / 2, begun


def test_what_a_worker_gives_back_is_not_counted_as_served() -> None:
    core = made(Order.NONE, workers=1)
    for partition in PARTITIONS:
        core.add(partition, [record(n, None, partition) for n in range(100)], 0.0, 0)
    before = {name: tracker.line.served for name, tracker in core.trackers.items()}
    chunk = core.take(0.0)
    assert chunk is not None
    core.complete(chunk, 1.0)
    assert {name: tracker.line.served for name, tracker in core.trackers.items()} == before


def test_the_longest_lane_is_not_held_up_by_the_turns_of_a_hundred_partitions() -> None:
    """All there is has been read: what takes longest goes on without a pause, or all would wait for it in the end."""
    names = [TopicPartition("orders", number) for number in range(100)]
    core = ParallelCore(CoreSettings.of(Pool(), Order.KEY, Retry(), Limits(), None, 10))
    for name in names:
        core.assign(name, 0)
        count = 200 if name is names[7] else 20
        keys = [b"long" if name is names[7] and n % 10 else b"k%d" % n for n in range(count)]
        core.add(name, [record(n, key, name) for n, key in enumerate(keys)], 0.0, 0)
    core.pauses()
    ends: list[tuple[float, int, WorkChunk]] = []
    now, last, left = 0.0, 0.0, 99 * 20 + 200
    while left:
        while len(ends) < 10 and (chunk := core.take(now)) is not None:
            heapq.heappush(ends, (now + sum(len(run.entries) for run in chunk.todo), id(chunk), chunk))
        now, _, chunk = heapq.heappop(ends)
        if any(entry.record.key == b"long" for run in chunk.todo for entry in run.entries):
            last = now
        left -= sum(len(run.entries) for run in chunk.todo)
        do(chunk)
        core.complete(chunk, now)
    # 180 records of it take 180 s at best, all others together 200.
    assert last < 200
    assert now < 240
