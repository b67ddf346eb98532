"""What clients were told survives the broker: stopped cleanly, and killed (SPEC 1.8, 4.8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiokafka
import kafka as kafka_python
import pytest
from confluent_kafka import TopicPartition
from tests.waiting import eventually

from headrace.testing import BrokerProcess

from .clients import (
    PYTHON_CLIENTS,
    TIMEOUT_S,
    AioKafka,
    KafkaPython,
    confluent_admin,
    confluent_consumer,
    confluent_producer,
    create_topic,
    poll_confluent,
    sample,
)
from .members import ConfluentMember, wait_until_shared_out

pytestmark = pytest.mark.slow

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
TOPIC = "kept"


def commit_by_all(address: str) -> None:
    """A commit of every client, each in a group of its own name."""
    consumer = confluent_consumer(address, "confluent")
    consumer.subscribe([TOPIC])
    assert len(poll_confluent(consumer, 10)) == 10
    consumer.commit(asynchronous=False)
    consumer.close()
    other = kafka_python.KafkaConsumer(bootstrap_servers=address, client_id=KafkaPython.name, group_id="kafka-python")
    other.assign([kafka_python.TopicPartition(TOPIC, 0)])
    other.commit({kafka_python.TopicPartition(TOPIC, 0): kafka_python.OffsetAndMetadata(20, "twenty", -1)})
    other.close()

    async def run() -> None:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, client_id=AioKafka.name, group_id="aiokafka"
        ) as third:
            third.assign([aiokafka.TopicPartition(TOPIC, 0)])
            await third.commit({aiokafka.TopicPartition(TOPIC, 0): 30})

    asyncio.run(run())


def check_commits(address: str) -> None:
    for group, expected in (("confluent", 10), ("kafka-python", 20), ("aiokafka", 30)):
        consumer = confluent_consumer(address, group)
        try:
            assert consumer.committed([TopicPartition(TOPIC, 0)], timeout=TIMEOUT_S)[0].offset == expected, group
            consumer.subscribe([TOPIC])
            assert poll_confluent(consumer, 1)[0].offset() == expected, group
        finally:
            consumer.close()


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_commits_records_and_configs_survive(tmp_path: Path, ends: str) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as process:
        create_topic(process.address, TOPIC, retention_ms="-1", max_message_bytes="123456")
        messages = sample(100)
        PYTHON_CLIENTS[0].produce(process.address, TOPIC, messages, "zstd", **{"enable.idempotence": True})
        commit_by_all(process.address)
        process.stop() if ends == "stopped" else process.kill()
        process.start()
        check_commits(process.address)
        assert PYTHON_CLIENTS[0].consume(process.address, TOPIC, 100) == messages
        described = confluent_admin(process.address).list_topics(timeout=TIMEOUT_S).topics[TOPIC]
        assert len(described.partitions) == 1


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_a_producer_and_a_group_live_through_it(tmp_path: Path, ends: str) -> None:
    """An idempotent producer goes on with its sequence, members with their group: all records once, in order."""
    with BrokerProcess(tmp_path / "data", SETTINGS) as process:
        create_topic(process.address, TOPIC)
        producer = confluent_producer(
            process.address, **{"enable.idempotence": True, "linger.ms": 1, "reconnect.backoff.max.ms": 200}
        )
        errors: list[object] = []
        members = [ConfluentMember(process.address, "group", [TOPIC]).start() for _ in range(2)]
        try:
            eventually(lambda: any(member.partitions for member in members), what="an assignment")
            for number in range(2000):
                producer.produce(
                    TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: error and errors.append(error)
                )
                producer.poll(0)
                if number == 1000:
                    process.stop() if ends == "stopped" else process.kill()
                    process.start()
            assert producer.flush(TIMEOUT_S) == 0
            assert not errors
            expected = {(TOPIC, 0, offset) for offset in range(2000)}
            eventually(lambda: {x for member in members for x in list(member.read)} >= expected, what="all records")
        finally:
            for member in members:
                member._stop.set()
            for member in members:
                member.stop()
        found = PYTHON_CLIENTS[0].consume(process.address, TOPIC, 2000)
        assert [message.value for message in found] == [b"%d" % number for number in range(2000)]


def test_a_group_goes_on_with_its_members_after_a_restart(tmp_path: Path) -> None:
    """The group is loaded with its members and generation, so nobody has to join again."""
    with BrokerProcess(tmp_path / "data", SETTINGS) as process:
        create_topic(process.address, TOPIC, 2)
        member = ConfluentMember(process.address, "group", [TOPIC]).start()
        try:
            wait_until_shared_out([member], {(TOPIC, 0), (TOPIC, 1)})
            changes = member.rebalances
            process.stop()
            process.start()
            PYTHON_CLIENTS[0].produce(process.address, TOPIC, sample(10, start_ms=1_794_000_000_000))
            eventually(lambda: len(member.read) == 10, what="records after the restart")
            assert member.rebalances == changes
        finally:
            member.stop()
