"""What happens when records are not written yet, or never; and when partitions come and go."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.groups import Caller, StoredRecord, TimerKind
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

from .driver import Driver
from .members import GROUP, SESSION_MS, Members

NONE = ErrorCode.NONE


@pytest.fixture
def members() -> Members:
    made = Members.of()
    made.driver.topics.create("topic")
    return made


def partition(members: Members) -> int:
    return members.driver.coordinator.partition_of(GROUP)


# --- assignments ------------------------------------------------------------------------------------------------------


def test_nobody_gets_an_assignment_that_is_not_written(members: Members) -> None:
    leader, other = members.new_member(), members.new_member()
    tokens = [members.join(leader), members.join(other)]
    assert members.driver.wait(tokens[1]).generation_id == 1
    members.driver.hold = True
    first = members.sync(leader, 1, {leader: b"one", other: b"two"})
    second = members.sync(other, 1)
    again = members.sync(leader, 1, {leader: b"changed", other: b"changed"})
    assert members.driver.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS  # it asked again
    assert second not in members.driver.answers
    assert members.commit(1, member_id=leader, generation=1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(members.driver.held) == 1
    members.driver.release()
    assert members.driver.answers[again].assignment == b"one"
    assert members.driver.answers[second].assignment == b"two"
    assert members.state() == "Stable"


def test_an_assignment_that_is_not_written_is_lost_and_all_join_again(members: Members) -> None:
    leader, other = members.new_member(), members.new_member()
    tokens = [members.join(leader), members.join(other)]
    members.driver.wait(tokens[1])
    members.driver.hold = True
    tokens = [members.sync(leader, 1, {leader: b"one"}), members.sync(other, 1)]
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    for token in tokens:
        assert members.driver.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert members.driver.answers[token].assignment == b""
    assert members.state() == "PreparingRebalance"
    tokens = [members.join(leader), members.join(other)]
    assert {members.driver.wait(token).generation_id for token in tokens} == {2}


@pytest.mark.parametrize("fails", [False, True])
def test_a_member_that_joins_during_the_write_makes_the_assignment_void(members: Members, fails: bool) -> None:
    leader = members.new_member()
    members.joined(leader)
    members.driver.hold = True
    token = members.sync(leader, 1, {leader: b"one"})
    members.join(version=3)
    assert members.driver.answers[token].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS) if fails else members.driver.release()
    assert members.state() == "PreparingRebalance"
    assert members.joined(leader).generation_id == 2


# --- new groups -------------------------------------------------------------------------------------------------------


def test_a_group_that_cannot_be_written_does_not_exist(members: Members) -> None:
    members.driver.hold = True
    token = members.join()
    assert token not in members.driver.answers
    members.driver.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert members.driver.answers[token].error_code == ErrorCode.NOT_COORDINATOR
    assert members.state() == "Dead"
    assert {timer.kind for timer in members.driver.timers} == {TimerKind.EXPIRY}


def test_those_who_wait_in_a_group_that_cannot_be_written_are_told() -> None:
    members = Members.of(initial_rebalance_delay_ms=3_000)
    members.driver.hold = True
    token = members.join(version=3)
    members.driver.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    assert members.driver.answers[token].error_code == ErrorCode.NOT_COORDINATOR
    assert members.state() == "Dead"


def test_a_group_that_has_had_a_generation_outlives_its_first_record(members: Members) -> None:
    members.driver.hold = True
    token = members.join(version=3)
    members.driver.advance(0)
    assert members.driver.answers[token].generation_id == 1
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert members.state() == "CompletingRebalance"


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_keeps_its_id_when_the_new_one_is_not_written(members: Members) -> None:
    old = members.joined(instance="i1").member_id
    members.synced(old, 1, {old: b"share"}, instance="i1")
    members.driver.hold = True
    token = members.join(instance="i1", session_ms=7_000)
    assert members.heartbeat(old, 1, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert members.driver.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert members.heartbeat(old, 1, instance="i1") == NONE
    assert members.synced(old, 1, instance="i1").assignment == b"share"
    members.driver.advance(SESSION_MS - 1)
    assert members.state() == "Stable"  # its own session time-out counts again


@pytest.mark.parametrize("fails", [False, True])
def test_a_rebalance_during_that_write_takes_the_static_member_along(members: Members, fails: bool) -> None:
    old = members.joined(instance="i1").member_id
    members.synced(old, 1, {old: b"share"}, instance="i1")
    members.driver.hold = True
    back = members.join(instance="i1")
    other = members.join(version=3)
    answers = [members.driver.answers[back], members.driver.answers[other]]
    assert [answer.generation_id for answer in answers] == [2, 2]
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS) if fails else members.driver.release()
    assert members.state() == "CompletingRebalance"


def test_a_leave_whose_record_is_not_written_says_so_but_counts(members: Members) -> None:
    (member_id,), generation = members.stable()
    members.driver.hold = True
    request = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=member_id)])
    token = members.driver.send("leave_group", request, 5)
    members.driver.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert members.driver.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert members.heartbeat(member_id, generation) == ErrorCode.UNKNOWN_MEMBER_ID


# --- partitions -------------------------------------------------------------------------------------------------------


def errors_everywhere(members: Members) -> dict[str, ErrorCode]:
    topic = OffsetFetchRequestTopic(name="topic", partition_indexes=[0])
    ask = members.driver.ask
    first = ask("offset_fetch", OffsetFetchRequest(group_id=GROUP, topics=[topic]), 1).topics[0].partitions[0]
    several = ask("offset_fetch", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP)]), 8).groups[0]
    assert first.committed_offset == -1
    assert several.topics == []
    return {
        "join": ErrorCode(members.joined().error_code),
        "sync": ErrorCode(members.synced("m", 1).error_code),
        "heartbeat": members.heartbeat("m", 1),
        "leave": ErrorCode(members.leave("m").error_code),
        "commit": members.commit(1),
        "commit in a transaction": members.txn_commit(1),
        "fetch 1": ErrorCode(first.error_code),
        "fetch 7": ErrorCode(ask("offset_fetch", OffsetFetchRequest(group_id=GROUP, topics=None), 7).error_code),
        "fetch 8": ErrorCode(several.error_code),
        "describe": ErrorCode(members.describe().error_code),
    }


def test_a_partition_that_is_led_elsewhere_answers_so(members: Members) -> None:
    members.driver.absorb(members.driver.coordinator.unload(partition(members)))
    assert set(errors_everywhere(members).values()) == {ErrorCode.NOT_COORDINATOR}
    assert members.driver.ask("list_groups", ListGroupsRequest(), 5).error_code == NONE


def test_a_partition_that_is_being_loaded_answers_so(members: Members) -> None:
    members.driver.absorb(members.driver.coordinator.begin_load(partition(members), 1))
    errors = errors_everywhere(members)
    assert errors.pop("heartbeat") == NONE  # nobody's session runs meanwhile
    assert set(errors.values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert members.txn_commit(1, version=1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    response = members.driver.ask("list_groups", ListGroupsRequest(), 5)
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_partition_that_moves_away_sends_those_who_wait_after_it(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    joining = members.join(leader)
    assert joining not in members.driver.answers
    members.driver.absorb(members.driver.coordinator.unload(partition(members)))
    assert members.driver.answers[joining].error_code == ErrorCode.NOT_COORDINATOR
    assert members.driver.answers[joining].member_id == leader
    assert partition(members) not in {timer.partition for timer in members.driver.timers}
    assert members.heartbeat(other, generation) == ErrorCode.NOT_COORDINATOR


def test_writes_that_end_after_a_partition_moved_away_change_nothing(members: Members) -> None:
    members.driver.hold = True
    token = members.driver.send("offset_commit", members.commit_request(1), 8)
    members.driver.absorb(members.driver.coordinator.unload(partition(members)))
    members.driver.load(partition(members))
    members.driver.release()
    assert members.driver.answers[token].topics[0].partitions[0].error_code == NONE
    assert members.offsets() == {}  # whoever loads the partition reads it from the log
    members.driver.reload()
    assert members.offsets() == {("topic", 0): 1}


def test_members_of_a_loaded_group_go_on_and_have_a_whole_session(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    members.driver.advance(SESSION_MS - 1)
    members.driver.reload()
    members.driver.advance(SESSION_MS - 1)
    assert members.heartbeat(other, generation) == NONE
    assert members.synced(other, generation).assignment == f"of {other}".encode()
    members.driver.advance(1)
    assert members.heartbeat(leader, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert members.heartbeat(other, generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_timers_that_fire_late_or_after_their_end_do_no_harm(members: Members) -> None:
    (member_id,), _ = members.stable()
    driver = members.driver
    for timer in [*driver.timers]:
        if timer.kind is TimerKind.SESSION:
            driver.absorb(driver.coordinator.on_timer(timer, driver.now))  # too early: it is set again
            assert timer in driver.timers
            members.leave(member_id)
            outcome = driver.coordinator.on_timer(timer, driver.later(SESSION_MS))
            assert not outcome.replies
            assert not outcome.records
    for kind in TimerKind:
        for timer in [t for t in driver.timers if t.kind is kind]:
            assert timer.kind is TimerKind.EXPIRY


def test_a_heartbeat_makes_no_timer_change(members: Members) -> None:
    (member_id,), generation = members.stable()
    request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
    outcome = members.driver.coordinator.heartbeat(Caller(0), request, members.driver.later(1))
    assert outcome.timers == []


def test_what_was_left_out_of_a_partition_is_reported() -> None:
    driver = Driver(load=False)
    driver.coordinator.begin_load(3, 0)
    driver.coordinator.load(3, StoredRecord(b"\x00\x63\x05group", b"\x00\x00"))
    driver.coordinator.load(3, StoredRecord(b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x04\x00"))
    assert driver.coordinator.load_report(3) is None
    driver.coordinator.loaded(3, driver.now)
    report = driver.coordinator.load_report(3)
    assert report is not None
    assert (report.records, report.skipped, report.unreadable) == (2, 1, 1)
    assert report.problems[0].startswith("record 2: ")
