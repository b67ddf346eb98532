"""Whatever members, network and disk do, no task runs twice; and what would break that is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from tests.groups.consumer.test_simulation import forget_unwritten

from headrace.groups.epochs import steps
from headrace.groups.streams import loading
from headrace.groups.streams.group import StreamsGroup
from headrace.groups.streams.heartbeats import StreamsHeartbeats
from headrace.groups.streams.tasks import MemberTasks

from .simulation import simulate

SEEDS = 30
CHUNK = 5
MUTATION_SEEDS = 40


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_no_task_runs_twice_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(20):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    for what in ("taken", "copied", "revoked", "moves", "failed writes", "jobs", "crashes", "leaves"):
        assert totals.get(what, 0) >= 10, f"{what} hardly ever happens: {totals}"


def no(*_: Any) -> bool:
    return False


def without_revoking(member: Any, value: Any) -> None:
    PLACE(member, value)
    member.revoking = MemberTasks()


def in_no_process() -> AbstractContextManager[Any]:
    return mock.patch.multiple(StreamsGroup, is_held_in=no, is_passive_in=no)


PLACE = loading._place

MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "tasks are given that others still run": lambda: mock.patch.object(StreamsGroup, "is_active", no),
    "revocation is not waited for": lambda: mock.patch.object(MemberTasks, "has_any_of", no),
    "a process gets a task twice": in_no_process,
    "what could not be written is forgotten": lambda: mock.patch.object(steps, "_failed", forget_unwritten),
    "what has to be given up is not loaded": lambda: mock.patch.object(loading, "_place", without_revoking),
    "lost answers are not repeated": lambda: mock.patch.object(StreamsHeartbeats, "_missed_an_answer", no),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_finds_what_is_planted(name: str) -> None:
    with MUTATIONS[name](), pytest.raises(AssertionError):
        simulate_all()


def simulate_all() -> None:
    for seed in range(MUTATION_SEEDS):
        simulate(seed)
