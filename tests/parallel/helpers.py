"""A topic full of skewed keys, a place to write down what was handled, and the checks every run has to pass."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.waiting import DEADLINE_S

from headrace import Admin, NewTopic, Producer
from headrace.parallel import ParallelConsumer
from headrace.topics import TopicPartition


def zipf_keys(count: int, keys: int = 200, seed: int = 1) -> list[bytes]:
    """A few keys have most of the records."""
    weights = [1 / (rank + 1) for rank in range(keys)]
    return [b"k%d" % number for number in random.Random(seed).choices(range(keys), weights, k=count)]


def make_topic(address: str, name: str, partitions: int) -> None:
    with Admin({"bootstrap.servers": address}) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)]).all()


def fill(address: str, topic: str, count: int, seed: int = 1, keys: int = 200) -> None:
    with Producer({"bootstrap.servers": address}) as producer:
        producer.send_batch(topic, [b"%d" % n for n in range(count)], zipf_keys(count, keys, seed)).result(30)


def commits(address: str, group: str, topic: str, partitions: int) -> dict[int, tuple[int, str]]:
    """partition → (offset, note) that the group has committed."""
    names = [TopicPartition(topic, number) for number in range(partitions)]
    with Admin({"bootstrap.servers": address}) as admin:
        found = admin.list_partition_offsets(group, names)
    return {name.partition: (one.offset, one.metadata) for name, one in found.items() if one is not None}


def config(address: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": address, "auto.offset.reset": "earliest", **more}


class Seen:
    """What handlers were given, in order; two at once for one key are noticed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.order: list[tuple[int, int, bytes | None]] = []
        self.at_work: set[tuple[int, bytes | None]] = set()
        self.clashes: list[Any] = []

    def begin(self, record: Any) -> None:
        with self.lock:
            place = (record.partition, record.key)
            if place in self.at_work:
                self.clashes.append(place)
            self.at_work.add(place)

    def end(self, record: Any) -> None:
        with self.lock:
            self.at_work.discard((record.partition, record.key))
            self.order.append((record.partition, record.offset, record.key))

    def __call__(self, record: Any) -> None:
        self.begin(record)
        self.end(record)

    def distinct(self) -> int:
        with self.lock:
            return len({(partition, offset) for partition, offset, _ in self.order})

    def check_key_order(self) -> None:
        assert not self.clashes, f"two at once for {self.clashes[:3]}"
        check_key_order(self.order)


def check_key_order(handled: Iterable[tuple[int, int, Any]]) -> None:
    """First handlings of a key's records are in the order of their offsets."""
    seen: set[tuple[int, int]] = set()
    last: dict[tuple[int, Any], int] = defaultdict(lambda: -1)
    for partition, offset, key in handled:
        if (partition, offset) in seen:
            continue
        seen.add((partition, offset))
        assert offset > last[partition, key], f"key {key!r}: {offset} after {last[partition, key]}"
        last[partition, key] = offset


def stop(consumer: ParallelConsumer) -> None:
    consumer.stop()
    assert consumer.wait(DEADLINE_S), "the consumer did not stop"
