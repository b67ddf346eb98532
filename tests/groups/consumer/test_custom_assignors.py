"""Assignors of a user's own, installed at the brokers by an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from tests.groups.driver import Driver

from headrace.assignors.server import GroupSpec, ServerAssignorError, registry, server_assignors
from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig
from headrace.groups.consumer.config import ConsumerGroupConfig
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


class AllToTheFirst:
    name = "all-to-the-first"

    def assign(self, group: GroupSpec) -> Mapping[str, Mapping[bytes, range]]:
        first = min(group.members)
        return {first: {topic: range(found.partitions) for topic, found in group.topics.items()}}


class Twice:
    name = "twice"

    def assign(self, group: GroupSpec) -> Mapping[str, Mapping[bytes, range]]:
        return {member: {topic: range(1) for topic in group.topics} for member in group.members}


class Raises:
    name = "raises"

    def assign(self, group: GroupSpec) -> Mapping[str, Mapping[bytes, range]]:
        raise RuntimeError("no weights today")


class NoAssignor:
    name = None


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        EntryPoint(name, f"{__name__}:{kind.__name__}", registry.ENTRY_POINTS)
        for name, kind in (("first", AllToTheFirst), ("twice", Twice), ("raises", Raises), ("none", NoAssignor))
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def heartbeat(driver: Driver, member_id: str) -> Any:
    driver.tokens += 1
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    driver.absorb(driver.coordinator.consumer.heartbeat(Caller(driver.tokens, "c", "/h", 1), request, driver.now))
    assert driver.tokens not in driver.answers, "it is computed where nobody is kept waiting"
    driver.run_until(driver.now_ms)
    return driver.answers[driver.tokens]


def broker(*assignors: str) -> Driver:
    driver = Driver(GroupConfig(consumer=ConsumerGroupConfig(assignors=assignors)))
    driver.topics.create("t", 3)
    return driver


def test_it_assigns_and_is_known_to_members_by_its_own_name() -> None:
    assert list(server_assignors(["first", "range"])) == ["all-to-the-first", "range"]
    driver = broker("first", "uniform")
    assert heartbeat(driver, "m").assignment.topic_partitions[0].partitions == [0, 1, 2]


@pytest.mark.parametrize(("name", "why"), [("twice", "t-0 is given twice"), ("raises", "no weights today")])
def test_what_it_must_not_do_is_told_to_the_member_and_said_in_the_log(name: str, why: str) -> None:
    driver = broker(name)
    if name == "twice":
        heartbeat(driver, "a")
        driver.advance(2_000)
    assert heartbeat(driver, "b").error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert any(why in note for note in driver.notes)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["uniform", "nowhere"], "names 'nowhere', which is none of uniform, range, first"),
        (["none"], "needs a name and a method assign"),
        (["range", "range"], "has two that are called 'range'"),
    ],
)
def test_a_broker_does_not_start_with_one_that_it_cannot_use(names: list[str], why: str) -> None:
    with pytest.raises(ServerAssignorError, match=why):
        server_assignors(names)
