"""Offsets for times, seeking, patterns, commits with their metadata, creation on first use (SPEC 3.1, 3.4, 3.5)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from tests.waiting import eventually

from headrace.testing import EmbeddedBroker

from .clients import (
    PYTHON_CLIENTS,
    TIMEOUT_S,
    AioKafka,
    Client,
    KafkaPython,
    confluent_consumer,
    confluent_producer,
    create_topic,
    poll_confluent,
    sample,
)

pytestmark = pytest.mark.slow

START_MS = 1_700_000_000_000
STEP_MS = 7  # of sample()


@pytest.fixture
def filled(kafka: EmbeddedBroker, topic: str) -> str:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(50))
    return topic


def test_confluent_finds_offsets_for_times_and_seeks(kafka: EmbeddedBroker, filled: str, group: str) -> None:
    consumer = confluent_consumer(kafka.address, group)
    try:
        asked = [TopicPartition(filled, 0, START_MS + STEP_MS * 10 - 1)]
        assert consumer.offsets_for_times(asked, timeout=TIMEOUT_S)[0].offset == 10
        after = [TopicPartition(filled, 0, START_MS * 2)]
        assert consumer.offsets_for_times(after, timeout=TIMEOUT_S)[0].offset == confluent_kafka.OFFSET_END
        consumer.assign([TopicPartition(filled, 0, OFFSET_BEGINNING)])
        assert [message.offset() for message in poll_confluent(consumer, 5)] == [0, 1, 2, 3, 4]
        consumer.seek(TopicPartition(filled, 0, 40))
        assert [message.offset() for message in poll_confluent(consumer, 10)] == list(range(40, 50))
        consumer.pause([TopicPartition(filled, 0)])
        consumer.seek(TopicPartition(filled, 0, 1))
        consumer.resume([TopicPartition(filled, 0)])
        assert poll_confluent(consumer, 1)[0].offset() == 1
    finally:
        consumer.close()


def test_kafka_python_finds_offsets_for_times_and_seeks(kafka: EmbeddedBroker, filled: str) -> None:
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=kafka.address, client_id=KafkaPython.name)
    try:
        part = kafka_python.TopicPartition(filled, 0)
        consumer.assign([part])
        found = consumer.offsets_for_times({part: START_MS + STEP_MS * 10 - 1})[part]
        assert (found.offset, found.timestamp) == (10, START_MS + STEP_MS * 10)
        assert consumer.beginning_offsets([part]) == {part: 0}
        assert consumer.end_offsets([part]) == {part: 50}
        consumer.seek(part, 45)
        assert next(consumer).offset == 45
        consumer.seek_to_beginning(part)
        assert next(consumer).offset == 0
        consumer.seek_to_end(part)
        assert consumer.position(part) == 50
    finally:
        consumer.close()


def test_aiokafka_finds_offsets_for_times_and_seeks(kafka: EmbeddedBroker, filled: str) -> None:
    async def run() -> None:
        part = aiokafka.TopicPartition(filled, 0)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=kafka.address, client_id=AioKafka.name) as consumer:
            consumer.assign([part])
            found = (await consumer.offsets_for_times({part: START_MS + STEP_MS * 10 - 1}))[part]
            assert (found.offset, found.timestamp) == (10, START_MS + STEP_MS * 10)
            assert await consumer.beginning_offsets([part]) == {part: 0}
            assert await consumer.end_offsets([part]) == {part: 50}
            consumer.seek(part, 45)
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).offset == 45
            await consumer.seek_to_beginning(part)
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).offset == 0

    asyncio.run(run())


def test_an_offset_out_of_range_is_reset_to_the_earliest(kafka: EmbeddedBroker, filled: str, group: str) -> None:
    consumer = confluent_consumer(kafka.address, group, **{"auto.offset.reset": "earliest"})
    consumer.list_topics(filled, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(filled, 0, 12345)])
    try:
        assert poll_confluent(consumer, 1)[0].offset() == 0
    finally:
        consumer.close()


def test_an_offset_out_of_range_is_reset_to_the_latest(kafka: EmbeddedBroker, filled: str, group: str) -> None:
    consumer = confluent_consumer(kafka.address, group, **{"auto.offset.reset": "latest"})
    consumer.list_topics(filled, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(filled, 0, 12345)])
    producer = confluent_producer(kafka.address)

    def came() -> bool:
        """What is written after the reset is read; what was there before is not."""
        producer.produce(filled, b"late", partition=0)
        producer.flush(TIMEOUT_S)
        message = consumer.poll(0.1)
        assert message is None or message.offset() >= 50
        return message is not None

    try:
        eventually(came, what="a record after the reset to the latest")
    finally:
        consumer.close()


def test_a_pattern_picks_up_a_topic_that_comes_later(
    kafka: EmbeddedBroker, group: str, fresh: Callable[[str], str]
) -> None:
    prefix = fresh("pattern")
    create_topic(kafka.address, f"{prefix}-a", retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, f"{prefix}-a", sample(3))
    consumer = confluent_consumer(kafka.address, group, **{"topic.metadata.refresh.interval.ms": 100})
    try:
        consumer.subscribe([f"^{re.escape(prefix)}-.*"])
        assert {message.topic() for message in poll_confluent(consumer, 3)} == {f"{prefix}-a"}
        consumer.commit(asynchronous=False)
        create_topic(kafka.address, f"{prefix}-b", retention_ms="-1")
        PYTHON_CLIENTS[0].produce(kafka.address, f"{prefix}-b", sample(3))
        assert {message.topic() for message in poll_confluent(consumer, 3)} == {f"{prefix}-b"}
    finally:
        consumer.close()


def test_kafka_python_and_aiokafka_subscribe_to_patterns(kafka: EmbeddedBroker, fresh: Callable[[str], str]) -> None:
    prefix = fresh("pattern")
    create_topic(kafka.address, f"{prefix}-a", retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, f"{prefix}-a", sample(3))
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=kafka.address,
        client_id=KafkaPython.name,
        group_id=fresh("group"),
        auto_offset_reset="earliest",
    )
    try:
        consumer.subscribe(pattern=f"^{re.escape(prefix)}-.*")
        assert next(consumer).topic == f"{prefix}-a"
    finally:
        consumer.close()

    async def run() -> None:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=kafka.address,
            client_id=AioKafka.name,
            group_id=fresh("group"),
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.subscribe(pattern=f"^{re.escape(prefix)}-.*")
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).topic == f"{prefix}-a"

    asyncio.run(run())


def test_commits_of_one_client_are_seen_by_the_others_with_their_metadata(
    kafka: EmbeddedBroker, filled: str, group: str
) -> None:
    consumer = confluent_consumer(kafka.address, group)
    consumer.commit(offsets=[TopicPartition(filled, 0, 17, "half-way")], asynchronous=False)
    seen = consumer.committed([TopicPartition(filled, 0)], timeout=TIMEOUT_S)[0]
    assert (seen.offset, seen.metadata) == (17, "half-way")
    consumer.close()

    other = kafka_python.KafkaConsumer(bootstrap_servers=kafka.address, client_id=KafkaPython.name, group_id=group)
    try:
        found = other.committed(kafka_python.TopicPartition(filled, 0), metadata=True)
        assert (found.offset, found.metadata.rstrip("\0")) == (17, "half-way")  # confluent-kafka sends C's end of text
        other.assign([kafka_python.TopicPartition(filled, 0)])
        other.commit({kafka_python.TopicPartition(filled, 0): kafka_python.OffsetAndMetadata(18, "on", -1)})
    finally:
        other.close()

    async def run() -> None:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=kafka.address, client_id=AioKafka.name, group_id=group
        ) as third:
            third.assign([aiokafka.TopicPartition(filled, 0)])
            assert await third.committed(aiokafka.TopicPartition(filled, 0)) == 18

    asyncio.run(run())


def test_metadata_of_a_commit_has_a_limit(kafka: EmbeddedBroker, filled: str, group: str) -> None:
    consumer = confluent_consumer(kafka.address, group)
    try:
        # One less than the 4096: confluent-kafka sends C's end of text with it.
        consumer.commit(offsets=[TopicPartition(filled, 0, 1, "x" * 4095)], asynchronous=False)
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            consumer.commit(offsets=[TopicPartition(filled, 0, 1, "x" * 4096)], asynchronous=False)
        assert caught.value.args[0].name() == "OFFSET_METADATA_TOO_LARGE"
    finally:
        consumer.close()


@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=[client.name for client in PYTHON_CLIENTS])
def test_a_topic_is_created_when_it_is_first_written_to(kafka: EmbeddedBroker, topic: str, writer: Client) -> None:
    messages = sample(3, start_ms=int(time.time() * 1000), null_headers=False)
    writer.produce(kafka.address, topic, messages)
    assert PYTHON_CLIENTS[0].consume(kafka.address, topic, 3) == messages
    assert kafka.call(lambda broker: broker.cluster.partition_count(topic)) == 3  # num.partitions
