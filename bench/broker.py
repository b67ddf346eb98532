"""One broker next to Apache Kafka, with confluent-kafka as the client of both: throughput, latency, start, memory,
CPU.

    python -m bench.broker [--seconds 3] [--rounds 3] [--only headrace|kafka]

Absolute figures are one machine's; the ratio in one run is what counts. Both brokers have one node, default settings,
and data on the same disk. The client runs in a process of its own and shares the cores with the broker.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import headrace
from bench import peers
from headrace.testing import BrokerProcess

SIZES = (100, 1_000, 10_000)
PARTITIONS = 4


def produce_for(address: str, topic: str, size: int, seconds: float, out: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 262_144,
            "batch.size": 1_000_000,
            "acks": "all",
        }
    )
    value = bytes(range(256)) * (size // 256 + 1)
    value = value[:size]
    produce, sent, delivered = producer.produce, 0, 0
    producer.list_topics(topic, timeout=30)
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        for _ in range(1000):
            try:
                produce(topic, value)
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0)
    left = producer.flush(60)
    elapsed = time.perf_counter() - start
    delivered = sent - left
    out.put({"records": delivered, "seconds": elapsed})


def _consumer(address: str, topic: str, records: int, out: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"bench-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.max.messages.kbytes": 262_144,
            "queued.min.messages": 5_000_000,
            "fetch.queue.backoff.ms": 10,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    got = 0
    first = consumer.consume(1, timeout=30)
    start = time.perf_counter()
    got += len(first)
    while got < records:
        batch = consumer.consume(10_000, timeout=5)
        if not batch:
            break
        got += len(batch)
    out.put({"records": got, "seconds": time.perf_counter() - start})
    consumer.close()


def time_round_trips(address: str, topic: str, count: int, out: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    times = []
    for i in range(count + 200):
        start = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        producer.flush()
        if i >= 200:
            times.append(time.perf_counter() - start)
    times.sort()
    out.put(
        {name: times[int(len(times) * share)] * 1e6 for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))}
    )


def in_process(target: Any, *arguments: Any) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=target, args=(*arguments, out))
    process.start()
    result: dict[str, float] = out.get(timeout=300)
    process.join()
    return result


class Watch:
    """CPU seconds and memory of a broker's process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._cpu()

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def cpu_seconds(self) -> float:
        return self._cpu() - self._before

    def memory_mb(self) -> float:
        return float(self._process.memory_info().rss) / 1e6


@contextlib.contextmanager
def started(kind: str, directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Any, float]]:
    broker: Any
    if kind == "kafka":
        broker = peers.ApacheKafka(directory, settings)
        broker.prepare()
    else:
        broker = BrokerProcess(directory / "data", {"num.partitions": str(PARTITIONS), **(settings or {})})
        # An installed package is compiled by pip; one that is run from its source may not be.
        compileall.compile_dir(str(Path(headrace.__file__).parent), quiet=2)
    start = time.perf_counter()
    broker.start()
    _answers(broker.address)
    took = time.perf_counter() - start
    try:
        yield broker, took
    finally:
        broker.stop()


def _answers(address: str) -> None:
    """Wait until the broker serves metadata, which is when a user can begin."""
    from confluent_kafka.admin import AdminClient

    AdminClient({"bootstrap.servers": address}).list_topics(timeout=60)


def make_topic(address: str, topic: str, partitions: int = PARTITIONS, replicas: int = 1) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if (
            found.error is None
            and len(found.partitions) == partitions
            and all(p.leader >= 0 and len(p.isrs) == replicas for p in found.partitions.values())
        ):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{topic} did not appear")


class _Measured:
    """One running broker, and every round's figures of it."""

    def __init__(self, broker: Any, took: float) -> None:
        self._address = broker.address
        self._pid = broker.pid
        self._rounds: dict[str, list[float]] = {}
        self._records: dict[str, int] = {}
        self._note("start s", took)
        time.sleep(1.0)  # until it is idle
        self._note("idle memory MB", Watch(self._pid).memory_mb())

    def _note(self, name: str, value: float) -> None:
        self._rounds.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._rounds.items()}

    def round_trips(self) -> None:
        if "round-trip" not in self._records:
            self._make_topic("round-trip")
        for name, value in in_process(time_round_trips, self._address, "round-trip", 2000).items():
            self._note(f"round trip {name} µs", value)

    def _make_topic(self, topic: str) -> None:
        make_topic(self._address, topic)
        self._records[topic] = 0

    def produce(self, size: int, seconds: float) -> None:
        topic = f"bench-{size}"
        if topic not in self._records:
            self._make_topic(topic)
            warm_up = in_process(produce_for, self._address, topic, size, 1.0)  # for the Java side's sake
            self._records[topic] += int(warm_up["records"])
        os.sync()  # what was written before is not this round's to bring to the disk
        watch = Watch(self._pid)
        made = in_process(produce_for, self._address, topic, size, seconds)
        self._records[topic] += int(made["records"])
        self._note_rates(f"produce {size} B", made, size, watch)

    def fetch(self, size: int) -> None:
        topic = f"bench-{size}"
        watch = Watch(self._pid)
        read = in_process(_consumer, self._address, topic, self._records[topic])
        self._note_rates(f"fetch {size} B", read, size, watch)

    def _note_rates(self, name: str, done: dict[str, float], size: int, watch: Watch) -> None:
        megabytes = done["records"] * size / 1e6
        self._note(f"{name} k records/s", done["records"] / done["seconds"] / 1e3)
        self._note(f"{name} MB/s", megabytes / done["seconds"])
        self._note(f"{name} CPU s/GB", watch.cpu_seconds() / megabytes * 1e3)

    def loaded(self) -> None:
        self._note("memory after load MB", Watch(self._pid).memory_mb())


def measure(kinds: Sequence[str], seconds: float, rounds: int) -> list[dict[str, float]]:
    """The figures of each kind of broker. They take turns in every round, so what drifts meets all of them alike."""
    with contextlib.ExitStack() as stack:
        brokers = []
        for kind in kinds:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{kind}-"))
            brokers.append(_Measured(*stack.enter_context(started(kind, Path(directory)))))
        for _ in range(rounds):
            for one in brokers:
                one.round_trips()
        for size in SIZES:
            for _ in range(rounds):
                for one in brokers:
                    one.produce(size, seconds)
            for _ in range(rounds):
                for one in brokers:
                    one.fetch(size)
        for one in brokers:
            one.loaded()
        return [one.medians() for one in brokers]


def report(ours: dict[str, float], theirs: dict[str, float]) -> None:
    print(f"{'':32}{'Headrace':>12}{'Kafka':>12}{'ratio':>9}")
    for name, value in ours.items():
        peer = theirs.get(name)
        ratio = f"{value / peer:8.2f}x" if peer else ""
        print(f"{name:32}{value:12.2f}{peer if peer is not None else float('nan'):12.2f}{ratio:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a round of producing takes")
    parser.add_argument("--rounds", type=int, default=3, help="of each figure; the median counts")
    parser.add_argument("--only", choices=("headrace", "kafka"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["headrace", "kafka"]
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"Apache Kafka is not measured: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    found = dict(zip(kinds, measure(kinds, options.seconds, options.rounds)))
    if options.json:
        print(json.dumps(found))
    else:
        report(found[kinds[0]], found.get("kafka", {}))


if __name__ == "__main__":
    main()
