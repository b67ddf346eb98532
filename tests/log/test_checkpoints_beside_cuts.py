"""Checkpoints that are written while logs are cut: nothing behind a cut is said to be durable."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import cast

import pytest

from headrace.log import Log, LogConfig, LogDirectories, checkpoints
from headrace.log.directory import Directory
from headrace.runtime import DiskError
from headrace.runtime.simulated import DiskFault, Host
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, make_host

PATH, ELSEWHERE = "/data/a", "/data/b"
CUT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


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
        directory.cuts[CUT] = 50
        cut.durable = 100  # a sync that was under way has ended

    def end() -> None:
        if ended:
            cut.durable = 50
            del directory.cuts[CUT]

    cut = Looked(40, begin)
    if begun == "before":
        assert cut.recovery_point == 100
    directory.logs[CUT] = cast(Log, cut)
    directory.logs[OTHER] = cast(Log, Looked(7, end))
    directory.write_checkpoint(disk, checkpoints.RECOVERY_POINT)
    written = checkpoints.read_offsets(disk, f"{PATH}/{checkpoints.RECOVERY_POINT}")
    assert written == {CUT: 50, OTHER: 7}


def with_a_synced_log(host: Host) -> tuple[LogDirectories, Log]:
    """Of twenty records, of which the checkpoint says that they are durable."""
    directories = LogDirectories.open(host.runtime, [PATH, ELSEWHERE])
    directories.open_logs(lambda topic: LogConfig())
    log = directories.create(CUT, LogConfig(), None, path=PATH)
    for _ in range(20):
        log.append(batch(), leader_epoch=0, now_ms=NOW_MS)
    log.sync()
    directories.checkpoint()
    return directories, log


@pytest.mark.parametrize("checkpoint", [LogDirectories.write_cut, lambda directories, _: directories.checkpoint()])
def test_a_log_that_moves_before_it_is_cut_is_not_said_to_be_durable_where_it_is_then(
    checkpoint: Callable[[LogDirectories, TopicPartition], None],
) -> None:
    host = make_host()
    directories, log = with_a_synced_log(host)
    move = directories.start_move(CUT, ELSEWHERE)
    while move.step():
        pass
    assert directories.begin_cut(log, 5)
    moved = directories.finish_move(CUT)
    checkpoint(directories, CUT)
    moved.truncate_to(5)
    directories.end_cut(CUT)
    written = checkpoints.read_offsets(host.disk, f"{ELSEWHERE}/{checkpoints.RECOVERY_POINT}")
    assert written == {CUT: 5}


def test_a_cut_that_cannot_be_written_down_is_refused() -> None:
    """Also for want of descriptors, which says nothing about the disk: it is tried again."""
    host = make_host()
    directories, log = with_a_synced_log(host)
    assert directories.begin_cut(log, 5)
    host.disk.inject(DiskFault("open", errno.EMFILE))
    with pytest.raises(DiskError):
        directories.write_cut(CUT)
    assert log.failure is None
    directories.write_cut(CUT)
    assert checkpoints.read_offsets(host.disk, f"{PATH}/{checkpoints.RECOVERY_POINT}") == {CUT: 5}


@pytest.mark.parametrize("name", [checkpoints.RECOVERY_POINT, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK])
def test_a_directory_whose_checkpoints_are_not_written_is_not_called_clean(name: str) -> None:
    """Nor are the names of new logs durable then, as they are synced with the checkpoints."""
    host = make_host()
    directories, _ = with_a_synced_log(host)
    host.disk.inject(DiskFault("open", errno.EMFILE, under=f"{PATH}/{name}.tmp"))
    directories.close()
    assert not host.disk.exists(f"{PATH}/.kafka_cleanshutdown")
