"""What tests of somebody else's own are given: many seeds, faults that are drawn, failures that explain themselves."""

from __future__ import annotations

import asyncio

import pytest

from headrace import NewTopic
from headrace.testing.simulated import ClusterUnderSeed, SimulatedCluster, simulated_cluster

ORDERS = 6


async def _orders(cluster: SimulatedCluster) -> list[bytes]:
    async with cluster.admin() as admin:
        (await admin.create_topics([NewTopic("orders", 1, 3, configs={"min.insync.replicas": "2"})])).all()
    drawn = asyncio.ensure_future(cluster.faults(1.0, "kill", "isolate", "reset", between_s=0.3))
    async with cluster.producer(delivery_timeout_ms=600_000) as producer:
        for number in range(ORDERS):
            await producer.send("orders", b"%d" % number, partition=0)
            await asyncio.sleep(0.15)
    await drawn
    found: list[bytes] = []
    async with cluster.consumer(auto_offset_reset="earliest", group_id="audit") as consumer:
        consumer.subscribe(["orders"])
        while len(found) < ORDERS:
            found += [bytes(record.value or b"") for record in await consumer.poll(1)]
    return found


def test_faults_are_drawn_from_the_seed_and_nothing_acknowledged_is_lost_by_them() -> None:
    runs = [simulated_cluster(seed) for seed in (1, 2)]
    for run in runs:
        assert run.run(_orders) == [b"%d" % number for number in range(ORDERS)]
    assert runs[0].digest != runs[1].digest
    with pytest.raises(ValueError, match="no such fault as earthquake"):
        simulated_cluster(1).run(lambda cluster: cluster.faults(1.0, "earthquake"))


def test_a_story_that_fails_tells_its_seed_and_what_happened() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        cluster.kill(2)
        await cluster.restart(2)
        cluster.partition([1], one_way=True)
        raise AssertionError("it was billed twice")

    with pytest.raises(AssertionError, match="it was billed twice") as caught:
        simulated_cluster(41).run(story)
    (note,) = caught.value.__notes__
    assert "simulated_cluster(seed=41) of 3 brokers failed after" in note
    lines = note.splitlines()
    assert any("broker-2" in line and line.endswith("killed") for line in lines)
    assert any("broker-2" in line and line.endswith("serves again") for line in lines)
    assert "one way, brokers [1] from [2, 3]" in lines[-1]


@pytest.mark.seeds(3, first=7)
def test_a_test_is_run_under_each_of_so_many_seeds(simulated: ClusterUnderSeed, request: pytest.FixtureRequest) -> None:
    assert simulated.seed in (7, 8, 9)
    assert request.node.name.endswith(f"[seed {simulated.seed}]")


def test_without_the_mark_it_is_one_seed(simulated: ClusterUnderSeed) -> None:
    assert simulated.seed == 0
