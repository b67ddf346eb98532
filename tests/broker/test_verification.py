"""Whether a write belongs to a transaction is asked of its coordinator, while the partition it is for goes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.waiting import eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.broker.broker import Broker
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.errors import ErrorCode, KafkaError
from headrace.log.producer_state import NEVER
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.testing import EmbeddedBroker, broker
from headrace.topics import TopicPartition
from headrace.transactions import PRODUCE_ADDS_VERSION

from . import raw

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
PLACES = [TopicPartition("t", 0), TopicPartition(CONSUMER_OFFSETS, 0)]


def is_ended(kafka: EmbeddedBroker) -> bool:
    return kafka.call(lambda inside: all(inside.partition(*place).log.producers.undecided == NEVER for place in PLACES))


def end_again_while_the_coordinator_is_asked(inside: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The end of the transaction before lands in a partition after it began to ask, and before it is answered: the
    coordinator had to tell it again, as the leader that had it first was gone. Gives what was done."""
    join = inside.transactions.join
    done: list[str] = []

    async def joining(
        transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        asked = list(partitions)
        for place in asked:
            if place.topic not in done:
                done.append(place.topic)
                known = inside.partition(*place).log.producers.producers[producer_id]
                errors = await inside.transactions.write_markers(
                    producer_id, known.epoch, known.coordinator_epoch, True, [place], 2 if adds else 0
                )
                assert errors == {place: ErrorCode.NONE}
        return await join(transactional_id, producer_id, epoch, asked, adds=adds)

    monkeypatch.setattr(inside.transactions, "join", joining)
    return done


def test_the_end_of_the_transaction_before_does_not_make_the_next_one_fail(
    tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        address = {"bootstrap.servers": kafka.address}
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()
        with (
            Producer({**address, "transactional.id": "tid"}) as producer,
            Consumer({**address, "group.id": "g", "enable.auto.commit": False}) as consumer,
        ):
            consumer.assign([("t", 0)])
            producer.init_transactions()

            def transact(offset: int) -> None:
                producer.begin_transaction()
                producer.send("t", b"%d" % offset)
                producer.send_offsets_to_transaction({("t", 0): offset}, consumer.group_metadata())
                producer.commit_transaction()
                eventually(lambda: is_ended(kafka))

            transact(1)
            done = kafka.call(lambda inside: end_again_while_the_coordinator_is_asked(inside, monkeypatch))
            transact(2)
            assert sorted(done) == [CONSUMER_OFFSETS, "t"]
            consumer.seek_to_beginning()
            assert [record.value for record in consumer.poll(5)] == [b"1", b"2"]
        with Admin(address) as admin:
            assert admin.list_group_offsets(["g"])["g"][TopicPartition("t", 0)].offset == 2
    assert not failures


def test_a_producer_that_was_replaced_does_not_make_the_transaction_of_its_successor_fail(
    tmp_path: Path, failures: list[str]
) -> None:
    with broker(str(tmp_path / "data"), SETTINGS) as kafka:
        address = {"bootstrap.servers": kafka.address}
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)]).all()
        settings = {**address, "transactional.id": "tid"}
        with Producer(settings) as replaced, Producer(settings) as successor:
            replaced.init_transactions()
            successor.init_transactions()
            successor.begin_transaction()
            successor.send("t", b"1").result()
            replaced.begin_transaction()
            with pytest.raises(KafkaError):
                replaced.send("t", b"late").result()
            successor.send("t", b"2").result()
            successor.commit_transaction()
        with Consumer({**address, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek_to_beginning()
            assert [record.value for record in consumer.poll(5)] == [b"1", b"2"]
    assert not failures


def test_a_request_with_batches_of_two_epochs_is_refused(tmp_path: Path, failures: list[str]) -> None:
    """Else what the coordinator says of the present epoch would let in a batch of a producer that was replaced."""
    with broker(str(tmp_path / "data"), SETTINGS) as kafka, raw.RawClient(kafka.port) as client:
        client.request(raw.create_topics_request({"t": 2}), raw.CREATE_TOPICS_VERSION)
        with Producer({"bootstrap.servers": kafka.address, "transactional.id": "tid"}) as producer:
            producer.init_transactions()  # so that the coordinator is there
        epochs = []
        for _ in range(3):
            init = InitProducerIdRequest(transactional_id="tid", transaction_timeout_ms=60_000)
            found = client.request(init, 4)
            assert found.error_code == ErrorCode.NONE
            epochs.append(found.producer_epoch)
        for pair in (epochs[1:], epochs[:0:-1]):
            data = [
                PartitionProduceData(
                    index=index,
                    records=raw.batch(
                        [b"v"],
                        producer_id=found.producer_id,
                        producer_epoch=epoch,
                        base_sequence=0,
                        transactional=True,
                    ),
                )
                for index, epoch in enumerate(pair)
            ]
            request = ProduceRequest(
                transactional_id="tid",
                acks=-1,
                timeout_ms=30_000,
                topic_data=[TopicProduceData(name="t", partition_data=data)],
            )
            answered = client.request(request, PRODUCE_ADDS_VERSION).responses[0].partition_responses
            assert [one.error_code for one in answered] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert not failures
