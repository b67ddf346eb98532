"""Three brokers next to an Apache Kafka of three nodes, with confluent-kafka as the client of both.

    python -m bench.cluster [--seconds 3] [--rounds 3] [--partitions 10 100 1000 10000] [--only headrace|kafka]

Produce with acks=all (every record on three brokers), round trips, processor time, start, memory; how long a client
waits when the broker that it writes to is killed, and when all are restarted one by one; then many partitions, on
clusters of their own: what they cost when nothing happens and when little does, and how long it takes until a record is
acknowledged in each partition that a killed broker led.

All settings are the defaults but for three copies, `min.insync.replicas=2`; so the time until a dead broker is noticed
is Kafka's `broker.session.timeout.ms=9000`, and here what the store says: at once when brokers share a directory, the
session's time-out with --zookeeper. Brokers and client share the cores of one machine, and one disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import peers
from bench.broker import in_process, make_topic, produce_for, report, time_round_trips
from bench.three import NODES, Three, three, wait_until

SIZES = (100, 1_000)
PARTITIONS = (10, 100, 1_000)
ROUND_TRIPS = 1_000
IDLE_S = 5.0
#: Brokers with many new partitions collect their garbage once, some seconds after the last of them was made.
RESTING_S = 12.0
LITTLE_PER_S = 500  # records a second over all partitions, when little happens
PARTITIONS_PER_TOPIC = 100
STEADY = "steady"
STEADY_PARTITIONS = 6
_SEND_EVERY_S = 0.005


def send_steadily(address: str, ready: Any, ended: Any, out: Any) -> None:
    """A client with default retries that sends a record every 5 ms, over all partitions: when which was acknowledged,
    and what went wrong."""
    from confluent_kafka import Producer

    acknowledged: dict[int, list[float]] = defaultdict(list)
    errors: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            acknowledged[message.partition()].append(time.monotonic())

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "log_level": 0})
    sent = 0
    while not ended.is_set():
        with contextlib.suppress(BufferError):
            producer.produce(STEADY, b"x" * 100, partition=sent % STEADY_PARTITIONS, on_delivery=delivered)
        sent += 1
        producer.poll(_SEND_EVERY_S)
        if len(acknowledged) == STEADY_PARTITIONS:
            ready.set()
    producer.flush(60)
    out.put((dict(acknowledged), errors))


class Steady:
    """That client, at work in a process of its own."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, self._ended, self._out = context.Event(), context.Event(), context.Queue()
        self._process = context.Process(target=send_steadily, args=(address, self._ready, self._ended, self._out))

    def __enter__(self) -> Steady:
        self._process.start()
        if not self._ready.wait(60):
            raise RuntimeError("no record was acknowledged in each partition within 60 s")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._process.is_alive():
            self._process.join(120)

    def results(self) -> tuple[dict[int, list[float]], list[str]]:
        self._ended.set()
        found: tuple[dict[int, list[float]], list[str]] = self._out.get(timeout=120)
        return found


