"""Offsets that are committed in transactions, while the group coordinator is still reading what it has to know."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import eventually

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.testing import EmbeddedBroker, broker

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


def stable_and_end(kafka: EmbeddedBroker, topic: str) -> tuple[int, int]:
    def look(inside: object) -> tuple[int, int]:
        log = kafka.broker.partition(topic, 0).log
        return log.last_stable_offset, log.end_offset

    return kafka.call(look)


def test_a_commit_does_not_overtake_the_offsets_that_are_being_loaded(tmp_path: Path, failures: list[str]) -> None:
    """Else they would be pending for good, and the group's readers stuck, with the output of the transaction out."""
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
            producer.begin_transaction()
            producer.send("t", b"output")
            producer.send_offsets_to_transaction({("t", 0): 5}, consumer.group_metadata())
            kafka.call(lambda inside: inside.groups.apply(inside.groups.coordinator.begin_load(0)))
            _, before = stable_and_end(kafka, CONSUMER_OFFSETS)
            producer.commit_transaction()
            eventually(lambda: stable_and_end(kafka, "t") == (2, 2))
            assert stable_and_end(kafka, CONSUMER_OFFSETS)[1] == before, "the marker has to wait"
            kafka.call(lambda inside: inside.groups.load(0))
            eventually(lambda: stable_and_end(kafka, CONSUMER_OFFSETS) == (before + 1, before + 1))
        with Admin(address) as admin:
            found = {place.topic: one.offset for place, one in admin.list_group_offsets(["g"])["g"].items()}
        assert found == {"t": 5}
    assert not failures
