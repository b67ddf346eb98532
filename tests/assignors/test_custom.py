"""Assignors by name, by path, of one's own; and the two shipped ones that look at lag and weight."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from headrace.assignors import (
    AssignableTopics,
    Assignment,
    AssignorBase,
    AssignorError,
    CooperativeStickyAssignor,
    GroupAssignment,
    LagAssignor,
    RangeAssignor,
    StickyAssignor,
    Subscription,
    WeightedAssignor,
    resolve,
    settle,
)
from headrace.topics import TopicPartition

from .helpers import assign


class FirstTakesAll(AssignorBase):
    """Asks somebody else (here: nobody) before it decides."""

    name = "first-takes-all"

    async def assign(self, cluster: AssignableTopics, subscriptions: dict[str, Subscription]) -> GroupAssignment:
        await asyncio.sleep(0)
        first = min(subscriptions)
        everything = [TopicPartition(topic, p) for topic, count in cluster.partitions.items() for p in range(count)]
        return {member: Assignment(everything if member == first else []) for member in subscriptions}


class Nameless(AssignorBase):
    name = ""

    def assign(self, cluster: AssignableTopics, subscriptions: dict[str, Subscription]) -> GroupAssignment:
        return {}


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky", "lag", "weighted"])
def test_our_names_resolve_to_a_new_object_each_time(name: str) -> None:
    assert resolve(name).name == name
    assert resolve(name) is not resolve(name)


@pytest.mark.parametrize(
    ("java", "name"),
    [
        ("RangeAssignor", "range"),
        ("RoundRobinAssignor", "roundrobin"),
        ("StickyAssignor", "sticky"),
        ("CooperativeStickyAssignor", "cooperative-sticky"),
    ],
)
def test_javas_class_names_resolve(java: str, name: str) -> None:
    assert resolve(f"org.apache.kafka.clients.consumer.{java}").name == name


def test_paths_classes_and_objects_resolve() -> None:
    assert isinstance(resolve("headrace.assignors.ranges.RangeAssignor"), RangeAssignor)
    assert isinstance(resolve("headrace.assignors.ranges:RangeAssignor"), RangeAssignor)
    assert isinstance(resolve(FirstTakesAll), FirstTakesAll)
    made = StickyAssignor()
    assert resolve(made) is made


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("stikcy", "did you mean 'sticky'"),
        ("Range", "did you mean 'range'"),
        ("org.apache.kafka.clients.consumer.RangeAsignor", "consumer.RangeAssignor'"),
        ("no.such.module.Thing", "no assignor 'no.such.module.Thing'"),
        ("headrace.assignors.ranges.Nothing", "has no class 'Nothing'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(wrong: str, says: str) -> None:
    with pytest.raises(AssignorError, match=says):
        resolve(wrong)


def test_what_is_no_assignor_is_refused() -> None:
    with pytest.raises(AssignorError, match="lacks subscription_user_data, assign"):
        resolve(dict)
    with pytest.raises(AssignorError, match="needs a name"):
        resolve(Nameless)
    with pytest.raises(AssignorError, match="cannot make an assignor from RangeAssignor"):
        resolve("range", wait=3)
    with pytest.raises(AssignorError, match="made already"):
        resolve(RangeAssignor(), weight=3)


def test_an_assignor_may_be_a_coroutine() -> None:
    assignor = resolve(FirstTakesAll)
    pending = assignor.assign(AssignableTopics({"t": 2}), {"b": Subscription(["t"]), "a": Subscription(["t"])})
    result = asyncio.run(settle(pending))
    assert list(result["a"].partitions) == [("t", 0), ("t", 1)]
    at_once = CooperativeStickyAssignor().assign(AssignableTopics({"t": 1}), {"a": Subscription(["t"])})
    assert asyncio.run(settle(at_once)) == at_once


def lag_of(lags: list[int]) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): lag for number, lag in enumerate(lags)}


def test_lag_is_shared_evenly() -> None:
    assert LagAssignor().needs == {"lag"}
    lags = [90, 10, 30, 30, 20]
    group = {member: Subscription(["t"]) for member in "ab"}
    result = assign(LagAssignor(), {"t": 5}, group, lag=lag_of(lags))
    assert {member: sum(lags[number] for _, number in own) for member, own in result.items()} == {"a": 90, "b": 90}


def test_without_lag_partitions_stay_with_their_owners() -> None:
    group = {}
    for member, own in (("a", [0, 1]), ("b", [2, 3])):
        before = LagAssignor()
        before.on_assignment(Assignment([TopicPartition("t", number) for number in own]), 4)
        group[member] = Subscription(["t"], before.subscription_user_data(["t"]))
    result = assign(LagAssignor(), {"t": 4}, group)
    assert result == {"a": [("t", 0), ("t", 1)], "b": [("t", 2), ("t", 3)]}


def test_an_owner_that_left_its_topic_does_not_keep_its_partitions() -> None:
    before = LagAssignor()
    before.on_assignment(Assignment([TopicPartition("t", 0)]), 4)
    group = {"a": Subscription(["u"], before.subscription_user_data(["u"])), "b": Subscription(["t", "u"])}
    assert ("t", 0) in assign(LagAssignor(), {"t": 1, "u": 1}, group)["b"]


def test_partitions_follow_weights() -> None:
    group = {}
    for member, weight in (("a", 1), ("b", 3), ("c", 0)):
        group[member] = Subscription(["t"], resolve("weighted", weight=weight).subscription_user_data(["t"]))
    result = assign(WeightedAssignor(), {"t": 12}, group)
    assert {member: len(own) for member, own in result.items()} == {"a": 3, "b": 9, "c": 0}


def test_a_stand_by_reads_what_nobody_else_wants() -> None:
    idle = json.dumps({"weight": 0}).encode()
    group = {"a": Subscription(["t"]), "b": Subscription(["t", "u"], idle)}
    assert assign(WeightedAssignor(), {"t": 2, "u": 2}, group)["b"] == [("u", 0), ("u", 1)]


@pytest.mark.parametrize("told", [b"\xff", b"[]", b"{}", b'{"weight": -1}', b'{"weight": "2"}', b'{"weight": NaN}'])
def test_an_unreadable_weight_counts_as_one_and_is_logged(told: bytes, caplog: pytest.LogCaptureFixture) -> None:
    group = {"a": Subscription(["t"], told), "b": Subscription(["t"])}
    with caplog.at_level(logging.WARNING):
        result = assign(WeightedAssignor(), {"t": 4}, group)
    assert {member: len(own) for member, own in result.items()} == {"a": 2, "b": 2}
    assert "member a" in caplog.text


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), 1e12, True, "3"])
def test_a_weight_that_is_none_is_refused(weight: object) -> None:
    with pytest.raises(AssignorError, match="weight is"):
        resolve("weighted", weight=weight)
