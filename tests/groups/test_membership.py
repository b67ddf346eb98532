"""Joining, syncing, staying and leaving, and the rebalances that follow."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.groups import TimerKind

from .members import GROUP, REBALANCE_MS, SESSION_MS, Members, join_request

UNKNOWN, NONE = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE


@pytest.fixture
def members() -> Members:
    return Members.of()


def session_timers(members: Members) -> set[str]:
    return {timer.member_id for timer in members.driver.timers if timer.kind is TimerKind.SESSION}


# --- ids --------------------------------------------------------------------------------------------------------------


def test_an_id_is_the_client_id_and_a_uuid(members: Members) -> None:
    member_id = members.new_member()
    assert member_id.startswith("client-")
    assert len(member_id) == len("client-") + 36


def test_a_static_members_id_begins_with_its_instance(members: Members) -> None:
    assert members.joined(instance="i1").member_id.startswith("i1-")


def test_before_version_4_nobody_has_to_ask_twice(members: Members) -> None:
    assert members.joined(version=3).error_code == NONE


def test_an_id_that_is_not_used_in_a_session_expires(members: Members) -> None:
    member_id = members.new_member()
    members.driver.advance(SESSION_MS)
    assert members.joined(member_id).error_code == UNKNOWN
    assert not session_timers(members)


def test_a_rebalance_waits_for_those_who_were_given_an_id(members: Members) -> None:
    (first,), _ = members.stable()
    pending = members.new_member()
    token = members.join(first)
    members.driver.advance(SESSION_MS - 1)
    assert token not in members.driver.answers
    members.driver.advance(1)  # the id expires
    assert members.driver.answers[token].generation_id == 2
    assert members.joined(pending).error_code == UNKNOWN


def test_whoever_was_given_an_id_may_leave_without_using_it(members: Members) -> None:
    member_id = members.new_member()
    assert [m.error_code for m in members.leave(member_id).members] == [NONE]
    assert not session_timers(members)


def test_a_pending_member_that_leaves_does_not_disturb_the_others(members: Members) -> None:
    (first,), generation = members.stable()
    members.leave(members.new_member())
    assert members.heartbeat(first, generation) == NONE


# --- the initial delay ------------------------------------------------------------------------------------------------


def test_an_empty_group_waits_for_more_members() -> None:
    members = Members.of(initial_rebalance_delay_ms=3_000)
    start_ms = members.driver.now_ms
    token = members.join(version=3)
    members.driver.wait(token)
    assert members.driver.answered_ms[token] - start_ms == 3_000


def test_each_new_member_prolongs_the_delay_but_never_past_the_rebalance_timeout() -> None:
    members = Members.of(initial_rebalance_delay_ms=3_000)
    start_ms = members.driver.now_ms
    tokens = [members.join(version=3, rebalance_ms=8_000)]
    for _ in range(20):
        members.driver.advance(500)
        if tokens[0] not in members.driver.answers:
            tokens.append(members.join(version=3, rebalance_ms=8_000))
    # 3 s, 3 s, then what is left of 8 s.
    assert members.driver.answered_ms[tokens[0]] - start_ms == 8_000
    assert {members.driver.wait(token).generation_id for token in tokens} == {1}


def test_a_delay_without_new_members_is_not_prolonged() -> None:
    members = Members.of(initial_rebalance_delay_ms=3_000)
    start_ms = members.driver.now_ms
    first = members.join(version=3)
    members.driver.advance(2_000)
    members.join(version=3)
    members.driver.wait(first)
    assert members.driver.answered_ms[first] - start_ms == 6_000


def test_a_group_that_everyone_left_during_the_delay_is_empty_and_has_a_generation() -> None:
    members = Members.of(initial_rebalance_delay_ms=3_000)
    member_id = members.new_member()
    token = members.join(member_id)
    members.leave(member_id)
    assert members.driver.answers[token].error_code == UNKNOWN
    members.driver.advance(3_000)
    assert members.state() == "Empty"
    assert members.joined(version=3).generation_id == 2


# --- joins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("session_ms", "error"), [(5_999, 26), (6_000, 0), (1_800_000, 0), (1_800_001, 26)])
def test_session_timeouts_outside_the_limits_are_refused(members: Members, session_ms: int, error: int) -> None:
    assert members.joined(version=3, session_ms=session_ms).error_code == error


def test_a_group_id_is_needed(members: Members) -> None:
    assert members.joined(group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert members.synced("x", 1, group="").error_code == ErrorCode.INVALID_GROUP_ID
    assert members.leave("x", group="").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_refused_join_leaves_no_group_behind(members: Members) -> None:
    assert members.joined(protocols={}).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert members.joined("stranger").error_code == UNKNOWN
    assert members.state() == "Dead"
    assert not members.driver.log


# What no record can hold: by its letters, and by its bytes. (What is no text in a request becomes U+FFFD.)
TOO_LONG = ("x" * 32_768, "\ufffd" * 10_923)


@pytest.mark.parametrize("name", TOO_LONG, ids=["letters", "bytes"])
def test_a_group_whose_name_no_record_can_hold_is_refused(members: Members, name: str) -> None:
    """Else it would be there until a restart, and nobody could list, delete or expire what is beside it."""
    assert members.joined(group=name).error_code == ErrorCode.INVALID_GROUP_ID
    assert members.joined(group=name, version=3).error_code == ErrorCode.INVALID_GROUP_ID
    assert not list(members.driver.coordinator.groups())
    assert not session_timers(members)


@pytest.mark.parametrize("name", TOO_LONG, ids=["letters", "bytes"])
@pytest.mark.parametrize("what", ["client", "instance", "protocols", "protocol_type"])
def test_a_member_that_no_record_can_hold_does_not_hold_its_group_up(members: Members, what: str, name: str) -> None:
    """With it no assignment could be stored: whoever asks for one would wait until its session ends."""
    (leader,), generation = members.stable()
    told: dict[str, Any] = {
        "client": {},
        "instance": {"instance": name[12:]},  # its id is longer
        "protocols": {"protocols": {"range": b"", name: b""}},
        "protocol_type": {"protocol_type": name},
    }[what]
    client_id = name[12:] if what == "client" else "client"
    token = members.driver.send("join_group", join_request(**told), 3, client_id)
    assert members.driver.wait(token).error_code == ErrorCode.INVALID_REQUEST
    assert members.heartbeat(leader, generation) == NONE, "nobody has joined"
    assert members.joined(leader).generation_id == generation + 1
    assert members.synced(leader, generation + 1, {leader: b"all"}).assignment == b"all"


def test_a_member_with_the_longest_name_that_fits_is_taken(members: Members) -> None:
    joined = members.driver.wait(members.driver.send("join_group", join_request(), 3, "x" * 32_730))
    assert members.synced(joined.member_id, 1, {joined.member_id: b"all"}).assignment == b"all"
    members.driver.reload()
    assert members.heartbeat(joined.member_id, 1) == NONE


def test_members_without_a_protocol_in_common_are_refused(members: Members) -> None:
    members.stable(protocols={"range": b"", "sticky": b""})
    assert members.joined(protocols={"other": b""}).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_with_most_first_votes_among_the_common_ones_wins(members: Members) -> None:
    wishes = [{"a": b"", "b": b""}, {"c": b"", "b": b"", "a": b""}, {"b": b"", "a": b""}]
    ids = [members.new_member(protocols=wish) for wish in wishes]
    tokens = [members.join(member_id, protocols=wish) for member_id, wish in zip(ids, wishes)]
    assert {members.driver.wait(token).protocol_name for token in tokens} == {"b"}


def test_only_the_leader_is_told_who_is_there(members: Members) -> None:
    ids = [members.new_member() for _ in range(3)]
    answers = [members.driver.wait(token) for token in [members.join(member_id) for member_id in ids]]
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    assert {answer.leader for answer in answers} == {ids[0]}


def test_a_full_group_takes_nobody_else() -> None:
    members = Members.of(max_size=2)
    members.stable(2)
    assert members.joined(version=3).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_of_a_full_group_may_rejoin() -> None:
    members = Members.of(max_size=2)
    (leader, other), _ = members.stable(2)
    tokens = [members.join(leader), members.join(other)]
    assert {members.driver.wait(token).generation_id for token in tokens} == {2}


def test_a_group_that_is_loaded_above_the_limit_shrinks_as_it_rejoins() -> None:
    members = Members.of()
    ids, generation = members.stable(3)
    members.driver.reload(config=Members.of(max_size=2).driver.config)
    assert members.state() == "PreparingRebalance"
    assert members.heartbeat(ids[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [members.join(member_id) for member_id in ids]
    assert members.driver.wait(tokens[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {members.driver.wait(token).generation_id for token in tokens[:2]} == {generation + 1}


def test_a_join_that_is_sent_again_while_it_waits_is_answered_once_each(members: Members) -> None:
    (leader, other), _ = members.stable(2)
    first = members.join(leader)
    again = members.join(leader)
    assert members.driver.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    members.join(other)
    assert members.driver.wait(again).error_code == NONE


def test_a_new_member_that_never_hears_of_its_join_is_given_up_after_five_minutes(members: Members) -> None:
    members.stable(rebalance_ms=1_000_000, session_ms=1_000_000)
    token = members.join(version=3, rebalance_ms=1_000_000)
    members.driver.advance(299_999)
    assert token not in members.driver.answers
    members.driver.advance(1)
    assert members.driver.answers[token].error_code == UNKNOWN


def test_a_missed_answer_is_told_again_before_the_sync(members: Members) -> None:
    member_id = members.new_member()
    first = members.joined(member_id)
    assert members.joined(member_id) == first


def test_other_metadata_before_the_sync_starts_another_round(members: Members) -> None:
    member_id = members.new_member()
    assert members.joined(member_id).generation_id == 1
    assert members.joined(member_id, protocols={"range": b"new"}).generation_id == 2


# --- leaders and late members -----------------------------------------------------------------------------------------


def test_a_lost_leader_is_replaced(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    members.leave(leader)
    answer = members.joined(other)
    assert (answer.leader, answer.generation_id) == (other, generation + 1)
    assert len(answer.members) == 1


def test_those_who_do_not_rejoin_in_time_are_out(members: Members) -> None:
    (leader, other), generation = members.stable(2, session_ms=1_000_000)
    token = members.join(leader, session_ms=1_000_000)
    members.driver.advance(REBALANCE_MS - 1)
    assert token not in members.driver.answers
    members.driver.advance(1)
    assert members.driver.answers[token].generation_id == generation + 1
    assert members.heartbeat(other, generation) == UNKNOWN


def test_those_who_do_not_sync_in_time_are_out(members: Members) -> None:
    (leader, other), generation = members.stable(2, session_ms=1_000_000)
    for member_id in (leader, other):
        members.join(member_id, session_ms=1_000_000)
    assert members.synced(leader, generation + 1, {leader: b"1", other: b"2"}).error_code == NONE
    members.driver.advance(REBALANCE_MS)
    assert members.heartbeat(leader, generation + 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert members.heartbeat(other, generation + 1) == UNKNOWN


def test_a_leader_that_never_syncs_is_out_and_those_who_wait_must_rejoin(members: Members) -> None:
    (leader, other), generation = members.stable(2, session_ms=1_000_000)
    for member_id in (leader, other):
        members.join(member_id, session_ms=1_000_000)
    token = members.sync(other, generation + 1)
    members.driver.advance(REBALANCE_MS)
    assert members.driver.answers[token].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert members.joined(other).leader == other


def test_a_late_sync_in_a_stable_group_gets_its_assignment(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    tokens = [members.join(leader), members.join(other)]
    assert {members.driver.wait(token).generation_id for token in tokens} == {generation + 1}
    members.synced(leader, generation + 1, {leader: b"one", other: b"two"})
    assert members.synced(other, generation + 1).assignment == b"two"
    assert not [timer for timer in members.driver.timers if timer.kind is TimerKind.SYNC]


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_told(members: Members) -> None:
    (leader, other), generation = members.stable(2)
    for member_id in (leader, other):
        members.join(member_id)
    token = members.sync(other, generation + 1)
    members.leave(other)
    assert members.driver.answers[token].error_code == UNKNOWN


# --- heartbeats and sessions ------------------------------------------------------------------------------------------


def test_a_heartbeat_prolongs_the_session_without_touching_its_timer(members: Members) -> None:
    (member_id,), generation = members.stable()
    before = dict(members.driver.timers)
    for _ in range(3):
        members.driver.now_ms += SESSION_MS - 1  # time passes and timers are late: the heartbeat is there first
        assert members.heartbeat(member_id, generation) == NONE
    assert members.driver.timers == before
    members.driver.advance(SESSION_MS - 1)
    assert members.state() == "Stable"
    members.driver.advance(1)
    assert members.state() == "Empty"


def test_a_commit_counts_as_a_sign_of_life(members: Members) -> None:
    members.driver.topics.create("topic")
    (member_id,), generation = members.stable()
    members.driver.advance(SESSION_MS - 1)
    assert members.commit(1, member_id=member_id, generation=generation) == NONE
    members.driver.advance(SESSION_MS - 1)
    assert members.state() == "Stable"


def test_whoever_waits_for_the_others_does_not_expire(members: Members) -> None:
    (leader, other), generation = members.stable(2, rebalance_ms=5 * SESSION_MS)
    token = members.join(leader, rebalance_ms=5 * SESSION_MS)
    for _ in range(4):
        members.driver.advance(SESSION_MS - 1)
        assert members.heartbeat(other, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert members.driver.wait(token).error_code == NONE
    assert members.driver.wait(token).leader == leader


def test_whoever_dies_as_it_is_handed_its_share_is_out_a_session_later(members: Members) -> None:
    """It had waited for longer than a session by then, in which it could not be late."""
    (leader, other), generation = members.stable(2)
    for member_id in (leader, other):
        members.join(member_id)
    token = members.sync(other, generation + 1)
    for _ in range(3):
        members.driver.advance(SESSION_MS - 1)
        assert members.heartbeat(leader, generation + 1) == NONE
    members.synced(leader, generation + 1, {leader: b"1", other: b"2"})
    assert members.driver.answers[token].assignment == b"2"
    members.driver.advance(SESSION_MS - 1)
    assert members.heartbeat(leader, generation + 1) == NONE
    members.driver.advance(1)
    assert members.heartbeat(leader, generation + 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert members.heartbeat(other, generation + 1) == UNKNOWN


def test_whoever_dies_as_it_is_told_of_a_generation_is_out_a_session_later(members: Members) -> None:
    (leader, other, late), generation = members.stable(3)
    for member_id in (leader, other):
        members.join(member_id)
    for _ in range(3):
        members.driver.advance(SESSION_MS - 1)
        assert members.heartbeat(late, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    members.join(late)
    members.driver.advance(SESSION_MS - 1)
    for member_id in (leader, late):
        assert members.heartbeat(member_id, generation + 1) == NONE
    members.driver.advance(1)
    assert members.heartbeat(leader, generation + 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert members.heartbeat(other, generation + 1) == UNKNOWN


def test_the_last_one_to_die_leaves_an_empty_group_with_a_record(members: Members) -> None:
    members.stable()
    written = len(members.driver.log[members.driver.coordinator.partition_of(GROUP)])
    members.driver.advance(SESSION_MS)
    assert members.state() == "Empty"
    assert len(members.driver.log[members.driver.coordinator.partition_of(GROUP)]) == written + 1
    members.driver.reload()
    assert members.joined(version=3).generation_id == 3


# --- static members ---------------------------------------------------------------------------------------------------


def static_group(members: Members) -> tuple[str, int]:
    answer = members.joined(instance="i1")
    assert members.synced(answer.member_id, 1, {answer.member_id: b"share"}, instance="i1").assignment == b"share"
    return answer.member_id, answer.generation_id


def test_a_static_member_comes_back_without_a_rebalance(members: Members) -> None:
    old, generation = static_group(members)
    answer = members.joined(instance="i1")
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (NONE, generation, True)
    assert answer.leader == answer.member_id != old
    assert members.synced(answer.member_id, generation, instance="i1").assignment == b"share"
    assert session_timers(members) == {answer.member_id}
    members.driver.reload()
    assert members.heartbeat(answer.member_id, generation, instance="i1") == NONE
    assert members.heartbeat(old, generation, instance="i1") == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_whose_protocols_change_the_vote_rebalances(members: Members) -> None:
    wishes = {"range": b"", "sticky": b""}
    answer = members.joined(instance="i1", protocols=wishes)
    members.synced(answer.member_id, 1, instance="i1")
    back = members.joined(instance="i1", protocols={"sticky": b"", "range": b""})
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


def test_requests_of_the_fenced_one_that_wait_are_answered(members: Members) -> None:
    first, generation = static_group(members)
    second = members.join(instance="i2")
    token = members.join(first, instance="i1")
    members.driver.run_until(members.driver.now_ms)
    i2 = members.driver.wait(second).member_id
    assert members.driver.wait(token).generation_id == generation + 1
    waiting = members.sync(i2, generation + 1, instance="i2")
    members.join(instance="i2")  # during the sync phase: the leader works with an id that is no more
    assert members.driver.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert members.heartbeat(first, generation + 1, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_is_replaced_while_its_join_waits_is_fenced(members: Members) -> None:
    (leader,), _ = members.stable()
    first = members.join(instance="i1")
    second = members.join(instance="i1")
    assert members.driver.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    members.join(leader)
    assert members.driver.wait(second).error_code == NONE


def test_static_members_stay_through_a_rebalance_that_they_miss(members: Members) -> None:
    first, generation = static_group(members)
    token = members.join(instance="i2", session_ms=1_000_000)
    for _ in range(REBALANCE_MS // 5_000):
        members.driver.advance(5_000)
        members.heartbeat(first, generation, instance="i1")
    answer = members.driver.wait(token)
    assert answer.leader == answer.member_id
    assert {member.group_instance_id for member in answer.members} == {"i1", "i2"}


def test_a_static_group_of_which_nobody_rejoins_waits_for_its_sessions() -> None:
    members = Members.of(max_size=2)
    answer = members.joined(instance="i1", rebalance_ms=0)
    members.synced(answer.member_id, 1, instance="i1")
    members.driver.reload(config=Members.of(max_size=1).driver.config)
    assert members.state() == "Stable"  # not above the limit
    other = members.join(instance="i2", rebalance_ms=0)
    assert members.driver.wait(other).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    members.driver.advance(SESSION_MS)
    assert members.state() == "Empty"


def test_an_administrator_removes_static_members_by_instance(members: Members) -> None:
    static_group(members)
    response = members.leave(("", "i1"), ("", "nobody"), ("", None))
    assert [member.error_code for member in response.members] == [NONE, UNKNOWN, UNKNOWN]
    assert members.state() == "Empty"


def test_leaving_several_at_once_rebalances_once(members: Members) -> None:
    ids, generation = members.stable(4)
    response = members.leave(ids[1], "stranger", ids[2])
    assert [member.error_code for member in response.members] == [NONE, UNKNOWN, NONE]
    tokens = [members.join(ids[0]), members.join(ids[3])]
    assert {members.driver.wait(token).generation_id for token in tokens} == {generation + 1}


def test_why_a_group_rebalances_is_told_for_the_log(members: Members) -> None:
    (leader, _), _ = members.stable(2)
    members.driver.notes.clear()
    request = join_request(leader)
    request.reason = "x" * 1_000
    members.driver.send("join_group", request, 9)
    assert members.driver.notes == [f"group group: generation 1 ends: leader {leader} rejoins ({'x' * 255})"]
    members.driver.advance(SESSION_MS)
    assert "group group: generation 2 has 1 member" in members.driver.notes
    members.leave(leader)
    assert f"group group: generation 2 ends: {leader} left" in members.driver.notes


# --- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_no_session_gets_longer_or_shorter_when_the_clock_is_set(members: Members, step_ms: int) -> None:
    (first,), generation = members.stable()
    members.driver.clock_error_ms += step_ms
    members.driver.advance(SESSION_MS - 1)
    assert members.heartbeat(first, generation) == NONE
    members.driver.clock_error_ms -= 2 * step_ms
    members.driver.advance(SESSION_MS)
    assert members.state() == "Empty"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_no_rebalance_gets_longer_or_shorter_when_the_clock_is_set(members: Members, step_ms: int) -> None:
    """A member that sends heartbeats but does not rejoin is waited for as long as it said, and no longer."""
    (silent,), generation = members.stable()
    token = members.join(members.new_member())
    members.driver.clock_error_ms += step_ms
    for _ in range(REBALANCE_MS // 5_000):
        assert token not in members.driver.answers
        assert members.heartbeat(silent, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        members.driver.advance(5_000)
    assert members.driver.answers[token].generation_id == generation + 1
    assert len(members.driver.answers[token].members) == 1
    # The same of a member that does not sync.
    members.driver.clock_error_ms -= 2 * step_ms
    late = members.driver.answers[token].member_id
    for _ in range(REBALANCE_MS // 5_000):
        assert members.heartbeat(late, generation + 1) == NONE
        members.driver.advance(5_000)
    assert members.state() == "Empty"


def test_what_is_stored_is_by_the_wall_clock(members: Members) -> None:
    members.driver.topics.create("topic")
    members.driver.clock_error_ms = 3_600_000
    assert members.commit(1) == NONE
    group = members.driver.coordinator._shards.groups[GROUP]
    offset = group.offsets.get("topic", 0)
    assert offset is not None
    assert offset.commit_timestamp_ms == group.state_timestamp_ms == members.driver.now_ms + 3_600_000
