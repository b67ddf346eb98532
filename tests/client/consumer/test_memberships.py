"""Memberships that are lost, interrupted or answered oddly, and commits in the middle of that."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.core_worlds import T0, Listener, make
from tests.client.consumer.fake_driver import blocking_consumer
from tests.client.consumer.fake_group import FakeGroupCluster
from tests.client.fake import SILENCE, VirtualClock

from headrace.client.consumer.errors import CommitFailedError, RebalanceListenerError
from headrace.errors import ErrorCode
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.heartbeat import HeartbeatResponse


def test_a_poll_longer_than_the_poll_interval_keeps_its_place() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    listener = Listener()
    config = {"max_poll_interval_ms": 2000, "session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    with blocking_consumer(cluster, group_id="g", **config) as consumer:
        consumer.subscribe(["t"], listener)
        assert not consumer.poll(30)
        assert listener.events == ["assigned"]
        assert len(cluster.names("LeaveGroup")) == 0
        # An application that is gone for longer is out, as ever.
        client = consumer._client
        assert client is not None
        for _ in range(100):
            client.poll(0.1)
        consumer.poll(1)
        assert listener.events == ["assigned", "lost", "assigned"]


def test_a_member_that_is_lost_hands_out_nothing_more_though_the_coordinator_cannot_be_found() -> None:
    world = make(group_id="g", enable_auto_commit=False, max_poll_records=1)
    listener = Listener()
    world.consumer.subscribe(["t"], listener)
    world.cluster.write("t", 0, 50)
    world.run_until(lambda: len(world.records) >= 10)
    metadata = world.consumer.group_metadata()
    # What was fetched before is there to be handed out.
    state = world.consumer.subscriptions.state(T0)
    world.consumer.seek(T0, 0)
    world.is_polling = False

    def is_fetched() -> bool:
        world.consumer.fetcher.send(world.clock.now)
        return bool(state.chunks)

    world.run_until(is_fetched)
    unknown = Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, host="", error_message=None)

    def script(node: int, name: str, request: Any) -> Any:
        if name == "Heartbeat":
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return FindCoordinatorResponse(coordinators=[unknown]) if name == "FindCoordinator" else None

    world.cluster.script = script
    assert world.consumer.heartbeats is not None
    assert world.consumer.link is not None
    assert world.consumer.membership is not None
    world.run_until(lambda: world.consumer.heartbeats.has_news)
    world.consumer.link.forget("a request failed")
    seen = len(world.records)
    world.is_polling = True
    world.settle()
    assert len(world.records) == seen
    assert listener.events == ["assigned", "lost"]
    with pytest.raises(CommitFailedError):
        world.consumer.membership.identity_for_commit()
    # A transaction with these offsets is fenced: it is known whose they are.
    assert world.consumer.group_metadata() == metadata
    assert metadata.generation_id >= 1


def test_a_rebalance_that_is_interrupted_before_the_listener_was_told_is_done_again() -> None:
    cluster = FakeGroupCluster(VirtualClock(), 1, {"t": 1})
    cluster.write("t", 0, 5)

    class Interrupted(Listener):
        def on_partitions_assigned(self, partitions: Any) -> None:
            super().on_partitions_assigned(partitions)
            if len(self.events) == 1:
                raise KeyboardInterrupt

    listener = Interrupted()
    with blocking_consumer(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], listener)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(5)
        # Told once that the listener did not end.
        with pytest.raises(RebalanceListenerError, match="interrupted"):
            consumer.poll(1)
        assert [record.offset for record in consumer.poll(1)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 999])
def test_an_odd_answer_to_a_heartbeat_does_not_end_the_consumer(code: int) -> None:
    world = make(group_id="g", enable_auto_commit=False)
    world.consumer.subscribe(["t"], None)
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    answers = [HeartbeatResponse(error_code=code)]
    world.cluster.script = lambda node, name, request: answers.pop() if name == "Heartbeat" and answers else None
    raised: list[Exception] = []
    until = world.clock.now + 30
    while world.clock.now < until:
        try:
            world.run_until(lambda: world.clock.now >= until)
        except Exception as error:  # noqa: BLE001 - counted below
            raised.append(error)
    assert len(raised) == (0 if code == ErrorCode.REQUEST_TIMED_OUT else 1)
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 10)
    assert len(world.cluster.names("JoinGroup")) == 2


def test_an_automatic_commit_that_is_due_does_not_keep_a_rebalance_busy() -> None:
    world = make(group_id="g", auto_commit_interval_ms=10)
    world.consumer.subscribe(["t"], None)
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = lambda node, name, request: SILENCE if name == "JoinGroup" else None
    assert world.consumer.membership is not None
    world.consumer.membership.request_rejoin("a test wants it")
    until = world.clock.now + 1
    world.run_until(lambda: world.clock.now > until)
    assert world.consumer.due_s() > 1


def test_automatic_commits_do_not_pile_up_while_there_is_no_coordinator() -> None:
    world = make(group_id="g", auto_commit_interval_ms=10)
    world.cluster.write("t", 0, 5)
    world.consumer.assign([T0])
    world.run_until(lambda: len(world.records) == 5)
    unknown = Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, host="", error_message=None)
    world.cluster.script = lambda node, name, request: (
        FindCoordinatorResponse(coordinators=[unknown]) if name == "FindCoordinator" else None
    )
    assert world.consumer.link is not None
    assert world.consumer.commits is not None
    world.consumer.link.forget("a test wants it")
    until = world.clock.now + 5
    world.run_until(lambda: world.clock.now > until)
    assert len(world.consumer.commits._queue) <= 1
    world.cluster.script = lambda node, name, request: None
    world.run_until(lambda: world.cluster.committed.get(T0) == 5)


def test_a_member_that_is_closed_in_a_rebalance_commits_what_it_read() -> None:
    world = make(group_id="g", auto_commit_interval_ms=100_000, partition_assignment_strategy="cooperative-sticky")
    world.cluster.write("t", 0, 5)
    world.consumer.subscribe(["t"], None)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.script = lambda node, name, request: SILENCE if name == "JoinGroup" else None
    assert world.consumer.membership is not None
    world.consumer.membership.request_rejoin("a test wants it")
    world.run_until(lambda: len(world.cluster.names("JoinGroup")) == 3)
    # What is read while the others join, the cooperative way.
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 10)
    world.run(world.consumer.close(leave_group=None))
    assert world.cluster.committed[T0] == 10
