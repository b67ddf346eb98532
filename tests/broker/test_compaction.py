"""A running broker compacts: the last value per key survives, and nothing else is lost."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.waiting import eventually

from headrace import testing

KEYS = 50
ROUNDS = 60


def read_all(address: str, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "the partition did not end"
            if message.error():
                return found
            found.append((message.key(), message.value()))
    finally:
        consumer.close()


@pytest.mark.slow
def test_the_last_value_of_every_key_survives_compaction() -> None:
    with testing.broker(overrides={"log.cleaner.backoff.ms": "50"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(1024 * 1024),
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        }
        admin.create_topics([NewTopic("state", 1, 1, config=configs)])["state"].result(30)
        producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 5})
        filler = b"x" * 1000
        for number in range(ROUNDS):
            for key in range(KEYS):
                producer.produce("state", filler + b"%d" % number, key=b"k%d" % key)
            producer.flush(30)
        last = {b"k%d" % key: filler + b"%d" % (ROUNDS - 1) for key in range(KEYS)}

        def compacted() -> list[tuple[bytes, bytes]] | None:
            found = read_all(kafka.address, "state")
            return found if len(found) < KEYS * ROUNDS / 2 else None

        assert dict(eventually(compacted, "a compaction") or ()) == last
