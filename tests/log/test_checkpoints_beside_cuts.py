"""Checkpoints that are written while logs are cut: nothing behind a cut is said to be durable."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import cast

import pytest
from tests.log.making import append_one

from headrace.log import Log, LogConfig, LogCut, LogDirectories, checkpoints
from headrace.log.directory import Directory
from headrace.runtime import DiskError
from headrace.runtime.simulated import CrashModel, DiskFault, Host
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, make_host

PATH, ELSEWHERE = "/data/a", "/data/b"
CUT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = LogConfig()


class Looked:
    """A log, as far as checkpoints look at it; something happens elsewhere when they do."""

    def __init__(self, recovery_point: int, then: Callable[[], None] = lambda: None) -> None:
        self.durable = recovery_point
        self._then = then

    @property
    def recovery_point(self) -> int:
        then, self._then = self._then, lambda: None
        then()
        return self.durable


@pytest.mark.parametrize("begun", ["before", "meanwhile"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_cut_beside_it_takes_back_what_was_durable(begun: str, ended: bool) -> None:
    """Else what is written in its place would be taken for damage to what was durable, after a crash."""
    disk = make_host().disk
    disk.makedirs(PATH)
    directory = Directory(PATH)

    def begin() -> None:
        directory.cuts.append(LogCut(CUT, 50))
        cut.durable = 100  # a sync that was under way has ended

    def end() -> None:
        if ended:
            cut.durable = 50
            directory.cuts.remove(LogCut(CUT, 50))

    cut = Looked(40, begin)
    if begun == "before":
        assert cut.recovery_point == 100
    directory.logs[CUT] = cast(Log, cut)
    directory.logs[OTHER] = cast(Log, Looked(7, end))
    directory.write_checkpoint(disk, checkpoints.RECOVERY_POINT)
    written = checkpoints.read_offsets(disk, f"{PATH}/{checkpoints.RECOVERY_POINT}")
    assert written == {CUT: 50, OTHER: 7}


def with_a_synced_log(host: Host, config: LogConfig = CONFIG) -> tuple[LogDirectories, Log]:
    """Of twenty records, of which the checkpoint says that they are durable."""
    directories = LogDirectories.open(host.runtime, [PATH, ELSEWHERE])
    directories.open_logs(lambda topic: config)
    log = directories.create(CUT, config, None, path=PATH)
    for _ in range(20):
        append_one(log, batch(), leader_epoch=0, now_ms=NOW_MS)
    log.sync()
    directories.checkpoint()
    return directories, log


@pytest.mark.parametrize("checkpoint", ["of the cut", "of all"])
def test_a_log_that_moves_before_it_is_cut_is_not_said_to_be_durable_where_it_is_then(checkpoint: str) -> None:
    host = make_host()
    directories, _ = with_a_synced_log(host)
    move = directories.start_move(CUT, ELSEWHERE)
    while move.step():
        pass
    cut = LogCut(CUT, 5)
    assert directories.begin_cut(cut)
    moved = directories.finish_move(CUT)
    if checkpoint == "of the cut":
        directories.write_cut(cut)
    else:
        directories.checkpoint()
    moved.truncate_to(5)
    directories.end_cut(cut)
    written = checkpoints.read_offsets(host.disk, f"{ELSEWHERE}/{checkpoints.RECOVERY_POINT}")
    assert written.get(CUT, 0) <= 5


def test_a_cut_for_one_leader_ends_while_another_for_the_next_is_under_way() -> None:
    """The first comes to nothing, as its leader leads no more; the second is written down all the same."""
    host = make_host()
    directories, _ = with_a_synced_log(host)
    first, second = LogCut(CUT, 10), LogCut(CUT, 5)
    for cut in (first, second):
        assert directories.begin_cut(cut)
    directories.write_cut(first)
    directories.end_cut(first)
    directories.write_cut(second)
    directories.checkpoint()
    assert checkpoints.read_offsets(host.disk, f"{PATH}/{checkpoints.RECOVERY_POINT}") == {CUT: 5}


@pytest.mark.parametrize("how", ["cut", "begun anew"])
@pytest.mark.parametrize("where", [PATH, ELSEWHERE])
def test_what_is_copied_in_the_place_of_deleted_records_is_not_deleted_by_a_crash(how: str, where: str) -> None:
    """Nor is it committed: the checkpoints knew of the former course of events, and do not any more."""
    host = make_host()
    directories, log = with_a_synced_log(host)
    log.update_high_watermark(15)
    log.delete_records(12)
    directories.checkpoint()
    if where == ELSEWHERE:
        move = directories.start_move(CUT, ELSEWHERE)
        while move.step():
            pass
        log = directories.finish_move(CUT)
        log.update_high_watermark(15)
    cut = LogCut(CUT, 10 if how == "cut" else 0)
    assert directories.begin_cut(cut)
    directories.write_cut(cut)
    if how == "cut":
        log.truncate_to(10)
    else:
        log.start_at(10)
    directories.end_cut(cut)
    for _ in range(8):
        append_one(log, batch(), leader_epoch=1, now_ms=NOW_MS)
    log.sync()
    host.kill(power_loss=True)
    host.restart()
    again = LogDirectories.open(host.runtime, [PATH, ELSEWHERE]).open_logs(lambda topic: CONFIG)[CUT]
    assert (again.start_offset, again.high_watermark, again.end_offset) == (10, 10, 18)


def test_deleted_records_stay_so_though_the_names_of_their_segments_come_back() -> None:
    config = LogConfig(segment_bytes=300, index_interval_bytes=100)
    for seed in range(20):
        host = make_host(seed)
        directories, log = with_a_synced_log(host, config)
        log.update_high_watermark(log.end_offset)
        start_offset = log.segments[2].base_offset
        log.delete_records(start_offset)
        directories.checkpoint()
        assert log.apply_retention(NOW_MS)
        directories.checkpoint()
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = LogDirectories.open(host.runtime, [PATH, ELSEWHERE]).open_logs(lambda topic: config)[CUT]
        assert (again.start_offset, again.end_offset) == (start_offset, 20), seed


def test_what_is_copied_after_a_cut_within_a_batch_is_not_taken_for_durable() -> None:
    for seed in range(20):
        host = make_host(seed)
        directories = LogDirectories.open(host.runtime, [PATH])
        directories.open_logs(lambda topic: CONFIG)
        log = directories.create(CUT, CONFIG, None)
        for _ in range(3):
            append_one(log, batch(b"a", b"b", b"c"), leader_epoch=0, now_ms=NOW_MS)
        log.sync()
        directories.checkpoint()
        cut = LogCut(CUT, log.end_after_cut(7))
        assert directories.begin_cut(cut)
        directories.write_cut(cut)
        log.truncate_to(7)
        directories.end_cut(cut)
        for _ in range(20):
            append_one(log, batch(b"d" * 90, b"e", b"f"), leader_epoch=1, now_ms=NOW_MS)
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = LogDirectories.open(host.runtime, [PATH])
        assert again.open_logs(lambda topic: CONFIG)[CUT].end_offset >= 6, (seed, again.unopened)


def cleaned(host: Host, path: str = PATH) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(host.disk, f"{path}/{checkpoints.CLEANER}")


@pytest.mark.parametrize("noted", ["at an earlier start", "since"])
def test_what_is_cut_off_is_not_said_to_be_compacted(noted: str) -> None:
    """Where compaction was there may be gaps: after a crash a segment that is lost would pass for one."""
    host = make_host()
    directories, log = with_a_synced_log(host)
    directories.write_cleaned(PATH, lambda log: 15)
    assert cleaned(host) == {CUT: 15}
    if noted == "at an earlier start":
        directories.close()
        directories = LogDirectories.open(host.runtime, [PATH, ELSEWHERE])
        log = directories.open_logs(lambda topic: CONFIG)[CUT]
    cut = LogCut(CUT, 10)
    assert directories.begin_cut(cut)
    directories.write_cut(cut)
    assert cleaned(host) == {CUT: 10}
    directories.write_cleaned(PATH, lambda log: 15)  # by who does not know of the cut yet
    assert cleaned(host) == {CUT: 10}
    log.truncate_to(10)
    directories.end_cut(cut)


def test_what_a_damaged_log_was_compacted_to_is_kept() -> None:
    host = make_host()
    directories, _ = with_a_synced_log(host)
    directories.create(OTHER, CONFIG, None, path=PATH)
    directories.write_cleaned(PATH, lambda log: 15)
    directories.close()
    file = host.disk.open(f"{PATH}/{CUT}/{0:020d}.log")
    file.pwrite(200, b"damaged")
    file.close()
    host.disk.remove(f"{PATH}/.kafka_cleanshutdown")
    directories = LogDirectories.open(host.runtime, [PATH])
    directories.open_logs(lambda topic: CONFIG)
    assert directories.unopened.keys() == {CUT}
    directories.write_cleaned(PATH, lambda log: 3)
    assert cleaned(host) == {CUT: 15, OTHER: 3}


def test_a_cut_that_cannot_be_written_down_is_refused() -> None:
    """Also for want of descriptors, which says nothing about the disk: it is tried again."""
    host = make_host()
    directories, log = with_a_synced_log(host)
    cut = LogCut(CUT, 5)
    assert directories.begin_cut(cut)
    host.disk.inject(DiskFault("open", errno.EMFILE))
    with pytest.raises(DiskError):
        directories.write_cut(cut)
    assert log.failure is None
    directories.write_cut(cut)
    assert checkpoints.read_offsets(host.disk, f"{PATH}/{checkpoints.RECOVERY_POINT}") == {CUT: 5}


@pytest.mark.parametrize("name", [checkpoints.RECOVERY_POINT, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK])
def test_a_directory_whose_checkpoints_are_not_written_is_not_called_clean(name: str) -> None:
    """Nor are the names of new logs durable then, as they are synced with the checkpoints."""
    host = make_host()
    directories, _ = with_a_synced_log(host)
    host.disk.inject(DiskFault("open", errno.EMFILE, under=f"{PATH}/{name}.tmp"))
    directories.close()
    assert not host.disk.exists(f"{PATH}/.kafka_cleanshutdown")
