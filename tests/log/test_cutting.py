"""Segments: when they end, when they are deleted, and how a log is cut from either side."""

from __future__ import annotations

import contextlib
import errno
import itertools
from typing import Any

import pytest
from tests.log.making import append_copies, append_one

from headrace.errors import CorruptMessageError, OffsetOutOfRangeError
from headrace.log import Appended, Caches, Log, LogConfig, Origin, UnexpectedOffsetError
from headrace.log.log_files import LogFiles
from headrace.log.segment import TXN_INDEX
from headrace.records import assign, build_batch
from headrace.runtime import DiskError, FileMissingError
from headrace.runtime.simulated import CrashModel, DiskFault

from .crashes import stored
from .making import DIRECTORY, NOW_MS, batch, make_host, marker, open_log

DAY_MS = 86_400_000


def fill(log: Log, count: int, *, step_ms: int = 0, epoch: int = 0) -> None:
    for number in range(count):
        timestamp = NOW_MS + number * step_ms
        append_one(log, batch(b"x" * 30, timestamp=timestamp), leader_epoch=epoch, now_ms=max(NOW_MS, timestamp))
    log.update_high_watermark(log.end_offset)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_segment_ends_before_it_would_pass_segment_bytes() -> None:
    size = len(batch(b"x" * 30))
    log = open_log(make_host(), LogConfig(segment_bytes=3 * size))
    fill(log, 7)
    assert bases(log) == [0, 3, 6]
    assert [segment.size for segment in log.segments] == [3 * size, 3 * size, size]


def test_a_segments_age_is_measured_on_record_timestamps() -> None:
    log = open_log(make_host(), LogConfig(segment_ms=1000))
    fill(log, 5, step_ms=400)
    assert bases(log) == [0, 3]


def test_a_segment_ends_when_an_index_is_full() -> None:
    log = open_log(make_host(), LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    fill(log, 11)
    assert bases(log) == [0, 5, 10]  # four entries of eight bytes, and none for the first batch


def test_only_whole_segments_beyond_retention_bytes_go() -> None:
    size = len(batch(b"x" * 30))
    log = open_log(make_host(), LogConfig(segment_bytes=3 * size, retention_bytes=5 * size))
    fill(log, 10)
    assert [segment.base_offset for segment in log.apply_retention(NOW_MS)] == [0]
    assert (log.start_offset, bases(log)) == (3, [3, 6, 9])
    assert log.apply_retention(NOW_MS) == []


def test_segments_older_than_retention_ms_go_and_an_active_one_too() -> None:
    host = make_host()
    log = open_log(host, LogConfig(segment_bytes=300, retention_ms=DAY_MS))
    fill(log, 10)
    end = log.end_offset
    assert log.apply_retention(NOW_MS + DAY_MS) == []
    assert len(log.apply_retention(NOW_MS + DAY_MS + 1)) == 4
    assert (log.start_offset, log.end_offset, bases(log)) == (end, end, [end])
    fill(log, 1)
    assert log.end_offset == end + 1
    again = open_log(host)
    assert (again.start_offset, again.end_offset) == (end, end + 1)


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=300, retention_ms=DAY_MS))
    for _ in range(10):
        append_one(log, batch(b"x" * 30), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(4)
    log.apply_retention(NOW_MS + 2 * DAY_MS)
    assert log.start_offset == 3


def test_deleted_segments_files_stay_for_the_delay() -> None:
    host = make_host()
    log = open_log(host, LogConfig(segment_bytes=300, retention_bytes=0))
    fill(log, 10)
    found = log.locate(0, 10, limit=10, at_least_one=True)
    log.apply_retention(NOW_MS)
    assert found.file.read(found.position, found.length)  # a reader that was sent there can finish
    assert [name for name in host.disk.listdir(DIRECTORY) if name.endswith(".deleted")]
    later = host.runtime.clock.now_ms() + log.config.file_delete_delay_ms
    assert log.remove_discarded(later - 1) == 0
    assert log.remove_discarded(later) > 0
    assert not [name for name in host.disk.listdir(DIRECTORY) if name.endswith(".deleted")]


def test_a_reader_of_a_deleted_segment_is_not_given_the_next_one_that_is_deleted_under_its_name() -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=300))
    fill(log, 10)
    found = log.locate(6, 1 << 20, limit=10, at_least_one=True)
    expected = found.file.read(found.position, found.length)
    for value in (b"y", b"z"):
        log.truncate_to(5)
        for _ in range(5):
            append_one(log, batch(value * 30), leader_epoch=0, now_ms=NOW_MS)
        found.file.close()  # as the cache does when others need descriptors
        with contextlib.suppress(FileMissingError):
            assert found.file.read(found.position, found.length) == expected
    log.remove_discarded(2**62)
    fill(log, 5)
    log.truncate_to(5)
    with pytest.raises(FileMissingError):
        found.file.read(found.position, found.length)
    segment = found.view.segments[found.place]
    segment.unload_indexes()
    with pytest.raises(FileMissingError):
        segment.indexes()


