"""Mistakes that other brokers which speak Kafka's protocol have made: one test each.

Auto-creation, the metadata of commits, concurrent rebalances and lost offsets are in the other files of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from kio.schema.errors import ErrorCode

from headrace.testing import EmbeddedBroker, broker

from .clients import (
    PYTHON_CLIENTS,
    TIMEOUT_S,
    Message,
    confluent_admin,
    confluent_consumer,
    confluent_producer,
    create_topic,
    poll_confluent,
    sample,
)
from .wire import Wire, batch
from .world import World, fetch_of, values_of


@pytest.fixture
def world(kafka: EmbeddedBroker) -> Iterator[World]:
    with Wire(kafka.address) as wire:
        yield World(wire)


def test_auto_creation_has_its_own_partition_count_and_can_be_off() -> None:
    with broker(overrides={"num.partitions": "7"}) as kafka, Wire(kafka.address) as wire:
        wire.ask("metadata", 4, topics=[{"name": "new"}], allow_auto_topic_creation=True)
        assert len(wire.ask("metadata", 4, topics=[{"name": "new"}]).topics[0].partitions) == 7
        answer = wire.ask("metadata", 4, topics=[{"name": "other"}], allow_auto_topic_creation=False)
        assert answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition
        assert wire.ask("metadata", 4, topics=None).topics[0].name == "new"
    with broker(overrides={"auto.create.topics.enable": "false"}) as kafka, Wire(kafka.address) as wire:
        wire.ask("metadata", 4, topics=[{"name": "new"}], allow_auto_topic_creation=True)
        assert wire.ask("metadata", 4, topics=None).topics == ()


def test_a_fetch_from_mid_batch_returns_the_whole_batch(world: World) -> None:
    topic, _ = world.filled(b"a", b"b", b"c")
    found = world.ask("fetch", 11, **fetch_of(topic, None, offset=2)).responses[0].partitions[0]
    assert values_of(found.records) == [b"a", b"b", b"c"]


def test_clients_see_only_what_they_asked_for_of_such_a_batch(kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(10), "gzip")
    consumer = confluent_consumer(kafka.address, topic)
    consumer.list_topics(topic, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(topic, 0, 7)])
    try:
        assert [message.offset() for message in poll_confluent(consumer, 3)] == [7, 8, 9]
    finally:
        consumer.close()


def test_a_look_up_by_time_finds_the_record_inside_its_batch(world: World) -> None:
    topic, _ = world.topic()
    world.append(topic, batch(b"a", b"b", timestamp_ms=1000))
    world.append(topic, batch(b"c", b"d", timestamp_ms=500, codec=1))
    world.append(topic, batch(b"e", b"f", timestamp_ms=2000, codec=4))
    for timestamp, expected in (
        (0, (0, 1000)),
        (1001, (1, 1001)),
        (1002, (4, 2000)),
        (2001, (5, 2001)),
        (2002, (-1, -1)),
    ):
        part = {"partition_index": 0, "timestamp": timestamp}
        answer = world.ask("list_offsets", 5, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
        found = answer.topics[0].partitions[0]
        assert (found.offset, found.timestamp) == expected, timestamp


def test_a_record_without_key_is_refused_by_a_compacted_topic(kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, cleanup_policy="compact")
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        PYTHON_CLIENTS[0].produce(kafka.address, topic, [Message(None, b"value", 1_700_000_000_000)])
    PYTHON_CLIENTS[0].produce(kafka.address, topic, [Message(b"key", b"value", 1_700_000_000_000)])
    assert len(PYTHON_CLIENTS[0].consume(kafka.address, topic, 1)) == 1


def test_max_message_bytes_counts_the_batch_as_it_was_sent(world: World) -> None:
    topic, _ = world.topic(max_message_bytes="1000")
    fits = batch(b"x" * 800)
    assert len(fits) < 1000
    world.append(topic, fits)
    world.append(topic, batch(b"x" * 5000, codec=1))  # compressed it is small
    too_large = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x" * 1000)}]}]
    answer = world.ask("produce", 9, acks=-1, timeout=5000, topic_data=too_large)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.message_too_large


def test_a_fetch_beyond_its_limits_still_gives_the_first_batch_whole(world: World) -> None:
    topic, _ = world.topic()
    large = b"x" * 100_000
    world.append(topic, batch(large))
    world.append(topic, batch(large))
    fields = fetch_of(topic, None)
    fields["max_bytes"] = fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 10
    found = world.ask("fetch", 11, **fields).responses[0].partitions[0]
    assert values_of(found.records) == [large]


def test_no_consumer_gets_stuck_at_a_large_message(kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    large = Message(b"key", b"x" * 900_000, 1_700_000_000_000)
    messages = [*sample(3, null_headers=False), large, *sample(3, null_headers=False)]
    PYTHON_CLIENTS[0].produce(kafka.address, topic, messages)
    small = {
        "confluent-kafka": {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000},
        "kafka-python": {"max_partition_fetch_bytes": 1000},
        "aiokafka": {"max_partition_fetch_bytes": 1000},
    }
    for reader in PYTHON_CLIENTS:
        assert reader.consume(kafka.address, topic, len(messages), **small[reader.name]) == messages, reader.name


def test_what_was_aborted_is_not_read_by_a_committed_reader(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(kafka.address, topic)
    producer = confluent_producer(kafka.address, **{"transactional.id": f"t-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction] * 3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        ends(TIMEOUT_S)
    consumer = confluent_consumer(kafka.address, group, **{"isolation.level": "read_committed"})
    consumer.list_topics(topic, timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    try:
        assert [message.value() for message in poll_confluent(consumer, 3)] == [b"0", b"2", b"4"]
    finally:
        consumer.close()


def test_offsets_of_a_deleted_topic_do_not_come_back_with_its_name(
    kafka: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(kafka.address, topic)
    consumer = confluent_consumer(kafka.address, group)
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    admin = confluent_admin(kafka.address)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    create_topic(kafka.address, topic)
    try:
        assert consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)[0].offset == -1001
    finally:
        consumer.close()
