"""Static members of a group over several lives, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.admin.types import NewTopic
from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.testing.simulated import SimulatedCluster, simulated_cluster
from headrace.testing.simulated.history import BrokenError, History

_CONFIG: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "session_timeout_ms": 60_000}


@pytest.mark.slow
def test_a_static_leader_that_comes_back_notices_partitions_that_were_added_while_it_was_away() -> None:
    async def story(cluster: SimulatedCluster) -> list[int]:
        async with cluster.admin() as admin:
            (await admin.create_topics([NewTopic("t", 1, 3)])).all()
        async with cluster.producer() as producer:
            await producer.send("t", b"one", partition=0)
            async with cluster.consumer(group_instance_id="i", **_CONFIG) as consumer:
                consumer.subscribe(["t"])
                while not await consumer.poll(1.0):
                    pass
                await consumer.commit_sync()
            async with cluster.admin() as admin:
                (await admin.create_partitions({"t": 2})).all()
            await producer.send("t", b"two", partition=1)
            async with cluster.consumer(group_instance_id="i", **_CONFIG) as consumer:
                consumer.subscribe(["t"])
                found: list[int] = []
                for _ in range(20):
                    found += [record.partition for record in await consumer.poll(1.0)]
                return found

    assert simulated_cluster(seed=1).run(story) == [1]


def _member(member_id: str) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata("g", 1, member_id, "i")


def test_a_commit_of_a_static_member_that_was_replaced_is_noticed() -> None:
    history = History()
    history.is_member(_member("one"), history.tick())
    history.was_member(_member("one"), history.tick())
    asked_at = history.tick()
    history.is_member(_member("two"), history.tick())
    # It was asked for when nobody knew of the other.
    history.was_member(_member("one"), asked_at)
    history.was_member(_member("two"), history.tick())
    with pytest.raises(BrokenError, match="a commit of one was accepted, though two had its place as i"):
        history.was_member(_member("one"), history.tick())


def test_a_static_member_that_is_told_late_may_have_been_replaced_by_one_that_was_told_before() -> None:
    history = History()
    began_at = history.tick()
    history.is_member(_member("last"), history.tick())
    history.is_member(_member("first"), began_at)
    history.was_member(_member("last"), history.tick())


def test_members_without_an_instance_id_replace_nobody() -> None:
    history = History()
    for member_id in ("one", "two"):
        history.is_member(ConsumerGroupMetadata("g", 1, member_id), history.tick())
    history.was_member(ConsumerGroupMetadata("g", 1, "one"), history.tick())
