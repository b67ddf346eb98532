"""librdkafka's members of the newer groups, alone and mixed with classic ones, while records keep coming."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import testing

pytestmark = pytest.mark.slow
PARTITIONS = 6
DEADLINE_S = 30
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with testing.broker(overrides=SETTINGS) as running:
        yield running


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Member(threading.Thread):
    """A consumer that processes what it reads, and what counts as read is what it could commit."""

    def __init__(self, address: str, topic: str, seen: list[tuple[int, int]], **settings: Any) -> None:
        super().__init__(daemon=True)
        self.assigned: set[int] = set()
        self._stopping = threading.Event()
        self._seen = seen
        self._topic = topic
        config = {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(config | {"enable.auto.commit": False} | settings)
        self.start()

    def _took(self, consumer: Consumer, partitions: list[Any]) -> None:
        taken = {one.partition for one in partitions}
        if self._is_cooperative:
            self.assigned |= taken
            consumer.incremental_assign(partitions)
        else:
            self.assigned = taken
            consumer.assign(partitions)

    def _gave(self, consumer: Consumer, partitions: list[Any]) -> None:
        if self._is_cooperative:
            self.assigned -= {one.partition for one in partitions}
            consumer.incremental_unassign(partitions)
        else:
            self.assigned = set()
            consumer.unassign()

    _is_cooperative = True

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._took, on_revoke=self._gave)
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            try:
                self._consumer.commit(message=message, asynchronous=False)
            except KafkaException:
                # A rebalance is under way: this member reads it again if it keeps the partition, else another one does.
                with suppress(KafkaException):
                    self._consumer.seek(TopicPartition(self._topic, message.partition(), message.offset()))
                continue
            self._seen.append((message.partition(), message.offset()))
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()


class EagerMember(Member):
    _is_cooperative = False


NEW = {"group.protocol": "consumer"}
COOPERATIVE = {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
EAGER = {"group.protocol": "classic", "partition.assignment.strategy": "range"}


def topic_of(address: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result()
    return name


def all_assigned(members: list[Member]) -> Callable[[], bool]:
    """Whether each partition belongs to one of them, and each of them has some."""

    def check() -> bool:
        owned = [index for member in members for index in member.assigned]
        return sorted(owned) == list(range(PARTITIONS)) and all(member.assigned for member in members)

    return check


@pytest.mark.parametrize("classic", ["cooperative", "eager"])
def test_members_are_replaced_one_by_one_without_a_record_lost_or_read_twice(
    kafka: testing.EmbeddedBroker, classic: str
) -> None:
    topic = topic_of(kafka.address, f"replaced-{classic}")
    seen: list[tuple[int, int]] = []
    produced = [0] * PARTITIONS
    stop = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 0})
        while not stop.is_set():
            for index in range(PARTITIONS):
                producer.produce(topic, b"x", partition=index)
                produced[index] += 1
            producer.poll(0)
            time.sleep(0.01)
        producer.flush()

    def old() -> Member:
        if classic == "eager":
            return EagerMember(kafka.address, topic, seen, **EAGER)
        return Member(kafka.address, topic, seen, **COOPERATIVE)

    producing = threading.Thread(target=produce, daemon=True)
    members = [old(), old()]
    producing.start()
    try:
        wait_for(all_assigned(members))
        for replaced in (0, 1):  # to the new protocol …
            gone, members[replaced] = members[replaced], Member(kafka.address, topic, seen, **NEW)
            gone.stop()
            wait_for(all_assigned(members))
        for replaced in (0, 1):  # … and back
            gone, members[replaced] = members[replaced], old()
            gone.stop()
            wait_for(all_assigned(members))
        stop.set()
        producing.join()
        wait_for(lambda: len(set(seen)) >= sum(produced))
    finally:
        stop.set()
        for member in members:
            member.stop()
    assert len(seen) == len(set(seen)), "a record was processed twice, though each was committed"
    assert set(seen) == {(index, offset) for index in range(PARTITIONS) for offset in range(produced[index])}


def test_a_regular_expression_finds_topics(kafka: testing.EmbeddedBroker) -> None:
    for name in ("found-a", "found-b", "other"):
        topic_of(kafka.address, name)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "by-regex", **NEW})
    taken: set[str] = set()
    consumer.subscribe(["^found-.*"], on_assign=lambda _, partitions: taken.update(one.topic for one in partitions))

    def polled() -> bool:
        consumer.poll(0.05)
        return taken == {"found-a", "found-b"}

    wait_for(polled)
    consumer.close()
