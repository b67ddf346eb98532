"""Share consumers over a socket, with a broker that has share groups."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from bench.peers import ApacheKafka, kafka_libs, why_no_kafka
from tests.waiting import eventually

import headrace.aio
from headrace import (
    AcknowledgeType,
    Admin,
    ConcurrentAccessError,
    ConfigError,
    HeadraceError,
    IllegalStateError,
    NewTopic,
    Producer,
    RecordDeserializationError,
    ShareConsumer,
    ShareRecord,
    TopicPartition,
    WakeupError,
    testing,
)
from headrace.client.admin.types import ConfigResource, ResourceType

DEADLINE_S = 20.0


WITHOUT_KAFKA = pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())
BROKERS = ["ours", pytest.param("apache-kafka", marks=[pytest.mark.java, pytest.mark.slow, WITHOUT_KAFKA])]


@contextlib.contextmanager
def address_of(name: str, directory: Path, **settings: str) -> Iterator[str]:
    """One of `BROKERS`."""
    settings = {"group.share.assignment.interval.ms": "0"} | settings
    running: AbstractContextManager[Any]
    running = testing.broker(overrides=settings) if name == "ours" else ApacheKafka(directory / "kafka", settings)
    with running as broker:
        yield broker.address


@pytest.fixture(scope="module", params=BROKERS)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with address_of(request.param, tmp_path_factory.mktemp("shares")) as running:
        yield running


class Work:
    """A topic of its own, and a group that reads it from the beginning."""

    def __init__(self, address: str, partitions: int = 1) -> None:
        self.address = address
        self.topic, self.group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
        with Admin({"bootstrap.servers": address}) as admin:
            admin.create_topics([NewTopic(self.topic, partitions, 1)])
        self.configure("share.auto.offset.reset", "earliest")

    def configure(self, name: str, value: str) -> None:
        """Set a configuration of the group; Apache Kafka's coordinator hears of it a bit later."""
        group = ConfigResource(ResourceType.GROUP, self.group)
        with Admin({"bootstrap.servers": self.address}) as admin:
            admin.incremental_alter_configs({group: {name: value}}).all()
            eventually(lambda: admin.describe_configs([group])[group][name].value == value, "the configuration")

    def write(self, *values: bytes, partition: int = 0) -> None:
        with Producer({"bootstrap.servers": self.address}) as producer:
            for value in values:
                producer.send(self.topic, value=value, partition=partition)

    def consumer(self, **settings: object) -> ShareConsumer:
        consumer: ShareConsumer = ShareConsumer({"bootstrap.servers": self.address, "group.id": self.group}, **settings)
        consumer.subscribe([self.topic])
        return consumer


@pytest.fixture
def work(address: str) -> Work:
    return Work(address)


def poll(consumer: ShareConsumer) -> list[ShareRecord]:
    """The next records."""
    found: list[ShareRecord] = []

    def look() -> bool:
        found.extend(consumer.poll(0.5))
        return bool(found)

    eventually(look, "records")
    return found


def values(records: list[ShareRecord]) -> list[tuple[int, bytes, int]]:
    return [(record.offset, record.value, record.delivery_count) for record in records]


def test_what_a_poll_gave_is_accepted_by_the_next_one(work: Work) -> None:
    work.write(b"a", b"b")
    with work.consumer() as first:
        assert values(poll(first)) == [(0, b"a", 1), (1, b"b", 1)]
        assert first.poll(0.1) == []
        assert first.commit_sync() == {TopicPartition(work.topic, 0): None}
    work.write(b"c")
    with work.consumer() as second:
        assert values(poll(second)) == [(2, b"c", 1)]


def test_members_share_a_partition_and_each_record_is_one_members(work: Work) -> None:
    with work.consumer(max_poll_records=1) as first, work.consumer(max_poll_records=1) as second:
        for value in (b"a", b"b", b"c", b"d"):
            work.write(value)
        got = [record.offset for _ in range(2) for consumer in (first, second) for record in poll(consumer)]
        assert sorted(got) == [0, 1, 2, 3]


