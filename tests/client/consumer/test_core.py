"""The consumer without sockets, under virtual time: what it does when brokers answer with every kind of error."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.core_worlds import T0, Listener, Once, make, member
from tests.client.fake import CUT, SILENCE

from headrace.client.cluster.core import coordinator_key
from headrace.client.consumer._core import LEAVE_S_MAX
from headrace.client.consumer.errors import CommitFailedError
from headrace.client.flows import Task
from headrace.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    NetworkError,
    RebalanceInProgressError,
)
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.metadata import MetadataResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.topics import TopicPartition

# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_member_asks_for_an_id_joins_and_reads() -> None:
    world = member()
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    joins = world.cluster.names("JoinGroup")
    assert [join.member_id for join in joins] == ["", "member-1"]
    assert joins[0].session_timeout_ms == 45_000
    assert joins[0].rebalance_timeout_ms == 300_000
    assert [protocol.name for protocol in joins[0].protocols] == ["range", "cooperative-sticky"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ],
)
def test_joining_is_tried_again_after_what_passes(code: ErrorCode) -> None:
    world = member()
    world.cluster.script = Once("JoinGroup", JoinGroupResponse(error_code=code, protocol_name=""))
    world.run_until(lambda: world.assigned() == {T0})


@pytest.mark.parametrize("answer", [CUT, SILENCE])
def test_joining_is_tried_again_after_a_lost_answer(answer: str) -> None:
    world = member(max_poll_interval_ms=10_000, request_timeout_ms=5_000)
    world.cluster.script = Once("JoinGroup", answer)
    world.run_until(lambda: world.assigned() == {T0})


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_a_failed_sync_joins_again(code: ErrorCode) -> None:
    world = member()
    world.cluster.script = Once("SyncGroup", SyncGroupResponse(error_code=code))
    world.run_until(lambda: world.assigned() == {T0})
    assert len(world.cluster.names("JoinGroup")) >= 3


def test_what_does_not_pass_is_raised_from_poll() -> None:
    world = member()
    refused = FindCoordinatorResponse(
        coordinators=[
            Coordinator(key="g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, host="", error_message=None)
        ]
    )
    world.cluster.script = Once("FindCoordinator", refused)
    with pytest.raises(GroupAuthorizationFailedError, match="group g"):
        world.run_until(lambda: False)
    world.run_until(lambda: world.assigned() == {T0})


def test_a_coordinator_that_is_not_there_yet_is_asked_for_again() -> None:
    world = member()
    missing = FindCoordinatorResponse(
        coordinators=[Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, host="", error_message=None)]
    )
    world.cluster.script = Once("FindCoordinator", missing, missing, missing)
    world.run_until(lambda: world.assigned() == {T0})
    assert len(world.cluster.names("FindCoordinator")) == 4


def test_heartbeats_go_out_at_their_interval_with_the_generation() -> None:
    world = member(heartbeat_interval_ms=1000)
    world.run_until(lambda: world.assigned() == {T0})
    begun = world.clock.now
    world.run_until(lambda: world.clock.now > begun + 20)
    beats = world.cluster.names("Heartbeat")
    assert 18 <= len(beats) <= 21
    assert {(beat.generation_id, beat.member_id) for beat in beats} == {(1, "member-1")}


def test_a_heartbeat_that_tells_of_a_rebalance_rejoins_eagerly() -> None:
    listener = Listener()
    world = member(partition_assignment_strategy="range")
    world.consumer.subscriptions.listener = listener
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("Heartbeat", HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    world.run_until(lambda: world.cluster.generation == 2 and world.assigned() == {T0})
    assert listener.events == ["assigned", "revoked", "assigned"]


def test_a_cooperative_member_keeps_its_partitions_over_a_rebalance() -> None:
    listener = Listener()
    world = member(partition_assignment_strategy="cooperative-sticky")
    world.consumer.subscriptions.listener = listener
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("Heartbeat", HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    world.run_until(lambda: world.cluster.generation == 2)
    world.run_until(lambda: world.consumer.membership.state.value == "stable")
    assert listener.events == ["assigned", "assigned"]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_the_group_forgot_loses_its_partitions(code: ErrorCode) -> None:
    listener = Listener()
    world = member()
    world.consumer.subscriptions.listener = listener
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("Heartbeat", HeartbeatResponse(error_code=code))
    world.run_until(lambda: world.cluster.generation == 2 and world.assigned() == {T0})
    assert "lost" in listener.events
    assert listener.events[-1] == "assigned"


def test_a_fenced_instance_cannot_go_on() -> None:
    world = member(group_instance_id="i")
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("Heartbeat", HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match=r"group\.instance\.id=i"):
            world.run_until(lambda: False)


def test_a_member_that_does_not_poll_leaves_by_itself() -> None:
    world = member(max_poll_interval_ms=10_000)
    world.run_until(lambda: world.assigned() == {T0})
    world.is_polling = False
    world.run_until(lambda: world.cluster.names("LeaveGroup"), 15)
    beats = len(world.cluster.names("Heartbeat"))
    world.clock.now += 20
    world.settle()
    assert len(world.cluster.names("Heartbeat")) == beats
    world.consumer.membership.check(world.clock.now)
    with pytest.raises(CommitFailedError):
        world.run(world.consumer.commit({T0: 1}))
    world.is_polling = True
    world.run_until(lambda: world.cluster.generation == 2 and world.assigned() == {T0})


def test_a_static_member_that_does_not_poll_keeps_its_place() -> None:
    world = member(max_poll_interval_ms=10_000, group_instance_id="i")
    world.run_until(lambda: world.assigned() == {T0})
    world.is_polling = False
    world.clock.now += 11
    world.settle()
    assert not world.cluster.names("LeaveGroup")


def test_a_moved_coordinator_is_found_again_without_losing_the_membership() -> None:
    world = member(brokers=2, heartbeat_interval_ms=500)
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.coordinator = 2
    before = len(world.cluster.requests)
    world.run_until(lambda: any(n == 2 and name == "Heartbeat" for n, name, _, _ in world.cluster.requests[before:]))
    world.run(world.consumer.commit({T0: 3}))
    assert world.cluster.generation == 1
    assert world.cluster.committed == {("t", 0): 3}


def test_a_new_partition_makes_the_leader_rejoin() -> None:
    world = member(metadata_max_age_ms=1000)
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.logs[("t", 1)] = world.cluster.logs[("t", 0)]
    world.cluster.leaders[("t", 1)] = (1, 0)
    world.run_until(lambda: world.assigned() == {T0, TopicPartition("t", 1)})


def test_closing_commits_and_leaves() -> None:
    world = member(enable_auto_commit=True)
    world.cluster.write("t", 0, 4)
    world.run_until(lambda: len(world.records) == 4)
    world.run(world.consumer.close(leave_group=None))
    assert world.cluster.committed == {("t", 0): 4}
    assert [m.member_id for m in world.cluster.names("LeaveGroup")[0].members] == ["member-1"]


def test_closing_after_a_cut_leaves_over_another_connection() -> None:
    world = member()
    world.run_until(lambda: world.assigned() == {T0})
    for node in (1, coordinator_key(1)):
        world.core.disconnect(node, NetworkError("cut"))
    world.run(world.consumer.close(leave_group=None))
    assert [m.member_id for m in world.cluster.names("LeaveGroup")[0].members] == ["member-1"]


def test_a_coordinator_that_moved_is_found_to_leave_the_group() -> None:
    world = member(brokers=2)
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.coordinator = 2
    world.cluster.script = lambda node, name, request: (
        LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR) if name == "LeaveGroup" and node != 2 else None
    )
    world.run(world.consumer.close(leave_group=None))
    assert [node for node, name, _, _ in world.cluster.requests if name == "LeaveGroup"] == [1, 2]


def test_a_coordinator_that_is_gone_holds_up_closing_for_a_while_only(caplog: pytest.LogCaptureFixture) -> None:
    world = member()
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.down = {1}
    for node in (1, coordinator_key(1)):
        world.core.disconnect(node, NetworkError("gone"))
    began = world.clock.now
    world.run(world.consumer.close(leave_group=None))
    assert world.clock.now - began <= LEAVE_S_MAX + 1
    assert "without having left the group" in caplog.text


def test_starting_over_from_bootstrap_waits_while_the_coordinator_can_be_reached() -> None:
    # It asks for metadata while it may not connect to the only broker again yet.
    world = member(heartbeat_interval_ms=500, reconnect_backoff_ms=1000)
    world.run_until(lambda: world.assigned() == {T0} and world.core.connection(coordinator_key(1)) is not None)
    held = world.core.connection(coordinator_key(1))
    for node in (1, -1):
        world.core.disconnect(node, NetworkError("cut"))
    world.cluster.write("t", 0, 4)
    world.run_until(lambda: len(world.records) == 4)
    assert world.core.connection(coordinator_key(1)) is held


# --- commits ----------------------------------------------------------------------------------------------------------


def refusal(code: ErrorCode) -> OffsetCommitResponse:
    part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_commit_is_tried_again_after_what_passes(code: ErrorCode) -> None:
    world = member()
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("OffsetCommit", refusal(code), refusal(code))
    world.run(world.consumer.commit({T0: 9}))
    assert world.cluster.committed == {("t", 0): 9}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError),
        (ErrorCode.REBALANCE_IN_PROGRESS, RebalanceInProgressError),
        (ErrorCode.FENCED_INSTANCE_ID, FencedInstanceIdError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationFailedError),
    ],
)
def test_a_commit_that_cannot_succeed_raises(code: ErrorCode, error: type[Exception]) -> None:
    world = member()
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once("OffsetCommit", refusal(code))
    with pytest.raises(error):
        world.run(world.consumer.commit({T0: 9}))
    assert world.cluster.committed == {}


def test_automatic_commits_come_at_their_interval_with_what_was_handed_out() -> None:
    world = member(enable_auto_commit=True, auto_commit_interval_ms=5000)
    world.cluster.write("t", 0, 7)
    world.run_until(lambda: len(world.records) == 7)
    begun = world.clock.now
    world.run_until(lambda: world.cluster.committed)
    assert world.clock.now - begun <= 5.5
    assert world.cluster.committed == {("t", 0): 7}
    assert world.cluster.names("OffsetCommit")[0].generation_id_or_member_epoch == 1


# --- flows ------------------------------------------------------------------------------------------------------------


def test_a_flow_that_raises_keeps_its_error_and_a_cancelled_one_is_done() -> None:
    def failing() -> Any:
        raise CoordinatorNotAvailableError("x")
        yield

    task: Task[None] = Task(failing())
    assert task.advance(0.0) is None
    assert task.done
    assert isinstance(task.error, CoordinatorNotAvailableError)


def test_topics_are_asked_of_a_broker_that_knows_of_brokers() -> None:
    world = make()
    world.consumer.assign([T0])
    world.settle()
    world.cluster.script = Once("Metadata", *[MetadataResponse(brokers=[], topics=[])] * 3)
    assert list(world.run(world.consumer.topics.list_topics())) == ["t"]
    assert len(world.run(world.consumer.topics.partitions_for("t"))) == 1


def test_a_member_that_its_leader_left_out_is_stable_without_partitions() -> None:
    world = member()
    world.cluster.script = Once("SyncGroup", SyncGroupResponse(assignment=b""))
    membership = world.consumer.membership
    assert membership is not None
    world.run_until(lambda: membership.is_settled)
    assert not world.assigned()
    membership.request_rejoin("another leader may give it some")
    world.run_until(world.assigned)
