"""Exactly once from topic to topic: what is written, and how far was read, are committed in one transaction.

    python examples/exactly_once_topics.py localhost:9092 orders invoices billing billing-1

A crash at any moment repeats the batch in hand, and readers of committed records see its output once. Run several,
each with a transactional id of its own, and the group shares the partitions out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from headrace import Consumer, Producer, exactly_once


def run(
    address: str,
    source: str,
    target: str,
    group: str,
    transactional_id: str,
    transform: Callable[[bytes], bytes] = bytes.upper,
    idle_s: float = 5.0,
) -> int:
    """Transform what there is, until nothing comes for a while. How many records were written."""
    consumer_config = {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    done = 0
    with (
        Consumer(consumer_config) as consumer,
        Producer({"bootstrap.servers": address, "transactional.id": transactional_id}) as producer,
    ):
        consumer.subscribe([source])
        for batch in exactly_once(consumer, producer, idle_timeout=idle_s):
            for record in batch:
                producer.send(target, transform(record.value), key=record.key)
                done += 1
    return done


if __name__ == "__main__":
    print(run(*sys.argv[1:6]))
