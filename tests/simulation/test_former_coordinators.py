"""A broker that coordinates groups no more: what it knew of them has been replaced, and is not told."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from headrace.broker.metadata.fetcher import MetadataFetcher
from headrace.broker.metadata.membership import ClusterMembership
from headrace.client.admin.aio import Admin
from headrace.client.admin.types import NewTopic
from headrace.cluster.topic_names import CONSUMER_OFFSETS
from headrace.errors import HeadraceError
from headrace.testing.simulated import SimulatedCluster, simulated_cluster
from headrace.topics import TopicPartition

GROUP, PLACE = "g", TopicPartition("t", 0)
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]


async def _read_of_the_former_coordinator(
    cluster: SimulatedCluster, *, is_controller: bool | None = None, ends_controller: bool = False
) -> int | None:
    """Commit 1, let another be the coordinator, commit 2, and read where only the former one is reached. None: it gives
    no offset.

    The former one may be the controller, or lose it at the same time."""
    network = cluster.simulation.network
    async with cluster.admin(host=cluster.client_host("writer")) as admin:
        (await admin.create_topics([NewTopic("t", 1, 3)])).all()
        await cluster.until(lambda: all("t" in broker.image.topics for broker in cluster.alive), 10.0, "not all know t")
        (await admin.alter_group_offsets(GROUP, {PLACE: 1})).all()
        controller = cluster.controller_id
        assert controller is not None
        if is_controller is not None:
            coordinators = sorted(cluster.brokers, key=lambda node_id: (node_id == controller) is not is_controller)
            await admin.alter_partition_reassignments({TopicPartition(CONSUMER_OFFSETS, 0): coordinators})
            await admin.elect_leaders([TopicPartition(CONSUMER_OFFSETS, 0)])
            await cluster.until(lambda: _coordinator(cluster) == coordinators[0], 10.0, "it does not coordinate")
            (await admin.within(10).alter_group_offsets(GROUP, {PLACE: 1})).all()
        former = _coordinator(cluster)
        cluster.brokers[former].reaches_store = False
        if ends_controller:
            cluster.kill(controller)
        await cluster.until(lambda: _coordinator(cluster) != former, 30.0, "nobody else coordinates the group")
        network.partition(["writer"], [f"broker-{former}"])
        (await admin.within(60).alter_group_offsets(GROUP, {PLACE: 2})).all()
    others = [f"broker-{node_id}" for node_id in cluster.brokers if node_id != former]
    reader = cluster.client_host("reader")
    network.partition(["reader"], others)
    try:
        async with cluster.admin(host=reader) as admin:
            return (await admin.within(20).list_group_offsets([GROUP])).all()[GROUP][PLACE].offset
    except (HeadraceError, TimeoutError):
        return None


def _coordinator(cluster: SimulatedCluster) -> int:
    image = cluster.newest_image
    assert image is not None
    return image.topics[CONSUMER_OFFSETS].partitions[0].leader


def _read(seed: int = 1, *, is_controller: bool | None = None, ends_controller: bool = False) -> int | None:
    story = partial(_read_of_the_former_coordinator, is_controller=is_controller, ends_controller=ends_controller)
    return simulated_cluster(seed, settings={"offsets.topic.num.partitions": "1"}).run(story)


async def _read_of_a_coordinator_that_was_paused(cluster: SimulatedCluster) -> int | None:
    """As above, of one that hangs with a request in its buffers, and goes on when another has taken its place."""
    reader = cluster.client_host("reader")
    async with (
        cluster.admin(host=cluster.client_host("writer"), request_timeout_ms=2_000) as admin,
        cluster.admin(host=reader, request_timeout_ms=60_000) as asking,
    ):
        (await admin.create_topics([NewTopic("t", 1, 3)])).all()
        await cluster.until(lambda: all("t" in broker.image.topics for broker in cluster.alive), 10.0, "not all know t")
        (await admin.alter_group_offsets(GROUP, {PLACE: 1})).all()
        (await asking.list_group_offsets([GROUP])).all()
        former = _coordinator(cluster)
        cluster.pause(former)
        network = cluster.simulation.network
        asked = asyncio.ensure_future(reader.start(_listed(asking)))
        await cluster.until(lambda: _coordinator(cluster) != former, 30.0, "nobody else coordinates the group")
        network.partition(["writer"], [f"broker-{former}"])
        (await admin.within(60).alter_group_offsets(GROUP, {PLACE: 2})).all()
        cluster.resume(former)
        return await asked


async def _listed(admin: Admin) -> int | None:
    try:
        return (await admin.within(20).list_group_offsets([GROUP])).all()[GROUP][PLACE].offset
    except (HeadraceError, TimeoutError):
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_was_paused_gives_no_offset_that_was_replaced(seed: int) -> None:
    cluster = simulated_cluster(seed=seed, settings={"offsets.topic.num.partitions": "1"})
    assert cluster.run(_read_of_a_coordinator_that_was_paused) in (2, None)


def test_a_former_coordinator_gives_no_offset_that_was_replaced() -> None:
    assert _read() in (2, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_nor_does_one_whose_controller_is_gone_as_well(seed: int) -> None:
    assert _read(seed, is_controller=False, ends_controller=True) in (2, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_nor_does_one_that_was_the_controller(seed: int) -> None:
    assert _read(seed, is_controller=True) in (2, None)


async def _fetch_nothing(self: MetadataFetcher, *arguments: Any, **named: Any) -> Any:
    raise HeadraceError("the controller does not tell")


def test_nor_does_one_that_hears_of_the_store_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataFetcher, "fetch", _fetch_nothing)
    assert _read() in (2, None)


def test_one_that_hears_of_nobody_and_goes_on_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests would not see, if brokers did not mind whether anyone answers them."""
    monkeypatch.setattr(MetadataFetcher, "fetch", _fetch_nothing)
    monkeypatch.setattr(ClusterMembership, "is_in_touch", True)
    assert _read() == 1


async def _silent_while_the_store_is_away(cluster: SimulatedCluster) -> dict[int, float]:
    """How long each broker did not coordinate, of 90 s in which the store answered nobody.

    In that time connections between brokers break, and each broker hangs for a while.
    """
    async with cluster.admin() as admin:
        (await admin.create_topics([NewTopic("t", 1, 3)])).all()
        await cluster.until(lambda: all("t" in broker.image.topics for broker in cluster.alive), 10.0, "not all know t")
        (await admin.alter_group_offsets(GROUP, {PLACE: 1})).all()
        cluster.store.go_away()
        silent = dict.fromkeys(cluster.brokers, 0.0)
        for second in range(90):
            if second % 30 == 5:
                for node_id in cluster.brokers:
                    cluster.simulation.network.reset(f"broker-{node_id}", f"broker-{second // 30 + 1}")
            if second % 30 == 15:
                cluster.pause(second // 30 + 1)
            if second % 30 == 17:
                cluster.resume(second // 30 + 1)
            for _ in range(100):
                await asyncio.sleep(0.01)
                for broker in cluster.alive:
                    silent[broker.node_id] += 0.01 * (broker.out_of_touch is not None)
        (await admin.within(5).alter_group_offsets(GROUP, {PLACE: 2})).all()
        assert (await admin.within(5).list_group_offsets([GROUP])).all()[GROUP][PLACE].offset == 2
        return silent


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_while_the_store_is_away_for_all_groups_are_coordinated_as_before(seed: int) -> None:
    silent = simulated_cluster(seed).run(_silent_while_the_store_is_away)
    # Two of them while it hangs, and a moment until those that lost their connections have others.
    assert max(silent.values()) < 6.0, silent
