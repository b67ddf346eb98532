"""A broker under load, killed again and again: `python -m tests.broker.crash_kill 200 [seed]`.

An idempotent confluent-kafka producer with acks=all writes unique integers to several partitions while the broker's
process gets SIGKILL at random moments and is started again on the same directory. At the end a consumer of its own
reads everything: each acknowledged integer is there once, at the offset it was acknowledged with, and every partition
is in order.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.waiting import eventually

from headrace.testing import BrokerProcess

TOPIC = "kills"
PARTITIONS = 6
PROGRESS_TIMEOUT_S = 60.0
QUIET = {"log_level": 0}


@dataclass
class Load:
    """One producer on a thread of its own, and what it was told."""

    address: str
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    sent: int = 0
    fatal: str | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "queue.buffering.max.messages": 20_000,
                **QUIET,
            }
        )
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop sending and wait until everything that was sent is acknowledged or refused."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(PROGRESS_TIMEOUT_S)
        assert left == 0, f"{left} messages are neither acknowledged nor refused"

    def wait_for(self, more: int) -> None:
        """Wait until so many more are acknowledged: only then is there something to lose."""
        wanted = len(self.acknowledged) + more
        eventually(
            lambda: len(self.acknowledged) >= wanted or self.fatal is not None, f"{more} messages", PROGRESS_TIMEOUT_S
        )
        assert self.fatal is None, self.fatal

    def _run(self) -> None:
        payload = b"x" * 200
        while not self._stop.is_set() and self.fatal is None:
            number = self.sent
            try:
                self._producer.produce(
                    TOPIC, key=str(number), value=payload, partition=number % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.01)
            except KafkaException as error:
                self.fatal = str(error)
            self._producer.poll(0)
            if number % 50 == 0:
                time.sleep(0.002)  # some load, not all that two cores can give

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        number = int(message.key() or b"")
        if error is None:
            self.acknowledged[number] = (message.partition() or 0, message.offset() or 0)
        else:
            self.refused[number] = error.str()


def read_everything(address: str) -> dict[int, list[tuple[int, int]]]:
    """Every partition from its first offset to its end: (offset, number)."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "audit", "enable.auto.commit": False, **QUIET})
    try:
        ends = {}
        for index in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, index), timeout=30)
            assert low == 0
            ends[index] = high
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        deadline = time.monotonic() + 120
        while any(not found[i] or found[i][-1][0] + 1 < end for i, end in ends.items() if end):
            assert time.monotonic() < deadline, "the log could not be read to its end"
            for message in consumer.consume(5_000, timeout=1.0):
                assert message.error() is None, message.error()
                found[message.partition() or 0].append((message.offset() or 0, int(message.key() or b"")))
        return found
    finally:
        consumer.close()


def audit(load: Load, found: dict[int, list[tuple[int, int]]]) -> list[str]:
    """What is wrong; nothing, if all is well."""
    problems = []
    counts = Counter(number for rows in found.values() for _, number in rows)
    lost = [number for number in load.acknowledged if number not in counts]
    twice = [number for number, count in counts.items() if count > 1]
    if lost:
        problems.append(f"{len(lost)} acknowledged records are lost, such as {lost[:5]}")
    if twice:
        problems.append(f"{len(twice)} records are there more than once, such as {twice[:5]}")
    for index, rows in sorted(found.items()):
        numbers = [number for _, number in rows]
        if numbers != sorted(numbers):
            problems.append(f"partition {index} is not in order")
        places = {number: offset for offset, number in rows}
        moved = [n for n, (p, offset) in load.acknowledged.items() if p == index and places.get(n, offset) != offset]
        if moved:
            problems.append(f"partition {index}: {len(moved)} records are not where they were acknowledged")
    return problems


@dataclass(frozen=True)
class Outcome:
    kills: int
    sent: int
    acknowledged: int
    refused: int
    found: int
    problems: list[str]


def run(directory: Path, kills: int, seed: int, *, progress: bool = False) -> Outcome:
    rng = random.Random(seed)
    broker = BrokerProcess(directory, {"offsets.topic.num.partitions": "1"}).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address, **QUIET})
        configs = {"segment.bytes": "1048576"}
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=configs)])[TOPIC].result(30)
        load = Load(broker.address)
        load.start()
        try:
            for kill in range(kills):
                load.wait_for(rng.choice((1, 50, 2_000)))
                time.sleep(rng.uniform(0.0, 0.3))
                broker.kill()
                broker.start()
                if progress and (kill + 1) % 10 == 0:
                    print(f"{kill + 1} kills, {len(load.acknowledged)} acknowledged", flush=True)
            load.wait_for(100)
        finally:
            load.finish()
        assert load.fatal is None, load.fatal
        found = read_everything(broker.address)
        return Outcome(
            kills,
            load.sent,
            len(load.acknowledged),
            len(load.refused),
            sum(map(len, found.values())),
            audit(load, found),
        )
    finally:
        broker.kill()


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"{kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-kill-") as directory:
        outcome = run(Path(directory) / "data", kills, seed, progress=True)
    print(outcome)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
