"""How transactions end: both protocols, both phases, time-outs, and markers that fail."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.topics import TopicPartition
from headrace.transactions import MarkerRequest, TransactionConfig, produce_error

from .clients import A0, A1, B0, ID, Clients


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_is_recorded_then_marked_then_recorded_as_done(commit: bool) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.add(me, A1, B0)
    clients.hold = clients.hold_markers = True
    token = clients.send("end_txn", clients.end_request(me, commit), 3)
    assert token not in clients.answers
    assert clients.held_markers == []
    clients.release()
    assert clients.answers[token].error_code == ErrorCode.NONE
    outcome = "Commit" if commit else "Abort"
    assert clients.state() == f"Prepare{outcome}"
    (request,) = clients.held_markers
    assert request == MarkerRequest(
        *(ID, 1_000, 0, 0, commit, 0, (A0, A1, B0)), request.attempt, clients.coordinator.partition_of(ID)
    )
    clients.release_markers()
    assert clients.state() == f"Prepare{outcome}"  # the last record is not written yet
    clients.release()
    assert clients.state() == f"Complete{outcome}"
    assert clients.timers.keys() & {timer for timer in clients.timers if timer.name} == set()


def test_while_a_transaction_ends_its_producer_is_to_wait() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.hold_markers = True
    clients.end(me)
    assert clients.end(me) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.end(me, commit=False) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.add(me, A1) == {A1: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert clients.produce(me, A0, verify_only=True) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert clients.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    clients.release_markers()
    assert clients.end(me) == ErrorCode.NONE
    assert clients.end(me, commit=False) == ErrorCode.INVALID_TXN_STATE


def test_nothing_is_let_into_a_transaction_whose_end_is_being_recorded() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    assert clients.coordinator.verify(ID, *me, [A0]) == {A0: ErrorCode.NONE}
    clients.hold = True
    clients.send("end_txn", clients.end_request(me, True), 3)
    assert clients.coordinator.verify(ID, *me, [A0]) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}


def test_partitions_stay_verified_while_others_are_added() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.hold = True
    with pytest.raises(AssertionError, match="waits"):
        clients.add(me, A1)
    answer = clients.coordinator.verify(ID, *me, [A0, A1])
    assert answer == {A0: ErrorCode.NONE, A1: ErrorCode.TRANSACTION_ABORTABLE}


# --- the newer protocol -----------------------------------------------------------------------------------------------


def test_every_end_bumps_the_epoch_and_marks_with_the_next_one() -> None:
    clients = Clients()
    me = clients.started()
    for epoch, commit in enumerate([True, False, True]):
        assert clients.produce((1_000, epoch), A0) == {A0: ErrorCode.NONE}
        assert clients.end((1_000, epoch), commit=commit, version=5) == (ErrorCode.NONE, 1_000, epoch + 1)
    assert clients.markers == [(A0, 1_000, 1, True), (A0, 1_000, 2, False), (A0, 1_000, 3, True)]
    assert clients.produce(me, A0) == {A0: ErrorCode.PRODUCER_FENCED}


def test_a_late_end_never_touches_a_later_transaction() -> None:
    clients = Clients()
    me = clients.started()
    clients.produce(me, A0)
    _, *now = clients.end(me, version=5)
    clients.produce((now[0], now[1]), A0)
    for commit in (True, False):
        assert clients.end(me, commit=commit, version=5) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert clients.state() == "Ongoing"


def test_an_abort_of_nothing_gets_rid_of_what_may_still_arrive() -> None:
    clients = Clients()
    me = clients.started()
    assert clients.end(me, commit=False, version=5) == (ErrorCode.NONE, 1_000, 1)
    assert clients.state() == "CompleteAbort"
    assert clients.markers == []
    assert clients.produce(me, A0) == {A0: ErrorCode.PRODUCER_FENCED}
    assert clients.end(me, commit=False, version=5) == (ErrorCode.NONE, 1_000, 1)  # a repeated request
    assert clients.end((1_000, 1), commit=False, version=5) == (ErrorCode.NONE, 1_000, 2)
    assert clients.end((1_000, 2), commit=True, version=5)[0] == ErrorCode.INVALID_TXN_STATE


def test_an_abort_of_nothing_after_a_commit_is_an_end_of_its_own() -> None:
    clients = Clients()
    me = clients.started()
    clients.produce(me, A0)
    clients.end(me, version=5)
    assert clients.end((1_000, 1), commit=False, version=5) == (ErrorCode.NONE, 1_000, 2)
    assert clients.end((1_000, 1), commit=False, version=5) == (ErrorCode.NONE, 1_000, 2)
    assert clients.end(me, version=5)[0] == ErrorCode.PRODUCER_FENCED


def test_what_ended_in_the_older_protocol_is_no_answer_to_a_repeated_end_of_the_newer_one() -> None:
    clients = Clients()
    old = clients.started()
    new = clients.started()
    clients.add(new, A0)
    clients.end(new, version=3)
    assert clients.end(old, version=5) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_a_repeated_end_waits_while_the_first_is_under_way() -> None:
    clients = Clients()
    me = clients.started()
    clients.produce(me, A0)
    clients.hold_markers = True
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 1)
    assert clients.end(me, version=5) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert clients.produce((1_000, 1), A0) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}


# --- time-outs --------------------------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    clients = Clients()
    me = clients.started(timeout_ms=5_000)
    clients.add(me, A0)
    clients.advance(4_900)
    assert clients.state() == "Ongoing"
    clients.advance(10_100)
    assert clients.state() == "CompleteAbort"
    assert clients.markers == [(A0, 1_000, 1, False)]
    assert any("'payments'" in note for note in clients.notes)
    assert clients.end(me) == ErrorCode.PRODUCER_FENCED
    assert clients.add(me, A0) == {A0: ErrorCode.PRODUCER_FENCED}


def test_in_the_newer_protocol_it_may_learn_of_the_abort_but_never_commit() -> None:
    clients = Clients()
    me = clients.started(timeout_ms=5_000)
    clients.produce(me, A0)
    clients.advance(20_000)
    assert clients.end(me, version=5) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert clients.end(me, commit=False, version=5) == (ErrorCode.NONE, 1_000, 1)


def test_time_runs_on_through_a_restart() -> None:
    clients = Clients()
    clients.add(clients.started(timeout_ms=5_000), A0)
    clients.advance(4_000)
    clients.restart()
    clients.advance(12_000)
    assert clients.state() == "CompleteAbort"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_no_transaction_gets_more_or_less_time_when_the_clock_is_set(step_ms: int) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.clock_error_ms += step_ms
    clients.advance(60_000)
    assert clients.state() == "Ongoing"
    clients.advance(10_001)
    assert clients.state() == "CompleteAbort"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_during_a_restart_gives_no_more_than_the_whole_time(step_ms: int) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.clock_error_ms += step_ms
    clients.restart()
    clients.advance(60_000 + 20_000)
    assert clients.state() == "CompleteAbort"


def test_no_timer_is_set_without_transactions() -> None:
    clients = Clients()
    me = clients.started()
    before = set(clients.timers)
    clients.add(me, A0)
    clients.end(me)
    clients.advance(30_000)
    assert set(clients.timers) == before


# --- markers ----------------------------------------------------------------------------------------------------------

RETRIED = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION]


@pytest.mark.parametrize("error", RETRIED)
def test_markers_that_fail_are_asked_for_again_and_only_those(error: ErrorCode) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, B0)
    clients.refusals = {B0: [error, error]}
    clients.end(me)
    assert clients.state() == "PrepareCommit"
    clients.advance(1_000)
    assert clients.state() == "CompleteCommit"
    assert clients.markers == [(A0, 1_000, 0, True), (B0, 1_000, 0, True)]


def test_answers_may_come_bit_by_bit() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, B0)
    clients.hold_markers = True
    clients.end(me)
    (request,) = clients.held_markers
    clients.absorb(clients.coordinator.markers_written(request, {A0: ErrorCode.NONE}, clients.now))
    assert clients.state() == "PrepareCommit"
    clients.absorb(clients.coordinator.markers_written(request, {A0: ErrorCode.NONE}, clients.now))
    assert clients.state() == "PrepareCommit"
    clients.absorb(clients.coordinator.markers_written(request, {B0: ErrorCode.NONE}, clients.now))
    assert clients.state() == "CompleteCommit"


def test_a_partition_that_is_deleted_needs_no_marker() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, B0)
    del clients.topics.known["b"]
    clients.refusals = {B0: [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    clients.end(me)
    assert clients.state() == "CompleteCommit"


def test_a_partition_whose_leader_has_not_heard_of_it_yet_needs_one() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, B0)
    clients.refusals = {B0: [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    clients.end(me)
    assert clients.state() == "PrepareCommit"
    clients.advance(1_000)
    assert clients.markers == [(B0, 1_000, 0, True)]


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_partition_that_was_ended_by_someone_else_does_not_block_the_id(error: ErrorCode) -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.refusals = {A0: [error]}
    clients.end(me)
    assert clients.state() == "CompleteCommit"
    assert any(error.name in note for note in clients.notes)


def test_a_restart_between_the_phases_asks_for_all_markers_again() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0, B0)
    clients.refusals = {B0: [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    clients.end(me)
    clients.hold_markers = True
    clients.restart()
    (request,) = clients.held_markers
    assert (request.commit, request.partitions, request.coordinator_epoch) == (True, (A0, B0), 1)
    clients.release_markers()
    assert clients.state() == "CompleteCommit"


def test_an_answer_to_an_earlier_coordinator_counts_for_nothing() -> None:
    clients = Clients()
    me = clients.started()
    clients.add(me, A0)
    clients.hold_markers = True
    clients.end(me)
    (old,) = clients.held_markers
    clients.restart()
    clients.absorb(clients.coordinator.markers_written(old._replace(attempt=99), {A0: ErrorCode.NONE}, clients.now))
    assert clients.state() == "PrepareCommit"


# --- what producers are told by leaders -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "version", "told"),
    [
        ("TRANSACTION_ABORTABLE", 10, "INVALID_TXN_STATE"),
        ("TRANSACTION_ABORTABLE", 11, "TRANSACTION_ABORTABLE"),
        ("PRODUCER_FENCED", 9, "INVALID_PRODUCER_EPOCH"),
        ("PRODUCER_FENCED", 12, "INVALID_PRODUCER_EPOCH"),
        ("CONCURRENT_TRANSACTIONS", 11, "NOT_ENOUGH_REPLICAS"),
        ("CONCURRENT_TRANSACTIONS", 12, "CONCURRENT_TRANSACTIONS"),
        ("NOT_COORDINATOR", 12, "NOT_ENOUGH_REPLICAS"),
        ("INVALID_PRODUCER_ID_MAPPING", 9, "INVALID_PRODUCER_ID_MAPPING"),
    ],
)
def test_verification_is_told_in_words_that_the_version_knows(found: str, version: int, told: str) -> None:
    assert produce_error(ErrorCode[found], version) == ErrorCode[told]


def test_a_fenced_producer_is_not_verified_even_for_a_partition_of_the_new_transaction() -> None:
    clients = Clients()
    old = clients.started()
    new = clients.started()
    clients.add(new, A0)
    assert clients.coordinator.verify(ID, *old, [A0]) == {A0: ErrorCode.PRODUCER_FENCED}
    assert clients.coordinator.verify(ID, 5, 1, [A0]) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert clients.coordinator.verify("nobody", *new, [A0]) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert clients.coordinator.verify("", *new, [A0]) == {A0: ErrorCode.INVALID_REQUEST}


def test_settings_are_read_under_kafkas_names() -> None:
    values = {"transaction.max.timeout.ms": 1, "transactional.id.expiration.ms": 2, "offsets.topic.num.partitions": 3}
    config = TransactionConfig.from_values({**values, "unrelated": 4})
    assert (config.max_timeout_ms, config.id_expiration_ms, config.offsets_topic_partitions) == (1, 2, 3)
    clients = Clients(TransactionConfig(offsets_topic_partitions=1))
    clients.add_offsets(clients.started(), "group")
    assert clients.snapshots()[ID].partitions == {TopicPartition("__consumer_offsets", 0)}
