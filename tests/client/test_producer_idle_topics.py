"""What a producer forgets of topics that nothing is sent to any more."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.producer._topic_wait import TopicWait

from .fake import FakeCluster, VirtualClock, World
from .fake_transactions import TransactionalCluster

IDLE_S = 10


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def rest(world: World) -> None:
    """For long enough that unused topics are forgotten."""
    until = world.clock.now + 2 * IDLE_S
    world.run_until(lambda: world.clock.now > until)


@pytest.mark.parametrize("idempotent", [True, False])
def test_partitions_of_topics_that_are_not_used_any_more_are_forgotten(clock: VirtualClock, idempotent: bool) -> None:
    cluster = FakeCluster(clock, topics={f"t{number}": 2 for number in range(20)})
    world = World(cluster, enable_idempotence=idempotent, metadata_max_idle_ms=IDLE_S * 1000)
    world.deliver([world.send(f"t{number}", b"a", partition=number % 2) for number in range(20)])
    assert len(world.producer.accumulator.queues) == 20
    rest(world)
    assert world.producer.accumulator.queues == {}
    assert world.core.topics == set()


def test_what_is_sent_to_a_forgotten_partition_is_not_taken_for_what_was_sent_before(clock: VirtualClock) -> None:
    """Its numbers begin anew, and a broker remembers the old ones: it would call the record a duplicate."""
    cluster = FakeCluster(clock, topics={"t": 1, "u": 1})
    world = World(cluster, metadata_max_idle_ms=IDLE_S * 1000, linger_ms=0)
    world.deliver([world.send("t", b"a"), world.send("u", b"a")])
    for number in range(2 * IDLE_S):
        clock.now += 1
        world.deliver([world.send("u", b"%d" % number)])
    assert ("t", 0) not in world.producer.accumulator.queues
    again = world.send("t", b"b")
    world.deliver([again, world.send("u", b"b")])
    assert again.result().offset == 1
    assert cluster.values("t") == [b"a", b"b"]
    assert cluster.values("u") == [b"a", *(b"%d" % number for number in range(2 * IDLE_S)), b"b"]


@pytest.mark.parametrize("version", [1, 2])
def test_numbers_that_a_transactional_id_goes_on_with_are_kept(clock: VirtualClock, version: int) -> None:
    """In protocol 1 the epoch stays the same from transaction to transaction, and only the coordinator changes it."""
    cluster = TransactionalCluster(clock, version, topics={"t": 1})
    world = World(cluster, transactional_id="tid", metadata_max_idle_ms=IDLE_S * 1000)
    transaction: Any = world.producer.transaction

    def run(value: bytes) -> None:
        transaction.begin()
        world.send("t", value)
        world.producer.flush()
        operation = transaction.commit()
        world.run_until(lambda: operation.is_done)
        assert operation.take_outcome() is None

    begun = transaction.init()
    world.run_until(lambda: begun.is_done)
    assert begun.take_outcome() is None
    run(b"a")
    rest(world)
    assert (("t", 0) in world.producer.accumulator.queues) == (version == 1)
    run(b"b")
    assert cluster.committed == [b"a", b"b"]


def test_a_topic_that_was_only_asked_for_is_forgotten_too(clock: VirtualClock) -> None:
    cluster = FakeCluster(clock)
    world = World(cluster, metadata_max_idle_ms=IDLE_S * 1000)
    wait = TopicWait(world.producer, "unknown")
    wait.ask()
    world.settle()
    assert world.core.topics == {"unknown"}
    rest(world)
    assert world.core.topics == set()
