"""What is in a topic, with headers and timestamps."""

from __future__ import annotations

from typing import Any

from headrace.client.consumer.blocking import Consumer
from headrace.topics import TopicPartition

POLLS_MAX = 300


def everything(servers: str, topic: str) -> list[Any]:
    """Every committed record, by partition and offset."""
    found: list[Any] = []
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = [TopicPartition(topic, view.index) for view in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        for _ in range(POLLS_MAX):
            if all(consumer.position(one) >= ends[one] for one in partitions):
                return sorted(found, key=lambda one: (one.partition, one.offset))
            found += consumer.poll(0.2)
    raise AssertionError(f"{topic} could not be read to its ends {ends}")
