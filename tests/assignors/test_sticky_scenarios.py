"""What a sticky group does over several rebalances, told as stories; single assignments are in the vectors."""

from __future__ import annotations

import struct

import pytest

from headrace.assignors import AssignableTopics, Assignment, CooperativeStickyAssignor, StickyAssignor, Subscription
from headrace.topics import TopicPartition

from .helpers import Plain, assign, faults


def had(topics: list[str], own: list[tuple[str, int]], generation: int) -> Subscription:
    """A sticky member that had these partitions in this generation."""
    member = StickyAssignor()
    member.on_assignment(Assignment([TopicPartition(*pair) for pair in own]), generation)
    return Subscription(topics, member.subscription_user_data(topics), generation_id=generation)


def test_a_member_that_was_away_does_not_get_back_what_others_have_now() -> None:
    # c3 comes back with the claims of generation 1; c1 and c2 shared its partitions in generation 2.
    group = {
        "c1": had(["t"], [("t", 0), ("t", 1), ("t", 4)], 2),
        "c2": had(["t"], [("t", 2), ("t", 3), ("t", 5)], 2),
        "c3": had(["t"], [("t", 4), ("t", 5)], 1),
    }
    result = assign(StickyAssignor(), {"t": 6}, group)
    assert sorted(map(len, result.values())) == [2, 2, 2]
    for member, before in (("c1", {0, 1, 4}), ("c2", {2, 3, 5})):
        assert {number for _, number in result[member]} <= before


def test_claims_older_than_what_the_leader_has_seen_are_honoured_all_the_same() -> None:
    # A leader remembers the newest generation it met; claims of an older one must not be lost over it.
    group = {"a": had(["t", "u"], [("t", 0), ("t", 1), ("t", 2)], 3), "b": had(["t"], [], 3)}
    fresh, old = StickyAssignor(), StickyAssignor()
    assign(old, {"t": 1}, {"z": had(["t"], [("t", 0)], 5)})
    for leader in (fresh, old):
        result = assign(leader, {"t": 3, "u": 1}, group)
        assert {member: len(own) for member, own in result.items()} == {"a": 2, "b": 2}
        assert ("u", 0) in result["a"]


def test_a_new_member_takes_its_share_and_nothing_else_moves() -> None:
    leader = StickyAssignor()
    topics = ["t", "u"]
    first = assign(leader, {"t": 6, "u": 6}, {m: Subscription(topics) for m in "ab"})
    group = {m: had(topics, first[m], 1) for m in "ab"} | {"c": Subscription(topics)}
    second = assign(leader, {"t": 6, "u": 6}, group)
    assert {m: len(own) for m, own in second.items()} == {"a": 4, "b": 4, "c": 4}
    assert all(set(second[m]) <= set(first[m]) for m in "ab")


def test_a_new_topic_is_shared_and_the_old_one_stays() -> None:
    leader = StickyAssignor()
    first = assign(leader, {"t": 4}, {m: Subscription(["t", "u"]) for m in "ab"})
    second = assign(leader, {"t": 4, "u": 4}, {m: had(["t", "u"], first[m], 1) for m in "ab"})
    assert all(set(first[m]) <= set(second[m]) and len(second[m]) == 4 for m in "ab")


def test_a_deleted_topic_leaves_no_trace_and_no_error() -> None:
    group = {"a": had(["t"], [("t", 0)], 1), "b": had(["t", "u"], [("u", 0), ("t", 1)], 1)}
    assert assign(StickyAssignor(), {"u": 1}, group) == {"a": [], "b": [("u", 0)]}
    assert assign(StickyAssignor(), {}, group) == {"a": [], "b": []}


def test_unequal_subscriptions_are_evened_out_with_few_moves() -> None:
    # c can read only u, and a has all of it: one partition moves, and nothing is gained by moving more.
    counts = {"t": 3, "u": 3}
    group = {
        "a": had(["t", "u"], [("u", 0), ("u", 1), ("u", 2)], 1),
        "b": had(["t", "u"], [("t", 0), ("t", 1), ("t", 2)], 1),
        "c": Subscription(["u"]),
    }
    result = assign(StickyAssignor(), counts, group)
    assert {m: len(own) for m, own in result.items()} == {"a": 2, "b": 3, "c": 1}
    assert set(result["b"]) == {("t", 0), ("t", 1), ("t", 2)}


@pytest.mark.parametrize("generations", [(3, 3), (-1, -1)])
def test_a_partition_claimed_twice_in_one_generation_is_withheld_until_both_let_go(
    generations: tuple[int, int],
) -> None:
    twice = TopicPartition("t", 0)
    group = {
        member: Subscription(["t"], struct.pack(">i", generation), [twice], generation if generation >= 0 else None)
        for member, generation in zip("ab", generations)
    }
    cluster = AssignableTopics({"t": 2})
    leader = CooperativeStickyAssignor()
    result = leader.assign(cluster, group)
    given = [partition for own in result.values() for partition in own.partitions]
    assert given == [TopicPartition("t", 1)]
    settled = {
        member: Subscription(["t"], owned_partitions=result[member].partitions, generation_id=4) for member in "ab"
    }
    assert not faults(cluster, settled, leader.assign(cluster, settled))


def test_old_user_data_without_generation_and_garbage_are_told_apart() -> None:
    v1 = had(["t"], [("t", 1)], 1).user_data
    assert v1 is not None
    group = {"a": Subscription(["t"], v1[:-4]), "b": Subscription(["t"], b"\x00\x00\x00\x09rubbish")}
    assert assign(StickyAssignor(), {"t": 2}, group) == {"a": [("t", 1)], "b": [("t", 0)]}


def test_user_data_of_many_members_reads_the_same_whether_they_fit_one_mould_or_not() -> None:
    counts = {f"topic-{i}": 12 for i in range(20)}
    topics = list(counts)
    before: Plain = assign(StickyAssignor(), counts, {f"m{i}": Subscription(topics) for i in range(12)})
    # One member owns a partition that is gone, one has a topic more than the others.
    before["m3"][0] = ("topic-0", 99)
    before["m4"].append(("vanished", 0))
    group = {member: had(topics, own, 1) for member, own in before.items()}
    result = assign(StickyAssignor(), counts, group)
    for member, own in before.items():
        if member != "m3":
            assert set(own) - {("vanished", 0)} <= set(result[member])


def test_a_group_without_members_gets_nothing() -> None:
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        assert assignor.assign(AssignableTopics({"t": 3}), {}) == {}
