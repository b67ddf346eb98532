"""Idempotence and transactions as one partition sees them: sequences, epochs, duplicates, markers, stable offset."""

from __future__ import annotations

import errno

import pytest
from tests.log.making import append_copies, append_one

from headrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)
from headrace.log import Appended, Log, LogConfig, Origin, Verification, producer_loading
from headrace.log.files import LogFile
from headrace.log.producer_state import WrittenBatch
from headrace.runtime import DiskError
from headrace.runtime.simulated import CrashModel, Host

from .making import NOW_MS, batch, make_host, marker, open_log


def send(log: Log, producer_id: int, epoch: int, sequence: int, count: int = 1, **options: object) -> Appended:
    values = [b"v"] * count
    transactional = bool(options.pop("transactional", False))
    records = batch(*values, producer=(producer_id, epoch, sequence), transactional=transactional)
    return append_one(log, records, leader_epoch=0, now_ms=NOW_MS, **options)  # type: ignore[arg-type]  # pass-through


def end(log: Log, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> Appended:
    records = marker(producer_id, commit=commit, epoch=epoch, coordinator_epoch=coordinator_epoch)
    return append_one(log, records, leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)


def test_sequences_in_order_are_accepted_and_a_gap_is_not() -> None:
    log = open_log(make_host())
    assert send(log, 5, 0, 0, 2).base_offset == 0
    assert send(log, 5, 0, 2).base_offset == 2
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 0, 4)
    assert log.end_offset == 3


def test_the_last_five_batches_are_recognised_and_an_older_one_is_out_of_order() -> None:
    log = open_log(make_host())
    for sequence in range(6):
        send(log, 5, 0, sequence)
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 0, 0)
    for sequence in range(1, 6):
        again = send(log, 5, 0, sequence)
        assert again == Appended(sequence, sequence, NOW_MS, 0, duplicate=True)
    assert log.end_offset == 6


def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = open_log(make_host())
    send(log, 5, 0, 5)
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 0, 7)
    send(log, 5, 0, 6)


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    log = open_log(make_host())
    send(log, 5, 0, 0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 1, 1)
    send(log, 5, 1, 0)
    with pytest.raises(InvalidProducerEpochError):
        send(log, 5, 0, 1)


def test_sequences_wrap_after_the_greatest_int() -> None:
    log = open_log(make_host())
    send(log, 5, 0, 2147483646, 4)
    assert log.producers.producers[5].last_sequence == 1
    assert log.producers.producers[5].batches[0].first_sequence == 2147483646
    send(log, 5, 0, 2)
    assert send(log, 5, 0, 2147483646, 4).duplicate
    fresh = open_log(make_host(2))
    send(fresh, 5, 0, 2147483647)
    send(fresh, 5, 0, 0)


def test_first_sequence_of_a_wrapped_batch() -> None:
    assert WrittenBatch(last_sequence=1, last_offset=9, offset_delta=3, timestamp_ms=0).first_sequence == 2147483646


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_after_a_restart(clean: bool) -> None:
    host = make_host()
    log = open_log(host)
    for sequence in range(3):
        send(log, 5, 0, sequence)
    if clean:
        log.close()
    log = open_log(host, clean=clean)
    assert send(log, 5, 0, 2).duplicate
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 0, 4)
    assert send(log, 5, 0, 3).base_offset == 3


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 400])
def test_each_of_the_last_five_batches_is_recognised_after_a_restart(clean: bool, segment_bytes: int) -> None:
    """A snapshot has only the last one of each producer."""
    host, config = make_host(), LogConfig(segment_bytes=segment_bytes)
    log = open_log(host, config)
    for sequence in range(8):
        send(log, 5, 0, sequence)
        send(log, 6, 0, sequence * 2, 2)
    if clean:
        log.close()
    log = open_log(host, config, clean=clean)
    send(log, 5, 0, 8)
    assert send(log, 5, 0, 5) == Appended(15, 15, NOW_MS, 0, duplicate=True)
    assert [send(log, 6, 0, sequence * 2, 2).base_offset for sequence in range(3, 8)] == [10, 13, 16, 19, 22]
    for producer_id, sequence, count in ((5, 3, 1), (5, 10, 1), (6, 2, 2), (6, 6, 1), (6, 13, 2)):
        with pytest.raises(OutOfOrderSequenceNumberError):
            send(log, producer_id, 0, sequence, count)
    assert send(log, 5, 0, 9).base_offset == log.end_offset - 1 == 25


