"""Brokers that cannot be reached: the error says that, and not what was waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.fake import FakeCluster, VirtualClock, World

from headrace import Admin, Consumer, NewTopic, Producer, aio
from headrace.client.cluster.core import ANY_NODE
from headrace.errors import HeadraceError, RequestTimedOutError, UnknownTopicOrPartitionError
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.testing import broker

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
REASON = r"127\.0\.0\.1:1.*Connection refused"


def sent(producer: Producer) -> Any:
    return producer.send("events", b"x").result()


@pytest.mark.parametrize("call", [sent, lambda producer: producer.partitions_for("events")])
def test_a_producer_says_that_no_broker_can_be_reached(call: Callable[[Producer], Any]) -> None:
    with Producer(NOWHERE, max_block_ms=300) as producer, pytest.raises(RequestTimedOutError, match=REASON) as raised:
        call(producer)
    assert "was not known" not in str(raised.value)
    assert "create it" not in str(raised.value)


def test_a_topic_that_the_brokers_do_not_know_is_another_thing() -> None:
    with (
        broker(overrides={"auto.create.topics.enable": "false"}) as kafka,
        Producer(bootstrap_servers=kafka.address, max_block_ms=300) as producer,
        pytest.raises(RequestTimedOutError, match=r"topic events was not known .*create it"),
    ):
        sent(producer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.list_topics(timeout=0.3),
        lambda consumer: consumer.partitions_for("events", timeout=0.3),
        lambda consumer: consumer.end_offsets([("events", 0)], timeout=0.3),
        lambda consumer: consumer.committed([("events", 0)], timeout=0.3),
    ],
)
def test_a_consumer_says_why_it_waited_in_vain(call: Callable[[Consumer], Any]) -> None:
    with Consumer(NOWHERE, group_id="g") as consumer, pytest.raises(HeadraceError, match=REASON):
        call(consumer)


def test_an_admin_says_it() -> None:
    with Admin(NOWHERE) as admin, pytest.raises(HeadraceError, match=REASON):
        admin.within(0.3).list_topics()


def test_the_asyncio_clients_say_it() -> None:
    async def main() -> None:
        async with aio.Producer(NOWHERE, max_block_ms=300) as producer:
            with pytest.raises(RequestTimedOutError, match=REASON):
                await producer.send("events", b"x")
            with pytest.raises(RequestTimedOutError, match=REASON):
                await producer.partitions_for("events", timeout=0.2)
        async with aio.Consumer(NOWHERE, group_id="g") as consumer:
            with pytest.raises(HeadraceError, match=REASON):
                await consumer.list_topics(timeout=0.3)

    asyncio.run(main())


def test_a_broker_that_stays_away_is_said_once_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    world = World(FakeCluster(VirtualClock()))
    world.cluster.down = set(world.cluster.brokers)
    with caplog.at_level(logging.WARNING, "headrace.net"):
        call = world.core.submit(ANY_NODE, ListGroupsRequest(), timeout_ms=30_000)
        world.run_until(lambda: call.done)
        first = [record.getMessage() for record in caplog.records]
        again = world.core.submit(ANY_NODE, ListGroupsRequest(), timeout_ms=90_000)
        world.run_until(lambda: again.done)
    assert first, "it is said"
    assert len(first) == len({line.split(" failed")[0] for line in first}), "once of each address"
    assert len(caplog.records) <= 3 * len(first)


def test_a_broker_names_once_what_was_set_and_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    given = {"background.threads": "20", "num.network.threads": "3", "log.cleaner.threads": "2"}
    with caplog.at_level(logging.WARNING, "headrace.broker"), broker(overrides=given):
        pass
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "settings that are accepted, and have no effect here: background.threads, log.cleaner.threads",
    ]


def test_a_partition_that_does_not_exist_is_said_soon() -> None:
    with broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([NewTopic("t", 2)]).all()
        with Consumer(bootstrap_servers=kafka.address, group_id="g") as consumer:
            with pytest.raises(UnknownTopicOrPartitionError, match="t has partitions 0 to 1: there is no 99"):
                consumer.end_offsets([("t", 99)])
            with pytest.raises(UnknownTopicOrPartitionError, match="committing t-99"):
                consumer.commit_sync({("t", 99): 5})
            with pytest.raises(RequestTimedOutError, match=r"Last: .*t has partitions 0 to 1: there is no 99"):
                consumer.end_offsets([("t", 99)], timeout=0.5)
