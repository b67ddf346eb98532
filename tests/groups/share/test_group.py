"""A share group whose topics come and go: what its members are given, and its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.groups.driver import Driver

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig
from headrace.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

INTERVAL_MS = 2_000  # more than targets are apart


class Members:
    """Heartbeats of one group; the states that it asks for begin at once."""

    def __init__(self) -> None:
        self.driver = Driver(GroupConfig())
        self._epochs: dict[str, int] = {}

    def beat(self, member_id: str, topics: Sequence[str] | None = None) -> Any:
        driver = self.driver
        driver.run_until(driver.now_ms + INTERVAL_MS)
        driver.tokens += 1
        epoch = self._epochs.get(member_id, 0)
        request = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        outcome = driver.coordinator.share.heartbeat(Caller(driver.tokens, "c", "/h", 1), request, driver.now)
        driver.absorb(outcome)
        for asked in outcome.beginnings:
            begun = dict.fromkeys(asked.start_offsets, True)
            driver.absorb(driver.coordinator.share.states_begun(asked.group_id, begun, driver.now))
        response = driver.answers[driver.tokens]
        assert response.error_code == ErrorCode.NONE, response.error_message
        self._epochs[member_id] = response.member_epoch
        return response

    def given(self, member_id: str, topics: Sequence[str] = ("t",)) -> dict[bytes, list[int]]:
        """What a member has, told in full."""
        response = self.beat(member_id, topics)
        return {part.topic_id: part.partitions for part in response.assignment.topic_partitions}


def test_members_are_given_partitions_once_their_states_have_begun() -> None:
    members = Members()
    topic_id = members.driver.topics.create("t", 2)
    assert members.given("m") == {}
    assert members.given("m") == {topic_id: [0, 1]}


@pytest.mark.parametrize("is_there_again", [False, True])
def test_a_topic_that_was_deleted_while_nobody_coordinated_begins_no_more_epochs(is_there_again: bool) -> None:
    members = Members()
    members.driver.topics.create("t", 2)
    members.beat("m", ["t"])
    members.beat("m")
    del members.driver.topics.known["t"]
    if is_there_again:
        members.driver.topics.known["t"] = (b"\2" * 16, 1)
    members.driver.reload()
    assert members.given("m") == {}
    assert members.given("m") == ({b"\2" * 16: [0]} if is_there_again else {})
    epochs = {members.beat("m").member_epoch for _ in range(4)}
    assert len(epochs) == 1, "it changes though nothing else does"
