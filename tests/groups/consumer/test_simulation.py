"""Whatever members, network and disk do, no partition has two owners; and what would break that is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from headrace.groups.consumer import loading, reconcile
from headrace.groups.consumer.classic_members import ClassicMembers
from headrace.groups.consumer.group import ConsumerGroup
from headrace.groups.consumer.moving import Moves
from headrace.groups.epochs import steps
from headrace.groups.epochs.steps import GroupStep

from .simulation import simulate

CHUNK = 5
SEEDS = 60
MUTATION_SEEDS = 40


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
def test_no_partition_has_two_owners_under_any_seed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.slow
def test_the_simulation_reaches_what_it_is_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(20):
        for what, count in simulate(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    for what in ("taken", "revoked", "commits", "moves", "failed writes", "jobs", "crashes", "leaves", "sync"):
        assert totals.get(what, 0) >= 10, f"{what} hardly ever happens: {totals}"


def test_a_seed_decides_everything() -> None:
    first, second = simulate(3), simulate(3)
    assert first.log == second.log
    assert first.answered_ms == second.answered_ms


def nothing_is_held(group: ConsumerGroup, member: Any) -> Callable[[bytes, int], bool]:
    return lambda topic, partition: False


def forget_unwritten(group: Any, step: int, keys: Any, out: Any, error: Any, at: Any) -> None:
    for key in keys:
        group.book.in_flight.pop(key, None)


def without_revoking(member: Any, value: Any) -> None:
    PLACE(member, value)
    member.revoking = {}


def commit_whatever_was(group: ConsumerGroup, claim: Any, topic_id: bytes, partition: int) -> Any:
    return 0


def no_topics(moves: Moves, step: GroupStep[Any], is_other: bool) -> None:
    step.group.topics_changed = False
    BUMP(moves, step, is_other)


def never_again(members: Any, group: Any, request: Any, *rest: Any) -> Any:
    return HEARTBEAT(members, group, request, *rest) and 0


PLACE, BUMP, HEARTBEAT = loading._place, Moves.bump_if, ClassicMembers.heartbeat

MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "partitions are given that others still have": lambda: mock.patch.object(
        ConsumerGroup, "held_by_another", nothing_is_held
    ),
    "revocation is not waited for": lambda: mock.patch.object(reconcile, "_still_owned", return_value=False),
    "what could not be written is forgotten": lambda: mock.patch.object(steps, "_failed", forget_unwritten),
    "what has to be given up is not loaded": lambda: mock.patch.object(loading, "_place", without_revoking),
    "any older epoch may commit": lambda: mock.patch.object(ConsumerGroup, "may_commit_partition", commit_whatever_was),
    "changed topics are not noticed": lambda: mock.patch.object(Moves, "bump_if", no_topics),
    "classic members are not called back": lambda: mock.patch.object(ClassicMembers, "heartbeat", never_again),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_finds_what_is_planted(name: str) -> None:
    with MUTATIONS[name](), pytest.raises(AssertionError):
        simulate_all()


def simulate_all() -> None:
    for seed in range(MUTATION_SEEDS):
        simulate(seed)
