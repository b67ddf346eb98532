"""A process that copies a topic to others exactly once, until it is killed: `worker ADDRESS IN OUTS GROUP ID SEED`.

Each record goes to both outputs, so that a transaction that was torn shows in one of them.
"""

from __future__ import annotations

import random
import sys
import time

from headrace import Consumer, Producer, exactly_once


def main(address: str, source: str, targets: list[str], group: str, name: str, seed: int) -> None:
    rng = random.Random(seed)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0, "transaction.timeout.ms": 10_000}
    )
    with consumer, producer:
        consumer.subscribe([source])
        for batch in exactly_once(consumer, producer, max_records=rng.randint(5, 60), poll_timeout=0.2):
            for record in batch:
                for target in targets:
                    producer.send(target, record.value, key=record.value)
            # Slow enough to be killed in the middle.
            time.sleep(rng.uniform(0, 0.02))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(arguments[0], arguments[1], arguments[2].split(","), arguments[3], arguments[4], int(arguments[5]))
