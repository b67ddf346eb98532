"""Spark to and from Kafka: our source and sinks next to Spark's own connector, in one session on one broker.

    python -m bench.spark [--rows N] [--rounds N] [--broker HOST:PORT] [--quick]

Spark's own connector takes part when its jars are here (`make peers`; they also run in a newer Spark). Rounds alternate
between the two, after one that warms up the JVM and the Python workers. Each figure is that of the best round, because
other work on a small machine only ever slows one down. Beside rows per second stands the processor time that a million
rows cost (driver, JVM and Python workers, not the broker), which is the same on a busy machine. Streams are measured
with their start, and without it, as Spark itself counts (`processedRowsPerSecond`). `exactly once` is held against our
own at-least-once sink.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.family import Family
from bench.peers import spark_jars, why_no_spark_jars
from headrace.client.admin import Admin, NewTopic
from headrace.spark import exactly_once, session
from headrace.testing import BrokerProcess

PARTITIONS = 4
SIZES = (100, 1000)
READS_PER_WRITE = 4
"""Reading is faster: with fewer rows, starting a query would be most of what is measured."""
ONCE, ONCE_KEYLESS = "exactly once", "exactly once, no keys"


@dataclass(frozen=True, slots=True)
class Cost:
    """The best of some rounds: seconds on the clock, of processors, and (a stream's) of its micro-batches."""

    clock_s: float
    cpu_s: float
    batches_s: float


class Bench:
    """A session, a broker, and what is measured with both."""

    def __init__(self, spark: Any, servers: str, rows: int, rounds: int, formats: list[str], family: Family) -> None:
        self.spark, self.servers, self.rows, self.rounds, self.formats = spark, servers, rows, rounds, formats
        self.family = family
        self.directory = tempfile.mkdtemp(prefix="bench-spark-")

    def topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        with Admin({"bootstrap.servers": self.servers}) as admin:
            admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)]).all()
        return name

    def drop(self, name: str) -> None:
        with Admin({"bootstrap.servers": self.servers}) as admin:
            admin.delete_topics([name]).all()

    def records(self, size: int, rows: int) -> Any:
        """Rows made by Spark: a key of 8 bytes, a value of `size` that differs from row to row."""
        frame = self.spark.range(0, rows, 1, PARTITIONS)
        return frame.selectExpr(
            "cast(lpad(cast(id % 10000 as string), 8, '0') as binary) as key",
            f"cast(rpad(cast(id as string), {size}, 'x') as binary) as value",
        )

    def options(self, made: Any, topic: str) -> Any:
        return made.option("kafka.bootstrap.servers", self.servers).option("subscribe", topic)

    # --- what is measured ---------------------------------------------------------------------------------------------

    def batch_read(self, source: str, topic: str) -> float:
        self.options(self.spark.read.format(source), topic).load().write.format("noop").mode("overwrite").save()
        return 0.0

    def stream_read(self, source: str, topic: str) -> float:
        return self._run(self._stream(source, topic).writeStream.format("noop"))

    def batch_write(self, sink: str, frame: Any, topic: str) -> float:
        writer = frame.write.format(sink).mode("append").option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", topic).save()
        return 0.0

    def stream_write(self, sink: str, source_topic: str, topic: str) -> float:
        # The same source for all, so that sinks are compared.
        rows = self._stream("headrace", source_topic).select("key", "value")
        writer = rows.writeStream.format(sink).option("kafka.bootstrap.servers", self.servers)
        return self._run(writer.option("topic", topic))

    def stream_once(self, source_topic: str, topic: str, *, keyed: bool) -> float:
        rows = self._stream("headrace", source_topic).select(*(("key", "value") if keyed else ("value",)))
        return self._run(rows.writeStream.foreachBatch(exactly_once(topic, self.servers)))

    def _stream(self, source: str, topic: str) -> Any:
        return self.options(self.spark.readStream.format(source), topic).option("startingOffsets", "earliest").load()

    def _run(self, writer: Any) -> float:
        """Run a stream to its end; how many seconds its micro-batches took."""
        checkpoint = f"{self.directory}/{uuid.uuid4().hex}"
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(float(report["durationMs"]["triggerExecution"]) for report in query.recentProgress) / 1000

    # --- measuring ----------------------------------------------------------------------------------------------------

    def alternate(self, runs: dict[str, Callable[[], float]]) -> dict[str, Cost]:
        """What each costs, run in turn: one round to warm up, then the rounds that count."""
        clocks: dict[str, list[float]] = {name: [] for name in runs}
        cpus: dict[str, list[float]] = {name: [] for name in runs}
        batches: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(self.rounds + 1):
            for name, run_one in runs.items():
                cpu_s, start = self.family.seconds(), time.perf_counter()
                batches[name].append(run_one())
                clocks[name].append(time.perf_counter() - start)
                cpus[name].append(self.family.seconds() - cpu_s)
        return {name: Cost(min(clocks[name][1:]), min(cpus[name][1:]), min(batches[name][1:])) for name in runs}

    def into_fresh(self, run: Callable[[str], float]) -> Callable[[], float]:
        def round_() -> float:
            topic = self.topic()
            batches_s = run(topic)
            self.drop(topic)
            return batches_s

        return round_

    def size(self, size: int) -> None:
        source = self.topic()
        self.batch_write("headrace", self.records(size, self.rows), source)
        self.report(
            f"{self.rows:,} rows of {size} B read",
            self.rows,
            {
                "batch read": {name: lambda name=name: self.batch_read(name, source) for name in self.formats},
                "stream read": {name: lambda name=name: self.stream_read(name, source) for name in self.formats},
            },
        )
        self.drop(source)
        self.writes(size, self.rows // READS_PER_WRITE)

    def writes(self, size: int, rows: int) -> None:
        source = self.topic()
        self.batch_write("headrace", self.records(size, rows), source)
        frame = self.records(size, rows).cache()
        frame.count()
        self.report(
            f"{rows:,} rows of {size} B written",
            rows,
            {
                "batch write": {
                    name: self.into_fresh(lambda topic, name=name: self.batch_write(name, frame, topic))
                    for name in self.formats
                },
                "stream write": {
                    name: self.into_fresh(lambda topic, name=name: self.stream_write(name, source, topic))
                    for name in self.formats
                }
                | {
                    label: self.into_fresh(lambda topic, keyed=keyed: self.stream_once(source, topic, keyed=keyed))
                    for label, keyed in ((ONCE, True), (ONCE_KEYLESS, False))
                },
            },
        )
        frame.unpersist()
        self.drop(source)

    def report(self, title: str, rows: int, table: dict[str, dict[str, Callable[[], float]]]) -> None:
        print(f"\n{title}: rows/s, (without a stream's start,) and processor seconds for a million")
        for label, runs in table.items():
            show(label, rows, self.alternate(runs))

    def latency(self) -> None:
        """How long a small micro-batch takes, once warm."""
        source = self.topic()
        for label, start in (
            ("at least once", lambda rows, topic: rows.writeStream.format("headrace").option("topic", topic)),
            ("exactly once", lambda rows, topic: rows.writeStream.foreachBatch(exactly_once(topic, self.servers))),
        ):
            self.batch_write("headrace", self.records(100, 20_000), source)
            made = self.options(self.spark.readStream.format("headrace"), source).option("startingOffsets", "earliest")
            rows = made.option("maxOffsetsPerTrigger", 1000).load().select("key", "value")
            writer = start(rows, self.topic()).option("kafka.bootstrap.servers", self.servers)
            checkpoint = f"{self.directory}/{uuid.uuid4().hex}"
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            took = sorted(report["durationMs"]["triggerExecution"] for report in query.recentProgress[2:])
            print(f"  a micro-batch of 1,000 rows, {label}: {took[len(took) // 2]} ms (median of {len(took)})")


def show(label: str, rows: int, found: dict[str, Cost]) -> None:
    ours, peer = found["headrace"], found.get("kafka")
    line = f"  {label:<22} headrace {figures(rows, ours)}"
    if peer is not None:
        line += f"   Spark's own {figures(rows, peer)}   {ratios(peer, ours)}"
    print(line, flush=True)
    for name in (ONCE, ONCE_KEYLESS):
        if name in found:
            print(f"  {name:<22} headrace {figures(rows, found[name])}   of at least once {ratios(ours, found[name])}")


def figures(rows: int, cost: Cost) -> str:
    started = f" ({rows / cost.batches_s:,.0f})" if cost.batches_s else ""
    return f"{rows / cost.clock_s:>10,.0f}{started:>12} {cost.cpu_s / rows * 1e6:>6.2f} s"


def ratios(base: Cost, ours: Cost) -> str:
    """How many times as fast, by the clock (without a stream's start) and by processor time."""
    started = f" ({base.batches_s / ours.batches_s:.2f}x)" if ours.batches_s else ""
    return f"{base.clock_s / ours.clock_s:5.2f}x{started}, by processor time {base.cpu_s / ours.cpu_s:5.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", help="an address; a broker of its own without it")
    parser.add_argument("--quick", action="store_true", help="few rows, two rounds")
    given = parser.parse_args()
    rows, rounds = (200_000, 2) if given.quick else (given.rows, given.rounds)
    jars = spark_jars()
    config = {"spark.jars": jars} if jars else {}
    spark = session("bench", master="local[2,4]", config={**config, "spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")
    formats = ["headrace", *(["kafka"] if jars else [])]
    print(f"Spark {spark.version}, {PARTITIONS} partitions, 2 tasks at a time")
    if not jars:
        print(f"Spark's own connector is not measured: {why_no_spark_jars()}")
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as directory:
        if given.broker:
            run(spark, given.broker, rows, rounds, formats, frozenset())
        else:
            with BrokerProcess(Path(directory) / "data") as broker:
                run(spark, broker.address, rows, rounds, formats, frozenset({broker.pid}))
    spark.stop()


def run(spark: Any, servers: str, rows: int, rounds: int, formats: list[str], without: frozenset[int]) -> None:
    family = Family(without)
    with family.watched():
        for size in SIZES:
            # About the same bytes for both sizes.
            count = rows if size == SIZES[0] else max(rows // 5, 1000)
            Bench(spark, servers, count, rounds, formats, family).size(size)
        Bench(spark, servers, 0, 1, formats, family).latency()


if __name__ == "__main__":
    main()
