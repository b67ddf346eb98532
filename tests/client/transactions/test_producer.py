"""Transactional producers on real brokers, in both protocols."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import (
    AbortableTransactionError,
    Admin,
    Consumer,
    Producer,
    ProducerFencedError,
    TransactionTimeoutError,
    aio,
)
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import FatalTransactionError, TransactionError, TransactionStateError
from headrace.config import ConfigError

from .conftest import Cluster

pytestmark = pytest.mark.slow


def values(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


def committed_offsets(admin: Admin, group: str) -> Any:
    """A group's offsets, once there are some: they appear with the marker, shortly after the commit was answered."""
    return eventually(lambda: admin.list_group_offsets([group])[group], f"offsets of {group}")


def test_committed_records_are_read_and_aborted_ones_are_not(kafka: Cluster) -> None:
    topic = kafka.topic(3)
    with Producer(kafka.producer_config()) as producer:
        producer.init_transactions()
        assert producer._core is not None
        assert producer._core.transaction is not None
        assert producer._core.transaction.protocol == kafka.protocol
        for number in range(5):
            producer.begin_transaction()
            for value in values(f"kept {number}", 50):
                producer.send(topic, value)
            producer.commit_transaction()
            producer.begin_transaction()
            gone = [producer.send(topic, value) for value in values(f"gone {number}", 50)]
            if number % 2:
                producer.flush()
                assert all(delivery.result().offset >= 0 for delivery in gone)
            producer.abort_transaction()
    kept = {value for number in range(5) for value in values(f"kept {number}", 50)}
    assert sorted(kafka.read(topic)) == sorted(kept)
    assert len(kafka.read(topic, "read_uncommitted")) > len(kept)


def test_nothing_is_read_before_the_commit(kafka: Cluster) -> None:
    topic = kafka.topic()
    with Producer(kafka.producer_config()) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"later")
        producer.flush()
        assert kafka.read(topic, settled=False) == []
        assert kafka.read(topic, "read_uncommitted", settled=False) == [b"later"]
        producer.commit_transaction()
        assert kafka.read(topic) == [b"later"]


def test_the_context_manager_commits_and_aborts(kafka: Cluster) -> None:
    topic = kafka.topic()
    with Producer(kafka.producer_config()) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"kept")
        with pytest.raises(KeyError), producer.transaction():  # noqa: PT012 - the block is what is tested
            producer.send(topic, b"gone")
            raise KeyError
        with pytest.raises(AbortableTransactionError), producer.transaction():  # noqa: PT012 - as above
            producer.send(topic, b"gone too")
            producer.send(topic, b"x" * 2_000_000).exception(30)
        with producer.transaction():
            producer.send(topic, b"kept too")
    assert kafka.read(topic) == [b"kept", b"kept too"]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.name("group")
    with Producer(kafka.producer_config()) as producer, Admin({"bootstrap.servers": kafka.address}) as admin:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 11}, group)
        producer.abort_transaction()
        assert admin.list_group_offsets([group])[group] == {}
        with producer.transaction():
            producer.send(topic, b"output")
            producer.send_offsets_to_transaction({(topic, 0): 22}, ConsumerGroupMetadata(group))
        committed = committed_offsets(admin, group)
        assert {tuple(partition): one.offset for partition, one in committed.items()} == {(topic, 0): 22}


def test_a_consumer_that_left_its_group_cannot_commit(kafka: Cluster) -> None:
    topic, group = kafka.topic(), kafka.name("group")
    with Producer(kafka.producer_config()) as producer:
        producer.init_transactions()
        with Consumer(kafka.consumer_config(group_id=group)) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                consumer.poll(0.1)
            metadata = consumer.group_metadata()
        producer.begin_transaction()
        producer.send(topic, b"zombie")
        with pytest.raises(AbortableTransactionError, match="abort_transaction"):
            producer.send_offsets_to_transaction({(topic, 0): 1}, metadata)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        with pytest.raises(AbortableTransactionError):
            producer.send(topic, b"more")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"well again")
    assert kafka.read(topic) == [b"well again"]


def test_a_second_producer_fences_the_first_and_ends_its_transaction(kafka: Cluster) -> None:
    topic, config = kafka.topic(), kafka.producer_config()
    with Producer(config) as first, Producer(config) as second:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"zombie")
        first.flush()
        second.init_transactions()
        with second.transaction():
            second.send(topic, b"heir")
        first.send(topic, b"late")
        with pytest.raises(TransactionError):
            first.commit_transaction()
        with pytest.raises(ProducerFencedError, match="make a new one"):
            first.abort_transaction()
        with pytest.raises(ProducerFencedError):
            first.begin_transaction()
    assert kafka.read(topic) == [b"heir"]


