"""Exactly once from topic to topic, as its example shows it: a crash in the middle repeats nothing that is read."""

from __future__ import annotations

import uuid

import pytest

import headrace.testing
from examples import exactly_once_topics
from headrace import Consumer, Producer

COUNT = 50


class Crash(BaseException):
    """The application goes down in the middle of a batch."""


def crash_at(value: bytes) -> bytes:
    if value == b"order 30":
        raise Crash
    return value.upper()


@pytest.mark.slow
def test_a_crash_in_the_middle_repeats_and_loses_nothing() -> None:
    source, target, group = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("in", "out", "group"))
    with headrace.testing.broker() as broker:
        address = broker.address
        with Producer({"bootstrap.servers": address}) as producer:
            for number in range(COUNT):
                producer.send(source, b"order %d" % number, partition=0)
        with pytest.raises(Crash):
            exactly_once_topics.run(address, source, target, group, "copy-1", crash_at, idle_s=1.0)
        assert exactly_once_topics.run(address, source, target, group, "copy-1", idle_s=1.0) == COUNT
        with Consumer({"bootstrap.servers": address, "isolation.level": "read_committed"}) as consumer:
            partitions = [(target, index) for index in range(len(consumer.partitions_for(target)))]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            found = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [record.value for record in consumer.poll(0.2)]
    assert sorted(found) == sorted(b"ORDER %d" % number for number in range(COUNT))
