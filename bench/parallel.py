"""Parallel consuming: throughput of every model and order next to one plain consumer and to the ideal, in the same run.

    python -m bench.parallel [--partitions 1,12,100] [--handlers 0,1,5] [--only pool,ranges,pool/key/loop,…]
                             [--seconds 3] [--tries 2] [--where]
    python -m bench.parallel --backlog 1000000 [--handlers 0,1] [--only …]

`--only` chooses rows: a model, or model/order, or model/order/threads (or loop). `--where` adds to each row with an
ideal where the rest of the time went, in hundredths of it (see `Lost`).

Keys follow Zipf's law over 10,000 keys: with all-distinct keys, order by key would cost nothing. The ideal is what the
workers could do if nothing else took time: all records ÷ workers, or the longest chain of records that have to wait for
one another (a key's, a partition's; for a consumer per thread, all of the partitions that the busiest one was given),
whichever is more, × handler time. All records are handled, to the end of the longest chain; only where there is but one
chain a part of it says the same. A handler's time is measured before each run and after the last, with as many workers
that do nothing else, coroutines on the same kind of loop (a sleep of 1 ms takes longer than that, most of all on a
machine with other things to do); it is printed with each row. On asyncio's own loop, which rounds timers up to whole
milliseconds, it takes longer still; the table's heading says how long, and no ideal is taken from it. Of the runs the
shortest counts, of those measurements too: other things on the machine only ever take time, from either.

A run has an ideal length of 3 s: connections, and workers that wait for the last ones, weigh as much as they would
with a backlog of 15,000 records (`--seconds 1`: of 5,000). What was loaded before is kept from the garbage collector:
a full collection of numba's objects takes 0.1 s, and would fall into one run or another.
At 0 ms there is no ideal: there the processor time per record counts (of all threads of this process, so whatever else
the machine does; a plain consumer's is in the heading). The last lines say which targets were missed.

With `--backlog` something else is measured: so many records in four partitions, most of them in the first, and how the
others fare meanwhile. A row says when the first record of each partition was handled (in seconds after the first of
all; of the slowest one), and how far partitions had come when the first of them was through, or after `--seconds`: the
records of the slowest ÷ those of the fastest.

A consumer per thread is measured on a broker that waits for a new group's members, as Kafka's do by default: the first
record is handled when all have their partitions. The others have one member, and a broker that does not wait.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges, Window
from headrace.records import use_fast
from headrace.runtime.loops import make_loop
from headrace.testing import BrokerProcess

KEYS = 10_000
VALUE = b"x" * 100
RATE_MAX = 5_000
"""Records a second that the ideal is set to, where a handler takes time."""
ZERO_RECORDS = 50_000
ZERO_WORKERS = 16
BARE_S = 0.2
CPU_US_MAX = 15.0
"""The target: processor time of a record whose handler does nothing."""
RATIO_MIN = 0.9
"""The target: of the ideal, where handlers wait."""
LONGEST = 2
"""How many times `--seconds` a run may take where all records are one chain."""
JOIN_MS = 300
"""How long the broker waits for another member of a new group."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Way:
    """One model in one order, on threads or a loop."""

    name: str
    model: Model
    order: str
    is_async: bool = False

    @property
    def where(self) -> str:
        return "loop" if self.is_async else "threads"

    def is_named(self, names: set[str]) -> bool:
        """Whether one of these names it: model, model/order or model/order/where."""
        parts = (self.name, self.order, self.where)
        return any("/".join(parts[:length]) in names for length in (1, 2, 3))

    def chain_of(self, record: Any) -> Any:
        """What a record has to wait for: others with the same."""
        return {"none": None, "partition": record.partition, "key": (record.partition, record.key)}[self.order]


