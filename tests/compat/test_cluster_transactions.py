"""librdkafka's transactional producer on three brokers, of which a coordinator is killed: of transactions or groups.

librdkafka 2.10 to 2.16 forgets brokers that the metadata does not name any more, but not that one of them coordinates a
group. `send_offsets_to_transaction` then asks nobody, and waits for the next change of any of its connections, whatever
its time-out is (librdkafka's issues 5511 and 5456). On quiet connections that is when `connections.max.idle.ms` of the
brokers is over, after ten minutes; Apache Kafka's clusters have the same. So these producers have one of their own.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker.raw import RawClient
from tests.waiting import eventually

from headrace.errors import ErrorCode
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.testing import BrokerProcess

TOPIC, PARTITIONS = "several", 4
TRANSACTIONAL_ID, GROUP = "transfer", "readers"
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
}
KILLED_AT = (4, 9)
TRANSACTIONS = 14
OF_GROUPS, OF_TRANSACTIONS = 0, 1  # key types of FindCoordinator
CLIENT_IDLE_MS = 5_000


@contextlib.contextmanager
def three_brokers(directory: Path) -> Iterator[dict[int, BrokerProcess]]:
    """With the topic, of three replicas."""
    brokers = {
        node_id: BrokerProcess(
            directory / f"broker-{node_id}",
            SETTINGS | {"node.id": str(node_id), "headrace.metadata.dir": str(directory / "metadata")},
        )
        for node_id in (1, 2, 3)
    }
    with contextlib.ExitStack() as stack:
        for broker in brokers.values():
            stack.callback(broker.kill)
            broker.start()
        admin = AdminClient({"bootstrap.servers": address_of(brokers)})
        eventually(lambda: len(admin.list_topics(timeout=10).brokers) == 3, "three brokers")
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        yield brokers
        for broker in brokers.values():
            assert broker.stop() == 0, broker.output()


def address_of(brokers: dict[int, BrokerProcess]) -> str:
    return ",".join(broker.address for broker in brokers.values())


def transactional_producer(address: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": TRANSACTIONAL_ID,
            "connections.max.idle.ms": CLIENT_IDLE_MS,
        }
    )
    producer.init_transactions(60)
    return producer


def coordinator_of(
    brokers: dict[int, BrokerProcess], key: str = TRANSACTIONAL_ID, key_type: int = OF_TRANSACTIONS
) -> int | None:
    """The broker that coordinates the transactional id or group, as each of these says, or None while they do not
    know."""
    found = set()
    for broker in brokers.values():
        with contextlib.suppress(OSError), RawClient(broker.port) as client:
            (answer,) = client.request(
                FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4
            ).coordinators
            if answer.error_code == ErrorCode.NONE:
                found.add(answer.node_id)
    return found.pop() if len(found) == 1 and found <= brokers.keys() else None


def committed_values(address: str) -> list[str]:
    config = {
        "bootstrap.servers": address,
        "group.id": "check",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    values: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 90
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"partitions {set(range(PARTITIONS)) - ended} do not come to an end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            values.append(message.value().decode())
            ended.discard(message.partition())
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return values


def committed_offset(address: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], timeout=60)
    consumer.close()
    offset: int = found.offset
    return offset


@pytest.mark.slow
def test_no_transaction_is_torn_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    with three_brokers(tmp_path) as brokers:
        address = address_of(brokers)
        kept = produce_while_coordinators_die(brokers, address)
        assert Counter(committed_values(address)) == Counter(kept)
        assert committed_offset(address) == last_committed()


@pytest.mark.slow
def test_offsets_are_sent_when_the_coordinator_of_their_group_is_in_the_metadata_no_more(tmp_path: Path) -> None:
    with three_brokers(tmp_path) as brokers:
        address = address_of(brokers)
        producer = transactional_producer(address)
        group = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})

        def send_offset(offset: int) -> None:
            producer.begin_transaction()
            offsets = [confluent_kafka.TopicPartition(TOPIC, 0, offset)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 60)
            commit(producer)

        send_offset(0)  # librdkafka knows the coordinator since
        coordinator = eventually(lambda: coordinator_of(brokers, GROUP, OF_GROUPS), "a coordinator")
        brokers[coordinator].kill()
        eventually(lambda: coordinator not in producer.list_topics(timeout=10).brokers, "it is in the metadata no more")
        send_offset(1)
        group.close()
        assert committed_offset(address) == 1


def is_aborted(number: int) -> bool:
    return number % 4 == 3


def last_committed() -> int:
    return max(number for number in range(TRANSACTIONS) if not is_aborted(number))


def produce_while_coordinators_die(brokers: dict[int, BrokerProcess], address: str) -> list[str]:
    """Transactions over all partitions, with the group's offset; what of it was committed."""
    kept: list[str] = []
    producer = transactional_producer(address)
    group = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})
    dead: BrokerProcess | None = None
    number = 0
    while number < TRANSACTIONS:
        values = [f"{number}-{index}" for index in range(PARTITIONS)]
        producer.begin_transaction()
        try:
            for index, value in enumerate(values):
                producer.produce(TOPIC, value.encode(), partition=index)
            if number in KILLED_AT and dead is None:
                coordinator = eventually(lambda: coordinator_of(brokers), "a coordinator")
                dead = brokers[coordinator]
                dead.kill()
            offsets = [confluent_kafka.TopicPartition(TOPIC, 0, number)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 60)
            if is_aborted(number):
                producer.abort_transaction(60)
            else:
                commit(producer)
                kept += values
            number += 1
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(60)  # and once more
        if dead is not None and number - 1 in KILLED_AT:
            dead.start()
            dead = None
            eventually(lambda: coordinator_of(brokers), "all brokers know the coordinator")
    group.close()
    return kept


def commit(producer: confluent_kafka.Producer) -> None:
    for _ in range(6):
        try:
            producer.commit_transaction(30)
            return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise
    raise AssertionError("the transaction could not be committed")