def test_nor_while_a_segment_with_aborted_transactions_is_being_deleted_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log's own file is renamed some time before the others, which takes as long as the disk needs for a sync."""
    log = open_log(make_host(), LogConfig(segment_bytes=300))
    fill(log, 10)
    found = log.locate(6, 1 << 20, limit=10, at_least_one=True)
    expected = found.file.read(found.position, found.length)
    log.truncate_to(5)
    fill(log, 1)
    log.roll()
    for sequence in range(4):
        append_one(log, batch(b"x", producer=(7, 0, sequence), transactional=True), leader_epoch=0, now_ms=NOW_MS)
        append_one(log, marker(7, commit=False), leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)
    assert found.view.bases[found.place] in bases(log)
    discard, looked = LogFiles.discard, 0

    def read_before(self: LogFiles, *given: Any) -> None:
        nonlocal looked
        looked += 1
        found.file.close()  # as the cache does when others need descriptors
        with contextlib.suppress(FileMissingError):
            assert found.file.read(found.position, found.length) == expected
        discard(self, *given)

    monkeypatch.setattr(LogFiles, "discard", read_before)
    log.update_high_watermark(log.end_offset)
    log.delete_records(log.end_offset)
    log.apply_retention(NOW_MS)
    assert looked > 1


def test_a_compacted_log_loses_only_what_lies_before_its_start() -> None:
    log = open_log(make_host(), LogConfig(compact=True, delete=False, segment_bytes=300, retention_ms=1))
    fill(log, 10)
    assert log.apply_retention(NOW_MS + DAY_MS) == []
    log.delete_records(7)
    assert [segment.base_offset for segment in log.apply_retention(NOW_MS)] == [0, 3]
    assert (log.start_offset, bases(log)) == (7, [6, 9])


def test_records_are_deleted_up_to_the_high_watermark_only() -> None:
    log = open_log(make_host())
    fill(log, 10)
    log.update_high_watermark(6)
    for offset in (-1, 7):
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(offset)
    assert log.delete_records(6) == 6
    assert log.delete_records(2) == 6
    assert log.end_offset_for(0) == (0, 10)


def test_a_follower_cuts_to_an_offset_in_the_middle_of_segments_and_goes_on() -> None:
    host = make_host()
    log = open_log(host, LogConfig(segment_bytes=300))
    fill(log, 5, epoch=0)
    fill(log, 5, epoch=2)
    log.truncate_to(7)
    assert (log.end_offset, bases(log), log.leader_epoch) == (7, [0, 3, 6], 2)
    log.truncate_to(5)
    assert (log.end_offset, log.high_watermark, log.leader_epoch) == (5, 5, 0)
    assert log.end_offset_for(0) == (0, 5)
    fill(log, 3, epoch=4)
    assert log.end_offset_for(2) == (0, 5)
    assert len(stored(log)) == 8
    host.kill(power_loss=True)
    host.restart()
    again = open_log(host)
    assert len(stored(again)) == again.end_offset


def test_cutting_before_the_first_segment_begins_anew() -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=300))
    log.start_at(100)
    fill(log, 5)
    assert bases(log)[0] == 100
    log.truncate_to(50)
    assert (log.start_offset, log.end_offset, log.high_watermark, bases(log)) == (50, 50, 50, [50])
    fill(log, 1)
    assert log.end_offset == 51