class Measured:
    """One cluster, and every round's figures of it."""

    def __init__(self, cluster: Three) -> None:
        self.cluster = cluster
        self._rounds: dict[str, list[float]] = {}
        self._topics: set[str] = set()

    def note(self, name: str, value: float) -> None:
        self._rounds.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._rounds.items()}

    def start(self) -> None:
        self.note("start s", self.cluster.start())
        self._topic(STEADY, STEADY_PARTITIONS)
        time.sleep(1.0)  # until it is idle
        self.note("idle memory MB, all three", self.cluster.memory_mb())

    def _topic(self, name: str, partitions: int = 4) -> None:
        if name not in self._topics:
            make_topic(self.cluster.address, name, partitions, replicas=len(NODES))
            self._topics.add(name)

    def round_trips(self) -> None:
        self._topic("round-trip")
        for name, value in in_process(time_round_trips, self.cluster.address, "round-trip", ROUND_TRIPS).items():
            self.note(f"round trip {name} µs", value)

    def produce(self, size: int, seconds: float) -> None:
        topic = f"bench-{size}"
        if topic not in self._topics:
            self._topic(topic)
            in_process(produce_for, self.cluster.address, topic, size, 1.0)  # for the Java side's sake
        os.sync()  # what was written before is not this round's to bring to the disk
        before = self.cluster.cpu_seconds()
        done = in_process(produce_for, self.cluster.address, topic, size, seconds)
        megabytes = done["records"] * size / 1e6
        self.note(f"produce {size} B k records/s", done["records"] / done["seconds"] / 1e3)
        self.note(f"produce {size} B MB/s", megabytes / done["seconds"])
        self.note(f"produce {size} B CPU s/GB", (self.cluster.cpu_seconds() - before) / megabytes * 1e3)

    def kill_leader(self) -> None:
        """How long until the next record is acknowledged in a partition whose leader is killed."""
        cluster = self.cluster
        victim = cluster.leader(STEADY)
        with Steady(cluster.address) as steady:
            killed_at = time.monotonic()
            cluster.nodes[victim].kill()
            wait_until(lambda: cluster.leader(STEADY) not in (victim, -1), "another leader")
            time.sleep(2.0)
            acknowledged, _ = steady.results()
        # An answer may have been on its way when its broker was killed: what counts is the end of the long silence.
        silences = [pair for pair in pairwise(acknowledged[0]) if pair[1] > killed_at]
        _, again = max(silences, key=lambda pair: pair[1] - pair[0])
        self.note("kill -9 of a leader → next acknowledged s", again - killed_at)
        cluster.nodes[victim].start()
        cluster.await_whole()

    def roll(self) -> None:
        """Restart all, one after the other, each when the one before is in sync again."""
        cluster = self.cluster
        with Steady(cluster.address) as steady:
            began = time.monotonic()
            for node in cluster.nodes.values():
                node.stop()
                node.start()
                cluster.await_whole()
            took = time.monotonic() - began
            acknowledged, errors = steady.results()
        silences = (after - before for times in acknowledged.values() for before, after in pairwise(times))
        self.note("rolling restart, all three s", took)
        self.note("rolling restart, longest pause s", max(silences))
        self.note("rolling restart, errors to the client", len(errors))

    def loaded(self) -> None:
        self.note("memory after load MB, all three", self.cluster.memory_mb())


# --- many partitions


