"""Fixtures of the client tests: where a broker is, and a topic of one's own on it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

ENVIRONMENT = "HEADRACE_TEST_KAFKA"


@pytest.fixture(scope="session")
def broker_address() -> str:
    """host:port of a broker to test against: an Apache Kafka that HEADRACE_TEST_KAFKA names."""
    address = os.environ.get(ENVIRONMENT)
    if not address:
        pytest.skip(f"no broker: {ENVIRONMENT} (host:port) is not set")
    return address


@pytest.fixture
def admin(broker_address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker_address})


@pytest.fixture
def make_topic(admin: Any) -> Iterator[Any]:
    """make_topic(partitions, **configs) → name of a fresh topic, deleted afterwards."""
    from confluent_kafka.admin import NewTopic

    made: list[str] = []

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        config = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
        made.append(name)
        return name

    yield make
    if made:
        for future in admin.delete_topics(made).values():
            future.result(60)


@pytest.fixture
def read_all(broker_address: str) -> Any:
    """read_all(topic) → every record of it, read with confluent-kafka, in order within a partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    def read(topic: str) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": broker_address, "group.id": "reader", "enable.auto.commit": False})
        try:
            partitions = list(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in partitions}
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
            found: list[Any] = []
            deadline = time.monotonic() + 60
            while len(found) < sum(ends.values()):
                assert time.monotonic() < deadline, (
                    f"only {len(found)} of {sum(ends.values())} records were read in 30 s"
                )
                # It waits for that many messages or that long, whichever is first.
                for message in consumer.consume(1000, timeout=0.2):
                    assert message.error() is None
                    found.append(message)
            return sorted(found, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()

    return read
