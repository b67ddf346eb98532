"""Exactly once into a database: the result and the offset are written in one transaction of the database.

    python examples/exactly_once_database.py localhost:9092 orders totals.db          # SQLite
    python examples/exactly_once_database.py localhost:9092 orders postgresql://…     # PostgreSQL (needs psycopg)

The database says where to go on, not Kafka: on assignment the consumer seeks to the offset found there. A crash between
two transactions leaves both as they were; one that comes twice is impossible, because result and offset move together.
Two consumers may for a moment believe to own the same partition: whoever comes second finds the offset moved on, and
writes nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any, Protocol

from headrace import Consumer, ConsumerRecord, TopicPartition

Apply = Callable[[Any, ConsumerRecord], None]
"""Writes a record's result with a cursor, inside the transaction."""


class Database(Protocol):
    """What differs between databases: how parameters are marked, and how a row is locked."""

    mark: str
    lock: str

    def connect(self) -> Any: ...


class Sqlite:
    mark, lock = "?", ""

    def __init__(self, path: str) -> None:
        self.path = path

    def connect(self) -> Any:
        # Begun by hand, as IMMEDIATE: the offset that is read is the one that is moved.
        return sqlite3.connect(self.path, isolation_level=None)


class Postgres:
    mark, lock = "%s", " FOR UPDATE"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.url, autocommit=True)


class OffsetStore:
    """Offsets in a table beside the results."""

    def __init__(self, database: Database) -> None:
        self._mark, self._lock = database.mark, database.lock
        self._begin = "BEGIN IMMEDIATE" if isinstance(database, Sqlite) else "BEGIN"
        self.connection = database.connect()
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS kafka_offsets"
            " (topic TEXT, part INTEGER, next_offset BIGINT NOT NULL, PRIMARY KEY (topic, part))"
        )

    def next_offset(self, partition: TopicPartition, *, lock: bool = False) -> int | None:
        row = self.connection.execute(
            f"SELECT next_offset FROM kafka_offsets WHERE topic = {self._mark} AND part = {self._mark}"
            + (self._lock if lock else ""),
            tuple(partition),
        ).fetchone()
        return None if row is None else int(row[0])

    def write(self, partition: TopicPartition, records: list[ConsumerRecord], next_offset: int, apply: Apply) -> int:
        """Results and offset together, or neither. How many records were new."""
        cursor = self.connection.cursor()
        cursor.execute(self._begin)
        try:
            known = self.next_offset(partition, lock=True)
            new = [record for record in records if known is None or record.offset >= known]
            for record in new:
                apply(cursor, record)
            if known is None or next_offset > known:
                mark = self._mark
                cursor.execute(
                    f"INSERT INTO kafka_offsets VALUES ({mark}, {mark}, {mark})"
                    " ON CONFLICT (topic, part) DO UPDATE SET next_offset = excluded.next_offset",
                    (*partition, next_offset),
                )
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")
        return len(new)


class SeekToStored:
    """On assignment, go on where the database says."""

    def __init__(self, consumer: Consumer, store: OffsetStore) -> None:
        self._consumer, self._store = consumer, store

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            stored = self._store.next_offset(partition)
            if stored is not None:
                self._consumer.seek(partition, stored)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Nothing to do: what was processed is written, offset and all."""


def run(address: str, topic: str, group: str, database: Database, apply: Apply, idle_s: float = 5.0) -> int:
    """Process what there is, until nothing comes for a while. How many records were written."""
    written = 0
    store = OffsetStore(database)
    config = {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    try:
        with Consumer(config) as consumer:
            consumer.subscribe([topic], SeekToStored(consumer, store))
            while records := consumer.poll(idle_s):
                ends = records.next_offsets()
                for partition, some in records.items():
                    written += store.write(partition, some, ends[partition].offset, apply)
    finally:
        store.connection.close()
    return written


def main() -> None:
    address, topic, where = sys.argv[1:4]
    database: Database = Postgres(where) if where.startswith("postgres") else Sqlite(where)
    connection = database.connect()
    connection.execute("CREATE TABLE IF NOT EXISTS results (value TEXT)")
    connection.close()

    def apply(cursor: Any, record: ConsumerRecord) -> None:
        cursor.execute(f"INSERT INTO results VALUES ({database.mark})", (record.value.decode(errors="replace"),))

    print(run(address, topic, f"{topic}-to-database", database, apply))


if __name__ == "__main__":
    main()
