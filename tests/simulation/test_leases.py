"""Who is fenced, and who decides, while sessions, disks or a broker's way to the store are not well."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence

import pytest

from headrace.broker.metadata.follower import MetadataFollower
from headrace.client.admin.types import ConfigResource, NewTopic, ResourceType
from headrace.cluster.image import Image, InconsistentMetadataError
from headrace.cluster.store.model import ModelSession
from headrace.cluster.store.session import Delete, Operation
from headrace.errors import HeadraceError
from headrace.runtime.simulated import WorkModel
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


_HANGS = WorkModel(400.0, 400.0, 1.0)


async def _let_decide(cluster: SimulatedCluster, node_id: int) -> None:
    """An operator removes the controller's node until that broker is the one."""
    for _ in range(100):
        if cluster.controller_id == node_id:
            return
        if cluster.store.tree.get("/controller") is not None:
            cluster.store.change([Delete("/controller")])
        await asyncio.sleep(0.3)
    raise AssertionError(f"broker {node_id} is never elected")


async def _without_an_answer(asked: Awaitable[object]) -> None:
    with contextlib.suppress(HeadraceError):
        await asked


async def _keep_disk_busy(cluster: SimulatedCluster, node_id: int) -> None:
    """Have a broker make a log, for which it waits for its disk."""
    others = [number for number in cluster.brokers if number != node_id]
    rest = ",".join(f"broker-{number}:9092" for number in others)
    async with cluster.admin(host=cluster.client_host("hangs"), bootstrap_servers=rest) as admin:
        topic = NewTopic("u", replicas_assignments={0: [others[0], node_id]})
        await _without_an_answer(admin.within(1.0).create_topics([topic]))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_whose_disk_hangs_decides_when_it_is_elected(seed: int) -> None:
    """It waited for its own logs before it took office: nobody was fenced, and nobody led, for as long as it hung."""

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        first = cluster.controller_id
        assert first is not None
        hangs, dead = [number for number in cluster.brokers if number != first]
        cluster.brokers[hangs].host.use_disk(_HANGS)
        await _keep_disk_busy(cluster, hangs)
        await _let_decide(cluster, hangs)
        cluster.kill(dead)
        await _another_leads(cluster, dead - 1, dead, 8.0)

    simulated_cluster(seed).run(story)


def test_a_controller_whose_disk_hangs_answers_other_brokers_about_what_it_decides() -> None:
    """Who comes back is registered and let in, and in-sync replicas change, as if its disk were well."""

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        first = cluster.controller_id
        assert first is not None
        other = next(number for number in cluster.brokers if number != first)
        cluster.kill(other)
        await _another_leads(cluster, other - 1, other, 8.0)
        cluster.brokers[first].host.use_disk(_HANGS)
        await _keep_disk_busy(cluster, first)
        await asyncio.sleep(1.0)
        await asyncio.wait_for(cluster.brokers[other].start(), 10.0)
        third = next(number for number in cluster.brokers if number not in (first, other))

        def is_in_sync() -> bool:
            image = cluster.newest_image
            return image is not None and other in image.topics["t"].partitions[third - 1].isr

        await cluster.until(is_in_sync, 10.0, f"broker {other} is not in sync with {third}")
        assert cluster.controller_id == first

    simulated_cluster(1).run(story)


def test_a_snapshot_that_is_due_does_not_wait_for_the_controllers_disk() -> None:
    """It took its turn among the decisions, then waited for its logs: nothing was decided behind it."""

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        controller = cluster.controller_id
        assert controller is not None
        dead = next(number for number in cluster.brokers if number != controller)
        producer = cluster.producer(delivery_timeout_ms=500_000, request_timeout_ms=400_000)
        async with cluster.admin(host=cluster.client_host("operator")) as admin, producer:
            topic = NewTopic("u", replicas_assignments={0: [controller]}, configs={"flush.messages": "1"})
            (await admin.create_topics([topic])).all()
            while len(cluster.store.tree.children("/log")) < 37:
                change = {
                    ConfigResource(ResourceType.TOPIC, "t"): {"retention.ms": str(10**9 + len(cluster.store.changes))}
                }
                (await admin.incremental_alter_configs(change)).all()
            for threads in ("writer-", "sync-", "headrace-"):
                cluster.brokers[controller].host.use_disk(_HANGS, of=threads)
            producer.send("u", b"it waits for the disk", partition=0, on_delivery=lambda *_: None)
            await asyncio.sleep(0.2)
            # What the controller cannot follow before that has ended, and then as much as makes a snapshot due.
            await _without_an_answer(admin.within(0.5).delete_topics(["u"]))
            for number in range(8):
                change = {ConfigResource(ResourceType.TOPIC, "t"): {"retention.ms": str(10**8 + number)}}
                await _without_an_answer(admin.within(0.3).incremental_alter_configs(change))
            await asyncio.sleep(2.5)
            cluster.kill(dead)
            await _another_leads(cluster, dead - 1, dead, 8.0)
            cluster.kill_all()

    simulated_cluster(1).run(story)


@pytest.mark.parametrize("how", ["hangs", "does not know a record", "fails by a defect"])
def test_who_cannot_decide_lets_others_be_the_controller(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It had the seat for as long as its session lived, and won each election again."""
    decided = MetadataFollower.decided
    cannot: list[MetadataFollower] = []

    async def perhaps(follower: MetadataFollower) -> Image:
        if follower in cannot and how == "hangs":
            await asyncio.get_running_loop().create_future()
        elif follower in cannot and how == "does not know a record":
            raise InconsistentMetadataError("a record of a type that only a newer version knows")
        elif follower in cannot:
            raise ZeroDivisionError
        return await decided(follower)

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        first = cluster.controller_id
        assert first is not None
        powerless, _ = [number for number in cluster.brokers if number != first]
        broker = cluster.brokers[powerless].broker
        assert broker is not None
        cannot.append(broker.metadata.follower)
        for _ in range(4):  # it wins one of these
            cluster.store.change([Delete("/controller")])
            await cluster.until(lambda: cluster.controller_id is not None, 120.0, "nobody decides")
            await asyncio.sleep(0.5)
            assert cluster.controller_id != powerless

    monkeypatch.setattr(MetadataFollower, "decided", perhaps)
    simulated_cluster(1).run(story)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_broker_whose_loop_hangs_is_fenced(is_controller: bool) -> None:
    """A thread kept its session alive: nobody led what it led, and as the controller it stopped all decisions."""

    async def story(cluster: SimulatedCluster) -> None:
        await _led_by_each(cluster)
        controller = cluster.controller_id
        hangs = next(number for number in cluster.brokers if (number == controller) == is_controller)
        cluster.hang_loop(hangs)
        others = [cluster.brokers[number] for number in cluster.brokers if number != hangs]

        def is_led() -> bool:
            images = [one.broker.image for one in others if one.broker is not None]
            return all(image.topics["t"].partitions[hangs - 1].leader not in (hangs, -1) for image in images)

        await cluster.until(is_led, 8.0, f"nobody else leads what {hangs} led")
        cluster.resume(hangs)
        image = others[0].broker.image if others[0].broker is not None else Image()
        await cluster.until(lambda: all(map(image.is_active, cluster.brokers)), 10.0, "it is not back")

    simulated_cluster(1).run(story)