@pytest.mark.parametrize("operation", ["read", "open", "sync_dir"])
def test_what_is_deleted_while_descriptors_are_short_does_not_come_back(operation: str) -> None:
    """A segment that could not be renamed was no longer in the log, but still on the disk: the next start found it."""
    config = LogConfig(segment_bytes=300)
    for skip in itertools.count():
        host = make_host()
        log = open_log(host, config)
        fill(log, 12)
        log.close()
        log = open_log(host, config, clean=True)
        log.update_high_watermark(log.end_offset)
        fault = host.disk.inject(DiskFault(operation, errno.EMFILE, skip=skip))
        log.delete_records(10)
        with contextlib.suppress(DiskError):
            log.apply_retention(NOW_MS)
        is_over = bool(fault.times)
        host.disk.heal()
        assert log.failure is None
        log.apply_retention(NOW_MS)
        log.close()
        assert open_log(host, config, clean=True).start_offset == bases(log)[0] > 0, skip
        if is_over:
            break
    assert skip or operation == "open"


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("block", range(2))
def test_a_segment_that_a_power_loss_brings_back_still_tells_what_was_aborted(block: int, is_damaged: bool) -> None:
    """The names of its files were changed together: that of its transaction index alone was changed for good."""
    for seed in range(block * 40, block * 40 + 40):
        host = make_host(seed)
        log = open_log(host, LogConfig(segment_bytes=500))
        for sequence in range(6):
            append_one(log, batch(b"x", producer=(7, 0, sequence), transactional=True), leader_epoch=0, now_ms=NOW_MS)
            append_one(log, marker(7, commit=False), leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)
            append_one(log, batch(b"y" * 30), leader_epoch=0, now_ms=NOW_MS)
        if is_damaged:
            log.close()
            log = open_log(host, log.config, clean=True)
            file = host.disk.open(log.segments[0].path(TXN_INDEX))
            file.append([b"\0"])
            file.sync()
            file.close()
        log.update_high_watermark(log.end_offset)
        log.sync()
        log.delete_records(log.segments[1].base_offset)
        assert len(log.apply_retention(NOW_MS)) == 1
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        log = open_log(host, log.config, recovery_point=log.end_offset)
        assert [entry.last_offset for segment in log.segments for entry in segment.aborted()] == [
            offset for offset in range(1, log.end_offset, 3) if offset >= log.start_offset
        ], seed


def with_producers(log: Log) -> None:
    """Ten batches of one producer, in segments of three, and a snapshot with each."""
    for sequence in range(10):
        producer = (7, 0, sequence)
        append_one(log, batch(b"x" * 30, producer=producer), leader_epoch=sequence // 5, now_ms=NOW_MS)
    log.update_high_watermark(2)


@pytest.mark.parametrize("operation", ["open", "read", "open_dir"])
@pytest.mark.parametrize("cut_to", [2, 4, 6, 9, 100])
def test_a_cut_is_made_whole_or_not_at_all_where_descriptors_are_short(operation: str, cut_to: int) -> None:
    """Half a cut took the log out of service until a restart."""
    config = LogConfig(segment_bytes=400)
    for skip in itertools.count():
        host = make_host()
        log = open_log(host, config)
        with_producers(log)
        log.close()
        log = open_log(host, config, clean=True, caches=Caches(host.disk, open_files_max=1))
        before = stored(log)
        assert len(before) == 10
        assert len(bases(log)) > 2
        fault = host.disk.inject(DiskFault(operation, errno.EMFILE, skip=skip, times=1000))
        try:
            (log.start_at if cut_to == 100 else log.truncate_to)(cut_to)
            was_cut = True
        except DiskError:
            was_cut = False
        is_over = fault.times == 1000
        host.disk.heal()
        assert log.failure is None, skip
        expected = [] if cut_to == 100 else before[:cut_to]
        if was_cut:
            assert (log.end_offset, log.cut_count, stored(log)) == (cut_to, 1, expected)
        else:
            assert (log.end_offset, log.cut_count, stored(log)) == (10, 0, before)
            (log.start_at if cut_to == 100 else log.truncate_to)(cut_to)
        sequence = 0 if cut_to == 100 else cut_to
        # It goes on, with what it knows of its producer: now, after a power loss, and after a clean stop.
        append_one(log, batch(b"y", producer=(7, 0, sequence)), leader_epoch=5, now_ms=NOW_MS)
        after = stored(log)
        assert after[:-1] == expected
        host.kill(power_loss=True)
        host.restart()
        log = open_log(host, config)
        assert stored(log) in (after, expected), skip
        log.close()
        assert open_log(host, config, clean=True).end_offset == log.end_offset
        if is_over:
            break
    assert skip or (operation, cut_to) == ("read", 100)


def test_a_followers_batches_keep_offsets_epochs_and_gaps() -> None:
    host = make_host()
    log = open_log(host, LogConfig(segment_bytes=200))
    first = build_batch([(NOW_MS, b"k", b"a", [])], base_offset=3, leader_epoch=1)
    second = build_batch([(NOW_MS, b"k", b"b" * 90, [])], base_offset=10, leader_epoch=4)
    appended = append_copies(log, first + second + second[:20])
    assert (appended.base_offset, appended.last_offset, appended.leader_epoch_changed) == (3, 10, True)
    assert stored(log) == [bytes(first), bytes(second)]
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, 3), (4, 10)]
    assert bases(log) == [0, 4]
    with pytest.raises(UnexpectedOffsetError):
        append_copies(log, build_batch([(NOW_MS, b"k", b"a", [])], base_offset=10, leader_epoch=4))
    damaged = build_batch([(NOW_MS, b"k", b"a", [])], base_offset=11, leader_epoch=4)
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        append_copies(log, damaged)
    assert log.end_offset == 11


