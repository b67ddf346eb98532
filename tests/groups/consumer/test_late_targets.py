"""A target that takes long to compute: what it gives is not lost on members that changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.groups.driver import Driver

from headrace.assignors.base import Subscription
from headrace.assignors.consumer_protocol import encode_subscription
from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig
from headrace.groups.epochs import targets
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

COMPUTING_MS = 1_000
INTERVAL_MS = 2_000  # more than targets are apart


class SlowDriver(Driver):
    """Whatever is computed takes a while."""

    def begin_job(self, job: Any) -> None:
        result = self.result_of(job)
        self.after(COMPUTING_MS, lambda: self.end_job(job, result))


class Member:
    """A member of one group. What it was told it owns, and what was taken away it gives up at once."""

    def __init__(self, driver: Driver, member_id: str, instance_id: str | None = None) -> None:
        self._driver, self._member_id, self._instance_id = driver, member_id, instance_id
        self._topic_id = driver.topics.topic_id("t") or b""
        self.epoch = 0
        self.owned: Sequence[int] = ()

    def send(self, epoch: int | None = None) -> int:
        """One heartbeat, whose answer is not waited for."""
        driver = self._driver
        driver.tokens += 1
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self._member_id, instance_id=self._instance_id, member_epoch=self.epoch
        )
        if epoch is not None:
            request.member_epoch = epoch
        elif self.epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 60_000, ["t"], []
        else:
            owned = HeartbeatTopicPartitions(topic_id=self._topic_id, partitions=list(self.owned))
            request.topic_partitions = [owned] if self.owned else []
        driver.absorb(driver.coordinator.consumer.heartbeat(Caller(driver.tokens, "c", "/h", 1), request, driver.now))
        return driver.tokens

    def beat(self) -> None:
        token = self.send()
        self._driver.run_until(self._driver.now_ms + INTERVAL_MS)
        response = self._driver.answers[token]
        assert response.error_code == ErrorCode.NONE, response.error_message
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = [index for part in response.assignment.topic_partitions for index in part.partitions]


def test_a_static_member_that_comes_back_meanwhile_has_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "INLINE_SIZE_MAX", 0)
    driver = SlowDriver(GroupConfig())
    driver.topics.create("t", 4)
    first, other = Member(driver, "m1", "static"), Member(driver, "other")
    for member in (first, other) * 4:
        member.beat()
    assert (len(first.owned), len(other.owned)) == (2, 2)
    first.send(epoch=-2)
    # A target is computed in which the static member has its earlier name, and all of what the other one had.
    other.send(epoch=-1)
    third = Member(driver, "third")
    third.send()
    driver.run_until(driver.now_ms + COMPUTING_MS // 2)
    back = Member(driver, "m2", "static")
    for member in (back, third) * 4:
        member.beat()
    assert sorted([*back.owned, *third.owned]) == [0, 1, 2, 3]


def test_who_waits_for_a_target_is_answered_though_the_group_is_a_classic_one_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "INLINE_SIZE_MAX", 0)
    driver = SlowDriver(GroupConfig())
    driver.topics.create("t", 4)
    last = Member(driver, "m1")
    for _ in range(2):
        last.beat()
    metadata = encode_subscription(Subscription(topics=["t"]), 1)
    joins = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=15_000,
        rebalance_timeout_ms=12_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    driver.absorb(driver.coordinator.join_group(Caller("join", "c", "/h", 3), joins, driver.now))
    assert "join" not in driver.answers
    last.send(epoch=-1)
    driver.run_until(driver.now_ms + COMPUTING_MS)
    assert driver.answers["join"].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
