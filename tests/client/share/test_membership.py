"""A member of a share group whose answers are lost hears of its partitions all the same."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.client.share._membership import ShareMembership
from headrace.errors import ErrorCode, NetworkError
from headrace.net.backoff import Backoff
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

TOPIC_ID = b"\1" * 16


class Network:
    """Takes requests, and answers them as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Any] = []
        self._callbacks: list[Any] = []
        self.clock = SimpleNamespace(monotonic=lambda: self.now)
        self.rng = random.Random(1)
        self.view = SimpleNamespace(topic_names={TOPIC_ID: "t"})
        client = SimpleNamespace(
            clock=self.clock,
            rng=self.rng,
            view=self.view,
            submit=self._submit,
            add_topic=lambda topic: None,
            learn_node=lambda node: None,
        )
        self.member = ShareMembership(cast(Any, client), "g", "", Backoff(100, 1000), lambda: None)
        self.member.subscribe(["t"])

    def _submit(self, node: Any, request: Any, then: Any) -> Any:
        self.asked.append(request)
        self._callbacks.append(then)
        return object()

    def next_request(self) -> Any:
        self.now += 60.0
        self.member.tick(self.now)
        return self.asked[-1]

    def answer(self, response: Any = None, error: Exception | None = None) -> None:
        self._callbacks[-1](SimpleNamespace(response=response, error=error))

    def find(self) -> None:
        self.next_request()
        self.answer(FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1, host="here", port=9092)]))


def given(epoch: int, *partitions: int) -> ShareGroupHeartbeatResponse:
    assignment = Assignment(topic_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=list(partitions))])
    return ShareGroupHeartbeatResponse(
        member_epoch=epoch, heartbeat_interval_ms=5_000, assignment=assignment if partitions else None
    )


@pytest.mark.parametrize(
    "lost",
    [
        {"error": NetworkError("the connection is gone")},
        {"response": ShareGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)},
        {"response": ShareGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)},
    ],
    ids=["connection", "coordinator", "loading"],
)
def test_who_was_not_answered_tells_all_again_and_so_is_told_all(lost: dict[str, Any]) -> None:
    network = Network()
    network.find()
    assert network.next_request().subscribed_topic_names == ["t"]
    network.answer(given(1))
    assert network.next_request().subscribed_topic_names is None
    network.answer(**lost)
    while not isinstance(request := network.next_request(), ShareGroupHeartbeatRequest):
        network.find()
    assert (request.member_epoch, request.subscribed_topic_names) == (1, ["t"])
    network.answer(given(2, 0, 1))
    assert network.member.assigned == {(TOPIC_ID, 0), (TOPIC_ID, 1)}
    assert network.next_request().subscribed_topic_names is None
