"""Checkpoints that are written while logs are cut: nothing behind a cut is said to be durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from headrace.log import Log, checkpoints
from headrace.log.directory import Directory
from headrace.topics import TopicPartition

from .making import make_host

PATH = "/data/a"
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