def test_each_record_is_acknowledged_by_itself(work: Work) -> None:
    work.write(b"a", b"b", b"c")
    with work.consumer(share_acknowledgement_mode="explicit") as consumer:
        first, second, third = poll(consumer)
        with pytest.raises(IllegalStateError, match=r"were not acknowledged.*at 0"):
            consumer.poll(0)
        consumer.acknowledge(first)
        consumer.acknowledge(second, AcknowledgeType.RELEASE)
        consumer.acknowledge(third, AcknowledgeType.REJECT)
        with pytest.raises(IllegalStateError, match="not this consumer's to acknowledge"):
            consumer.acknowledge(first)
        again = poll(consumer)
        assert values(again) == [(1, b"b", 2)]
        consumer.acknowledge(again[0], AcknowledgeType.RENEW)
        assert consumer.commit_sync() == {TopicPartition(work.topic, 0): None}
        consumer.acknowledge(again[0])
        assert consumer.commit_sync() == {TopicPartition(work.topic, 0): None}
        assert consumer.acquisition_lock_timeout_ms == 30_000


def test_what_was_not_finished_at_close_is_delivered_at_once(work: Work) -> None:
    work.write(b"a", b"b")
    with work.consumer(share_acknowledgement_mode="explicit") as first:
        record, _ = poll(first)
        first.acknowledge(record)
    with work.consumer() as second:
        assert values(poll(second)) == [(1, b"b", 2)]


def test_the_callback_hears_of_every_answer(work: Work) -> None:
    work.write(b"a")
    heard: list[tuple[dict[TopicPartition, set[int]], HeadraceError | None]] = []
    with work.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: heard.append((offsets, error)))
        poll(consumer)
        consumer.commit_async()
        consumer.commit_sync()
    assert heard == [({TopicPartition(work.topic, 0): {0}}, None)]


def test_a_record_that_nobody_can_read_is_rejected_after_those_before_it(work: Work) -> None:
    work.write(b"1", b"{x", b"3")
    with work.consumer(value_deserializer="json") as consumer:
        assert [record.value for record in poll(consumer)] == [1]
        with pytest.raises(RecordDeserializationError, match="at offset 1"):
            poll(consumer)
        assert [record.value for record in poll(consumer)] == [3]


def test_a_poll_is_woken_and_refused_to_a_second_thread(work: Work) -> None:
    with work.consumer() as consumer:
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                consumer.poll(60)
            except WakeupError as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()

        def refused() -> bool:
            try:
                consumer.subscription()
                consumer.acknowledge_offset(work.topic, 0, 0)
            except ConcurrentAccessError:
                return True
            except IllegalStateError:
                return False  # the thread has not begun
            return False

        eventually(refused, "a refusal")
        consumer.wakeup()
        thread.join(DEADLINE_S)
        assert len(raised) == 1


def test_settings_that_mean_nothing_here_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"share\.auto\.offset\.reset"):
        ShareConsumer({"bootstrap.servers": "localhost:1", "group.id": "g", "auto.offset.reset": "earliest"})
    with pytest.raises(ConfigError, match=r"group\.id names the share group"):
        ShareConsumer({"bootstrap.servers": "localhost:1"})


def test_the_same_on_asyncio(work: Work) -> None:
    work.write(b"a", b"b")

    async def main() -> None:
        settings = {"bootstrap.servers": work.address, "group.id": work.group}
        async with headrace.aio.ShareConsumer(settings, share_acknowledgement_mode="explicit") as consumer:
            consumer.subscribe([work.topic])
            records: list[ShareRecord] = []
            async with asyncio.timeout(DEADLINE_S):
                while not records:
                    records = await consumer.poll(1.0)
            consumer.acknowledge(records[0])
            consumer.acknowledge(records[1], AcknowledgeType.RELEASE)
            assert await consumer.commit_sync() == {TopicPartition(work.topic, 0): None}
            again = await consumer.poll(DEADLINE_S)
            assert values(again) == [(1, b"b", 2)]
            consumer.acknowledge(again[0])
        with pytest.raises(IllegalStateError, match="closed"):
            await consumer.poll(0)

    asyncio.run(main())
