"""Fixtures of the consumer's tests: the same tests on Headrace's own broker and, where there is one, Apache Kafka."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.keeping import KEEP_RECORDS

import headrace.testing

ENVIRONMENT = "HEADRACE_TEST_KAFKA"
WAIT_S = 60.0


@dataclass
class Cluster:
    """A broker to test against, with what every test needs of it."""

    address: str
    is_headrace: bool

    def __post_init__(self) -> None:
        from confluent_kafka.admin import AdminClient

        self.admin = AdminClient({"bootstrap.servers": self.address})

    def topic(self, partitions: int = 1, prefix: str = "test", **configs: str) -> str:
        from confluent_kafka.admin import NewTopic

        name = f"{prefix}-{uuid.uuid4().hex[:10]}"
        config = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    def produce(self, topic: str, values: list[bytes], partition: int = 0, **config: Any) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 1, **config})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0

    def group(self) -> str:
        return f"group-{uuid.uuid4().hex[:10]}"

    def config(self, **overrides: Any) -> dict[str, Any]:
        given = {key.replace("_", "."): value for key, value in overrides.items()}
        return {
            "bootstrap.servers": self.address,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
        } | given


@pytest.fixture(scope="session")
def headrace_broker() -> Iterator[str]:
    with headrace.testing.broker(overrides={"group.min.session.timeout.ms": "500", **KEEP_RECORDS}) as broker:
        yield broker.address


@pytest.fixture(params=["headrace", "kafka"])
def kafka(request: pytest.FixtureRequest) -> Cluster:
    """A broker: Headrace's own, then the Apache Kafka that HEADRACE_TEST_KAFKA (host:port) names."""
    if request.param == "headrace":
        return Cluster(request.getfixturevalue("headrace_broker"), True)
    address = os.environ.get(ENVIRONMENT)
    if not address:
        pytest.skip(f"no Apache Kafka: {ENVIRONMENT} (host:port) is not set")
    return Cluster(address, False)


def read(consumer: Any, count: int, wait_s: float = WAIT_S) -> list[Any]:
    """Poll until that many records have come."""
    found: list[Any] = []
    deadline = time.monotonic() + wait_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came within {wait_s} s"
        found.extend(consumer.poll(0.2))
    return found


def poll_until(consumers: list[Any], condition: Callable[[], Any], wait_s: float = WAIT_S) -> None:
    """Poll all of them in turn until the condition holds. Only ours: others have threads that poll for them."""
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {wait_s} s"
        for consumer in consumers:
            consumer.poll(0.05)
