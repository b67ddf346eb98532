"""`headrace demo`: a broker, a topic, a producer, a group, a crash, in ten seconds and in a temporary directory."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.dumping import partition_rows
from headrace.cli.group import group_documents
from headrace.cli.output import CommandError, count, size
from headrace.client.admin import Admin, NewTopic, OffsetSpec
from headrace.client.consumer.blocking import Consumer
from headrace.client.producer.blocking import Producer
from headrace.demo.broker import DemoBroker
from headrace.demo.tour import Tour, bars
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 6
EVENTS = 100_000
_READY_TIMEOUT_S = 60.0
_SEND_ROWS = 4_000
_POLL_ROWS = 5_000
_CITIES = ("Oslo", "Porto", "Lyon", "Graz", "Turin", "Ghent", "Bilbao", "Malmö", "Split", "Cork")
_GO_ON = (
    ("headrace start", "a broker; then, in another terminal"),
    ("headrace topic create events -p 3", "a topic"),
    ("seq 1 1000 | headrace produce events", "records, a line each"),
    ("headrace consume events -g me -n 400", "read some, and remember how far"),
    ("headrace group describe me", "its lag"),
    ("headrace consume events --follow", "all there is, and what comes"),
    ("headrace cluster", "brokers and disks"),
    ("headrace --help", "the rest"),
)


class ShortDemo(Tour):
    """The steps, in order; each says what it did and shows it."""

    def __init__(self, console: Console, directory: Path, events: int) -> None:
        super().__init__(console)
        self._data = directory / "data"
        self._broker = DemoBroker(self._data)
        self._events = events
        self._partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]

    def run(self) -> None:
        self._title("Kafka in Python. A short tour.")
        try:
            self._start()
            with Admin(bootstrap_servers=self._broker.address, default_api_timeout_ms=30_000) as admin:
                self._create(admin)
                self._produce(admin)
                self._consume(admin)
            self._crash()
            self._disk()
            self._broker.stop()
        finally:
            self._broker.kill()
        self._farewell(_GO_ON)

    # --- 1

    def _start(self) -> None:
        self._step("1  A broker")
        took = self._broker.start()
        memory = self._broker.memory_bytes()
        held = f", {size(memory)} of memory" if memory else ""
        self._say(f"Process {self._broker.pid} was ready after {took:.1f} s{held}, on {self._broker.address}.")
        self._say("Any Kafka client can use it: Java's, librdkafka, confluent-kafka, kcat.")

    # --- 2

    def _create(self, admin: Admin) -> None:
        self._step("2  A topic")
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, configs={"retention.ms": "86400000"})])[TOPIC]
        self._say(f"[bold]{TOPIC}[/bold] has {made.num_partitions} partitions and keeps records for a day.")

    # --- 3

    def _produce(self, admin: Admin) -> None:
        self._step(f"3  {count(self._events)} orders")
        rng = random.Random(2026)
        rows = [_order(rng, number) for number in range(self._events)]
        rates: list[float] = []
        began = time.monotonic()
        config = {"bootstrap.servers": self._broker.address, "compression.type": "lz4", "linger.ms": 5}
        with Producer(config) as producer:
            for at in range(0, len(rows), _SEND_ROWS):
                keys, values = zip(*rows[at : at + _SEND_ROWS])
                sent_at = time.monotonic()
                producer.send_batch(TOPIC, values, keys).result(30)
                rates.append(len(keys) / (time.monotonic() - sent_at))
        took = time.monotonic() - began
        key, value = rows[0]
        self._say("Keyed by customer; idempotent, acks=all, lz4. The first of them:")
        self._say(f"  {key.decode()} → {value.decode()}")
        total = sum(len(k) + len(v) for k, v in rows)
        self._say(
            Text.assemble(
                "acknowledged  ",
                (bars(rates), "green"),
                f"  {count(round(self._events / took))} records/s, {size(round(total / took))}/s",
            )
        )
        ends = admin.list_offsets(dict.fromkeys(self._partitions, OffsetSpec.latest())).all()
        most = max(info.offset for info in ends.values())
        for partition, info in ends.items():
            bar = "█" * max(1, round(info.offset / most * 40)) if info.offset else ""
            self._say(Text.assemble(f"  {partition!s:<10}", (f"{bar:<40}", "blue"), f" {count(info.offset):>8}"))

    # --- 4

    def _consume(self, admin: Admin) -> None:
        self._step(f"4  The group {GROUP}")
        quick = _Reader(self._broker.address, "quick")
        slow = _Reader(self._broker.address, "slow", records_max=self._events // 4)
        began = time.monotonic()
        try:
            for reader in (quick, slow):
                reader.start()
            half = PARTITIONS // 2
            _wait_for(lambda: quick.is_assigned(half) and slow.is_assigned(half), (quick, slow))
            for reader in (quick, slow):
                reader.go()
            _wait_for(lambda: slow.is_resting and self._left_to(admin, "quick") == 0, (quick, slow))
            self._say("Two consumers share the partitions; one is slow, and rests after a while.")
            self._lag(admin)
            rest = quick.seen
            slow.leave()
            _wait_for(lambda: self._left_to(admin, "quick") == 0 and quick.is_assigned(PARTITIONS), (quick,))
            self._say(
                f"The slow one leaves the group: the quick one takes over, reads its {count(quick.seen - rest)},\n"
                f"and the lag is {count(self._document(admin)['lag'])}. All that in {time.monotonic() - began:.1f} s."
            )
        finally:
            for reader in (quick, slow):
                reader.leave()

    def _document(self, admin: Admin) -> dict[str, Any]:
        documents, errors = group_documents(admin, [GROUP])
        for error in errors.values():
            raise error
        return documents[0]

    def _left_to(self, admin: Admin, client: str) -> int:
        """How many records the partitions of a member lag behind."""
        rows = [row for row in self._document(admin)["offsets"] if row["client"] == client]
        return sum(row["end_offset"] if row["offset"] is None else row["lag"] for row in rows)

    def _lag(self, admin: Admin) -> None:
        document = self._document(admin)
        offsets = [row | {"offset": row["offset"] or 0} for row in document["offsets"]]
        shown = Table(box=None, pad_edge=False, header_style="bold")
        shown.add_column("PARTITION")
        for title in ("COMMITTED", "END", "LAG"):
            shown.add_column(title, justify="right")
        shown.add_column("CONSUMER")
        shown.add_column("")
        most = max((row["end_offset"] for row in offsets), default=0) or 1
        for row in offsets:
            done = round(row["offset"] / most * 30)
            left = max(0, round(row["end_offset"] / most * 30) - done)
            bar = Text.assemble(("█" * done, "green"), ("░" * left, "yellow"))
            numbers = (row["offset"], row["end_offset"], row["end_offset"] - row["offset"])
            shown.add_row(f"{row['topic']}-{row['partition']}", *map(count, numbers), row["client"] or "-", bar)
        self._say(shown)

    # --- 5

    def _crash(self) -> None:
        self._step("5  A crash")
        pid = self._broker.pid
        self._broker.kill()
        took = self._broker.start()
        with Admin(bootstrap_servers=self._broker.address, default_api_timeout_ms=30_000) as admin:
            ends = admin.list_offsets(dict.fromkeys(self._partitions, OffsetSpec.latest())).all()
            lag = group_documents(admin, [GROUP])[0][0]["lag"]
        total = sum(info.offset for info in ends.values())
        self._say(
            f"kill -9 {pid}, and started again: {took:.1f} s later it serves,\n"
            f"with all {count(total)} records, and the group where it was (lag {count(lag)})."
        )
        if total != self._events:
            raise CommandError(f"{count(self._events)} records were acknowledged, and {count(total)} are there")

    # --- 6

    def _disk(self) -> None:
        self._step("6  On disk")
        rows = [row for row in partition_rows(self._data) if row["topic"] == TOPIC]
        files = sorted(path.name for path in (self._data / f"{TOPIC}-0").iterdir())
        total = sum(row["size_bytes"] for row in rows)
        self._say(
            f"{size(total)} for {count(sum(row['records'] for row in rows))} records, in Kafka's own format. "
            f"{TOPIC}-0 has\n  {', '.join(files)}"
        )


def _order(rng: random.Random, number: int) -> tuple[bytes, bytes]:
    value = {"order": number, "city": rng.choice(_CITIES), "amount": round(rng.lognormvariate(3.5, 0.8), 2)}
    return b"customer-%d" % rng.randrange(5_000), json.dumps(value, ensure_ascii=False).encode()


class _Reader(threading.Thread):
    """A consumer of the group; one with a `records_max` is slow, and rests when it has read that many."""

    def __init__(self, address: str, name: str, records_max: int | None = None) -> None:
        super().__init__(name=f"demo-{name}", daemon=True)
        self._config = {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._records_max = records_max
        self._leaving = threading.Event()
        self._reading = threading.Event()
        self._consumer: Consumer | None = None
        self._assigned = 0
        self.seen = 0
        self.error: HeadraceError | None = None

    @property
    def is_resting(self) -> bool:
        return self._records_max is not None and self.seen >= self._records_max

    def is_assigned(self, partitions: int) -> bool:
        return self._assigned == partitions

    def go(self) -> None:
        """Begin to read. Before that it is only a member, so that nobody reads it all before the other has joined."""
        self._reading.set()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._consumer is not None and (self.is_resting or not self._reading.is_set()):
            self._consumer.pause(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Nothing to do: what was read is committed."""

    def leave(self) -> None:
        self._leaving.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            with Consumer(self._config) as consumer:
                self._consumer = consumer
                consumer.subscribe([TOPIC], self)
                while not self._leaving.is_set():
                    self._poll(consumer)
        except HeadraceError as error:
            self.error = error

    def _poll(self, consumer: Consumer) -> None:
        assigned = consumer.assignment()
        self._assigned = len(assigned)
        if self.is_resting:
            consumer.pause(assigned)
        elif self._reading.is_set():
            consumer.resume(assigned)
        pieces = consumer.poll_columns(0.05, _POLL_ROWS)
        if pieces:
            consumer.commit_sync()
            self.seen += sum(map(len, pieces))


def _wait_for(condition: Callable[[], bool], readers: tuple[_Reader, ...]) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not condition():
        for reader in readers:
            if reader.error is not None:
                raise reader.error
        if time.monotonic() > deadline:
            raise CommandError(f"the demo's consumers did not get ahead within {_READY_TIMEOUT_S:.0f} s")
        time.sleep(0.02)
