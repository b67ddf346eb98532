"""`headrace transaction`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from headrace.broker.broker import Broker
from headrace.client.consumer.blocking import Consumer
from headrace.client.errors import TransactionError
from headrace.client.producer.blocking import Producer
from headrace.log import Origin
from headrace.records import build_batch
from headrace.testing import EmbeddedBroker

from .conftest import Command


@pytest.fixture
def producer(kafka: EmbeddedBroker, topic: str) -> Iterator[Producer]:
    """With a transaction open in partitions 0 and 1."""
    name = f"tid-{uuid.uuid4().hex[:8]}"
    with Producer({"bootstrap.servers": kafka.address, "transactional.id": name}) as made:
        made.init_transactions()
        made.begin_transaction()
        for partition in (0, 1):
            made.send(topic, b"open", partition=partition)
        made.flush()
        yield made


def name_of(producer: Producer) -> str:
    name = producer._settings.transactional_id
    assert name is not None
    return name


def readable(kafka: EmbeddedBroker, topic: str, partition: int = 0) -> int:
    with Consumer({"bootstrap.servers": kafka.address, "isolation.level": "read_committed"}) as consumer:
        return consumer.end_offsets([(topic, partition)])[topic, partition]


def test_list_and_describe(headrace: Command, producer: Producer, topic: str) -> None:
    name = name_of(producer)
    result = headrace("transaction", "list")
    assert result.lines[0].split() == ["TRANSACTIONAL", "ID", "PRODUCER", "STATE"]
    assert [name, "Ongoing"] in [line.split()[::2] for line in result.lines[1:]]
    assert name in headrace("transaction", "list", "--state", "Ongoing").out
    assert name not in headrace("transaction", "list", "--state", "Empty").out
    assert name not in headrace("transaction", "list", "--longer-than", "1h").out
    (document,) = headrace("transaction", "describe", name, "--json").json()
    assert document["state"] == "Ongoing"
    assert document["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert document["timeout_ms"] == 60_000
    text = headrace("transaction", "describe", name).out
    assert f"writes to {topic}-0, {topic}-1" in text
    missing = headrace("transaction", "describe", "nobody")
    assert missing.code == 1
    assert "nobody" in missing.err


def test_abort_by_id_fences_the_producer(
    headrace: Command, kafka: EmbeddedBroker, producer: Producer, topic: str
) -> None:
    assert readable(kafka, topic) == 0
    result = headrace("transaction", "abort", name_of(producer))
    assert result.code == 0, result.err
    eventually(lambda: readable(kafka, topic) == 2, "the abort marker")
    with pytest.raises(TransactionError):
        producer.commit_transaction()


def test_a_working_transaction_does_not_hang_and_is_not_torn(
    headrace: Command, kafka: EmbeddedBroker, producer: Producer, topic: str
) -> None:
    assert headrace("transaction", "hanging", "--topic", topic, "--longer-than", "0s", "--json").json() == []
    refused = headrace("transaction", "abort", "--topic-partition", f"{topic}:0", "--start-offset", "0")
    assert refused.code == 1
    assert "does not hang" in refused.err
    producer.commit_transaction()
    assert readable(kafka, topic) == 2


def test_a_hanging_transaction_is_found_and_ended(headrace: Command, kafka: EmbeddedBroker, topic: str) -> None:
    def leave_open(broker: Broker) -> None:
        # As brokers without verification let happen: a transactional batch that no coordinator knows of.
        rows = [(int(time.time() * 1000), None, b"hangs", [])]
        batch = build_batch(rows, producer_id=987_654, producer_epoch=3, base_sequence=0, transactional=True)
        partition = broker.partition(topic, 2)
        partition.append(batch, origin=Origin.COORDINATOR)

    kafka.call(leave_open)
    assert readable(kafka, topic, 2) == 0
    assert headrace("transaction", "hanging", "--topic", topic).out == ""
    (row,) = headrace("transaction", "hanging", "--topic", topic, "--longer-than", "0s", "--json").json()
    assert (row["topic"], row["partition"], row["start_offset"]) == (topic, 2, 0)
    assert (row["producer_id"], row["producer_epoch"], row["transactional_id"]) == (987_654, 3, None)
    wrong = headrace("transaction", "abort", "--topic-partition", f"{topic}:2", "--start-offset", "5")
    assert wrong.code == 1
    assert "beginning at 0" in wrong.err
    done = headrace("transaction", "abort", "--topic-partition", f"{topic}:2", "--start-offset", "0")
    assert done.code == 0, done.err
    assert readable(kafka, topic, 2) == 2
    assert headrace("transaction", "hanging", "--topic", topic, "--longer-than", "0s", "--json").json() == []


def test_what_makes_no_sense_is_a_usage_error(headrace: Command) -> None:
    for arguments in ((), ("x", "--topic-partition", "t:0"), ("--topic-partition", "t:0"), ("--topic-partition", "t")):
        assert (
            headrace(
                "transaction", "abort", *arguments, *(("--start-offset", "0") if arguments[-1:] == ("t",) else ())
            ).code
            == 2
        )
