"""An idempotent producer, a proxy that cuts its connections over and over, and an audit of what arrived.

    python -m tests.client.fault_run 1000

Connections are cut at a byte of what is sent, at a byte of what is answered, or all at once, at positions drawn from a
seed. Afterwards confluent-kafka reads everything: each partition has to have each number once, in order.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import DEADLINE_S, eventually

from headrace import Producer
from headrace.testing import BrokerProcess, Direction, FaultProxy

PARTITIONS = 3
UNACKED_MAX = 3_000
BURST = 40
PAYLOAD = b"." * 60
CONFIG = {
    "linger.ms": 2,
    "batch.size": 4_000,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 50,
}


@dataclass(slots=True)
class Report:
    records: int
    retried: int
    cuts: int
    connections: int
    seconds: float


class Sender:
    """Sends numbers to every partition, for as long as it is told to, and never more than some ahead."""

    def __init__(self, address: str, topic: str, **config: Any) -> None:
        self.producer = Producer({"bootstrap.servers": address, **CONFIG, **config})
        self.topic = topic
        self.sent = [0] * PARTITIONS
        self.acknowledged = 0
        self.errors: list[Any] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.errors:
            if self.is_ahead:
                self._stop.wait(0.002)
                continue
            for _ in range(BURST):
                for partition in range(PARTITIONS):
                    value = b"%d " % self.sent[partition] + PAYLOAD
                    self.producer.send(self.topic, value, partition=partition, on_delivery=self._heard)
                    self.sent[partition] += 1
            self._stop.wait(0.001)

    @property
    def is_ahead(self) -> bool:
        return sum(self.sent) - self.acknowledged > UNACKED_MAX

    def _heard(self, error: Any, _: Any) -> None:
        if error is not None:
            self.errors.append(error)
        self.acknowledged += 1

    def progress(self, count: int = 1) -> None:
        """Wait until that many more records have been acknowledged."""
        goal = self.acknowledged + count
        self.wait_for(lambda: self.acknowledged >= goal, f"{count} more records acknowledged")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a state while it goes on sending, or fail with what it was told."""
        eventually(lambda: condition() or self.errors, what)
        assert not self.errors, self.errors[0]

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        try:
            if not self.errors:
                self.producer.flush(100)
        finally:
            self.producer.close(0)
        assert not self.errors, self.errors[0]
        assert self.acknowledged == sum(self.sent)


def make_topic(address: str, name: str, partitions: int = PARTITIONS) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def read_numbers(address: str, topic: str) -> list[list[int]]:
    """The numbers in each partition, in the order of the log, as confluent-kafka reads them."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "audit", "enable.auto.commit": False})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in range(PARTITIONS)]
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        found: list[list[int]] = [[] for _ in range(PARTITIONS)]
        deadline = time.monotonic() + 100
        while sum(map(len, found)) < sum(ends):
            assert time.monotonic() < deadline, f"only {sum(map(len, found))} of {sum(ends)} records were read"
            for message in consumer.consume(5_000, timeout=0.2):
                assert message.error() is None
                found[message.partition()].append(int(message.value().split()[0]))
        return found
    finally:
        consumer.close()


def audit(address: str, topic: str, sent: list[int]) -> None:
    """Each number once, in order, in each partition."""
    for partition, numbers in enumerate(read_numbers(address, topic)):
        lost = set(range(sent[partition])) - set(numbers)
        twice = len(numbers) - len(set(numbers))
        assert not lost, f"partition {partition} lost {len(lost)} of {sent[partition]} records, first {min(lost)}"
        assert not twice, f"partition {partition} has {twice} records twice"
        assert numbers == sorted(numbers), f"partition {partition} is out of order"


def cut_somewhere(proxy: FaultProxy, rng: random.Random) -> None:
    """One cut: at a byte of either direction, of the oldest connection, or of all."""
    kind = rng.randrange(10)
    if kind == 0:
        eventually(lambda: proxy.cut() > 0, "a connection to cut")
    elif kind == 1:
        eventually(lambda: proxy.cut_one() >= 0, "a connection to cut")
    elif kind <= 5:
        assert proxy.cut_after(rng.randrange(60_000), Direction.TO_BROKER).wait(DEADLINE_S)
    else:
        # Answers are short: this loses the acknowledgement of what was written.
        assert proxy.cut_after(rng.randrange(1_500), Direction.TO_CLIENT).wait(DEADLINE_S)


def run(cuts: int, seed: int, directory: Path, tell: Callable[[str], None] = lambda _: None) -> Report:
    rng = random.Random(seed)
    begun = time.monotonic()
    with FaultProxy() as proxy, BrokerProcess(directory, proxy.overrides) as broker:
        proxy.target = broker.address
        topic = make_topic(proxy.address, "numbers")
        sender = Sender(proxy.address, topic)
        try:
            sender.progress()
            for i in range(cuts):
                cut_somewhere(proxy, rng)
                if i % 3:
                    # Not always: a cut may also hit the connection that is just being made.
                    sender.progress()
                if i % 100 == 99:
                    tell(f"{i + 1} cuts, {sender.acknowledged} records acknowledged")
        finally:
            proxy.resume()
            retried = int(sender.producer.metrics()["record-retry-total"])
            sender.finish()
        audit(proxy.address, topic, sender.sent)
        return Report(sum(sender.sent), retried, cuts, proxy.accepted, time.monotonic() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cuts", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-faults-") as directory:
        report = run(given.cuts, given.seed, Path(directory) / "data", print)
    print(
        f"{report.cuts} cuts in {report.seconds:.0f} s, {report.connections} connections: {report.records} records, "
        f"{report.retried} sent again, none lost, none twice, all in order"
    )


if __name__ == "__main__":
    main()
