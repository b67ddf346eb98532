"""Groups of the consumer protocol (KIP-848) over sockets: members that share, come, go, and are replaced."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.client.consumer.conftest import Cluster, poll_until, read
from tests.client.consumer.test_groups import Recorder, is_balanced
from tests.waiting import eventually

import headrace.aio
from headrace import Consumer, SubscriptionPattern, parallel
from headrace.errors import UnreleasedInstanceIdError
from headrace.topics import TopicPartition

pytestmark = pytest.mark.slow


def config(kafka: Cluster, **overrides: Any) -> dict[str, Any]:
    made = kafka.config(group_id=kafka.group(), group_protocol="consumer", **overrides)
    del made["heartbeat.interval.ms"]
    return made


def test_members_share_and_take_over_while_nobody_stops_reading(kafka: Cluster) -> None:
    topic = kafka.topic(6)
    listener = Recorder()
    given = config(kafka)
    consumers = [Consumer(given) for _ in range(3)]
    try:
        consumers[0].subscribe([topic], listener)
        poll_until(consumers[:1], lambda: len(consumers[0].assignment()) == 6)
        for consumer in consumers[1:]:
            consumer.subscribe([topic])
        poll_until(consumers, lambda: is_balanced(consumers, 6))
        # Cooperative: what stays was never given up.
        assert all(len(partitions) < 6 for what, partitions in listener.events if what == "revoked")
        assert "lost" not in {what for what, _ in listener.events}
        consumers.pop().close()
        poll_until(consumers, lambda: is_balanced(consumers, 6))
    finally:
        for consumer in consumers:
            consumer.close()


def test_what_was_read_is_committed_before_it_goes_to_another(kafka: Cluster) -> None:
    topic = kafka.topic(4)
    for partition in range(4):
        kafka.produce(topic, [b"%d" % n for n in range(50)], partition)
    given = config(kafka, auto_commit_interval_ms=3_600_000)
    with Consumer(given) as first, Consumer(given) as second:
        first.subscribe([topic])
        seen = [(record.partition, record.offset) for record in read(first, 200)]
        second.subscribe([topic])
        poll_until([first, second], lambda: is_balanced([first, second], 4))
        taken_over = second.assignment()
        for partition in taken_over:
            kafka.produce(topic, [b"new"], partition.partition)
        new = read(second, 2)
        assert sorted((record.partition, record.value) for record in new) == sorted(
            (partition.partition, b"new") for partition in taken_over
        )
        assert len(set(seen)) == len(seen) == 200


def test_a_pattern_is_resolved_by_the_brokers(kafka: Cluster) -> None:
    one = kafka.topic(2, prefix="pattern")
    with Consumer(config(kafka)) as consumer, Consumer(config(kafka, metadata_max_age_ms=500)) as by_itself:
        consumer.subscribe(SubscriptionPattern(one[:-1] + "."))
        by_itself.subscribe(re.compile(one[:-1] + "."))
        poll_until([consumer, by_itself], lambda: len(consumer.assignment()) == len(by_itself.assignment()) == 2)
        assert consumer.subscription() == by_itself.subscription() == {one}


def test_a_static_member_comes_back_to_its_partitions(kafka: Cluster) -> None:
    topic = kafka.topic(4)
    given = config(kafka)
    other = Consumer(given)
    member = Consumer(given | {"group.instance.id": "one"})
    listener = Recorder()
    try:
        other.subscribe([topic], listener)
        member.subscribe([topic])
        poll_until([other, member], lambda: is_balanced([other, member], 4))
        before, heard = member.assignment(), len(listener.events)
        with Consumer(given | {"group.instance.id": "one"}) as thief:
            thief.subscribe([topic])
            with pytest.raises(UnreleasedInstanceIdError):
                poll_until([thief], lambda: False)
        member.close()
        member = Consumer(given | {"group.instance.id": "one"})
        member.subscribe([topic])
        poll_until([other, member], lambda: member.assignment() == before)
        assert len(listener.events) == heard
    finally:
        member.close(leave_group=True)
        other.close()


def test_the_same_on_asyncio(kafka: Cluster) -> None:
    topic = kafka.topic(4)
    kafka.produce(topic, [b"%d" % n for n in range(20)])
    given = config(kafka)

    async def run() -> None:
        async with headrace.aio.Consumer(given) as first, headrace.aio.Consumer(given) as second:
            for consumer in (first, second):
                consumer.subscribe([topic])
            count = 0
            async with asyncio.timeout(60):
                while count < 20 or len(first.assignment()) != 2 or len(second.assignment()) != 2:
                    for consumer in (first, second):
                        count += len(await consumer.poll(0.05))
            await first.commit_sync()
            assert first.assignment() | second.assignment() == {TopicPartition(topic, n) for n in range(4)}

    asyncio.run(run())


def test_parallel_consumers_work_in_such_a_group(kafka: Cluster) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.produce(topic, [b"%d" % n for n in range(100)], partition)
    seen: list[tuple[int, int]] = []
    given = config(kafka)
    with parallel.ParallelConsumer(
        lambda record: seen.append((record.partition, record.offset)),
        topics=[topic],
        group=given.pop("group.id"),
        config=given,
        workers=4,
    ):
        eventually(lambda: len(seen) == 300)
    assert len(set(seen)) == 300