WAYS = (
    Way("consumers", Consumers(), "partition"),
    Way("ranges", Ranges(), "none"),
    Way("pool", Pool(), "partition"),
    Way("pool", Pool(), "key"),
    Way("pool", Pool(), "none"),
    Way("pool", Pool(), "key", is_async=True),
    Way("pool", Pool(), "none", is_async=True),
    Way("window", Window(slot=16, slots=512), "partition"),
    Way("window", Window(slot=16, slots=512), "key"),
    Way("window", Window(slot=16, slots=512), "none"),
    Way("window", Window(slot=16, slots=512), "none", is_async=True),
)


class Call(NamedTuple):
    """One handled record: by which thread or coroutine, and when."""

    hand: int
    record: Any
    began: float
    ended: float


class Clocked:
    """Counts handled records, and says when the first began and the last ended; of those that wait, of each."""

    def __init__(self, count: int, wait_s: float) -> None:
        self.count = count
        self.wait_s = wait_s
        self.began = self.ended = 0.0
        self.calls: list[Call] = []
        self.through = threading.Event()
        self._ticket: Iterator[int] = itertools.count(1)
        self._done: Iterator[int] = itertools.count(1)

    def __call__(self, record: Any) -> None:
        if next(self._ticket) == 1:
            self.began = time.perf_counter()
        if self.wait_s:
            began = time.perf_counter()
            time.sleep(self.wait_s)
            self.calls.append(Call(threading.get_ident(), record, began, time.perf_counter()))
        if next(self._done) == self.count:
            self.ended = time.perf_counter()
            self.through.set()

    async def handle(self, record: Any) -> None:
        if next(self._ticket) == 1:
            self.began = time.perf_counter()
        if self.wait_s:
            began = time.perf_counter()
            await asyncio.sleep(self.wait_s)
            self.calls.append(Call(id(asyncio.current_task()), record, began, time.perf_counter()))
        if next(self._done) == self.count:
            self.ended = time.perf_counter()
            self.through.set()

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def fill(address: str, topic: str, partitions: int, count: int) -> None:
    """A topic with that many records, always the same."""
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)]).all()
    weights = [1 / (rank + 1) for rank in range(KEYS)]
    keys = [b"key-%d" % number for number in random.Random(1).choices(range(KEYS), weights, k=count)]
    with Producer({"bootstrap.servers": address}) as producer:
        for start in range(0, count, 10_000):
            part = keys[start : start + 10_000]
            producer.send_batch(topic, [VALUE] * len(part), part).result(60)


@dataclass(frozen=True)
class Chains:
    """How many records have to wait for one another, in a topic."""

    by_partition: Counter[int]
    key: int
    """Of the key that has the most."""

    @classmethod
    def of(cls, address: str, topic: str, partitions: int, count: int) -> Chains:
        by_key: Counter[Any] = Counter()
        by_partition: Counter[int] = Counter()
        with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(topic, number) for number in range(partitions)])
            while by_partition.total() < count:
                for record in consumer.poll(1.0, max_records=10_000):
                    by_key[record.partition, record.key] += 1
                    by_partition[record.partition] += 1
        return cls(by_partition, max(by_key.values()))

    def longest(self, way: Way, calls: list[Call]) -> int:
        """The most that have to wait for one another."""
        if isinstance(way.model, Consumers):
            thread_of = {call.record.partition: call.hand for call in calls}
            by_thread: Counter[int] = Counter()
            for partition, count in self.by_partition.items():
                by_thread[thread_of[partition]] += count
            return max(by_thread.values())
        return {"none": 1, "key": self.key, "partition": max(self.by_partition.values())}[way.order]


def plain(address: str, topic: str, count: int, wait_s: float) -> tuple[float, float]:
    """One consumer in the same kind of group, the handler called in its loop: seconds, and of processor time."""
    clocked = Clocked(count, wait_s)
    config = {"bootstrap.servers": address, "auto.offset.reset": "earliest", "group.id": f"plain-{next(_numbers)}"}
    began = time.process_time()
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        while not clocked.through.is_set():
            for record in consumer.poll(1.0):
                clocked(record)
        used = time.process_time() - began
    return clocked.seconds, used


