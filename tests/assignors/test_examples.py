"""The textbook examples come out as printed."""

from __future__ import annotations

from headrace.assignors import Assignment, RangeAssignor, RoundRobinAssignor, StickyAssignor, Subscription
from headrace.topics import TopicPartition

from .helpers import Plain, assign


def printed(result: Plain) -> dict[str, str]:
    return {member: " ".join(f"{topic}p{number}" for topic, number in own) for member, own in sorted(result.items())}


def test_range_ten_partitions_three_members() -> None:
    result = assign(RangeAssignor(), {"t": 10}, {member: Subscription(["t"]) for member in "abc"})
    assert {member: [number for _, number in own] for member, own in result.items()} == {
        "a": [0, 1, 2, 3],
        "b": [4, 5, 6],
        "c": [7, 8, 9],
    }


def test_round_robin_two_members_two_topics() -> None:
    group = {member: Subscription(["t0", "t1"]) for member in ("C0", "C1")}
    assert printed(assign(RoundRobinAssignor(), {"t0": 3, "t1": 3}, group)) == {
        "C0": "t0p0 t0p2 t1p1",
        "C1": "t0p1 t1p0 t1p2",
    }


COUNTS = {f"t{i}": 2 for i in range(4)}


def test_sticky_three_members_then_one_leaves() -> None:
    leader = StickyAssignor()
    first = assign(leader, COUNTS, {member: Subscription(list(COUNTS)) for member in ("C0", "C1", "C2")})
    assert printed(first) == {"C0": "t0p0 t1p1 t3p0", "C1": "t0p1 t2p0 t3p1", "C2": "t1p0 t2p1"}
    remaining = {}
    for member in ("C0", "C2"):
        own = StickyAssignor()
        own.on_assignment(Assignment([TopicPartition(*pair) for pair in first[member]]), 1)
        remaining[member] = Subscription(list(COUNTS), own.subscription_user_data(()), generation_id=1)
    second = assign(leader, COUNTS, remaining)
    for member in ("C0", "C2"):
        assert set(first[member]) <= set(second[member])
        assert len(second[member]) == 4


def test_round_robin_deals_anew_when_one_leaves() -> None:
    group = {member: Subscription(list(COUNTS)) for member in ("C0", "C2")}
    assert printed(assign(RoundRobinAssignor(), COUNTS, group)) == {
        "C0": "t0p0 t1p0 t2p0 t3p0",
        "C2": "t0p1 t1p1 t2p1 t3p1",
    }