def test_a_leaders_epoch_begins_where_the_log_ends() -> None:
    log = open_log(make_host())
    fill(log, 2, epoch=0)
    log.begin_epoch(3)
    assert log.leader_epoch == 3
    assert log.end_offset_for(1) == (0, 2)
    assert log.end_offset_for(3) == (3, 2)
    assert log.end_offset_for(4) == (-1, -1)
    assert (log.leader_epoch_at(1), log.leader_epoch_at(2)) == (0, 3)


def test_a_compacted_logs_segment_ends_in_time_for_compaction() -> None:
    log = open_log(make_host(), LogConfig(compact=True, max_compaction_lag_ms=1000))
    fill(log, 2)
    assert not log.roll_if_due(NOW_MS + 1000)
    assert log.roll_if_due(NOW_MS + 1001)
    assert bases(log) == [0, 2]
    assert not log.roll_if_due(NOW_MS + 9999)


def copies(first: int, count: int, epoch: int) -> bytes:
    """What a leader sends, a batch for each offset."""
    made = [batch(b"x") for _ in range(count)]
    for number, one in enumerate(made):
        assign(memoryview(one), first + number, epoch)
    return b"".join(made)


@pytest.mark.parametrize(("cut", "epoch"), [(5, 1), (3, 1), (2, 0)])
def test_epochs_that_were_cut_off_do_not_come_back_with_a_crash(cut: int, epoch: int) -> None:
    host = make_host()
    log = open_log(host)
    for first, count, known in ((0, 2, 0), (2, 3, 1), (5, 2, 2)):
        append_copies(log, copies(first, count, known))
    log.sync()
    # Its next leader led before, in an epoch that got further there.
    log.truncate_to(cut)
    append_copies(log, copies(log.end_offset, 6, epoch))
    again = open_log(host, recovery_point=cut)
    assert again.end_offset == log.end_offset
    assert again.epochs.entries == log.epochs.entries
    again.sync()
    assert open_log(host, recovery_point=again.end_offset).epochs.entries == log.epochs.entries


def test_an_epoch_that_began_elsewhere_before_a_log_was_begun_anew_does_not_come_back_with_a_crash() -> None:
    host = make_host()
    log = open_log(host)
    log.start_at(10)
    append_copies(log, copies(10, 4, 2))
    log.sync()
    log.start_at(4)
    append_copies(log, copies(4, 8, 2))
    again = open_log(host, recovery_point=4)
    assert again.epochs.entries == log.epochs.entries == [(2, 4)]