@dataclass(frozen=True)
class Ran:
    """What one run took, and its calls."""

    began: float
    seconds: float
    cpu_s: float
    calls: list[Call]


@dataclass(frozen=True)
class Lost:
    """Where the time went that the ideal has not, as shares of all of it: of all workers, or where one chain decides
    (the records of a key, a partition, a thread that has partitions of its own) along that chain."""

    first: float
    """Before a worker's first record."""
    between: float
    """From one record to the next."""
    calls: float
    """Calls that took longer than they do where nothing else is done: others had the processor, or the interpreter."""
    last: float
    """After a worker's last record, until all are through."""

    @classmethod
    def of(cls, ran: Ran, taken_s: float, rows: list[list[Call]]) -> Lost:
        ended = ran.began + ran.seconds
        total = ran.seconds * len(rows)
        first = sum(row[0].began - ran.began if row else ran.seconds for row in rows)
        last = sum(ended - row[-1].ended for row in rows if row)
        calls = sum(call.ended - call.began - taken_s for row in rows for call in row)
        between = total - first - last - calls - taken_s * sum(map(len, rows))
        return cls(first / total, between / total, calls / total, last / total)

    def __str__(self) -> str:
        parts = {"first": self.first, "between": self.between, "calls": self.calls, "last": self.last}
        return "  ".join(f"{name} {share * 100:4.1f}" for name, share in parts.items())


def rows_of(way: Way, calls: list[Call], hands: int, is_chained: bool) -> list[list[Call]]:
    """The calls of each worker, or only those of the longest chain."""
    by_hand = not is_chained or isinstance(way.model, Consumers)
    rows: dict[Any, list[Call]] = {}
    for call in sorted(calls, key=lambda one: one.began):
        rows.setdefault(call.hand if by_hand else way.chain_of(call.record), []).append(call)
    if is_chained:
        return [max(rows.values(), key=len)]
    return [*rows.values(), *([] for _ in range(hands - len(rows)))]


def parallel(address: str, topic: str, count: int, wait_s: float, way: Way, workers: int) -> Ran:
    """All of a topic, or so many of its records."""
    clocked = Clocked(count, wait_s)
    handler: Callable[..., Any] = clocked.handle if way.is_async else clocked
    consumer = ParallelConsumer(
        handler,
        topics=[topic],
        group=f"parallel-{next(_numbers)}",
        config={"bootstrap.servers": address, "auto.offset.reset": "earliest"},
        model=way.model,
        order=way.order,
        workers=workers,
    )
    began = time.process_time()
    consumer.start()
    if not clocked.through.wait(180):
        raise SystemExit(f"{way}: not through after 180 s: {consumer.snapshot().log_line()}")
    used = time.process_time() - began
    consumer.stop()
    consumer.wait()
    return Ran(clocked.began, clocked.seconds, used, clocked.calls)


def bare_s(
    wait_s: float,
    hands: int,
    is_async: bool,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = make_loop,
) -> float:
    """How long a handler takes when so many workers do nothing but call it: the clock, the scheduler, and what else the
    machine has to do. They begin one after another, as nothing keeps workers in step: 25 coroutines that wait 5 ms then
    take longer than if all began at once (fewer ones and threads do not)."""
    calls = max(10, int(BARE_S / wait_s))
    taken: list[float] = []

    def work(number: int) -> None:
        time.sleep(wait_s * number / hands)
        began = time.perf_counter()
        for _ in range(calls):
            time.sleep(wait_s)
        taken.append(time.perf_counter() - began)

    async def work_async(number: int) -> None:
        await asyncio.sleep(wait_s * number / hands)
        began = time.perf_counter()
        for _ in range(calls):
            await asyncio.sleep(wait_s)
        taken.append(time.perf_counter() - began)

    async def all_async() -> None:
        await asyncio.gather(*map(work_async, range(hands)))

    if is_async:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(all_async())
    else:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(hands)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(taken) / hands / calls


