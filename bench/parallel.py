"""Parallel consuming: throughput of every model and order next to one plain consumer and to the ideal, in the same run.

    python -m bench.parallel [--partitions 1,12,100] [--handlers 0,1,5] [--only pool,window,…] [--seconds 0.6]

Keys follow Zipf's law over 10,000 keys: with all-distinct keys, order by key would cost nothing. The ideal is what the
workers could do if nothing else took time: workers ÷ handler time; where order limits it, the longest chain of records
that have to wait for one another × handler time. A handler's time is measured just before each run, with as many
workers that do nothing else (a sleep of 1 ms takes longer than that, most of all on a machine with other things to do).
At 0 ms there is no ideal: there the processor time per record counts (of all threads of this process, so whatever else
the machine does; a plain consumer's is in the heading). The last lines say which targets were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.parallel import Consumers, Model, ParallelConsumer, Pool, Ranges, Window
from headrace.records import use_fast
from headrace.testing import BrokerProcess

KEYS = 10_000
VALUE = b"x" * 100
RATE_MAX = 5_000
"""Records a second that the ideal is set to, where a handler takes time."""
ZERO_RECORDS = 50_000
ZERO_WORKERS = 16
ZERO_TRIES = 2
BARE_S = 0.2
CPU_US_MAX = 15.0
"""The target: processor time of a record whose handler does nothing."""
RATIO_MIN = 0.9
"""The target: of the ideal, where handlers wait."""
LONGEST = 2
"""How many times `--seconds` a run may take where order allows little at once."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Way:
    """One model in one order, on threads or a loop."""

    name: str
    model: Model
    order: str
    is_async: bool = False


WAYS = (
    Way("consumers", Consumers(), "partition"),
    Way("ranges", Ranges(size=200), "none"),
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


class Clocked:
    """Counts handled records, and says when the first began and the last ended."""

    def __init__(self, count: int, wait_s: float) -> None:
        self.count = count
        self.wait_s = wait_s
        self.began = self.ended = 0.0
        self.through = threading.Event()
        self._ticket: Iterator[int] = itertools.count(1)
        self._done: Iterator[int] = itertools.count(1)

    def __call__(self, record: Any) -> None:
        if next(self._ticket) == 1:
            self.began = time.perf_counter()
        if self.wait_s:
            time.sleep(self.wait_s)
        if next(self._done) == self.count:
            self.ended = time.perf_counter()
            self.through.set()

    async def handle(self, record: Any) -> None:
        if next(self._ticket) == 1:
            self.began = time.perf_counter()
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        if next(self._done) == self.count:
            self.ended = time.perf_counter()
            self.through.set()

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def fill(address: str, partitions: int, count: int) -> str:
    """A topic with that many records."""
    topic = f"bench-{next(_numbers)}-{partitions}"
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)]).all()
    weights = [1 / (rank + 1) for rank in range(KEYS)]
    keys = [b"key-%d" % number for number in random.Random(1).choices(range(KEYS), weights, k=count)]
    with Producer({"bootstrap.servers": address}) as producer:
        for start in range(0, count, 10_000):
            part = keys[start : start + 10_000]
            producer.send_batch(topic, [VALUE] * len(part), part).result(60)
    return topic


def chains(address: str, topic: str, partitions: int, count: int) -> dict[str, int]:
    """The most records that have to wait for one another, by order."""
    by_key: Counter[Any] = Counter()
    by_partition: Counter[int] = Counter()
    read = 0
    with Consumer({"bootstrap.servers": address, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, number) for number in range(partitions)])
        while read < count:
            for record in consumer.poll(1.0, max_records=10_000):
                by_key[record.partition, record.key] += 1
                by_partition[record.partition] += 1
                read += 1
    return {"none": 1, "key": max(by_key.values()), "partition": max(by_partition.values())}


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


def parallel(address: str, topic: str, count: int, wait_s: float, way: Way, workers: int) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
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
    return clocked.seconds, used


