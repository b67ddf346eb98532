"""The consumer without sockets, under virtual time: what it does when brokers answer with every kind of error."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.fake_group import ConsumerWorld, FakeGroupCluster
from tests.client.fake import CUT, SILENCE, VirtualClock

from headrace.client.cluster.core import coordinator_key
from headrace.client.consumer._core import LEAVE_S_MAX
from headrace.client.consumer._fetch_session import FetchSessionHandler, Wanted
from headrace.client.consumer.errors import CommitFailedError, LogTruncationError
from headrace.client.flows import Task
from headrace.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    NetworkError,
    RebalanceInProgressError,
)
from headrace.protocol.messages.fetch import AbortedTransaction, FetchableTopicResponse, FetchResponse, PartitionData
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.records import ControlType, build_batch, control_batch
from headrace.topics import TopicPartition

T0 = TopicPartition("t", 0)


def make(brokers: int = 1, partitions: int = 1, **config: Any) -> ConsumerWorld:
    cluster = FakeGroupCluster(VirtualClock(), brokers, {"t": partitions})
    config.setdefault("auto_offset_reset", "earliest")
    return ConsumerWorld(cluster, **config)


def member(**config: Any) -> ConsumerWorld:
    config.setdefault("enable_auto_commit", False)
    world = make(group_id="g", **config)
    world.consumer.subscribe(["t"], None)
    return world


class Listener:
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.events.append("revoked")

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.events.append("assigned")

    def on_partitions_lost(self, partitions: Any) -> None:
        self.events.append("lost")


class Once:
    """A script that answers one kind of request differently, a number of times."""

    def __init__(self, kind: str, *answers: Any) -> None:
        self.kind, self.answers = kind, list(answers)

    def __call__(self, node: int, name: str, request: Any) -> Any:
        if name == self.kind and self.answers:
            return self.answers.pop(0)
        return None


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


# --- fetching ---------------------------------------------------------------------------------------------------------


def test_a_fetch_session_sends_only_what_changed() -> None:
    world = make(partitions=3)
    world.consumer.assign([("t", 0), ("t", 1), ("t", 2)])
    world.cluster.write("t", 1, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.write("t", 2, 3)
    world.run_until(lambda: len(world.records) == 8)
    begun = world.clock.now
    world.run_until(lambda: world.clock.now > begun + 3)
    fetches = world.cluster.names("Fetch")
    assert (fetches[0].session_id, fetches[0].session_epoch) == (0, 0)
    assert [part.partition for part in fetches[0].topics[0].partitions] == [0, 1, 2]
    assert [fetch.session_epoch for fetch in fetches[1:4]] == [1, 2, 3]
    assert [part.partition for part in fetches[1].topics[0].partitions] == [1]
    assert fetches[-1].topics == []
    assert world.cluster.sessions == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_refused_session_is_begun_anew(code: ErrorCode) -> None:
    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 1)
    world.cluster.script = Once("Fetch", FetchResponse(error_code=code))
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 2)
    assert world.cluster.sessions == 2


def test_a_session_forgets_partitions_that_are_not_wanted_any_more() -> None:
    session = FetchSessionHandler()
    one = Wanted(b"i" * 16, 0, -1, 100)
    session.build({T0: one, TopicPartition("t", 1): one})
    session.told()
    session.answered(FetchResponse(session_id=5))
    topics, forgotten, by_id = session.build({T0: one})
    assert topics == []
    assert by_id
    assert [(gone.topic, gone.partitions) for gone in forgotten] == [("t", [1])]


@pytest.mark.parametrize("is_kept", [True, False])
def test_everything_is_asked_for_again_where_the_last_request_may_not_have_been_sent(is_kept: bool) -> None:
    session = FetchSessionHandler(is_kept=is_kept)
    one = Wanted(b"i" * 16, 0, -1, 100)
    session.build({T0: one})
    epoch = session.epoch
    topics, forgotten, _ = session.build({T0: one})
    assert [topic.topic for topic in topics] == ["t"]
    assert not forgotten
    assert session.epoch == epoch


def test_another_partition_of_a_known_topic_is_read_without_asking_for_metadata() -> None:
    world = make(partitions=2)
    world.consumer.assign([T0])
    for partition in (0, 1):
        world.cluster.write("t", partition, 1)
    begun = world.clock.now
    # What a consumer asks when it begins has been answered by then.
    world.run_until(lambda: len(world.records) == 1 and world.clock.now > begun + 5)
    asked = len(world.cluster.names("Metadata"))
    world.consumer.assign([("t", 1)])
    world.run_until(lambda: len(world.records) == 2)
    assert [record.partition for record in world.records] == [0, 1]
    assert len(world.cluster.names("Metadata")) == asked


def test_a_new_leader_is_found_and_the_position_checked_first() -> None:
    world = make(brokers=2)
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.write("t", 0, 5, epoch=1)
    world.run_until(lambda: len(world.records) == 10)
    asked = world.cluster.names("OffsetForLeaderEpoch")
    assert [(p.leader_epoch, p.current_leader_epoch) for p in asked[0].topics[0].partitions] == [(0, 1)]
    fetch = next(request for node, name, _, request in world.cluster.requests if node == 2 and name == "Fetch")
    assert fetch.topics[0].partitions[0].current_leader_epoch == 1
    assert [record.offset for record in world.records] == list(range(10))


def test_a_truncated_log_is_read_on_from_where_it_was_cut() -> None:
    world = make(brokers=2)
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.batches.clear()
    world.cluster.write("t", 0, 3)
    world.cluster.write("t", 0, 4, epoch=1)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.epoch_ends[("t", 0)] = (0, 3)
    world.run_until(lambda: len(world.records) == 9)
    assert [record.offset for record in world.records[5:]] == [3, 4, 5, 6]


def test_a_truncated_log_without_a_reset_policy_is_an_error_with_the_offsets() -> None:
    world = make(brokers=2, auto_offset_reset="none")
    world.consumer.assign([T0])
    world.consumer.seek(T0, 0)
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    world.cluster.leaders[("t", 0)] = (2, 1)
    world.cluster.epoch_ends[("t", 0)] = (0, 3)
    with pytest.raises(LogTruncationError) as caught:
        world.run_until(lambda: False)
    assert caught.value.offsets == {T0: 5}
    assert caught.value.divergent_offsets == {T0: 3}


def test_a_preferred_replica_is_read_from_and_left_when_it_fails() -> None:
    world = make(brokers=2, client_rack="r")
    world.consumer.assign([T0])
    prefer = PartitionData(partition_index=0, high_watermark=0, preferred_read_replica=2)
    topic = FetchableTopicResponse(topic="t", topic_id=world.cluster.topic_ids["t"], partitions=[prefer])
    world.cluster.script = Once("Fetch", FetchResponse(session_id=9, responses=[topic]))
    world.cluster.write("t", 0, 2)
    # Broker 2 is no replica here: it says so, and the leader is asked again.
    world.run_until(lambda: len(world.records) == 2)
    assert [node for node, name, _, _ in world.cluster.requests if name == "Fetch"][:3] == [1, 2, 1]
    assert world.cluster.names("Fetch")[0].rack_id == "r"


@pytest.mark.parametrize("named", [99, 1])
def test_a_leader_that_names_nobody_to_go_to_is_not_asked_in_a_tight_loop(named: int) -> None:
    world = make(brokers=2, client_rack="r")
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 2)
    prefer = PartitionData(partition_index=0, high_watermark=0, preferred_read_replica=named)
    topic = FetchableTopicResponse(topic="t", topic_id=world.cluster.topic_ids["t"], partitions=[prefer])
    asked: list[str] = []

    def script(node: int, name: str, request: Any) -> Any:
        if name != "Fetch":
            return None
        asked.append(request.rack_id)
        return FetchResponse(session_id=9, responses=[topic]) if request.rack_id else None

    world.cluster.script = script
    # Asked without a rack, it answers itself.
    world.run_until(lambda: len(world.records) == 2)
    assert asked[:2] == ["r", ""]
    prefer.preferred_read_replica = named
    world.cluster.script = lambda node, name, request: (
        FetchResponse(session_id=9, responses=[topic]) if name == "Fetch" else None
    )
    begun, before = world.clock.now, len(world.cluster.names("Fetch"))
    world.run_until(lambda: world.clock.now > begun + 5)
    assert len(world.cluster.names("Fetch")) - before < 100


def test_a_lost_fetch_is_asked_again_and_nothing_comes_twice() -> None:
    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    world.cluster.script = Once("Fetch", CUT, SILENCE)
    world.run_until(lambda: len(world.records) == 5)
    begun = world.clock.now
    world.run_until(lambda: world.clock.now > begun + 2)
    assert [record.offset for record in world.records] == list(range(5))


def test_aborted_transactions_and_markers_are_left_out() -> None:
    world = make(isolation_level="read_committed")
    world.consumer.assign([T0])
    parts = []
    offset = 0
    for producer, count in ((1, 2), (2, 2), (1, 1)):
        rows = [(1, None, b"%d" % producer, ()) for _ in range(count)]
        parts.append(
            bytes(
                build_batch(
                    rows,
                    base_offset=offset,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        )
        offset += count
    for producer, kind in ((2, ControlType.ABORT), (1, ControlType.COMMIT)):
        parts.append(
            bytes(
                control_batch(
                    kind, base_offset=offset, timestamp=1, producer_id=producer, producer_epoch=0, coordinator_epoch=0
                )
            )
        )
        offset += 1
    world.cluster.batches["t", 0] = [(0, offset, b"".join(parts))]
    world.cluster.aborted["t", 0] = [AbortedTransaction(producer_id=2, first_offset=2)]
    world.run_until(lambda: len(world.records) == 3)
    assert [record.offset for record in world.records] == [0, 1, 4]
    state = world.consumer.subscriptions.state(T0)
    assert state.position == offset


def test_a_damaged_batch_is_an_error_at_its_offset_after_the_good_ones() -> None:
    from headrace.client.consumer.errors import RecordDeserializationError

    world = make()
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 3)
    world.cluster.write("t", 0, 3)
    base, end, data = world.cluster.batches[("t", 0)][1]
    world.cluster.batches[("t", 0)][1] = (base, end, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RecordDeserializationError) as caught:
        world.run_until(lambda: len(world.records) == 6)
    assert len(world.records) == 3
    assert caught.value.offset == 3
    world.consumer.seek(T0, 6)
    world.cluster.write("t", 0, 1)
    world.run_until(lambda: len(world.records) == 4)


def test_old_brokers_without_topic_ids_or_leader_epochs_are_read() -> None:
    world = make()
    from headrace.protocol.api import ApiKey

    world.cluster.served |= {ApiKey.FETCH: (4, 6), ApiKey.METADATA: (0, 4), ApiKey.LIST_OFFSETS: (1, 3)}
    del world.cluster.served[ApiKey.OFFSET_FOR_LEADER_EPOCH]
    world.consumer.assign([T0])
    world.cluster.write("t", 0, 5)
    original = world.cluster._do_Fetch

    def sessionless(node: int, request: Any, version: int) -> Any:
        request.session_epoch = 0
        return original(node, request, version)

    world.cluster._do_Fetch = sessionless  # type: ignore[method-assign]  # brokers before 1.1 have no sessions
    world.run_until(lambda: len(world.records) == 5)


# --- flows ------------------------------------------------------------------------------------------------------------


def test_a_flow_that_raises_keeps_its_error_and_a_cancelled_one_is_done() -> None:
    def failing() -> Any:
        raise CoordinatorNotAvailableError("x")
        yield

    task: Task[None] = Task(failing())
    assert task.advance(0.0) is None
    assert task.done
    assert isinstance(task.error, CoordinatorNotAvailableError)
