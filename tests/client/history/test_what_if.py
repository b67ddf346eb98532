"""What a group would be, next to the assignors that really decide."""

from __future__ import annotations

import pytest

from headrace.client.history import Change, MemberPlan, WhatIfError, what_if
from headrace.topics import TopicPartition

NOW = [
    MemberPlan("a", ("t",), tuple(TopicPartition("t", index) for index in range(4))),
    MemberPlan("b", ("t",), tuple(TopicPartition("t", index) for index in range(4, 8))),
]
COUNTS = {"t": 8}


def test_as_it_is_nothing_moves() -> None:
    plan = what_if(NOW, COUNTS, "range", Change())
    assert plan.moves == []
    assert plan.balance == (4, 4)


def test_another_member_takes_its_share_and_sticky_moves_less() -> None:
    sticky = what_if(NOW, COUNTS, "range", Change(strategy="cooperative-sticky", members=3))
    assert sticky.new_members == ["new-1"]
    assert sticky.balance == (2, 3)
    moved = {partition for partition, before, after in sticky.moves if after == "new-1"}
    assert len(moved) == 2
    ranges = what_if(NOW, COUNTS, "range", Change(members=3))
    assert len(ranges.moves) > len(moved)


def test_partitions_weights_and_lag_count() -> None:
    more = what_if(NOW, COUNTS, "range", Change(partitions={"t": 10}))
    assert more.balance == (5, 5)
    heavy = what_if(NOW, COUNTS, "weighted", Change(weights={"a": 3}))
    assert len(heavy.assigned["a"]) == 6
    lag = {TopicPartition("t", 0): 900, TopicPartition("t", 1): 100}
    by_lag = what_if(NOW, COUNTS, "lag", Change(), lag=lag)
    assert by_lag.lag["a"] != by_lag.lag["b"]
    assert sum(by_lag.lag.values()) == 1000


def test_a_coordinators_assignor_decides_for_groups_of_the_newer_protocol() -> None:
    plan = what_if(NOW, COUNTS, "uniform", Change(members=4))
    assert plan.balance == (2, 2)
    kept = {partition for member in ("a", "b") for partition in plan.assigned[member]}
    assert len(kept) == 4


def test_members_that_leave_give_theirs_to_others() -> None:
    plan = what_if(NOW, COUNTS, "sticky", Change(without=("b",)))
    assert plan.balance == (8, 8)
    assert {before for _, before, _ in plan.moves} == {"b"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(strategy="rnage"), "did you mean 'range'"),
        (Change(without=("c",)), "'c' is no member"),
        (Change(members=0), "from 1 to"),
        (Change(partitions={"t": 3}), "never taken away"),
        (Change(partitions={"t": 10**9}), "cannot be worked out"),
    ],
)
def test_what_cannot_be_is_said(change: Change, words: str) -> None:
    with pytest.raises(WhatIfError, match=words):
        what_if(NOW, COUNTS, "range", change)
