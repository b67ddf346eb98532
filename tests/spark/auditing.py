"""What is in a topic, as an independent client (confluent-kafka, read_committed) sees it."""

from __future__ import annotations

import time
from collections import Counter

import confluent_kafka

DEADLINE_S = 60.0


def read_topic(servers: str, topic: str, *, committed: bool = True) -> list[tuple[int, bytes | None, bytes | None]]:
    """Partition, key and value of every record up to the end of each partition as it is now."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in found])
        left = set(found)
        rows: list[tuple[int, bytes | None, bytes | None]] = []
        deadline = time.monotonic() + DEADLINE_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} of {topic} did not end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                rows.append((message.partition(), message.key(), message.value()))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error)
        return rows
    finally:
        consumer.close()


def audit(expected: Counter[bytes], values: list[bytes]) -> tuple[int, int]:
    """How many are lost, and how many are there too often."""
    seen = Counter(values)
    return sum((expected - seen).values()), sum((seen - expected).values())