@dataclass(frozen=True)
class Brokers:
    """Where to measure: the addresses of a broker that lets a group begin at once, and of one that waits for more."""

    at_once: str
    waiting: str

    def of(self, way: Way) -> str:
        return self.waiting if isinstance(way.model, Consumers) else self.at_once


@dataclass(frozen=True)
class Measured:
    """One row: seconds that a record takes, of processor time, that its handler takes alone, how much of the ideal that
    is, where the rest went."""

    each_s: float
    cpu_s: float
    taken_s: float
    ratio: float
    lost: Lost | None


@dataclass(frozen=True)
class Setting:
    """One table: a topic on both brokers, and how it is handled."""

    brokers: Brokers
    topic: str
    partitions: int
    count: int
    wait_s: float
    workers: int
    seconds: float
    tries: int
    """Of which the best counts: other things on the machine only ever take time."""
    chains: Chains

    @classmethod
    def make(cls, brokers: Brokers, partitions: int, handler_ms: float, seconds: float, tries: int) -> Setting:
        wait_s = handler_ms / 1000
        count = ZERO_RECORDS if not wait_s else int(RATE_MAX * seconds)
        workers = ZERO_WORKERS if not wait_s else max(1, round(RATE_MAX * wait_s))
        topic = f"bench-{next(_numbers)}-{partitions}"
        for address in (brokers.at_once, brokers.waiting):
            fill(address, topic, partitions, count)
        chains = Chains.of(brokers.at_once, topic, partitions, count)
        return cls(brokers, topic, partitions, count, wait_s, workers, seconds, tries, chains)

    def plain(self) -> tuple[float, float]:
        """Seconds that a record takes with one plain consumer, and of processor time."""
        sample = self.count if not self.wait_s else min(self.count, int(self.seconds / self.wait_s))
        tries = [plain(self.brokers.at_once, self.topic, sample, self.wait_s) for _ in range(self.tries)]
        return min(one for one, _ in tries) / sample, min(used for _, used in tries) / sample

    def coarse(self, ways: list[Way]) -> str:
        """How long a handler takes alone on asyncio's own loop."""
        if not any(way.is_async for way in ways):
            return ""
        taken_s = min(bare_s(self.wait_s, self.workers, True, asyncio.new_event_loop) for _ in range(self.tries))
        return f"; alone on asyncio's own loop a handler takes {taken_s * 1000:.2f} ms"

    def measure(self, way: Way) -> Measured:
        hands = min(self.workers, self.partitions) if isinstance(way.model, Consumers) else self.workers
        bare: list[float] = []

        def measure_bare() -> None:
            if self.wait_s:
                bare.append(bare_s(self.wait_s, hands, way.is_async))

        measure_bare()
        count = self.count
        is_one_chain = way.order == "partition" and self.partitions == 1
        if self.wait_s and is_one_chain:
            count = min(count, int(LONGEST * self.seconds / bare[0]))
        runs: list[Ran] = []
        for _ in range(self.tries):
            runs.append(parallel(self.brokers.of(way), self.topic, count, self.wait_s, way, hands))
            measure_bare()
        best = min(runs, key=lambda run: run.seconds)
        each_s, cpu_s = best.seconds / count, min(run.cpu_s for run in runs) / count
        if not self.wait_s:
            return Measured(each_s, cpu_s, 0.0, 0.0, None)
        taken_s = min(bare)
        chain = count if is_one_chain else self.chains.longest(way, best.calls)
        ideal_s = taken_s * max(1 / hands, chain / count)
        rows = rows_of(way, best.calls, hands, chain / count > 1 / hands)
        return Measured(each_s, cpu_s, taken_s, ideal_s / each_s, Lost.of(best, taken_s, rows))


# --- a backlog in one partition ---------------------------------------------------------------------------------------

