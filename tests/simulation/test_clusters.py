"""Whole clusters under a seed: deterministic, and right under whatever faults the seed has."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from headrace.client.admin.types import NewTopic
from headrace.errors import UnknownTopicOrPartitionError
from headrace.runtime.simulated import Simulation
from headrace.testing.simulated import SimulatedCluster, simulated_cluster
from headrace.testing.simulated.blocking import BlockingCluster
from headrace.testing.simulated.faults import Trouble
from headrace.testing.simulated.history import History
from headrace.testing.simulated.plans import Plan, plan_for
from headrace.testing.simulated.runs import play
from headrace.testing.simulated.timeline import Timeline
from headrace.testing.simulated.troubles import Troubles

SEEDS = Path(__file__).parent.parent / "seeds"
#: More of them: `headrace simulate --seeds 1000`.
SEEDS_IN_SUITE = 8
#: Others each day: so many parts of so many seeds, about a second each.
NEW_PARTS, NEW_SEEDS = 10, 10


async def _produce_and_consume(cluster: SimulatedCluster) -> list[bytes]:
    async with cluster.admin() as admin:
        (await admin.create_topics([NewTopic("t", 2, 3)])).all()
    async with cluster.producer() as producer:
        for number in range(4):
            await producer.send("t", b"%d" % number, partition=number % 2)
        cluster.kill(1)
        await producer.send("t", b"4", partition=0)
        await cluster.restart(1)
    found: list[bytes] = []
    async with cluster.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while len(found) < 5:
            found += [bytes(record.value or b"") for record in await consumer.poll(1.0)]
        await consumer.commit_sync()
    return found


@pytest.mark.slow
def test_real_brokers_and_clients_take_the_same_course_twice() -> None:
    one, two, other = simulated_cluster(seed=7), simulated_cluster(seed=7), simulated_cluster(seed=8)
    found = one.run(_produce_and_consume)
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert two.run(_produce_and_consume) == found
    other.run(_produce_and_consume)
    assert one.digest == two.digest != other.digest


def _block(cluster: BlockingCluster) -> list[bytes]:
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("t", 1, 3)]).all()
    with cluster.producer() as producer:
        producer.send("t", b"one").result()
        cluster.kill(1)
        assert producer.send("t", b"two").result().offset == 1
        cluster.sleep(1.0)
        cluster.restart(1)
    with cluster.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found: list[bytes] = []
        while len(found) < 2:
            found += [record.value for record in consumer.poll(1.0)]
    return found


@pytest.mark.slow
def test_blocking_programs_take_the_same_course_twice() -> None:
    one, two = simulated_cluster(seed=5), simulated_cluster(seed=5)
    assert one.run_blocking(_block) == two.run_blocking(_block) == [b"one", b"two"]
    assert one.digest == two.digest


def test_what_a_blocking_program_raises_is_raised_where_it_was_begun() -> None:
    def fail(cluster: BlockingCluster) -> None:
        with cluster.admin() as admin, pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics(["nothing"]).all()
        raise LookupError("of the program's own")

    with pytest.raises(LookupError, match="own"):
        simulated_cluster(seed=5, brokers=1).run_blocking(fail)


def test_a_paused_broker_loses_what_it_leads_and_comes_back() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        async with cluster.admin() as admin:
            (await admin.create_topics([NewTopic("t", 1, 3)])).all()
        image = cluster.alive[0].image
        leader = image.topics["t"].partitions[0].leader
        cluster.pause(leader)
        async with cluster.producer() as producer:
            await producer.send("t", b"one")
        others = [broker for broker in cluster.alive if broker.node_id != leader]
        assert others[0].image.topics["t"].partitions[0].leader != leader
        cluster.resume(leader)

        def is_in_sync() -> bool:
            return leader in others[0].image.topics["t"].partitions[0].isr

        await cluster.until(is_in_sync, 30.0, "the broker that was paused is not in sync again")

    simulated_cluster(seed=3).run(story)


def test_a_paused_host_does_nothing_and_then_all_of_it() -> None:
    simulation = Simulation(1)
    host = simulation.host("one")
    seen: list[float] = []

    async def count() -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append(simulation.loop.time())

    async def main() -> None:
        counting = host.start(count())
        await asyncio.sleep(1.5)
        host.pause()
        await asyncio.sleep(5.0)
        assert len(seen) == 1
        host.resume()
        await counting

    simulation.run(main())
    assert [round(at_s, 1) for at_s in seen] == [1.0, 6.5, 7.5]


def test_a_clock_that_drifts_goes_on_from_where_it_was() -> None:
    simulation = Simulation(1)
    clock = simulation.host("one").clock

    async def main() -> tuple[int, int, int]:
        began = clock.now_ms()
        clock.drift(0.5)
        assert clock.now_ms() == began
        await asyncio.sleep(2.0)
        fast = clock.now_ms()
        clock.drift(0.0)
        await asyncio.sleep(1.0)
        return began, fast, clock.now_ms()

    began, fast, then = simulation.run(main())
    assert 2995 <= fast - began <= 3005
    assert 995 <= then - fast <= 1005


def test_a_network_that_was_slow_for_two_reasons_at_a_time_is_quick_again() -> None:
    simulation = Simulation(1)
    model = simulation.network.model
    usual = model.slow_probability, model.slow_delay_s_max
    slow = [Trouble(at_s, 1.0, "slow network", "1", "2", level) for at_s, level in ((0.1, 0.3), (0.6, 0.1))]
    seen: list[float] = []

    async def main() -> None:
        timeline = Timeline(simulation.loop.time)
        troubles = Troubles(
            SimulatedCluster(simulation), replace(plan_for(1), troubles=tuple(slow)), timeline, History()
        )
        running = asyncio.ensure_future(troubles.run())
        for _ in range(3):
            await asyncio.sleep(0.5)
            seen.append(round(model.slow_delay_s_max, 1))
        await running

    simulation.run(main())
    assert seen == [0.5, 0.5, 0.3]
    assert (model.slow_probability, model.slow_delay_s_max) == usual


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS_IN_SUITE))
def test_nothing_is_broken_under_faults(seed: int) -> None:
    verdict = play(plan_for(seed))
    assert verdict.failure is None, "\n".join([*verdict.plan.lines(), *verdict.timeline.lines(last=60)])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(NEW_PARTS))
def test_nothing_is_broken_under_seeds_that_were_never_run(part: int) -> None:
    """Those of today: a failure says which seed it was, and `headrace simulate --seed` brings it back."""
    first = date.today().toordinal() * 1000 + part * NEW_SEEDS
    for seed in range(first, first + NEW_SEEDS):
        verdict = play(plan_for(seed))
        assert verdict.failure is None, "\n".join(
            [f"headrace simulate --seed {seed}", *verdict.plan.lines(), *verdict.timeline.lines(last=60)]
        )


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    verdict = play(Plan.of(json.loads(path.read_text("utf-8"))["plan"]))
    assert verdict.failure is None, "\n".join([*verdict.plan.lines(), *verdict.timeline.lines(last=60)])


@pytest.mark.slow
def test_a_plan_is_the_same_after_json_and_takes_the_same_course() -> None:
    plan = plan_for(5)
    assert Plan.of(json.loads(json.dumps(plan.document()))) == plan
    assert play(plan, is_traced=True).digest == play(plan, is_traced=True).digest
    assert play(plan).digest == play(plan).digest