def test_an_epoch_that_would_begin_in_the_middle_of_a_batch_does_not_come_back_with_a_crash() -> None:
    host = make_host()
    log = open_log(host)
    append_copies(log, copies(0, 3, 1))
    log.begin_epoch(2)  # at offset 3, and nothing is written in it
    log.sync()
    log.truncate_to(2)
    large = batch(b"x", b"y", b"z")
    assign(large, 2, 1)
    append_copies(log, large)
    again = open_log(host, recovery_point=2)
    assert again.epochs.entries == log.epochs.entries == [(1, 0)]


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_producers_did_before_a_log_was_begun_anew_does_not_come_back_with_a_crash(is_begun: bool) -> None:
    """Of a transaction the end of which is not in the log: nobody would end it again."""
    host = make_host()
    log = open_log(host)
    append_one(log, batch(b"x", producer=(7, 0, 0), transactional=True), leader_epoch=0)
    log.close()  # and keep what is known of producers
    snapshot = f"{DIRECTORY}/{1:020d}.snapshot"
    assert host.disk.exists(snapshot)
    for name in host.disk.listdir(DIRECTORY):
        if name.startswith("00000000000000000000."):
            host.disk.remove(f"{DIRECTORY}/{name}")
    if is_begun:
        host.disk.open(f"{DIRECTORY}/{5:020d}.log", create=True).close()
    again = open_log(host)
    assert again.producers.producers == {}
    again.update_high_watermark(append_one(again, batch(b"y"), leader_epoch=0).last_offset + 1)
    assert again.last_stable_offset == again.end_offset
    again.close()
    assert open_log(host, clean=True).producers.producers == {}


def in_batches(log: Log, *sizes: int, epoch: int) -> None:
    """Copy batches of so many records, behind the log's end."""
    for size in sizes:
        one = batch(*[b"x" * 30] * size)
        assign(one, log.end_offset, epoch)
        append_copies(log, one)


@pytest.mark.parametrize("offset", [7, 8])
def test_a_log_that_is_cut_within_a_batch_ends_where_the_one_before_it_does(offset: int) -> None:
    """A follower that went on in the middle would never be sent what its leader has before that."""
    log = open_log(make_host())
    in_batches(log, 3, 3, epoch=0)
    in_batches(log, 3, epoch=1)
    assert log.end_after_cut(offset) == 6
    assert (log.end_offset, log.end_after_cut(20), log.end_after_cut(6), log.end_after_cut(3)) == (9, 9, 6, 3)
    log.truncate_to(offset)
    assert (log.end_offset, log.cut_to, log.leader_epoch) == (6, 6, 0)
    assert len(stored(log)) == 2
    log.truncate_to(1)
    assert (log.end_offset, log.leader_epoch, stored(log)) == (0, -1, [])


def test_a_log_that_is_cut_where_compaction_has_taken_records_ends_there() -> None:
    """Their offsets are not given again."""
    log = open_log(make_host())
    in_batches(log, 3, epoch=0)
    later = batch(b"x", b"y")
    assign(later, 9, 0)
    append_copies(log, later)
    assert [log.end_after_cut(offset) for offset in (3, 7, 9, 10, 11)] == [3, 7, 9, 9, 11]
    log.truncate_to(7)
    assert (log.end_offset, log.cut_to, log.locate(3, 100, limit=7, at_least_one=True).length) == (7, 7, 0)


def test_a_segment_that_begins_after_a_cut_within_a_batch_follows_the_one_before_it() -> None:
    """Else it was taken, after a crash, for what comes behind a segment that was lost."""
    host, config = make_host(), LogConfig(segment_bytes=900)
    log = open_log(host, config)
    in_batches(log, 6, 6, epoch=0)
    log.truncate_to(8)
    log.roll()
    in_batches(log, 6, epoch=1)
    assert bases(log) == [0, 6]
    expected = stored(log)
    again = open_log(host, config)
    assert stored(again) == expected
    assert not again.recovery.cut_bytes


def test_a_log_begins_with_a_batch_that_its_start_lies_in() -> None:
    host = make_host()
    log = open_log(host)
    log.start_at(4)
    records = batch(*[b"x"] * 5)
    assign(records, 2, 1)
    (appended,) = log.begin_with(records)
    assert isinstance(appended, Appended)
    assert (appended.base_offset, appended.last_offset) == (2, 6)
    assert (log.start_offset, log.high_watermark, log.end_offset) == (4, 4, 7)
    assert log.epochs.entries == [(1, 4)]
    assert stored(open_log(host)) == [bytes(records)]
