"""What plans have beside faults: more partitions, static members, topics that are configured anew, clocks."""

from __future__ import annotations

import json

from headrace.runtime.simulated import Simulation
from headrace.testing.simulated import SimulatedCluster
from headrace.testing.simulated.history import History
from headrace.testing.simulated.operators import OPERATORS
from headrace.testing.simulated.owners import OWNERS
from headrace.testing.simulated.plans import CLOCK_STEP, CONFIGURED, MORE_PARTITIONS, TRIMMED, Plan, plan_for
from headrace.testing.simulated.topic_configs import CHANGES, TRIMMED_CHANGES, change_of

#: What plans have now and did not have once.
_ADDED = {"is_static", "clocks_ms", "directories", "node_bytes_max"}
_LEVELS = [number / 1000 for number in range(1000)]


def test_all_of_it_is_drawn_and_plans_of_before_have_none() -> None:
    plans = [plan_for(seed) for seed in range(300)]
    kinds = {trouble.kind for plan in plans for trouble in plan.troubles}
    assert {CLOCK_STEP, CONFIGURED, MORE_PARTITIONS, *OWNERS, *OPERATORS} <= kinds
    assert any(plan.is_static for plan in plans)
    assert {plan.clocks_ms for plan in plans} == {0, 500, 5_000, 1_200_000}
    assert {len(plan.directories) for plan in plans} == {1, 2}
    assert any(plan.node_bytes_max for plan in plans)
    assert all("group" in plan.workloads for plan in plans if plan.is_static)
    former = plan_for(1).document()
    of_before = Plan.of({name: former[name] for name in former.keys() - _ADDED})
    assert (of_before.is_static, of_before.clocks_ms, of_before.node_bytes_max) == (False, 0, 0)
    assert of_before.directories == ("/data/one",)
    for plan in plans[:50]:
        assert Plan.of(json.loads(json.dumps(plan.document()))) == plan


def test_topics_of_a_plan_are_those_that_its_clients_write_to() -> None:
    for seed in range(300):
        plan = plan_for(seed)
        for trouble in plan.troubles:
            if trouble.kind in (CONFIGURED, MORE_PARTITIONS):
                assert trouble.topic in plan.topics
                assert trouble.text().startswith(f"{trouble.kind}: {trouble.topic} at")


def test_every_change_of_a_configuration_is_drawn() -> None:
    assert {id(change_of("numbered", level)) for level in _LEVELS} == set(map(id, CHANGES))
    for topic in TRIMMED:
        own = {*map(id, CHANGES), *map(id, TRIMMED_CHANGES[topic])}
        assert {id(change_of(topic, level)) for level in _LEVELS} == own


def test_a_configuration_in_doubt_is_never_known_again() -> None:
    history = History()
    history.has_configured("t", {"a": "1", "b": "1"}, history.configures("t", {"a": "1", "b": "1"}))
    assert history.configs == {"t": {"a": "1", "b": "1"}}
    # No answer: it may be done after the next one.
    history.configures("t", {"a": "2"})
    assert history.configs == {"t": {"b": "1"}}
    history.has_configured("t", {"a": "3", "b": "3"}, history.configures("t", {"a": "3", "b": "3"}))
    assert history.configs == {"t": {"b": "3"}}


def test_clocks_of_machines_differ_where_a_plan_says_so_and_not_else() -> None:
    async def clocks(cluster: SimulatedCluster) -> int:
        hosts = [cluster.client_host(f"client-of-{number}") for number in range(20)]
        assert cluster.client_host("client-of-0").clock.skew_ms == hosts[0].clock.skew_ms
        assert all(abs(host.clock.skew_ms) <= 5_000 for host in hosts)
        return len({host.clock.now_ms() for host in hosts})

    for clocks_ms, count in ((0, 1), (5_000, 20)):
        simulation = Simulation(1)
        assert simulation.run(clocks(SimulatedCluster(simulation, clocks_ms=clocks_ms))) == count
        simulation.loop.close()