def test_what_is_looked_up_before_a_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_loading, "_RECALLED_BYTES", 200)
    host, config = make_host(), LogConfig(index_interval_bytes=0)
    log = open_log(host, config)
    for sequence in range(5):
        send(log, 5, 0, sequence)
    log.close()
    log = open_log(host, config, clean=True)
    assert send(log, 5, 0, 3).duplicate
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 5, 0, 0)


def test_a_shortage_while_earlier_batches_are_looked_up_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with the disk, nor half done: the same is looked up when the batch is sent again."""
    host = make_host()
    log = open_log(host)
    for sequence in range(5):
        send(log, 5, 0, sequence)
    log.close()
    log = open_log(host, clean=True)

    def failing(self: LogFile, position: int, length: int) -> bytes:
        raise DiskError("open", self.path, errno.EMFILE)

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "read", failing)
        with pytest.raises(DiskError):
            send(log, 5, 0, 1)
    assert log.failure is None
    assert send(log, 5, 0, 1) == Appended(1, 1, NOW_MS, 0, duplicate=True)
    assert send(log, 5, 0, 5).base_offset == 5


def test_of_an_older_epoch_nothing_is_recognised_after_a_restart() -> None:
    host = make_host()
    log = open_log(host)
    for epoch in range(2):
        for sequence in range(2):
            send(log, 5, epoch, sequence)
    log.close()
    log = open_log(host, clean=True)
    with pytest.raises(InvalidProducerEpochError):
        send(log, 5, 0, 0)
    assert send(log, 5, 1, 0) == Appended(2, 2, NOW_MS, 0, duplicate=True)


def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    log = open_log(make_host(), producer_expiration_ms=1000)
    send(log, 5, 0, 0)
    send(log, 6, 0, 0, transactional=True)
    log.producers.remove_expired(NOW_MS + 999)
    assert set(log.producers.producers) == {5, 6}
    log.producers.remove_expired(NOW_MS + 1000)
    assert set(log.producers.producers) == {6}
    send(log, 5, 0, 17)


def test_the_stable_offset_waits_for_the_first_open_transaction_and_for_its_marker_to_be_committed() -> None:
    log = open_log(make_host())
    append_one(log, batch(), leader_epoch=0, now_ms=NOW_MS)
    send(log, 1, 0, 0, transactional=True)
    send(log, 2, 0, 0, transactional=True)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    end(log, 1, commit=False)
    assert log.last_stable_offset == 1  # the marker is above the high watermark
    log.update_high_watermark(4)
    assert log.last_stable_offset == 2
    end(log, 2, commit=True)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 5
    (aborted,) = log.active.aborted()
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset) == (1, 1, 3, 2)


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_restart(clean: bool) -> None:
    host = make_host()
    log = open_log(host)
    send(log, 1, 0, 0, transactional=True)
    send(log, 2, 0, 0, transactional=True)
    end(log, 1, commit=False)
    if clean:
        log.close()
    log = open_log(host, clean=clean)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    assert [entry.producer_id for entry in log.active.aborted()] == [1]
    found = log.locate(0, 1 << 20, limit=3, at_least_one=True)
    assert [entry.producer_id for entry in log.aborted_transactions(0, found)] == [1]


def with_an_aborted_transaction(log: Log) -> None:
    """Batches 0 to 2 are committed, 3 and 4 are aborted."""
    for sequence in range(3):
        send(log, 1, 0, sequence, transactional=True)
    end(log, 1, commit=True)
    for sequence in range(3, 5):
        send(log, 1, 0, sequence, transactional=True)
    end(log, 1, commit=False)


@pytest.mark.parametrize("sequence", [1, 3, 4])
def test_a_batch_numbered_as_one_of_an_ended_transaction_is_no_duplicate(sequence: int) -> None:
    """Some clients number records of their next transaction so; were they told that these are there, they would commit
    what is in no log."""
    log = open_log(make_host())
    with_an_aborted_transaction(log)
    with pytest.raises(UnknownProducerIdError, match="earlier transaction"):
        send(log, 1, 0, sequence, transactional=True)
    send(log, 1, 0, 5, transactional=True)
    with pytest.raises(UnknownProducerIdError, match="earlier transaction"):
        send(log, 1, 0, sequence, transactional=True)
    assert send(log, 1, 0, 5, transactional=True).duplicate, "it is of the transaction that is open"
    end(log, 1, commit=True, epoch=1)
    assert send(log, 1, 1, 0, transactional=True).duplicate is False, "the next epoch begins with 0"


def test_a_batch_without_a_transaction_is_a_duplicate_after_one_of_its_producer() -> None:
    log = open_log(make_host())
    send(log, 1, 0, 0)
    send(log, 1, 0, 1, transactional=True)
    assert send(log, 1, 0, 0).duplicate


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_which_transaction_a_batch_is_of_is_known_after_a_restart(clean: bool, is_open: bool) -> None:
    host = make_host()
    log = open_log(host)
    with_an_aborted_transaction(log)
    if is_open:
        send(log, 1, 0, 5, transactional=True)
    if clean:
        log.close()
    log = open_log(host, clean=clean)
    for sequence in (2, 3, 4):
        with pytest.raises(UnknownProducerIdError):
            send(log, 1, 0, sequence, transactional=True)
    assert send(log, 1, 0, 5, transactional=True).duplicate is is_open


def test_a_follower_that_leads_knows_which_transaction_a_batch_is_of() -> None:
    leader, follower = open_log(make_host()), open_log(make_host(2))
    with_an_aborted_transaction(leader)
    send(leader, 1, 0, 5, transactional=True)
    found = leader.locate(0, 1 << 20, limit=leader.end_offset, at_least_one=True)
    append_copies(follower, found.file.read(found.position, found.length))
    with pytest.raises(UnknownProducerIdError):
        send(follower, 1, 0, 4, transactional=True)
    assert send(follower, 1, 0, 5, transactional=True).duplicate


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    log = open_log(make_host())
    send(log, 1, 0, 0, transactional=True)
    with pytest.raises(InvalidTxnStateError):
        send(log, 1, 0, 1)


def test_a_zombie_coordinator_is_fenced() -> None:
    log = open_log(make_host())
    end(log, 1, commit=True, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFencedError):
        end(log, 1, commit=True, coordinator_epoch=4)
    end(log, 1, commit=True, coordinator_epoch=5)


def test_a_marker_with_a_higher_epoch_begins_it() -> None:
    log = open_log(make_host())
    send(log, 1, 0, 0, transactional=True)
    end(log, 1, commit=True, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        send(log, 1, 0, 1, transactional=True)
    send(log, 1, 1, 0, transactional=True)


def end_of_version_2(log: Log, producer_id: int, epoch: int) -> Appended:
    records = marker(producer_id, commit=True, epoch=epoch)
    return append_one(log, records, leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS, transaction_version=2)


def test_a_late_end_of_the_newer_protocol_does_not_end_the_next_transaction() -> None:
    """There the end of a transaction has an epoch of its own, above that of its records."""
    log = open_log(make_host())
    send(log, 1, 0, 0, transactional=True)
    with pytest.raises(InvalidProducerEpochError, match="higher"):
        end_of_version_2(log, 1, 0)
    end_of_version_2(log, 1, 1)
    assert end_of_version_2(log, 1, 1).base_offset == 2, "the same end again, with nothing open, does no harm"
    send(log, 1, 1, 0, transactional=True)
    with pytest.raises(InvalidProducerEpochError, match="higher"):
        end_of_version_2(log, 1, 1)
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == 3
    end(log, 1, commit=True, epoch=1)  # the older protocol ends it in its own epoch
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == 5


def test_the_last_epoch_of_a_producer_is_ended_in_itself() -> None:
    log = open_log(make_host())
    send(log, 1, 32_767, 0, transactional=True)
    end_of_version_2(log, 1, 32_767)
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == 2


def test_a_transaction_must_be_verified_with_the_guard_of_its_own() -> None:
    log = open_log(make_host())
    with pytest.raises(InvalidTxnStateError):
        send(log, 1, 0, 0, transactional=True, verification=Verification(1))
    guard = log.start_verification(1, 0, 0)
    assert guard is not None
    end(log, 1, commit=False)  # the transaction ends before the batch comes: the guard is void
    with pytest.raises(InvalidTxnStateError):
        send(log, 1, 0, 0, transactional=True, verification=guard)
    guard = log.start_verification(1, 0, 0)
    send(log, 1, 0, 0, transactional=True, verification=guard)
    assert log.start_verification(1, 1, 0) is None
    send(log, 1, 0, 1, transactional=True, verification=guard)


def test_while_a_lower_sequence_is_being_verified_a_higher_one_is_out_of_order() -> None:
    log = open_log(make_host())
    guard = log.start_verification(1, 0, 0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        send(log, 1, 0, 1, transactional=True, verification=guard)


@pytest.mark.parametrize("torn", ["never", "before", "before, and not looked at"])
def test_producers_whose_records_are_deleted_are_known_after_a_power_loss(torn: str) -> None:
    """Only the snapshot of the first segment that stays tells of them: it was never synced, or had been torn before."""
    for seed in range(10):
        host = make_host(seed)
        config = LogConfig(segment_bytes=400)
        log = open_log(host, config)
        send(log, 5, 3, 0)
        send(log, 6, 0, 0, transactional=True)
        for sequence in range(9):
            send(log, 7, 0, sequence)
        log.sync()
        if torn != "never":
            host.kill(power_loss=True, model=CrashModel.HARSH)
            host.restart()
            log = open_log(host, config, recovery_point=log.end_offset if torn == "before" else 0)
        log.update_high_watermark(log.end_offset)
        log.delete_records(log.active.base_offset)
        assert len(log.apply_retention(NOW_MS)) > 1
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = open_log(host, config, recovery_point=log.end_offset, start_offset=log.start_offset)
        known = again.producers.producers
        assert (again.start_offset, again.end_offset) == (log.start_offset, log.end_offset)
        assert (known[5].epoch, known[6].in_transaction, known[7].last_sequence) == (3, True, 8), seed
        with pytest.raises(InvalidProducerEpochError):
            send(again, 5, 2, 0)


def test_a_full_disk_does_not_keep_segments_from_being_deleted() -> None:
    """A snapshot that is missing is not made then: what is deleted gives the room."""
    host = make_host()
    config = LogConfig(segment_bytes=400)
    log = open_log(host, config)
    for sequence in range(9):
        send(log, 7, 0, sequence)
    log.sync()
    for name in host.disk.listdir(log.directory):
        if name.endswith(".snapshot"):
            host.disk.remove(f"{log.directory}/{name}")
    host.kill(power_loss=False)
    host.restart()
    log = open_log(host, config, recovery_point=log.end_offset)
    log.update_high_watermark(log.end_offset)
    log.delete_records(log.active.base_offset)
    host.disk.fill()
    assert len(log.apply_retention(NOW_MS)) == 1
    assert log.failure is None


def test_cutting_the_log_takes_back_what_producers_wrote() -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=400))
    for sequence in range(12):
        send(log, 5, 0, sequence)
    assert len(log.segments) > 2
    log.truncate_to(4)
    assert log.end_offset == 4
    assert log.producers.producers[5].last_sequence == 3
    assert all(send(log, 5, 0, sequence).duplicate for sequence in range(4))
    assert send(log, 5, 0, 4).base_offset == 4


def test_a_cut_to_where_one_snapshot_was_made_takes_back_those_beyond_it() -> None:
    """One that stayed would tell later, of another course of events, that batches are there which were cut off."""
    host = make_host()
    config = LogConfig(segment_bytes=400)
    log = open_log(host, config)
    for sequence in range(20):
        send(log, 5, 0, sequence)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.truncate_to(bases[1])
    for sequence in range(20):
        send(log, 6, 0, sequence)
    again = bases[2] + 1
    log.truncate_to(again)
    for known in (log, _killed_and_opened(host, log, config)):
        producers = known.producers.producers
        assert (producers[5].last_sequence, producers[6].last_sequence) == (bases[1] - 1, again - bases[1] - 1)


def _killed_and_opened(host: Host, log: Log, config: LogConfig) -> Log:
    log.sync()
    host.kill(power_loss=False)
    host.restart()
    return open_log(host, config, recovery_point=log.end_offset)
