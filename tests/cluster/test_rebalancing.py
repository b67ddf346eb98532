"""Plans that move replicas: whole, even, over racks, and with no more moves than it takes."""

from __future__ import annotations

import random

import pytest

from headrace.cluster.placement import PlacementBroker, place
from headrace.cluster.rebalancing import Assignment, rebalanced
from headrace.errors import InvalidReplicationFactorError
from headrace.topics import TopicPartition


def brokers(*ids: int, racks: int = 0) -> list[PlacementBroker]:
    return [PlacementBroker(node, f"r{node % racks}" if racks else None) for node in ids]


def placed(ids: list[int], partitions: int, copies: int, racks: int = 0, seed: int = 1) -> Assignment:
    found = place(brokers(*ids, racks=racks), partitions, copies, random.Random(seed))
    return {TopicPartition("t", index): replicas for index, replicas in found.items()}


def load(plan: Assignment) -> dict[int, int]:
    counts: dict[int, int] = {}
    for replicas in plan.values():
        assert len(set(replicas)) == len(replicas)
        for node in replicas:
            counts[node] = counts.get(node, 0) + 1
    return counts


def test_what_is_even_stays_as_it_is() -> None:
    current = placed([1, 2, 3], 12, 3)
    assert rebalanced(current, brokers(1, 2, 3)) == current


def test_a_broker_is_emptied_and_nothing_else_moves() -> None:
    current = placed([1, 2, 3, 4], 12, 2)
    plan = rebalanced(current, brokers(1, 2, 3))
    assert set(load(plan)) == {1, 2, 3}
    for partition, replicas in plan.items():
        kept = [node for node in current[partition] if node != 4]
        assert len(set(replicas) - set(kept)) <= (4 in current[partition]) + 1
    assert max(load(plan).values()) - min(load(plan).values()) <= 1


def test_a_new_broker_gets_its_share() -> None:
    current = placed([1, 2, 3], 12, 2)
    plan = rebalanced(current, brokers(1, 2, 3, 4))
    assert load(plan) == {1: 6, 2: 6, 3: 6, 4: 6}
    moved = sum(len(set(plan[partition]) - set(current[partition])) for partition in plan)
    assert moved == 6, "no more than what the new one is to hold"


def test_fewer_and_more_replicas() -> None:
    current = placed([1, 2, 3], 6, 2)
    assert set(map(len, rebalanced(current, brokers(1, 2, 3), replication_factor=1).values())) == {1}
    assert set(map(len, rebalanced(current, brokers(1, 2, 3), replication_factor=3).values())) == {3}
    with pytest.raises(InvalidReplicationFactorError, match="4 replicas, and there are 3 brokers"):
        rebalanced(current, brokers(1, 2, 3), replication_factor=4)


@pytest.mark.parametrize("seed", range(30))
def test_any_plan_is_whole_and_even(seed: int) -> None:
    rng = random.Random(seed)
    racks = rng.choice([0, 2, 3])
    ids = list(range(1, rng.randint(4, 9)))
    copies = rng.randint(1, min(3, len(ids)))
    current = placed(ids, rng.randint(1, 30), copies, racks, seed)
    left = rng.sample([*ids, 20, 21], rng.randint(max(copies, 3), len(ids) + 2))
    plan = rebalanced(current, brokers(*left, racks=racks))
    assert set(plan) == set(current)
    assert all(len(replicas) == copies and set(replicas) <= set(left) for replicas in plan.values())
    counts = load(plan)
    if not racks:
        assert max(counts.values()) - min(counts.get(node, 0) for node in left) <= 1
    else:
        used = {node: f"r{node % racks}" for node in left}
        possible = min(copies, len(set(used.values())))
        assert all(len({used[node] for node in replicas}) == possible for replicas in plan.values())
