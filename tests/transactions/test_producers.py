"""InitProducerId: new ids, fencing, going on after an error, and the end of the range of epochs."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.transactions import StoredRecord, TransactionSnapshot, TransactionState
from headrace.transactions.records import snapshot_record

from .clients import A0, A1, B0, ID, Clients


def at_epoch(epoch: int, *, version: int = 2) -> tuple[Clients, tuple[int, int]]:
    """A transactional id that has been in use for long."""
    clients = Clients(version=version)
    snapshot = TransactionSnapshot(7, epoch, 60_000, clients.now_ms, previous_producer_id=7)
    record = snapshot_record(clients.coordinator.partition_of(ID), ID, snapshot, version)
    clients.log[record.partition] = [StoredRecord(record.key, record.value)]
    clients.restart()
    return clients, (7, epoch)


def test_without_transactional_id_every_call_gives_a_new_id() -> None:
    clients = Clients()
    assert clients.init(name=None) == (ErrorCode.NONE, 1_000, 0)
    assert clients.init(name=None) == (ErrorCode.NONE, 1_001, 0)
    assert clients.log == {}


def test_a_newer_producer_gets_the_next_epoch_and_the_older_one_is_fenced() -> None:
    clients = Clients()
    old = clients.started()
    new = clients.started()
    assert (old, new) == ((1_000, 0), (1_000, 1))
    assert clients.add(old, A0) == {A0: ErrorCode.PRODUCER_FENCED}
    assert clients.produce(old, A0) == {A0: ErrorCode.PRODUCER_FENCED}
    assert clients.end(old) == ErrorCode.PRODUCER_FENCED
    assert clients.add(new, A0) == {A0: ErrorCode.NONE}


@pytest.mark.parametrize(("version", "error"), [(0, "INVALID_PRODUCER_EPOCH"), (4, "PRODUCER_FENCED")])
def test_fenced_producers_are_told_in_words_that_their_version_knows(version: int, error: str) -> None:
    clients = Clients()
    old = clients.started()
    clients.started()
    assert clients.init(old, version=version) == (ErrorCode[error], -1, -1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_outs_beyond_the_limit_are_refused(timeout_ms: int) -> None:
    assert Clients().init(timeout_ms=timeout_ms) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)


def test_an_open_transaction_is_aborted_before_a_newer_producer_starts() -> None:
    clients = Clients()
    old = clients.started()
    clients.add(old, A0, B0)
    clients.hold_markers = True
    assert clients.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert clients.state() == "PrepareAbort"
    assert clients.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert clients.end(old) == ErrorCode.PRODUCER_FENCED
    clients.release_markers()
    assert clients.markers == [(A0, 1_000, 1, False), (B0, 1_000, 1, False)]
    assert clients.init() == (ErrorCode.NONE, 1_000, 2)


def test_fencing_bumps_the_epoch_once_also_where_the_cluster_has_the_older_protocol() -> None:
    clients = Clients(version=0)
    clients.add(clients.started(), A0)
    assert clients.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.markers == [(A0, 1_000, 1, False)]
    assert clients.init() == (ErrorCode.NONE, 1_000, 2)


# --- going on after an error (KIP-360) --------------------------------------------------------------------------------


def test_a_producer_that_says_who_it_is_goes_on_with_the_next_epoch() -> None:
    clients = Clients()
    me = clients.started()
    assert clients.init(me) == (ErrorCode.NONE, 1_000, 1)


def test_it_may_ask_again_when_the_answer_is_lost() -> None:
    clients = Clients()
    me = clients.started()
    assert clients.init(me) == clients.init(me) == (ErrorCode.NONE, 1_000, 1)


def test_it_may_not_once_someone_else_has_taken_over() -> None:
    clients = Clients()
    me = clients.started()
    clients.init(me)
    clients.started()
    assert clients.init(me) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert clients.init((1_000, 1)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_an_older_producer_cannot_end_the_transaction_of_a_newer_one() -> None:
    clients = Clients()
    old = clients.started()
    new = clients.started()
    clients.add(new, A0)
    assert clients.init(old) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert clients.state() == "Ongoing"
    assert clients.end(new) == ErrorCode.NONE


def test_a_repeated_request_cannot_end_the_transaction_that_came_after_it() -> None:
    clients = Clients()
    me = clients.started()
    now = clients.started(who=me)
    clients.add(now, A0)
    assert clients.init(me) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert clients.state() == "Ongoing"


def test_another_producer_id_is_fenced() -> None:
    clients = Clients()
    clients.started()
    assert clients.init((999, 0)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_an_id_that_is_forgotten_is_given_to_whoever_comes() -> None:
    assert Clients().init((999, 5)) == (ErrorCode.NONE, 1_000, 0)


@pytest.mark.parametrize("who", [(5, -1), (-1, 5)])
@pytest.mark.parametrize("name", [ID, None])
def test_half_a_producer_is_no_valid_request(who: tuple[int, int], name: str | None) -> None:
    assert Clients().init(who, name=name) == (ErrorCode.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize("name", ["x" * 32_768, "\ufffd" * 10_923], ids=["letters", "bytes"])
def test_an_id_that_no_record_can_hold_is_refused(name: str) -> None:
    """Else it would be there until a restart, and no id of its partition would expire."""
    clients = Clients()
    assert clients.init(name=name) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert clients.state(name) == "TRANSACTIONAL_ID_NOT_FOUND"
    clients.advance(8 * 86_400_000)
    assert clients.listed() == []


# --- the end of the range of epochs -----------------------------------------------------------------------------------


def test_the_last_epoch_but_one_is_followed_by_another_producer_id() -> None:
    clients, _ = at_epoch(32_765)
    assert clients.init() == (ErrorCode.NONE, 7, 32_766)
    assert clients.init() == (ErrorCode.NONE, 1_000, 0)
    assert clients.end((7, 32_766)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_lost_answer_about_another_producer_id_can_be_had_again() -> None:
    clients, me = at_epoch(32_766)
    assert clients.init(me) == clients.init(me) == (ErrorCode.NONE, 1_000, 0)
    assert clients.init() == (ErrorCode.NONE, 1_000, 1)
    assert clients.init(me) == (ErrorCode.PRODUCER_FENCED, -1, -1)


@pytest.mark.parametrize(("version", "epoch"), [(2, 32_767), (0, 32_767)])
def test_an_open_transaction_at_the_last_epoch_is_ended_with_the_very_last_one(version: int, epoch: int) -> None:
    clients, me = at_epoch(32_766, version=version)
    clients.add(me, A0)
    assert clients.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.markers == [(A0, 7, epoch, False)]
    error, producer_id, _ = clients.init()
    assert (error, producer_id) == (ErrorCode.NONE, 1_000)
    assert clients.end(me) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_newer_protocol_goes_on_with_another_id_when_a_transaction_uses_up_the_epochs() -> None:
    clients, me = at_epoch(32_766)
    assert clients.produce(me, A0, A1) == {A0: ErrorCode.NONE, A1: ErrorCode.NONE}
    clients.hold_markers = True
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 0)
    prepared = clients.snapshots()[ID]
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (7, 32_767, 1_000)
    # Whichever of its ids the producer uses meanwhile, it is to wait.
    assert clients.end(me, version=5)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert clients.produce((1_000, 0), A0) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}
    clients.release_markers()
    assert clients.markers == [(A0, 7, 32_767, True), (A1, 7, 32_767, True)]
    done = clients.snapshots()[ID]
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id) == (1_000, 0, 7)
    assert done.next_producer_id == -1
    assert done.state is TransactionState.COMPLETE_COMMIT
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 0)  # a repeated request
    assert clients.end(me, commit=False, version=5)[0] == ErrorCode.INVALID_TXN_STATE
    assert clients.produce((1_000, 0), A0) == {A0: ErrorCode.NONE}
    assert clients.end(me, version=5)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_next_producer_id_survives_a_restart_between_the_phases() -> None:
    clients, me = at_epoch(32_766)
    clients.produce(me, A0)
    clients.hold_markers = True
    clients.end(me, version=5)
    clients.hold_markers = False
    clients.restart()
    assert clients.markers == [(A0, 7, 32_767, True)]
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 0)


# --- the supply of producer ids ---------------------------------------------------------------------------------------


def test_without_ids_nothing_happens_until_the_same_call_is_made_again() -> None:
    clients = Clients()
    clients.ids.left = 0
    for name in (ID, None):
        with pytest.raises(AssertionError, match="waits"):
            clients.init(name=name)
    assert clients.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    clients.ids.left = None
    assert clients.init() == (ErrorCode.NONE, 1_000, 0)


def test_an_end_that_needs_an_id_waits_for_it_without_a_trace() -> None:
    clients, me = at_epoch(32_766)
    clients.produce(me, A0)
    clients.ids.left = 0
    before = clients.snapshots()
    with pytest.raises(AssertionError, match="waits"):
        clients.end(me, version=5)
    assert clients.snapshots() == before
    clients.ids.left = 1
    assert clients.end(me, version=5) == (ErrorCode.NONE, 1_000, 0)


def test_a_time_out_that_needs_an_id_is_tried_again() -> None:
    clients, me = at_epoch(32_766)
    clients.produce(me, A0)
    clients.ids.left = 0
    clients.advance(120_000)
    assert clients.state() == "Ongoing"
    clients.ids.left = 1
    clients.advance(10_000)
    assert clients.state() == "CompleteAbort"
