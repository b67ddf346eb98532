"""Topics with known records, for the tests with Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.client.admin import Admin, NewTopic
from headrace.client.producer.blocking import Producer


def make_topic(servers: str, name: str, partitions: int = 3, **configs: str) -> str:
    # Timestamps of tests are long ago: on a slow machine retention would come round before the test is done.
    configs = {"retention.ms": "-1", **configs}
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic(name, num_partitions=partitions, configs=configs)]).all()
    return name


def fill(servers: str, topic: str, values: Iterable[bytes], *, partition: int | None = None, **record: Any) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, **record)
        producer.flush()


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


def reader(spark: Any, servers: str, topic: str, **options: Any) -> Any:
    """A batch of a topic's rows."""
    made = spark.read.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    for name, value in options.items():
        made = made.option(name.replace("__", "."), value)
    return made.load()


def stream(spark: Any, servers: str, topic: str, **options: Any) -> Any:
    made = spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers)
    if "subscribePattern" not in options:
        made = made.option("subscribe", topic)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        made = made.option(name.replace("__", "."), value)
    return made.load()


def values_of(rows: Any) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows.select("value").collect())
