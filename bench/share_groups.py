"""Share groups, next to Apache Kafka and Java's share consumer: `python -m bench.share_groups` (`--records`, `--size`).

A topic is filled, and one member of a share group reads all of it, acknowledging what each poll gave by the next one:
records a second of our share consumer, confluent-kafka's and Java's, on our broker and on Apache Kafka's. Then single
records: from the send to the hand of a member that waits, and until its acknowledgement is confirmed.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from bench.peers import ApacheKafka, kafka_libs, tool_command, why_no_kafka
from headrace import Admin, NewTopic, Producer, ShareConsumer
from headrace.client.admin import ConfigResource, ResourceType
from headrace.testing import BrokerProcess

PARTITIONS = 4
DEADLINE_S = 120.0
ROUNDS = 200
JAVA_CLASS = "org.apache.kafka.tools.ShareConsumerPerformance"


def prepare(address: str) -> tuple[str, str]:
    """A topic, and a group that reads it from its beginning."""
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    start_at_the_beginning(address, group)
    return topic, group


def start_at_the_beginning(address: str, group: str) -> None:
    with Admin({"bootstrap.servers": address}) as admin:
        admin.incremental_alter_configs(
            {ConfigResource(ResourceType.GROUP, group): {"share.auto.offset.reset": "earliest"}}
        )


def fill(address: str, topic: str, records: int, size: int) -> None:
    value = b"x" * size
    with Producer({"bootstrap.servers": address}) as producer:
        for number in range(records):
            producer.send(topic, value=value, partition=number % PARTITIONS)


def ours(address: str, topic: str, group: str, records: int) -> float:
    """Records a second, from the first on: joining a group takes as long for one record."""
    with ShareConsumer({"bootstrap.servers": address, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        return _rate(lambda: len(consumer.poll(1.0)), records)


def confluent(address: str, topic: str, group: str, records: int) -> float:
    from confluent_kafka import ShareConsumer as Confluent

    consumer = Confluent({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    with contextlib.closing(consumer):
        return _rate(lambda: len(consumer.poll(1.0) or ()), records)


def _rate(poll: Callable[[], int], records: int) -> float:
    count, began = 0, 0.0
    deadline = time.monotonic() + DEADLINE_S
    while count < records and time.monotonic() < deadline:
        found = poll()
        if found and not began:
            began = time.monotonic()
            records -= found
            continue
        count += found
    assert count >= records, f"{count} of {records} records came within {DEADLINE_S:.0f} s"
    return count / (time.monotonic() - began)


def java(address: str, topic: str, group: str, records: int) -> float:
    """As its own tool measures it, less what a member needs that reads one record: joining the group."""
    joining_s = _java_s(address, topic, f"{group}-first", 1)
    return records / max(0.001, _java_s(address, topic, group, records) - joining_s)


def _java_s(address: str, topic: str, group: str, records: int) -> float:
    start_at_the_beginning(address, group)
    arguments = ("--bootstrap-server", address, "--topic", topic, "--group", group, "--num-records", str(records))
    done = subprocess.run(
        tool_command(JAVA_CLASS, *arguments, "--timeout", "60000"), capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if re.match(r"\d{4}-", line)]
    assert lines, done.stdout[-500:] + done.stderr[-500:]
    start, end = (datetime.strptime(field.strip(), "%Y-%m-%d %H:%M:%S:%f") for field in lines[-1].split(",")[:2])
    return (end - start).total_seconds()


def latency(address: str) -> tuple[float, float]:
    """Milliseconds from a send to the member's hand, and of a commit; medians."""
    topic, group = prepare(address)
    handed, committed = [], []
    with (
        Producer({"bootstrap.servers": address, "linger.ms": 0}) as producer,
        ShareConsumer({"bootstrap.servers": address, "group.id": group}) as consumer,
    ):
        consumer.subscribe([topic])
        producer.send(topic, value=b"first", partition=0).result(10)
        while not consumer.poll(1.0):
            pass
        consumer.commit_sync()
        for _ in range(ROUNDS):
            began = time.perf_counter()
            producer.send(topic, value=b"x", partition=0)
            while not consumer.poll(1.0):
                pass
            handed.append(time.perf_counter() - began)
            began = time.perf_counter()
            consumer.commit_sync()
            committed.append(time.perf_counter() - began)
    return statistics.median(handed) * 1000, statistics.median(committed) * 1000


CLIENTS: dict[str, Callable[[str, str, str, int], float]] = {
    "headrace": ours,
    "confluent-kafka": confluent,
    "java": java,
}


def measure(name: str, address: str, records: int, size: int) -> dict[str, float]:
    found = {}
    for client, read in CLIENTS.items():
        if client == "java" and kafka_libs() is None:
            continue
        topic, group = prepare(address)
        fill(address, topic, records, size)
        found[client] = read(address, topic, group, records)
        print(f"  {client:16} on {name:12} {found[client]:>12,.0f} records/s", flush=True)
    handed_ms, committed_ms = latency(address)
    print(f"  headrace         on {name:12} {handed_ms:.2f} ms to a waiting member, {committed_ms:.2f} ms a commit")
    return found | {"handed": handed_ms, "committed": committed_ms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=100)
    options = parser.parse_args()
    print(f"{options.records:,} records of {options.size} bytes in {PARTITIONS} partitions")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, BrokerProcess(Path(directory) / "data") as broker:
        here = measure("headrace", broker.address, options.records, options.size)
    if kafka_libs() is None:
        print(why_no_kafka())
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ApacheKafka(Path(directory)) as kafka:
        there = measure("Apache Kafka", kafka.address, options.records, options.size)
    for client in CLIENTS:
        print(f"  {client}: ours is {here[client] / there[client]:.2f} × Apache Kafka's broker")
    print(f"  our client is {here['headrace'] / here['java']:.2f} × Java's on ours, ", end="")
    print(f"{there['headrace'] / there['java']:.2f} × on Apache Kafka")
    return 0


if __name__ == "__main__":
    sys.exit(main())
