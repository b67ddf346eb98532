"""Who is fenced, and who decides, while sessions, disks or a broker's way to the store are not well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.client.admin.types import NewTopic
from headrace.cluster.store.model import ModelSession
from headrace.cluster.store.session import Operation
from headrace.testing.simulated import SimulatedCluster, simulated_cluster


async def _led_by_each(cluster: SimulatedCluster) -> None:
    """Make a topic of which each broker leads a partition."""
    async with cluster.admin(host=cluster.client_host("operator")) as admin:
        replicas = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
        (await admin.create_topics([NewTopic("t", replicas_assignments=replicas)])).all()
    await cluster.until(lambda: all("t" in broker.image.topics for broker in cluster.alive), 10.0, "not all know t")


async def _another_leads(cluster: SimulatedCluster, index: int, former: int, within_s: float) -> float:
    """How long it takes until another broker leads a partition."""

    def leader() -> int:
        image = cluster.newest_image
        return -1 if image is None else image.topics["t"].partitions[index].leader

    return await cluster.until(lambda: leader() not in (former, -1), within_s, f"nobody else leads t-{index}")


@pytest.mark.parametrize("every_s", [0.3, 1.5])
def test_a_dead_broker_is_fenced_by_one_whose_connection_to_the_store_flaps(every_s: float) -> None:
    """Each break is a reason to give those who live the time to come back, once."""

    async def story(cluster: SimulatedCluster) -> float:
        await _led_by_each(cluster)
        controller = cluster.controller_id
        assert controller is not None
        dead = next(node_id for node_id in cluster.brokers if node_id != controller)

        async def flap() -> None:
            while True:
                for session in cluster.store.sessions:
                    session.break_off()
                await asyncio.sleep(every_s)

        flapping = asyncio.ensure_future(flap())
        cluster.kill(dead)
        took_s = await _another_leads(cluster, dead - 1, dead, 60.0)
        flapping.cancel()
        return took_s

    assert simulated_cluster(1).run(story) < 6.0


@pytest.mark.parametrize("seed", [1, 4])
def test_a_store_that_refuses_changes_is_not_asked_without_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """A quota is used up, say: an operator is told so, and brokers wait for that longer and longer."""
    changes: list[str] = []
    apply = ModelSession.apply

    async def count(session: ModelSession, operations: Sequence[Operation]) -> None:
        changes.append(session.name)
        await apply(session, operations)

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        controller = cluster.controller_id
        assert controller is not None
        cluster.store.faults.refusal = 1.0
        changes.clear()
        caplog.clear()
        dead = next(node_id for node_id in cluster.brokers if node_id != controller)
        cluster.kill(dead)
        cluster.store.expire(cluster.store.sessions[0])
        await asyncio.sleep(60.0)
        assert 1 <= len(changes) < 2 * 60 + 20
        cluster.store.faults.refusal = 0.0
        await _another_leads(cluster, dead - 1, dead, 10.0)

    monkeypatch.setattr(ModelSession, "apply", count)
    caplog.set_level("WARNING")
    simulated_cluster(seed).run(story)
    said = [record.getMessage() for record in caplog.records if "quota is used up" in record.getMessage()]
    assert 1 <= len(said) < 10
