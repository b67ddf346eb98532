"""A million partitions, two thousand members: within the limits of Kafka's own scale tests, and as Java answers."""

from __future__ import annotations

import random

import pytest
from bench.assignors import SCENARIOS, Run, Scenario, run_java, run_ours
from bench.peers import kafka_libs, why_no_kafka

LIMITS_S = {"uniform-1M": 30, "nonequal-1M": 90, "split-20k": 90, "leaving": 60}
needs_java = pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@pytest.mark.parametrize("title", LIMITS_S)
def test_kafkas_scale_tests_end_in_time(title: str, name: str) -> None:
    run = run_ours(SCENARIOS[title](), name, plain_lists=False)
    assert run.cpu_s < LIMITS_S[title]


def any_scenario(seed: int) -> Scenario:
    """A group of some size, with unequal subscriptions, in which some members forget or leave."""
    rng = random.Random(seed)
    topics = [(f"{rng.choice(['t', 'topic-', 'Ab.'])}{i}", rng.randint(1, 12)) for i in range(rng.randint(2, 40))]
    shapes = [sorted(rng.sample(range(len(topics)), rng.randint(1, len(topics)))) for _ in range(rng.randint(1, 30))]
    chances = [rng.random() for _ in range(3)]
    members = [
        (f"c{i}", rng.randrange(len(shapes)), rng.choices(["claim", "forget", "leave"], chances)[0])
        for i in range(rng.randint(2, 60))
    ]
    members.append(("stays", 0, "claim"))
    return Scenario(topics, shapes, members)


@needs_java
@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_some_size_are_assigned_as_java_assigns_them(seed: int, name: str) -> None:
    libs = kafka_libs()
    assert libs is not None
    scenario = any_scenario(seed)
    ours: Run = run_ours(scenario, name, plain_lists=False)
    (theirs,) = run_java(libs, scenario, name, 1)
    assert ours.checksums == theirs.checksums
    assert ours.wire_bytes == theirs.wire_bytes
