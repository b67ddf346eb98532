"""Whatever the group: assignments are valid, balanced and sticky, however partitions are held in memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.assignors import (
    AssignableTopics,
    Assignment,
    CooperativeStickyAssignor,
    GroupAssignment,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
    resolve,
)
from headrace.topics import TopicPartition

from .helpers import assign, faults, plain

NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky", "lag", "weighted")
TOPICS = ("a", "b", "t0", "t1", "Ａ", "😀")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=len(TOPICS))
topic_lists = st.lists(st.sampled_from(TOPICS), unique=True, max_size=len(TOPICS))
claims = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(-1, 10)), max_size=8)
racks = st.sampled_from([None, "", "r1", "r2", "r3"])


@st.composite
def members(draw: st.DrawFn) -> Subscription:
    """Any member, honest or not: it may claim what is gone, twice, or what others claim."""
    owned = draw(claims)
    generation = draw(st.sampled_from([None, 0, 1, 2]))
    user_data = draw(st.none() | st.binary(max_size=30))
    if draw(st.booleans()):
        before = StickyAssignor()
        before.on_assignment(Assignment(owned), draw(st.integers(-1, 3)))
        user_data = before.subscription_user_data(())
    instance = draw(st.none() | st.sampled_from(["i1", "i2", "i3"]))
    return Subscription(draw(topic_lists), user_data, owned, generation, draw(racks), instance)


groups = st.dictionaries(st.sampled_from([f"m{i}" for i in range(8)] + ["😀", "Ａ"]), members(), max_size=7)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(NAMES), counts=counts, group=groups, data=st.data())
def test_every_assignment_is_valid_whatever_members_claim(
    name: str, counts: dict[str, int], group: dict[str, Subscription], data: st.DataObject
) -> None:
    replicas = st.lists(st.sampled_from([None, "r1", "r2"]), min_size=1, max_size=2)
    near = {topic: data.draw(st.lists(replicas, min_size=count, max_size=count)) for topic, count in counts.items()}
    cluster = AssignableTopics(counts, data.draw(st.none() | st.just(near)))
    result = resolve(name).assign(cluster, group)
    assert isinstance(result, dict)
    assert not faults(cluster, group, result, withholds=name == "cooperative-sticky")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=counts, size=st.integers(1, 9))
def test_equal_subscriptions_are_balanced_to_one_partition(counts: dict[str, int], size: int) -> None:
    group = {f"m{i}": Subscription(TOPICS) for i in range(size)}
    for assignor in (RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
        sizes = [len(own) for own in assign(assignor, counts, group).values()]
        assert max(sizes) - min(sizes) <= 1
    per_topic = assign(RangeAssignor(), counts, group)
    for topic in counts:
        sizes = [sum(1 for name, _ in own if name == topic) for own in per_topic.values()]
        assert max(sizes) - min(sizes) <= 1


def carried_on(
    name: str, group: dict[str, Subscription], result: GroupAssignment, generation: int
) -> dict[str, Subscription]:
    """The members as they rejoin after they got this."""
    joined = {}
    for member, subscription in group.items():
        assignor = resolve(name)
        assignor.on_assignment(result[member], generation)
        owned = result[member].partitions if name == "cooperative-sticky" else ()
        user_data = assignor.subscription_user_data(subscription.topics)
        joined[member] = Subscription(subscription.topics, user_data, owned, generation)
    return joined


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["sticky", "cooperative-sticky"]),
    counts=counts,
    subscriptions=st.lists(topic_lists, min_size=1, max_size=7),
)
def test_nothing_moves_when_nothing_changed(name: str, counts: dict[str, int], subscriptions: list[list[str]]) -> None:
    group = {f"m{i}": Subscription(topics) for i, topics in enumerate(subscriptions)}
    leader = resolve(name)
    first = leader.assign(AssignableTopics(counts), group)
    assert isinstance(first, dict)
    second = leader.assign(AssignableTopics(counts), carried_on(name, group, first, 1))
    assert isinstance(second, dict)
    assert {m: set(own) for m, own in plain(second).items()} == {m: set(own) for m, own in plain(first).items()}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(counts=counts, size=st.integers(2, 8), leaver=st.integers(0, 7))
def test_those_who_stay_keep_all_they_had_when_one_leaves(counts: dict[str, int], size: int, leaver: int) -> None:
    for name in ("sticky", "cooperative-sticky"):
        group = {f"m{i}": Subscription(TOPICS) for i in range(size)}
        leader = resolve(name)
        first = leader.assign(AssignableTopics(counts), group)
        assert isinstance(first, dict)
        rest = carried_on(name, group, first, 1)
        del rest[f"m{leaver % size}"]
        second = leader.assign(AssignableTopics(counts), rest)
        assert isinstance(second, dict)
        for member in rest:
            assert set(first[member].partitions) <= set(second[member].partitions)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=counts, subscriptions=st.lists(topic_lists, min_size=1, max_size=7), newcomer=topic_lists)
def test_a_cooperative_group_settles_and_no_partition_has_two_owners_on_the_way(
    counts: dict[str, int], subscriptions: list[list[str]], newcomer: list[str]
) -> None:
    name, cluster = "cooperative-sticky", AssignableTopics(counts)
    group = {f"m{i}": Subscription(topics) for i, topics in enumerate(subscriptions)}
    leader = CooperativeStickyAssignor()
    result = leader.assign(cluster, group)
    joined = carried_on(name, group, result, 1) | {"new": Subscription(newcomer)}
    for generation in range(2, 5):
        held = {p: m for m, subscription in joined.items() for p in subscription.owned_partitions}
        result = leader.assign(cluster, joined)
        for member, own in result.items():
            for partition in own.partitions:
                assert held.get(partition, member) == member, "given away before its owner let go of it"
        joined = carried_on(name, joined, result, generation)
    assert not faults(cluster, joined, result)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(counts=counts, group=groups)
def test_compact_and_plain_lists_of_owned_partitions_mean_the_same(
    counts: dict[str, int], group: dict[str, Subscription]
) -> None:
    cluster = AssignableTopics(counts)
    bare = {member: Subscription(subscription.topics) for member, subscription in group.items()}
    first = CooperativeStickyAssignor().assign(cluster, bare)
    compact, as_lists = {}, {}
    for place, (member, own) in enumerate(first.items()):
        topics = group[member].topics[place % 2 :]
        compact[member] = Subscription(topics, owned_partitions=own.partitions, generation_id=1)
        as_lists[member] = Subscription(topics, owned_partitions=list(own.partitions), generation_id=1)
    once = CooperativeStickyAssignor().assign(cluster, compact)
    again = CooperativeStickyAssignor().assign(cluster, as_lists)
    assert plain(once) == plain(again)
