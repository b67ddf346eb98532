"""Compaction beside everything else that happens to a log: cuts, failures, checkpoints that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging

import pytest
from tests.log.making import append_one

from headrace.log import Log, Move
from headrace.log.checkpoints import CLEANER, read_offsets, write_offsets
from headrace.log.compaction import CleanerThrottle, CleaningStoppedError
from headrace.log.compaction_job import CleanJob, CleanResult
from headrace.records import build_batch
from headrace.runtime import DiskError
from headrace.runtime.simulated import DiskFault
from headrace.topics import TopicPartition

from .compacting import (
    COMPACT,
    DIRECTORY,
    PARTITION,
    FixedClock,
    RandomWriter,
    Table,
    batches_of,
    pairs,
)

# ---- beside everything else --------------------------------------------------------------------------------------


class Interfering:
    """A worker in which something happens to the log while it is compacted."""

    def __init__(self, table: Table, happens: object) -> None:
        self._inner = table.cleaner.compaction_worker
        self._happens = happens

    async def do(self, job: CleanJob) -> CleanResult:
        result = await self._inner.do(job)
        assert callable(self._happens)
        self._happens()
        return result

    async def close(self) -> None:
        return


def _filled() -> Table:
    table = Table()
    for n in range(30):
        table.put((b"k%d" % (n % 3), b"x" * 100))
    table.log.roll()
    return table


def _regrow(table: Table) -> None:
    table.log.truncate_to(15)
    for n in range(15, 30):
        table.put((b"k%d" % (n % 3), b"y" * 100))
    table.log.roll()


def test_a_log_that_is_cut_meanwhile_keeps_its_segments() -> None:
    table = _filled()
    table.cleaner.compaction_worker = Interfering(table, lambda: _regrow(table))
    assert table.clean() is None
    assert table.cleaner.metrics.given_up == 1
    assert [offset for offset, _, _ in pairs(table)] == list(range(30))
    assert pairs(table)[20][2] == b"y" * 100
    assert table.files(".cleaned") == []


def test_a_log_that_fails_meanwhile_is_left_alone() -> None:
    table = _filled()
    table.cleaner.compaction_worker = Interfering(table, table.log.abandon)
    assert table.clean() is None
    assert table.cleaner.metrics.given_up == 1


def test_appends_and_rolls_meanwhile_do_not_matter() -> None:
    table = _filled()

    def more() -> None:
        table.put((b"k0", b"new"))
        table.log.roll()
        table.put((b"k1", b"new"))

    table.cleaner.compaction_worker = Interfering(table, more)
    assert table.clean() is not None
    assert [offset for offset, _, _ in pairs(table)] == [27, 28, 29, 30, 31]


def test_segments_that_retention_took_meanwhile_stay_away() -> None:
    table = _filled()
    table.log.config = dataclasses.replace(COMPACT, segment_bytes=150)  # each segment is a group of its own

    def expire() -> None:
        table.log.delete_records(table.log.segments[1].base_offset)
        table.log.apply_retention(table.clock.ms)

    start = table.log.segments[1].base_offset
    table.cleaner.compaction_worker = Interfering(table, expire)
    assert table.clean() is not None
    assert table.log.start_offset == table.log.segments[0].base_offset == start
    assert [offset for offset, _, _ in pairs(table)] == [27, 28, 29]
    assert table.files(".cleaned") == []


def test_a_reader_of_an_old_segment_can_finish() -> None:
    table = _filled()
    found = table.log.locate(0, 10_000, limit=table.log.end_offset, at_least_one=True)
    table.clean()
    data = found.file.read(found.position, found.length)
    assert len(data) == found.length
    table.clock.ms += COMPACT.file_delete_delay_ms
    assert table.log.remove_discarded(table.clock.ms) > 0
    assert table.files(".deleted") == []


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_where_compaction_ended_is_kept_in_kafkas_checkpoint() -> None:
    table = _filled()
    report = table.clean()
    assert report is not None
    assert read_offsets(table.host.disk, f"/data/{CLEANER}") == {PARTITION: report.end_offset}
    table.reboot()
    assert table.clean() is None
    table.put((b"k0", b"z"))
    table.log.roll()
    report = table.clean()
    assert report is not None
    assert report.first_dirty_offset == 30


@pytest.mark.parametrize("content", [{PARTITION: 10_000}, {PARTITION: -1}])
def test_a_checkpoint_out_of_range_begins_again_at_the_start(content: dict[object, int]) -> None:
    table = _filled()
    write_offsets(table.host.disk, f"/data/{CLEANER}", content)  # type: ignore[arg-type]  # keys are partitions
    report = table.clean()
    assert report is not None
    assert report.first_dirty_offset == 0


@pytest.mark.parametrize("checkpoint", [3, 10_000])
def test_what_is_deleted_is_not_said_to_be_compacted(checkpoint: int) -> None:
    """After a crash it may be there again, and a segment of it that was lost passed for one that compaction took."""
    table = Table()
    for n in range(30):
        table.put((b"k%d" % (n % 3), b"x" * 100))
    write_offsets(table.host.disk, f"/data/{CLEANER}", {PARTITION: checkpoint})
    table.log.delete_records(25)
    table.log.config = dataclasses.replace(COMPACT, min_cleanable_dirty_ratio=1)
    assert table.clean() is None
    assert read_offsets(table.host.disk, f"/data/{CLEANER}")[PARTITION] <= 3


def test_a_damaged_checkpoint_begins_again_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    table = _filled()
    table.host.disk.replace_file(f"/data/{CLEANER}", b"nonsense")
    with caplog.at_level(logging.WARNING):
        assert table.clean() is not None
    assert "damaged" in caplog.text


def test_what_is_written_after_a_cut_is_compacted_though_the_checkpoint_was_past_it() -> None:
    table = _filled()
    table.clean()
    table.log.truncate_to(28)
    for n in range(10):
        table.put((b"k1", b"%d" % n))
    table.log.roll()
    report = table.clean()
    assert report is not None
    assert report.first_dirty_offset == 28
    assert [offset for offset, _, _ in pairs(table)] == [27, 37]


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_damaged_batch_makes_the_partition_uncleanable_and_changes_nothing() -> None:
    table = _filled()
    segment = table.log.segments[0]
    segment.file.pwrite(80, b"\xff\xff")
    assert table.clean() is None
    assert PARTITION in table.cleaner.metrics.uncleanable
    assert table.files(".cleaned") == []
    assert segment in table.log.segments
    assert table.clean() is None


def beside_another(table: Table) -> Log:
    """Another log, which needs compaction less."""
    other = Log.open(table.runtime, "/data/c-1", TopicPartition("c", 1), table.config)
    for n in range(20):
        batch = build_batch([(table.clock.ms, b"k%d" % (n % 3), b"x" * 100, [])])
        append_one(other, batch, leader_epoch=0, now_ms=table.clock.ms)
    other.update_high_watermark(other.end_offset)
    other.roll()
    return other


def is_compacted_in_turns(table: Table, other: Log) -> bool:
    """Whether the other one is, within some turns; those of the one that fails may fail."""
    before = other.size_bytes
    for _ in range(4):
        with contextlib.suppress(DiskError):
            asyncio.run(table.cleaner.clean_once([table.log, other]))
    return other.size_bytes < before


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_log_that_cannot_be_compacted_for_now_keeps_no_other_from_it(error: int) -> None:
    table = _filled()
    other = beside_another(table)
    table.host.disk.inject(DiskFault("append", error, under=DIRECTORY, times=None))
    assert is_compacted_in_turns(table, other)
    table.host.disk.heal()
    before = table.log.size_bytes
    assert table.clean() is not None
    assert table.log.size_bytes < before


def test_a_log_that_was_given_up_once_has_its_turn_though_another_is_always_due() -> None:
    """Each turn of the other one was forgotten when it went well, so that the first one waited for the next of them."""
    table = _filled()
    other = beside_another(table)
    table.host.disk.inject(DiskFault("append", errno.ENOSPC, under=DIRECTORY))
    before, in_turn = table.log.size_bytes, []
    for _ in range(6):
        report = asyncio.run(table.cleaner.clean_once([table.log, other]))
        in_turn.append(None if report is None else report.partition)
        for n in range(30):
            records = build_batch([(table.clock.ms, b"k%d" % (n % 3), b"x" * 100, [])])
            append_one(other, records, leader_epoch=0, now_ms=table.clock.ms)
        other.update_high_watermark(other.end_offset)
        other.roll()
    assert table.log.size_bytes < before, in_turn


@pytest.mark.parametrize("wrong", ["a header", "the disk"])
def test_a_log_that_cannot_be_looked_at_keeps_no_other_from_being_compacted(wrong: str) -> None:
    table = Table(config=dataclasses.replace(COMPACT, max_compaction_lag_ms=1_000_000))
    for n in range(30):
        table.put((b"k%d" % (n % 3), b"x" * 100))
    table.log.roll()
    table.reboot()
    other = beside_another(table)
    if wrong == "a header":
        table.log.segments[0].file.pwrite(16, b"\x07")
    else:
        table.host.disk.inject(DiskFault("read", under=DIRECTORY, times=None))
    assert is_compacted_in_turns(table, other)
    assert (PARTITION in table.cleaner.metrics.uncleanable) == (wrong == "a header")


def test_a_full_disk_is_no_reason_to_fail_the_log() -> None:
    table = _filled()
    table.host.disk.fill(100)
    assert table.clean() is None
    assert table.log.failure is None
    assert table.files(".cleaned") == []
    table.host.disk.storage.capacity_bytes = 1 << 40
    assert table.clean() is not None


def test_a_shortage_of_descriptors_is_no_reason_to_fail_the_log() -> None:
    table = _filled()
    before = pairs(table)
    fault = DiskFault("open_dir", errno.EMFILE, times=None)
    worker = table.cleaner.compaction_worker
    table.cleaner.compaction_worker = Interfering(table, lambda: table.host.disk.inject(fault))
    with pytest.raises(DiskError):
        table.clean()
    table.host.disk.heal()
    assert table.log.failure is None
    assert pairs(table) == before
    assert table.files(".cleaned") == table.files(".swap") == []
    table.cleaner.compaction_worker = worker
    assert table.clean() is not None
    assert len(pairs(table)) < len(before)


def test_the_throttle_keeps_to_its_rate_and_can_be_stopped() -> None:
    clock = FixedClock(0)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        clock.ms += round(seconds * 1000)

    throttle = CleanerThrottle(1000, clock, pause)
    for _ in range(5):
        throttle.moved(500)
    assert clock.ms == pytest.approx(2500, abs=5)
    assert max(waited) <= 0.2
    with pytest.raises(CleaningStoppedError):
        CleanerThrottle(1000, clock, pause, lambda: True).moved(1)


def test_jobs_and_results_survive_the_way_to_another_process() -> None:
    table = Table()
    RandomWriter(table, 3).write(80)
    table.log.roll()
    jobs: list[CleanJob] = []

    class Spy(Interfering):
        async def do(self, job: CleanJob) -> CleanResult:
            jobs.append(job)
            result = await self._inner.do(job)
            assert CleanResult.from_json(result.to_json()) == result
            return result

    table.cleaner.compaction_worker = Spy(table, None)
    assert table.clean() is not None
    assert CleanJob.from_json(jobs[0].to_json()) == jobs[0]
    assert asyncio.run(table.cleaner.close()) is None  # type: ignore[func-returns-value]  # that is the point


def test_a_copy_that_comes_back_to_a_directory_is_not_compacted_as_far_as_what_was_there_before() -> None:
    """It may have been cut elsewhere, of which nothing is known here."""
    table = _filled()
    report = table.clean()
    assert report is not None
    assert table.cleaner.checkpoint_of(table.log) == report.end_offset
    before = table.cleaner
    table.reboot()
    assert before.checkpoint_of(table.log) is None


def test_where_compaction_ended_is_not_written_down_beyond_a_cut() -> None:
    table = _filled()
    table.clean()
    table.log.truncate_to(15)
    assert table.cleaner.checkpoint_of(table.log) == 30
    assert table.cleaner._still_cleaned(table.log) == 15


def test_a_move_goes_on_though_what_it_was_about_to_read_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(config=dataclasses.replace(COMPACT, file_delete_delay_ms=0))
    for n in range(30):
        table.put((b"k%d" % (n % 3), b"x" * 100))
    table.log.roll()
    copy = Log.open(table.runtime, "/data/copy", PARTITION, table.config)
    move = Move(table.log, copy)
    locate = Log.locate

    def compacted_after_it_is_found(self: Log, *where: object, **more: object) -> object:
        found = locate(self, *where, **more)  # type: ignore[arg-type]  # as they came
        if self is table.log:
            monkeypatch.undo()
            assert table.clean() is not None
            table.log.remove_discarded(table.clock.ms)
        return found

    monkeypatch.setattr(Log, "locate", compacted_after_it_is_found)
    while not move.caught_up:
        move.step()
    assert [bytes(batch.buffer) for batch in batches_of(copy)] == [bytes(b.buffer) for b in batches_of(table.log)]
