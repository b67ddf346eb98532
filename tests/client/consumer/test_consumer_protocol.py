"""A member of a group of the consumer protocol (KIP-848), without sockets: what its heartbeats say, what it does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.consumer.core_worlds import T0, Listener, Once, make
from tests.client.consumer.fake_group import ConsumerWorld
from tests.client.fake import SILENCE

from headrace import CommitFailedError, ConfigError, IllegalStateError
from headrace.client.cluster.core import coordinator_key
from headrace.client.consumer._base import ConsumerSetup
from headrace.errors import (
    ErrorCode,
    FencedInstanceIdError,
    InvalidRegularExpressionError,
    UnreleasedInstanceIdError,
    UnsupportedVersionError,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.topics import TopicPartition

T1, T2 = TopicPartition("t", 1), TopicPartition("t", 2)
BEAT = "ConsumerGroupHeartbeat"


def member(listener: Any = None, partitions: int = 3, **config: Any) -> ConsumerWorld:
    config.setdefault("enable_auto_commit", False)
    world = make(partitions=partitions, group_id="g", group_protocol="consumer", **config)
    world.cluster.give(T0)
    world.consumer.subscribe(["t"], listener)
    return world


def beats(world: ConsumerWorld) -> list[Any]:
    return world.cluster.names(BEAT)


def refused(code: ErrorCode, why: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=why)


def committed_with(code: ErrorCode) -> OffsetCommitResponse:
    part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])


def test_a_member_names_itself_joins_once_and_reads() -> None:
    world = member(client_rack="r1", group_remote_assignor="range", max_poll_interval_ms=60_000)
    world.cluster.write("t", 0, 5)
    world.run_until(lambda: len(world.records) == 5)
    first = beats(world)[0]
    assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (0, ["t"], [])
    assert (first.rack_id, first.server_assignor, first.rebalance_timeout_ms) == ("r1", "range", 60_000)
    assert len(first.member_id) == 22
    assert {beat.member_id for beat in beats(world)} == {first.member_id}
    assert not world.cluster.names("JoinGroup")


def test_what_has_not_changed_is_not_said_again() -> None:
    world = member()
    world.run_until(lambda: len(beats(world)) == 4)
    second, *later = beats(world)[1:]
    assert [(one.topic_id, one.partitions) for one in second.topic_partitions] == [(world.cluster.topic_ids["t"], [0])]
    for beat in later:
        assert (beat.topic_partitions, beat.subscribed_topic_names, beat.rebalance_timeout_ms) == (None, None, -1)


def test_heartbeats_come_as_often_as_the_coordinator_says() -> None:
    world = member()
    world.cluster.newer.interval_ms = 4000
    world.run_until(lambda: world.assigned() == {T0})
    begun, before = world.clock.now, len(beats(world))
    world.run_until(lambda: world.clock.now > begun + 40)
    assert 9 <= len(beats(world)) - before <= 11


def test_what_is_revoked_is_committed_given_up_and_only_then_said() -> None:
    listener = Listener()
    world = member(listener, enable_auto_commit=True, auto_commit_interval_ms=10_000_000)
    world.cluster.give(T0, T1)
    for partition in (0, 1):
        world.cluster.write("t", partition, 3)
    world.run_until(lambda: len(world.records) == 6)
    world.cluster.give(T1, T2)
    world.run_until(lambda: world.assigned() == {T1, T2})
    kinds = [name for _, name, _, request in world.cluster.requests if name in ("OffsetCommit", BEAT)]
    assert "OffsetCommit" in kinds
    assert world.cluster.committed == {("t", 0): 3, ("t", 1): 3}
    assert listener.events == ["assigned", "revoked", "assigned", "assigned"]
    owned = [
        [p for one in beat.topic_partitions for p in one.partitions] for beat in beats(world) if beat.topic_partitions
    ]
    assert owned == [[0, 1], [1], [1, 2]]


def test_an_assignment_that_is_had_already_is_acknowledged_all_the_same() -> None:
    """The member never had the second partition: the coordinator waits to hear so."""
    world = member()
    world.run_until(lambda: world.assigned() == {T0} and world.cluster.newer.is_settled)
    newer = world.cluster.newer
    newer.to_revoke = newer.assigned
    newer.target = newer.assigned = frozenset()
    world.cluster.script = Once(BEAT, refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    world.run_until(lambda: not newer.to_revoke)
    assert world.assigned() == set()


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_member_that_was_removed_loses_its_partitions_and_joins_again(code: ErrorCode) -> None:
    listener = Listener()
    world = member(listener)
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once(BEAT, refused(code))
    world.run_until(lambda: listener.events[-2:] == ["lost", "assigned"])
    assert world.assigned() == {T0}
    assert [beat.member_epoch for beat in beats(world)].count(0) == 2
    assert len({beat.member_id for beat in beats(world)}) == 1


def test_after_an_answer_that_did_not_come_everything_is_said() -> None:
    world = member(request_timeout_ms=1000)
    world.run_until(lambda: len(beats(world)) == 3)
    world.cluster.script = Once(BEAT, SILENCE)
    world.run_until(lambda: len(beats(world)) == 5)
    assert beats(world)[4].subscribed_topic_names == ["t"]
    assert beats(world)[4].topic_partitions
    assert world.assigned() == {T0}


def test_a_moved_coordinator_is_found_again_without_losing_the_membership() -> None:
    world = member(bootstrap_servers="fake:9001,fake:9002")
    world.cluster.brokers = [1, 2]
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once(BEAT, refused(ErrorCode.NOT_COORDINATOR))
    finds = len(world.cluster.names("FindCoordinator"))
    world.run_until(
        lambda: len(world.cluster.names("FindCoordinator")) > finds and world.consumer.membership.is_settled
    )
    assert [beat.member_epoch for beat in beats(world)].count(0) == 1


def test_a_join_that_the_broker_does_not_coordinate_is_sent_to_the_one_that_does() -> None:
    world = member()
    world.cluster.script = Once(BEAT, refused(ErrorCode.NOT_COORDINATOR))
    world.run_until(lambda: world.assigned() == {T0})


def test_another_subscription_is_said_at_once() -> None:
    world = member()
    world.cluster.newer.interval_ms = 60_000
    world.run_until(lambda: world.consumer.membership.is_settled)
    world.cluster.create("u", 1)
    begun = world.clock.now
    world.consumer.subscribe(["t", "u"], None)
    world.run_until(lambda: beats(world)[-1].subscribed_topic_names == ["t", "u"])
    assert world.clock.now < begun + 1


def test_a_commit_of_an_old_epoch_is_tried_again_with_the_new_one() -> None:
    world = member()
    world.cluster.newer.interval_ms = 60_000
    world.run_until(lambda: world.consumer.membership.is_settled)
    world.cluster.script = Once("OffsetCommit", committed_with(ErrorCode.STALE_MEMBER_EPOCH))
    before = len(beats(world))
    world.run(world.consumer.commit({T0: 1}))
    assert world.cluster.committed == {("t", 0): 1}
    assert len(beats(world)) > before


def test_a_commit_of_who_is_no_member_any_more_fails() -> None:
    world = member()
    world.run_until(lambda: world.consumer.membership.is_settled)
    world.cluster.script = Once("OffsetCommit", committed_with(ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(CommitFailedError, match="UNKNOWN_MEMBER_ID"):
        world.run(world.consumer.commit({T0: 1}))
    with pytest.raises(CommitFailedError):
        world.run(world.consumer.commit({T0: 1}))


def test_a_member_that_does_not_poll_leaves_by_itself() -> None:
    world = member(max_poll_interval_ms=10_000)
    world.run_until(lambda: world.assigned() == {T0})
    world.is_polling = False
    world.run_until(lambda: world.cluster.newer.left, 15)
    assert world.cluster.newer.left_at_epoch == -1
    world.is_polling = True
    world.run_until(lambda: world.cluster.newer.member and world.assigned() == {T0})


def test_a_static_member_that_is_closed_keeps_its_place() -> None:
    world = member(group_instance_id="i")
    world.run_until(lambda: world.consumer.membership.is_settled)
    assert {beat.instance_id for beat in beats(world)} == {"i"}
    world.run(world.consumer.close(leave_group=None))
    assert world.cluster.newer.left_at_epoch == -2


def test_a_static_member_gives_up_its_place_when_it_is_asked_to() -> None:
    world = member(group_instance_id="i")
    world.run_until(lambda: world.consumer.membership.is_settled)
    world.run(world.consumer.close(leave_group=True))
    assert world.cluster.newer.left_at_epoch == -1


def test_a_place_that_another_still_has_is_an_error_and_tried_again() -> None:
    world = member(group_instance_id="i")
    world.cluster.script = Once(BEAT, refused(ErrorCode.UNRELEASED_INSTANCE_ID, "another has it"))
    with pytest.raises(UnreleasedInstanceIdError, match="another has it"):
        world.run_until(lambda: False)
    world.run_until(lambda: world.assigned() == {T0})


def test_a_fenced_instance_cannot_go_on() -> None:
    world = member(group_instance_id="i")
    world.run_until(lambda: world.assigned() == {T0})
    world.cluster.script = Once(BEAT, refused(ErrorCode.FENCED_INSTANCE_ID))
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match=r"group\.instance\.id=i"):
            world.run_until(lambda: False)
    world.run(world.consumer.close(leave_group=None))


def test_who_is_closed_while_it_joins_leaves_after_the_answer() -> None:
    world = member()
    world.consumer.polled()
    while not world.consumer.heartbeats.is_running:
        world.consumer.advance()
        world.core.tick()
        if world.cluster.events:
            world.cluster.events.popleft()()
    node, request, identity = world.consumer.heartbeats.next_request(world.clock.now)
    world.core.submit(
        coordinator_key(node.id),
        request,
        lambda call: world.consumer.heartbeats.answered(identity, call.response, call.error, world.clock.now),
    )
    world.run(world.consumer.close(leave_group=None))
    assert [beat.member_epoch for beat in beats(world)] == [0, -1]
    assert not world.cluster.newer.member


def test_a_pattern_is_resolved_by_the_coordinator_and_topics_by_their_ids() -> None:
    world = make(partitions=2, group_id="g", group_protocol="consumer", enable_auto_commit=False)
    world.cluster.give(T0, T1)
    world.consumer.subscribe_server_pattern("t.*", None)
    world.cluster.write("t", 1, 2)
    world.run_until(lambda: len(world.records) == 2)
    assert (beats(world)[0].subscribed_topic_regex, beats(world)[0].subscribed_topic_names) == ("t.*", [])
    assert world.consumer.subscriptions.topics == {"t"}


def test_a_topic_that_no_broker_can_name_yet_is_asked_for_again() -> None:
    world = member()
    unknown = frozenset({(b"u".ljust(16, b"."), 0)})
    world.cluster.newer.target |= unknown
    world.run_until(lambda: world.assigned() == {T0})
    world.consumer.subscribe(["t", "u"], None)
    world.cluster.create("u", 1)
    world.run_until(lambda: world.assigned() == {T0, TopicPartition("u", 0)})


def test_a_pattern_that_the_coordinator_refuses_is_an_error() -> None:
    world = make(group_id="g", group_protocol="consumer", enable_auto_commit=False)
    world.consumer.subscribe_server_pattern("(", None)
    world.cluster.script = Once(BEAT, refused(ErrorCode.INVALID_REGULAR_EXPRESSION, "it is not closed"))
    with pytest.raises(InvalidRegularExpressionError, match="it is not closed"):
        world.run_until(lambda: False)


def test_a_broker_without_this_protocol_is_named() -> None:
    world = member()
    del world.cluster.served[ApiKey.CONSUMER_GROUP_HEARTBEAT]
    with pytest.raises(UnsupportedVersionError, match=r"group\.protocol=classic"):
        world.run_until(lambda: False)


def test_patterns_for_brokers_need_this_protocol() -> None:
    world = make(group_id="g")
    with pytest.raises(IllegalStateError, match=r"group\.protocol=consumer"):
        world.consumer.subscribe_server_pattern("t", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("session.timeout.ms", 6000), ("heartbeat.interval.ms", 100), ("partition.assignment.strategy", "range")],
)
def test_what_the_broker_decides_cannot_be_set(name: str, value: Any) -> None:
    given = {"bootstrap.servers": "b:1", "group.id": "g", "group.protocol": "consumer", name: value}
    with pytest.raises(ConfigError, match=name):
        ConsumerSetup(given, {})
    with pytest.raises(ConfigError, match=r"group\.remote\.assignor"):
        ConsumerSetup({"bootstrap.servers": "b:1", "group.id": "g", "group.remote.assignor": "range"}, {})