def bare_s(wait_s: float, hands: int, is_async: bool) -> float:
    """How long a handler takes when so many workers do nothing but call it: the clock, the scheduler, and what else the
    machine has to do."""
    calls = max(10, int(BARE_S / wait_s))

    def work() -> None:
        for _ in range(calls):
            time.sleep(wait_s)

    async def work_async() -> None:
        for _ in range(calls):
            await asyncio.sleep(wait_s)

    async def all_async() -> None:
        await asyncio.gather(*(work_async() for _ in range(hands)))

    began = time.perf_counter()
    if is_async:
        asyncio.run(all_async())
    else:
        threads = [threading.Thread(target=work) for _ in range(hands)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return (time.perf_counter() - began) / calls


def measure(address: str, partitions: int, handler_ms: float, ways: list[Way], seconds: float) -> list[str]:
    """Prints a table, and gives the lines of it that miss a target."""
    wait_s = handler_ms / 1000
    count = ZERO_RECORDS if not wait_s else int(RATE_MAX * seconds)
    workers = ZERO_WORKERS if not wait_s else max(1, round(RATE_MAX * wait_s))
    topic = fill(address, partitions, count)
    chain = chains(address, topic, partitions, count)
    sample = count if not wait_s else min(count, int(seconds / wait_s))
    tries = [plain(address, topic, sample, wait_s) for _ in range(1 if wait_s else ZERO_TRIES)]
    base_s, base_cpu_s = min(one for one, _ in tries) / sample, min(used for _, used in tries) / sample
    print(
        f"\n{partitions} partitions, handler {handler_ms:g} ms, {workers} workers, {count:,} records; "
        f"one plain consumer: {1 / base_s:,.0f}/s, CPU {base_cpu_s * 1e6:.1f} µs",
        flush=True,
    )
    print(f"  {'model':<12}{'order':<11}{'on':<9}{'records/s':>11}{'x plain':>9}{'of ideal':>10}{'CPU µs':>9}")
    missed: list[str] = []
    for way in ways:
        hands = min(workers, partitions) if isinstance(way.model, Consumers) else workers
        taken_s = bare_s(wait_s, hands, way.is_async) if wait_s else 0.0
        # What each record takes at least, given the hands and the longest chain.
        ideal_s = taken_s * max(1 / hands, chain[way.order] / count)
        part = count if not wait_s else min(count, int(LONGEST * seconds / ideal_s))
        # The best of a few where little is measured: other things on the machine only ever take time.
        runs = [parallel(address, topic, part, wait_s, way, hands) for _ in range(1 if wait_s else ZERO_TRIES)]
        each_s, cpu_us = min(one for one, _ in runs) / part, min(used for _, used in runs) / part * 1e6
        ratio = ideal_s / each_s
        where = "loop" if way.is_async else "threads"
        row = f"{way.name:<12}{way.order:<11}{where:<9}{1 / each_s:>11,.0f}{base_s / each_s:>9.1f}"
        row += f"{f'{ratio:.2f}' if wait_s else '-':>10}{cpu_us:>9.1f}"
        print(f"  {row}", flush=True)
        if ratio < RATIO_MIN if wait_s else cpu_us > CPU_US_MAX:
            missed.append(f"{partitions:>4} partitions {handler_ms:g} ms  {row}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="1,12,100")
    parser.add_argument("--handlers", default="0,1,5", help="milliseconds")
    parser.add_argument("--only", default="", help="names of models")
    parser.add_argument("--seconds", type=float, default=0.6, help="the ideal length of a run")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    ways = [way for way in WAYS if not wanted or way.name in wanted]
    # Once a process, after some thousands of records: whichever run that falls into would pay for all.
    use_fast()
    overrides = {"group.initial.rebalance.delay.ms": "0"}
    missed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        BrokerProcess(Path(directory) / "data", overrides) as broker,
    ):
        for partitions in map(int, options.partitions.split(",")):
            for handler_ms in map(float, options.handlers.split(",")):
                missed += measure(broker.address, partitions, handler_ms, ways, options.seconds)
    print(f"\nTargets: CPU ≤ {CPU_US_MAX:g} µs a record at 0 ms, else ≥ {RATIO_MIN} of the ideal; ", end="")
    print("all met" if not missed else "missed by\n" + "\n".join(missed))


if __name__ == "__main__":
    main()