def acknowledge_each(address: str, partitions: Sequence[tuple[str, int]], going: Any, ready: Any, out: Any) -> None:
    """A client that knows the partitions, and when told to go, writes a record to each of them: when the last was
    acknowledged; and how long the same takes while nothing happens."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "log_level": 0}
    producer = Producer(config)

    def write_all() -> list[Any]:
        errors: list[Any] = []
        for topic, partition in partitions:
            producer.produce(
                topic, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error) if error else None
            )
        producer.flush(120)
        return errors

    write_all()
    began = time.monotonic()
    write_all()
    steady_s = time.monotonic() - began
    ready.set()
    going.wait()
    errors = write_all()
    out.put((time.monotonic(), len(errors), steady_s))


class Many:
    """A cluster with ever more partitions."""

    def __init__(self, cluster: Three) -> None:
        self._measured = Measured(cluster)
        self._cluster = cluster
        self._made = 0

    def grow(self, partitions: int) -> None:
        self._make(partitions)
        cluster, note = self._cluster, self._measured.note
        time.sleep(RESTING_S)
        note(f"{partitions} × 3: memory MB, all three", cluster.memory_mb())
        note(f"{partitions} × 3: idle CPU %, a broker", self._cpu_percent(IDLE_S))
        note(f"{partitions} × 3: CPU % at {LITTLE_PER_S} records/s, a broker", self._with_little(partitions))
        self._fail_over(partitions)
        cluster.await_whole()

    def medians(self) -> dict[str, float]:
        return self._measured.medians()

    def _make(self, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        began, before = time.monotonic(), self._cluster.cpu_seconds()
        admin = AdminClient({"bootstrap.servers": self._cluster.address, "log_level": 0})
        wanted = []
        while self._made < partitions:
            of_topic = min(PARTITIONS_PER_TOPIC, partitions - self._made)
            wanted.append(NewTopic(f"many-{partitions}-{self._made}", of_topic, len(NODES)))
            self._made += of_topic
        for done in admin.create_topics(wanted, operation_timeout=120, request_timeout=120).values():
            done.result(180)
        self._cluster.await_whole()
        self._measured.note(f"{partitions} × 3: made and in sync s", time.monotonic() - began)
        cpu = (self._cluster.cpu_seconds() - before) / len(NODES)
        self._measured.note(f"{partitions} × 3: made and in sync, CPU s, a broker", cpu)

    def _cpu_percent(self, seconds: float) -> float:
        before = self._cluster.cpu_seconds()
        time.sleep(seconds)
        return 100 * (self._cluster.cpu_seconds() - before) / seconds / len(NODES)

    def _with_little(self, partitions: int) -> float:
        """A few records here and there: what it costs that followers fetch them."""
        from confluent_kafka import Producer

        every = [place for node in NODES for place in self._cluster.led_by(node)]
        producer = Producer({"bootstrap.servers": self._cluster.address, "linger.ms": 0, "acks": "all"})
        before, began = self._cluster.cpu_seconds(), time.monotonic()
        for sent in range(int(LITTLE_PER_S * IDLE_S)):
            topic, partition = every[sent * 7919 % len(every)]
            producer.produce(topic, b"x" * 100, partition=partition)
            producer.poll(max(0.0, began + sent / LITTLE_PER_S - time.monotonic()))
        producer.flush(60)
        took = time.monotonic() - began
        return 100 * (self._cluster.cpu_seconds() - before) / took / len(NODES)

    def _fail_over(self, partitions: int) -> None:
        victim = NODES[0]
        led = self._cluster.led_by(victim)
        context = multiprocessing.get_context("spawn")
        going, ready, out = context.Event(), context.Event(), context.Queue()
        arguments = (self._cluster.address, led, going, ready, out)
        client = context.Process(target=acknowledge_each, args=arguments)
        client.start()
        ready.wait(120)
        killed_at, before = time.monotonic(), self._cluster.cpu_seconds(but=victim)
        self._cluster.nodes[victim].kill()
        going.set()
        known_at = self._cluster.await_leaders(led[-1][0], but=victim)
        acknowledged_at, errors, steady_s = out.get(timeout=240)
        cpu = (self._cluster.cpu_seconds(but=victim) - before) / (len(NODES) - 1)
        client.join()
        if errors:
            raise RuntimeError(f"{errors} of {len(led)} records were not acknowledged after a broker was killed")
        self._measured.note(f"{partitions} × 3: leaders of a killed broker", len(led))
        self._measured.note(f"{partitions} × 3: a record to each of them s, with all up", steady_s)
        self._measured.note(f"{partitions} × 3: failover, until their new leaders are known s", known_at - killed_at)
        self._measured.note(f"{partitions} × 3: failover, until a record is in each s", acknowledged_at - killed_at)
        self._measured.note(f"{partitions} × 3: failover, CPU s, a survivor", cpu)
        self._cluster.nodes[victim].start()


# --- all of it


@contextlib.contextmanager
def clusters(kinds: Sequence[str], *, zookeeper: bool) -> Iterator[list[Measured]]:
    with contextlib.ExitStack() as stack:
        found = []
        for kind in kinds:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{kind}-")))
            found.append(Measured(stack.enter_context(three(kind, directory, zookeeper=zookeeper))))
        yield found


def measure(options: argparse.Namespace, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of each kind. They take turns in every round, so what drifts meets both alike."""
    with clusters(kinds, zookeeper=options.zookeeper) as measured:
        for one in measured:
            one.start()
        for _ in range(options.rounds):
            for one in measured:
                one.round_trips()
        for size in SIZES:
            for _ in range(options.rounds):
                for one in measured:
                    one.produce(size, options.seconds)
        for one in measured:
            one.loaded()
        for _ in range(options.rounds):
            for one in measured:
                one.kill_leader()
        for one in measured:
            one.roll()
        found = {one.cluster.kind: one.medians() for one in measured}
    for kind in kinds:
        with clusters([kind], zookeeper=options.zookeeper) as [one]:
            one.cluster.start()
            many = Many(one.cluster)
            for partitions in sorted(options.partitions):
                many.grow(partitions)
            found[kind] |= many.medians()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a round of producing takes")
    parser.add_argument("--rounds", type=int, default=3, help="of each figure; the median counts")
    parser.add_argument("--partitions", type=int, nargs="*", default=PARTITIONS, help="how many, times three [10 …]")
    parser.add_argument("--zookeeper", action="store_true", help="Headrace's metadata in a real ZooKeeper")
    parser.add_argument("--only", choices=("headrace", "kafka"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["headrace", "kafka"]
    if "kafka" in kinds and peers.kafka_libs() is None:
        print(f"Apache Kafka is not measured: {peers.why_no_kafka()}")
        kinds.remove("kafka")
    # Apache Kafka keeps the files of all partitions open.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = measure(options, kinds)
    if options.json:
        print(json.dumps(found))
    else:
        report(found[kinds[0]], found.get("kafka", {}))


if __name__ == "__main__":
    main()
