"""How long partitions have no owner while the members of a group are restarted one after the other.

    python -m bench.rolling_restart [--members 20] [--partitions 40] [--kafka HOST:PORT] [--pace 5]

Three ways: classic members with an eager strategy (range), classic members with cooperative-sticky, and members of the
consumer protocol (KIP-848); each on a broker of ours and, at the same time, on Apache Kafka, by the same members
(headrace.Consumer) with the default intervals of heartbeats. A partition has an owner from on_partitions_assigned to
on_partitions_revoked (or lost). What is told is what a partition lacks an owner per member restarted, and how long the
worst gap was.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import headrace.testing
from headrace import Admin, Consumer, NewTopic, TopicPartition

WAYS: dict[str, dict[str, Any]] = {
    "classic, range": {"partition.assignment.strategy": "range"},
    "classic, cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer (KIP-848)": {"group.protocol": "consumer"},
}
AWAY_S = 1.0
SETTLE_S = 120.0


class Owners:
    """Who has which partition, and how long nobody had it."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self._lock = threading.Lock()
        self._owners: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self._free_since: dict[TopicPartition, float] = {}
        self.gaps_s: list[float] = []
        self.both = 0
        """How often a partition had two."""

    def begin(self) -> None:
        with self._lock:
            self.gaps_s.clear()

    @property
    def are_complete(self) -> bool:
        with self._lock:
            return all(self._owners.values())

    def came(self, member: int, partitions: list[TopicPartition]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                self._owners[partition].add(member)
                self.both += len(self._owners[partition]) > 1
                since = self._free_since.pop(partition, None)
                if since is not None:
                    self.gaps_s.append(now - since)

    def went(self, member: int, partitions: list[TopicPartition]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                self._owners[partition].discard(member)
                if not self._owners[partition]:
                    self._free_since[partition] = now


class Member:
    """One that polls in a thread of its own until it is stopped."""

    def __init__(self, number: int, config: dict[str, Any], topic: str, owners: Owners) -> None:
        self.number, self._owners = number, owners
        self._stopping = False
        self._consumer = Consumer(config)
        self._consumer.subscribe([topic], self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._owners.came(self.number, partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._owners.went(self.number, partitions)

    def _run(self) -> None:
        while not self._stopping:
            self._consumer.poll(0.2)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(60)


def measure(address: str, way: str, members: int, partitions: int, pace_s: float) -> tuple[float, float, float]:
    """Seconds without an owner, of all partitions together per restarted member; the median and the longest gap."""
    topic = f"restarted-{uuid.uuid4().hex[:8]}"
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)]).all()
    owners = Owners([TopicPartition(topic, number) for number in range(partitions)])
    config = {"bootstrap.servers": address, "group.id": topic, **WAYS[way]}
    running = [Member(number, config, topic, owners) for number in range(members)]
    _until(lambda: owners.are_complete)
    time.sleep(2 * pace_s)
    owners.begin()
    for number in range(members):
        began = time.monotonic()
        running[number].stop()
        time.sleep(AWAY_S)
        running[number] = Member(members + number, config, topic, owners)
        time.sleep(max(0.0, pace_s - (time.monotonic() - began)))
    _until(lambda: owners.are_complete)
    gaps = sorted(owners.gaps_s)
    for member in running:
        member.stop()
    assert not owners.both, "a partition had two owners"
    return sum(gaps) / members, gaps[len(gaps) // 2] if gaps else 0.0, gaps[-1] if gaps else 0.0


def _until(condition: Any) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the group did not settle")
        time.sleep(0.05)


@contextlib.contextmanager
def brokers(kafka: str | None) -> Iterator[dict[str, str]]:
    with headrace.testing.broker(overrides={"group.initial.rebalance.delay.ms": "0"}) as ours:
        found = {"headrace": ours.address}
        if kafka is not None:
            found["Apache Kafka"] = kafka
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=40)
    parser.add_argument("--pace", type=float, default=5.0, help="seconds from one restart to the next")
    parser.add_argument("--kafka", help="host:port of an Apache Kafka to measure beside")
    chosen = parser.parse_args()
    with brokers(chosen.kafka) as addresses:
        for way in WAYS:
            results: dict[str, tuple[float, float, float]] = {}

            def run(name: str, address: str, way: str = way, into: Any = results) -> None:
                into[name] = measure(address, way, chosen.members, chosen.partitions, chosen.pace)

            threads = [threading.Thread(target=run, args=item) for item in addresses.items()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for name, (total, median, longest) in results.items():
                print(
                    f"{way:22} {name:13} {total:7.2f} s without an owner per restart (all partitions together), "
                    f"gap {median:.2f} s median, {longest:.2f} s longest",
                    flush=True,
                )


if __name__ == "__main__":
    main()
