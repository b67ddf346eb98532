"""Producers of every codec and groups of every client at once, with segments that roll and members that come and go."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from tests.waiting import eventually

from headrace.testing import EmbeddedBroker, broker

from .clients import (
    CODECS,
    TIMEOUT_S,
    KafkaPython,
    confluent_consumer,
    confluent_producer,
    create_topic,
    poll_confluent,
)
from .members import MEMBERS, AioKafkaMember, ConfluentMember, stop_all

pytestmark = pytest.mark.slow

PARTITIONS = 5
MESSAGES_EACH = 6000
SEED = 20
WRITERS = 5
CODECS_OF_ALL = [codec for codec in CODECS if KafkaPython().why_not(codec) is None]


@pytest.fixture
def small_segments() -> Iterator[EmbeddedBroker]:
    with broker(overrides={"log.segment.bytes": "1048576", "offsets.topic.num.partitions": "4"}) as running:
        yield running


class Writer(threading.Thread):
    """An idempotent producer of messages of very different sizes."""

    def __init__(self, address: str, topic: str, number: int) -> None:
        super().__init__()
        self._address, self._topic, self._number = address, topic, number
        self.written: dict[tuple[int, int], bytes] = {}
        self.errors: list[object] = []

    def run(self) -> None:
        rng = random.Random(SEED + self._number)
        settings = {
            "compression.type": CODECS_OF_ALL[self._number % len(CODECS_OF_ALL)],
            "enable.idempotence": True,
            "linger.ms": rng.choice([0, 5, 20]),
            "batch.size": rng.choice([1000, 16_384, 900_000]),
        }
        producer = confluent_producer(self._address, **settings)
        for number in range(MESSAGES_EACH):
            size = int(rng.paretovariate(0.9) * 20) % 200_000
            value = b"%d-%d-" % (self._number, number) + rng.randbytes(min(size, 1000)) * (1 + size // 1000)
            producer.produce(self._topic, value, partition=rng.randrange(PARTITIONS), on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.written[partition, offset] = value


def test_everything_is_read_as_it_was_written(small_segments: EmbeddedBroker, topic: str, group: str) -> None:
    address = small_segments.address
    create_topic(address, topic, PARTITIONS)
    members = [kind(address, group, [topic]).start() for kind in MEMBERS.values()]
    passing = [kind(address, group, [topic]) for kind in (ConfluentMember, AioKafkaMember)]
    writers = [Writer(address, topic, number) for number in range(WRITERS)]
    try:
        for writer in writers:
            writer.start()
        for member in passing:
            member.start()
            eventually(lambda member=member: member.partitions, what="a share of the partitions")  # type: ignore[misc]
            member.stop()
        for writer in writers:
            writer.join()
            assert not writer.errors
        written = {place: value for writer in writers for place, value in writer.written.items()}
        assert len(written) == MESSAGES_EACH * WRITERS

        def all_read() -> bool:
            seen = {(partition, offset) for member in members + passing for _, partition, offset in list(member.read)}
            return seen == written.keys()

        eventually(all_read, what="everything read by the group")
    finally:
        stop_all(members)
    consumer = confluent_consumer(address, f"{group}-again")
    consumer.list_topics(topic, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    try:
        found = {(m.partition(), m.offset()): m.value() for m in poll_confluent(consumer, len(written))}
    finally:
        consumer.close()
    assert found == written
