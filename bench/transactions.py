"""What transactions cost: transactional against plain idempotent throughput, on Headrace and on Apache Kafka.

    python -m bench.transactions [--seconds 5] [--rounds 3] [--only headrace|kafka]

A transaction is committed every 100 ms. The clients are confluent-kafka, Java's (where it is here) and our own, on both
brokers; what counts is the ratio of transactional to plain in the same run, the time that a commit takes, and for each
client its ratio on Headrace over its ratio on Apache Kafka.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import peers
from bench.broker import in_process
from headrace.testing import BrokerProcess

SIZE, PARTITIONS = 1_000, 4
TRANSACTION_S = 0.1
# Small, so that the end of a transaction does not wait for a long backlog; large enough to keep brokers busy.
BUFFER_BYTES = 8_388_608
_BURST = 50


def _confluent(address: str, topic: str, seconds: float, transactional: bool, out: Any) -> None:
    from confluent_kafka import Producer

    config = {
        "bootstrap.servers": address,
        "linger.ms": 5,
        "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        "batch.size": 131_072,
        "enable.idempotence": True,
    }
    if transactional:
        config["transactional.id"] = f"bench-{time.time_ns()}"
    producer = Producer(config)
    producer.list_topics(topic, timeout=30)
    if transactional:
        producer.init_transactions(30)
    value = b"v" * SIZE

    def burst() -> int:
        sent = 0
        try:
            for _ in range(_BURST):
                producer.produce(topic, value)
                sent += 1
            producer.poll(0)
        except BufferError:
            producer.poll(0.002)
        return sent

    out.put(_drive(producer, burst, seconds, transactional))


def _headrace(address: str, topic: str, seconds: float, transactional: bool, out: Any) -> None:
    from headrace import Producer

    config: dict[str, Any] = {"bootstrap.servers": address, "linger.ms": 5, "batch.size": 131_072}
    config["buffer.memory"] = BUFFER_BYTES
    if transactional:
        config["transactional.id"] = f"bench-{time.time_ns()}"
    with Producer(config) as producer:
        producer.partitions_for(topic)
        if transactional:
            producer.init_transactions(30)
        value = b"v" * SIZE

        def burst() -> int:
            for _ in range(_BURST):
                producer.send(topic, value)
            return _BURST

        out.put(_drive(producer, burst, seconds, transactional))


def _drive(producer: Any, burst: Callable[[], int], seconds: float, transactional: bool) -> dict[str, float]:
    """Bursts for so long, in transactions if wanted. `burst`: sends some records, and says how many."""
    sent, commits = 0, []
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        if transactional:
            producer.begin_transaction()
        end = time.perf_counter() + TRANSACTION_S
        while time.perf_counter() < end:
            sent += burst()
        if transactional:
            before = time.perf_counter()
            producer.flush(60)
            flushed = time.perf_counter()
            producer.commit_transaction(60)
            commits.append((flushed - before, time.perf_counter() - flushed))
    # confluent-kafka says how many are left; our own raises.
    left = producer.flush(60) or 0
    return _result(sent - left, time.perf_counter() - start, commits)


def _java(address: str, topic: str, seconds: float, transactional: bool, out: Any) -> None:
    source = str(Path(__file__).parent / "java" / "TransactionBench.java")
    name = f"bench-{time.time_ns()}" if transactional else "-"
    arguments = (address, topic, str(seconds), str(SIZE), f"{TRANSACTION_S * 1000:.0f}", name)
    command = ["java", "-Xmx256m", "-cp", f"{peers.kafka_libs()}/*", source, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 120)
    records, took, flush_ms, commit_ms = map(float, done.stdout.split())
    out.put({"records": records, "seconds": took, "flush_ms": flush_ms, "commit_ms": commit_ms})


def _result(records: int, seconds: float, commits: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "records": records,
        "seconds": seconds,
        "flush_ms": statistics.median(flush for flush, _ in commits) * 1000 if commits else 0.0,
        "commit_ms": statistics.median(commit for _, commit in commits) * 1000 if commits else 0.0,
    }


@contextmanager
def _broker(name: str, directory: Path) -> Iterator[str]:
    if name == "headrace":
        with BrokerProcess(directory / "headrace", {"num.partitions": str(PARTITIONS)}) as broker:
            yield broker.address
    else:
        with peers.ApacheKafka(directory / "kafka") as kafka:
            yield kafka.address


def measure(address: str, client: Any, seconds: float, rounds: int) -> dict[str, float]:
    """The best of some rounds, plain and transactional in turn: what else the machine does only ever takes away."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    plain, transactional, commits, flushes = [], [], [], []
    for number in range(rounds + 1):
        topic = f"bench-{client.__name__}-{number}-{time.time_ns()}"
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        # The first round warms everything up, and is short.
        length = seconds if number else min(seconds, 2.0)
        one = in_process(client, address, topic, length, False)
        two = in_process(client, address, topic, length, True)
        if number:
            plain.append(one["records"] / one["seconds"])
            transactional.append(two["records"] / two["seconds"])
            commits.append(two["commit_ms"])
            flushes.append(two["flush_ms"])
    return {
        "plain": max(plain),
        "transactional": max(transactional),
        "ratio": max(transactional) / max(plain),
        "commit_ms": min(commits),
        "flush_ms": min(flushes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["headrace", "kafka"])
    options = parser.parse_args()
    brokers = [options.only] if options.only else ["headrace", "kafka"]
    if "kafka" in brokers and peers.kafka_libs() is None:
        print(f"Apache Kafka is left out: {peers.why_no_kafka()}")
        brokers.remove("kafka")
    print(f"{SIZE}-byte records, {PARTITIONS} partitions, a transaction every {TRANSACTION_S * 1000:.0f} ms")
    print(
        f"{'broker':10}  {'client':16}  {'plain/s':>9}  {'in trans./s':>11}  {'ratio':>5}  {'flush':>8}  {'commit':>8}"
    )
    clients = {"confluent-kafka": _confluent, "Java": _java, "headrace": _headrace}
    if peers.kafka_libs() is None:
        del clients["Java"]
    ratios: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        for name in brokers:
            with _broker(name, Path(directory)) as address:
                for label, client in clients.items():
                    found = measure(address, client, options.seconds, options.rounds)
                    ratios[name, label] = found["ratio"]
                    print(
                        f"{name:10}  {label:16}  {found['plain']:9,.0f}  {found['transactional']:11,.0f}  "
                        f"{found['ratio']:5.2f}  {found['flush_ms']:5.1f} ms  {found['commit_ms']:5.1f} ms",
                        flush=True,
                    )
    for label in clients:
        if ("headrace", label) in ratios and ("kafka", label) in ratios:
            relative = ratios["headrace", label] / ratios["kafka", label]
            print(f"{label}: {relative:.2f} of its ratio on Apache Kafka")


if __name__ == "__main__":
    main()
