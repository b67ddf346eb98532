"""The three guarantees, each shown by its example: what a crash in the middle loses, repeats, or does not."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace.testing
from examples import at_least_once, at_most_once, exactly_once_database
from headrace import Consumer, ConsumerRecord

POSTGRES = "HEADRACE_TEST_POSTGRES"
COUNT = 60

pytestmark = pytest.mark.slow


class Crash(BaseException):
    """The process is gone: no exception handler of the application sees it."""


@pytest.fixture(scope="module")
def address() -> Any:
    with headrace.testing.broker() as broker:
        yield broker.address


@pytest.fixture
def topic(address: str) -> str:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"example-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": address})
    for i in range(COUNT):
        producer.produce(name, b"%d" % i, partition=i % 2)
    assert producer.flush(30) == 0
    return name


def crashing(seen: list[int], after: int) -> Callable[[ConsumerRecord], None]:
    def process(record: ConsumerRecord) -> None:
        if len(seen) == after:
            raise Crash
        seen.append(int(record.value))

    return process


def test_at_most_once_loses_but_never_repeats(address: str, topic: str) -> None:
    seen: list[int] = []
    with pytest.raises(Crash):
        at_most_once.run(address, topic, topic, crashing(seen, 10))
    at_most_once.run(address, topic, topic, lambda record: seen.append(int(record.value)), idle_s=2.0)
    assert len(seen) == len(set(seen))
    assert len(seen) < COUNT


def test_at_least_once_repeats_but_never_loses(address: str, topic: str) -> None:
    seen: list[int] = []
    with pytest.raises(Crash):
        at_least_once.run(address, topic, topic, crashing(seen, 10))
    at_least_once.run(address, topic, topic, lambda record: seen.append(int(record.value)), idle_s=2.0)
    assert set(seen) == set(range(COUNT))
    assert len(seen) > COUNT


def databases(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"sqlite": exactly_once_database.Sqlite(str(tmp_path / "results.db"))}
    if os.environ.get(POSTGRES):
        found["postgres"] = exactly_once_database.Postgres(os.environ[POSTGRES])
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_exactly_once_into_a_database_neither_loses_nor_repeats(
    address: str, topic: str, tmp_path: Path, kind: str
) -> None:
    database = databases(tmp_path).get(kind)
    if database is None:
        pytest.skip(f"no PostgreSQL: {POSTGRES} (a connection string) is not set")
    table = f"results_{uuid.uuid4().hex[:8]}"
    connection = database.connect()
    connection.execute(f"CREATE TABLE {table} (value INTEGER)")
    written = 0

    def apply(cursor: Any, record: ConsumerRecord) -> None:
        nonlocal written
        cursor.execute(f"INSERT INTO {table} VALUES ({database.mark})", (int(record.value),))
        written += 1
        if written in (10, 45):
            raise Crash

    for _ in range(2):
        with pytest.raises(Crash):
            exactly_once_database.run(address, topic, topic, database, apply)
    exactly_once_database.run(address, topic, topic, database, apply, idle_s=2.0)
    # The offsets are the database's: a group that starts over reads nothing twice.
    exactly_once_database.run(address, topic, f"{topic}-other", database, apply, idle_s=2.0)
    rows = [row[0] for row in connection.execute(f"SELECT value FROM {table}").fetchall()]
    connection.close()
    assert sorted(rows) == list(range(COUNT))
    assert written > COUNT


def test_a_second_owner_of_a_partition_writes_nothing_twice(address: str, topic: str, tmp_path: Path) -> None:
    database = exactly_once_database.Sqlite(str(tmp_path / "results.db"))
    connection = sqlite3.connect(database.path, isolation_level=None)
    connection.execute("CREATE TABLE results (value INTEGER)")
    stores = [exactly_once_database.OffsetStore(database) for _ in range(2)]
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        records = list(consumer.poll(20.0))
        partition = next(iter(consumer.assignment()))

    def apply(cursor: Any, record: ConsumerRecord) -> None:
        cursor.execute("INSERT INTO results VALUES (?)", (int(record.value),))

    counts = [store.write(partition, records, records[-1].offset + 1, apply) for store in stores]
    assert counts == [len(records), 0]
    assert connection.execute("SELECT COUNT(*) FROM results").fetchone() == (len(records),)
    for store in stores:
        store.connection.close()
    connection.close()