BACKLOG_PARTITIONS = 4
BACKLOG_OTHERS = 20
"""The part of the records that each of the other partitions has: a twentieth."""
BACKLOG_WORKERS = 16
PROGRESS_MIN = 0.5
"""The target: how far the slowest partition has come, of the fastest one's records."""
BACKLOG_WAYS = (Way("consumers", Consumers(), "partition"), *WAYS[1:])


class Progress:
    """How many records of each partition were handled, and when the first of each was."""

    def __init__(self, wait_s: float, enough: int) -> None:
        self.wait_s = wait_s
        self.enough = enough
        self.first: dict[int, float] = {}
        self.handled = [itertools.count() for _ in range(BACKLOG_PARTITIONS)]
        self.counts = [0] * BACKLOG_PARTITIONS
        self.is_one_through = threading.Event()

    def _note(self, partition: int) -> None:
        self.first.setdefault(partition, time.perf_counter())
        count = self.counts[partition] = next(self.handled[partition]) + 1
        if count >= self.enough:
            self.is_one_through.set()

    def __call__(self, record: Any) -> None:
        if self.wait_s:
            time.sleep(self.wait_s)
        self._note(record.partition)

    async def handle(self, record: Any) -> None:
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        self._note(record.partition)


def fill_backlog(address: str, topic: str, count: int) -> int:
    """Most of it in the first partition; how many each of the others has."""
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(topic, BACKLOG_PARTITIONS, 1)]).all()
    others = count // BACKLOG_OTHERS
    weights = [1 / (rank + 1) for rank in range(KEYS)]
    keys = [b"key-%d" % number for number in random.Random(1).choices(range(KEYS), weights, k=10_000)]
    with Producer({"bootstrap.servers": address}) as producer:
        for partition in range(BACKLOG_PARTITIONS):
            left = others if partition else count - others * (BACKLOG_PARTITIONS - 1)
            while left > 0:
                part = keys[:left]
                producer.send_batch(topic, [VALUE] * len(part), part, partition=partition).result(60)
                left -= len(part)
    return others


def backlog(address: str, topic: str, others: int, way: Way, wait_s: float, seconds: float) -> tuple[float, float]:
    """Seconds until each partition had its first record handled, and the slowest one's records ÷ the fastest one's."""
    progress = Progress(wait_s, others)
    handler: Callable[..., Any] = progress.handle if way.is_async else progress
    consumer = ParallelConsumer(
        handler,
        topics=[topic],
        group=f"backlog-{next(_numbers)}",
        config={"bootstrap.servers": address, "auto.offset.reset": "earliest"},
        model=way.model,
        order=way.order,
        workers=1 if isinstance(way.model, Consumers) else BACKLOG_WORKERS,
        drain_s=5.0,
    )
    consumer.start()
    deadline = time.perf_counter() + 60
    while not progress.first and time.perf_counter() < deadline:
        time.sleep(0.001)
    progress.is_one_through.wait(seconds)
    counts, first = list(progress.counts), dict(progress.first)
    consumer.stop()
    consumer.wait()
    late = max(first.values()) - min(first.values()) if len(first) == BACKLOG_PARTITIONS else float("inf")
    return late, min(counts) / max(counts)


def backlog_table(address: str, count: int, handler_ms: float, seconds: float, ways: list[Way]) -> list[str]:
    """Prints a table, and gives the lines of it that miss the target."""
    topic = f"backlog-{next(_numbers)}"
    others = fill_backlog(address, topic, count)
    name = (
        f"a backlog of {count:,}, {others:,} in each of {BACKLOG_PARTITIONS - 1} partitions, handler {handler_ms:g} ms"
    )
    print(f"\n{name}, {BACKLOG_WORKERS} workers", flush=True)
    print(f"  {'model':<12}{'order':<11}{'on':<9}{'all begun s':>13}{'progress':>10}")
    missed: list[str] = []
    for way in ways:
        late, ratio = backlog(address, topic, others, way, handler_ms / 1000, seconds)
        row = f"{way.name:<12}{way.order:<11}{way.where:<9}{late:>13.2f}{ratio:>10.2f}"
        print(f"  {row}", flush=True)
        if ratio < PROGRESS_MIN:
            missed.append(f"{name}: {row}")
    return missed