def test_what_was_left_open_is_aborted_by_the_next_producer_and_by_close(kafka: Cluster) -> None:
    topic, config = kafka.topic(), kafka.producer_config()
    crashed = Producer(config)
    crashed.init_transactions()
    crashed.begin_transaction()
    crashed.send(topic, b"crashed")
    crashed.flush()
    crashed.close(0)
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"closed")
        producer.flush()
    with Consumer(kafka.consumer_config()) as consumer:
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
    assert end == 4, "two records and two markers, none of them open"
    assert kafka.read(topic) == []


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(kafka: Cluster) -> None:
    if kafka.broker is None:
        pytest.skip("Apache Kafka looks for such transactions every ten seconds")
    topic = kafka.topic()
    with Producer(kafka.producer_config(transaction_timeout_ms=300)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"slow")
        producer.flush()
        with Admin({"bootstrap.servers": kafka.address}) as admin:
            name = producer._settings.transactional_id
            while admin.describe_transactions([name])[name].state != "CompleteAbort":
                threading.Event().wait(0.02)
        with pytest.raises(FatalTransactionError):
            producer.commit_transaction()
    assert kafka.read(topic) == []


def test_calls_out_of_order_are_refused(kafka: Cluster) -> None:
    topic = kafka.topic()
    with (
        Producer({"bootstrap.servers": kafka.address}) as plain,
        pytest.raises(TransactionStateError, match=r"transactional\.id"),
    ):
        plain.init_transactions()
    with Producer(kafka.producer_config()) as producer:
        with pytest.raises(TransactionStateError, match="init_transactions"):
            producer.begin_transaction()
        with pytest.raises(TransactionStateError, match="init_transactions"):
            producer.send(topic, b"x")
        producer.init_transactions()
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            producer.send_batch(topic, [b"x"])
        with producer.transaction(), pytest.raises(TransactionStateError, match="open already"):
            producer.begin_transaction()
    for wrong in ({"acks": "1"}, {"enable.idempotence": False}, {"transaction.two.phase.commit.enable": True}):
        with pytest.raises(ConfigError):
            Producer({**kafka.producer_config(), **wrong})


def test_many_records_in_many_shapes_and_partitions(kafka: Cluster) -> None:
    import pyarrow

    topic = kafka.topic(4)
    with Producer(kafka.producer_config(batch_size=2000)) as producer:
        producer.init_transactions()
        with producer.transaction():
            for value in values("one", 2000):
                producer.send(topic, value)
            producer.send_batch(topic, values("batch", 2000))
            producer.send_arrow(topic, pyarrow.table({"value": values("arrow", 2000)}))
    expected = values("one", 2000) + values("batch", 2000) + values("arrow", 2000)
    assert sorted(kafka.read(topic)) == sorted(expected)


def test_on_asyncio_everything_works_the_same(kafka: Cluster) -> None:
    topic, group = kafka.topic(2), kafka.name("group")

    async def run() -> None:
        config = kafka.producer_config()
        async with aio.Producer(config) as producer:
            with pytest.raises(TransactionStateError):
                await producer.begin_transaction()
            await producer.init_transactions()
            async with producer.transaction():
                for value in values("kept", 100):
                    producer.send(topic, value)
                await producer.send_offsets_to_transaction({(topic, 0): 5}, group)
            with pytest.raises(KeyError):  # noqa: PT012 - the block is what is tested
                async with producer.transaction():
                    producer.send(topic, b"gone")
                    raise KeyError
            await producer.begin_transaction()
            await producer.send(topic, b"gone too")
            await producer.abort_transaction()
            async with aio.Producer(config) as heir:
                await heir.init_transactions()
            await producer.begin_transaction()
            producer.send(topic, b"fenced")
            with pytest.raises(TransactionError):
                await producer.commit_transaction()

    asyncio.run(run())
    assert sorted(kafka.read(topic)) == sorted(values("kept", 100))
    with Admin({"bootstrap.servers": kafka.address}) as admin:
        assert [one.offset for one in committed_offsets(admin, group).values()] == [5]


def test_a_commit_that_timed_out_is_finished_by_calling_it_again(headrace_2: Cluster) -> None:
    topic = headrace_2.topic()
    held: list[Any] = []
    release = threading.Event()
    transactions = headrace_2.broker.broker.transactions
    coordinator = transactions.coordinator
    original = coordinator.end_txn

    def slow(caller: Any, request: Any, now_ms: int) -> Any:
        held.append(request)
        release.wait(60)
        return original(caller, request, now_ms)

    with Producer(headrace_2.producer_config()) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept")
        producer.flush()
        coordinator.end_txn = slow
        try:
            with pytest.raises(TransactionTimeoutError, match="again"):
                producer.commit_transaction(0.2)
            with pytest.raises(TransactionStateError, match="call it again"):
                producer.abort_transaction()
        finally:
            release.set()
            del coordinator.end_txn
        producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"next")
    assert held
    assert headrace_2.read(topic) == [b"kept", b"next"]
