"""Whatever members, network and disk do, what has begun is given out, and nothing else; what breaks that is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from tests.groups.consumer.test_simulation import forget_unwritten

from headrace.groups.epochs import steps
from headrace.groups.share import moving
from headrace.groups.share.group import ShareGroup

from .simulation import simulate

SEEDS = 30
CHUNK = 5
MUTATION_SEEDS = 40
FOUND = (0, 1815)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_all_that_has_begun_is_given_and_nothing_else_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


def test_seeds_that_found_something_find_nothing_any_more() -> None:
    for seed in FOUND:
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(20):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    for what in ("taken", "beginnings", "lost answers", "deleted topics", "moves", "failed writes", "jobs", "leaves"):
        assert totals.get(what, 0) >= 10, f"{what} hardly ever happens: {totals}"


def test_a_seed_decides_everything() -> None:
    first, second = simulate(3), simulate(3)
    assert first.log == second.log
    assert first.answered_ms == second.answered_ms


PLAN, KNOWN, UNASSIGNED = moving.plan_of, ShareGroup.is_known, ShareGroup.is_unassigned


def plan_of_all(group: ShareGroup, topics: Any) -> Any:
    ids = (topics.topic_id(name) for name in group.topic_counts)
    counts = {topic_id: topics.partition_count(topics.topic_name(topic_id)) for topic_id in ids if topic_id}
    every = {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}
    return replace(PLAN(group, topics), assignable=every)


def asked_once(group: ShareGroup, topic_id: bytes, asked_since_ms: int) -> set[int]:
    return KNOWN(group, topic_id, -1)


def of_any_topic(group: ShareGroup, topics: Any) -> bool:
    named = mock.Mock(topic_id=lambda name: next((key for key, one in group.begun.items() if one.name == name), None))
    return UNASSIGNED(group, named)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "partitions are given whose states have not begun": lambda: mock.patch.object(moving, "plan_of", plan_of_all),
    "states that could not begin count as begun": lambda: mock.patch.object(
        ShareGroup, "has_not_begun", ShareGroup.has_begun
    ),
    "states are asked for once": lambda: mock.patch.object(ShareGroup, "is_known", asked_once),
    "what has begun is not given out": lambda: mock.patch.object(ShareGroup, "is_unassigned", return_value=False),
    "a topic that is gone is waited for": lambda: mock.patch.object(ShareGroup, "is_unassigned", of_any_topic),
    "what could not be written is forgotten": lambda: mock.patch.object(steps, "_failed", forget_unwritten),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_finds_what_is_planted(name: str) -> None:
    with MUTATIONS[name](), pytest.raises(AssertionError):
        simulate_all()


def simulate_all() -> None:
    for seed in range(MUTATION_SEEDS):
        simulate(seed)