def table(setting: Setting, ways: list[Way], *, shows_lost: bool) -> list[str]:
    """Prints a table, and gives the lines of it that miss a target."""
    name = f"{setting.partitions} partitions, handler {setting.wait_s * 1000:g} ms"
    base_s, base_cpu_s = setting.plain()
    print(
        f"\n{name}, {setting.workers} workers, {setting.count:,} records; "
        f"one plain consumer: {1 / base_s:,.0f}/s, CPU {base_cpu_s * 1e6:.1f} µs",
        flush=True,
    )
    if setting.wait_s:
        print(f"  runs of {setting.seconds:g} s{setting.coarse(ways)}", flush=True)
    heads = f"{'records/s':>11}{'x plain':>9}{'alone ms':>10}{'of ideal':>10}{'CPU µs':>9}"
    print(f"  {'model':<12}{'order':<11}{'on':<9}{heads}")
    missed: list[str] = []
    for way in ways:
        found = setting.measure(way)
        row = f"{way.name:<12}{way.order:<11}{way.where:<9}{1 / found.each_s:>11,.0f}{base_s / found.each_s:>9.1f}"
        row += f"{found.taken_s * 1000:>10.2f}{found.ratio:>10.2f}" if setting.wait_s else f"{'-':>10}{'-':>10}"
        row += f"{found.cpu_s * 1e6:>9.1f}"
        print(f"  {row}{f'   {found.lost}' if shows_lost and found.lost else ''}", flush=True)
        if found.ratio < RATIO_MIN if setting.wait_s else found.cpu_s * 1e6 > CPU_US_MAX:
            missed.append(f"{name:<32}{row}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="1,12,100")
    parser.add_argument("--handlers", default="0,1,5", help="milliseconds")
    parser.add_argument("--only", default="", help="rows: model, model/order or model/order/threads")
    parser.add_argument("--seconds", type=float, default=3.0, help="the ideal length of a run")
    parser.add_argument("--tries", type=int, default=2, help="runs of each row, of which the best counts")
    parser.add_argument("--backlog", type=int, default=0, help="measure how partitions fare next to so many records")
    parser.add_argument("--where", action="store_true", help="say where the time went that the ideal has not")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    ways = [way for way in WAYS if not wanted or way.is_named(wanted)]
    # Once a process, after some thousands of records: whichever run that falls into would pay for all.
    use_fast()
    gc.collect()
    gc.freeze()
    delay = "group.initial.rebalance.delay.ms"
    missed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        BrokerProcess(Path(directory) / "at-once", {delay: "0"}) as at_once,
        BrokerProcess(Path(directory) / "waiting", {delay: str(JOIN_MS)}) as waiting,
    ):
        if options.backlog:
            ways = [way for way in BACKLOG_WAYS if not wanted or way.is_named(wanted)]
            for handler_ms in map(float, options.handlers.split(",")):
                missed += backlog_table(at_once.address, options.backlog, handler_ms, options.seconds, ways)
            print(f"\nTarget: progress ≥ {PROGRESS_MIN}; ", end="")
            print("met" if not missed else "missed by\n" + "\n".join(missed))
            return
        brokers = Brokers(at_once.address, waiting.address)
        for partitions in map(int, options.partitions.split(",")):
            for handler_ms in map(float, options.handlers.split(",")):
                setting = Setting.make(brokers, partitions, handler_ms, options.seconds, options.tries)
                missed += table(setting, ways, shows_lost=options.where)
    print(f"\nTargets: CPU ≤ {CPU_US_MAX:g} µs a record at 0 ms, else ≥ {RATIO_MIN} of the ideal; ", end="")
    print("all met" if not missed else "missed by\n" + "\n".join(missed))


if __name__ == "__main__":
    main()
