"""Open files are bounded and shared: threads that read and one that writes never see a closed one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.log.making import append_one

from headrace.log import Caches, Log, LogConfig
from headrace.log.files import FileCache, LogFile
from headrace.records import split
from headrace.runtime import Buffer, FileMissingError, Runtime
from headrace.topics import TopicPartition

from .making import NOW_MS, batch, make_host


def test_the_file_not_used_for_longest_is_closed_first() -> None:
    disk = make_host().disk
    cache = FileCache(disk, open_max=2)
    files = [LogFile(cache, f"/data/{name}", create=True) for name in "abc"]
    for file in files[:2]:
        file.append([b"x"])
    files[0].used = files[1].used = False
    files[0].read(0, 1)
    files[2].append([b"y"])
    assert [file.handle is not None for file in files] == [True, False, True]
    assert files[1].read(0, 1) == b"x"
    assert cache.open_count == 2
    for file in files:
        file.close()
    assert cache.open_count == 0


def test_a_missing_file_is_missing_and_a_renamed_one_is_found() -> None:
    disk = make_host().disk
    cache = FileCache(disk, open_max=1)
    with pytest.raises(FileMissingError):
        LogFile(cache, "/data/none").read(0, 1)
    file = LogFile(cache, "/data/a", create=True)
    file.append([b"x"])
    file.close()
    disk.rename("/data/a", "/data/b")
    file.moved_to("/data/b")
    assert file.read(0, 1) == b"x"
    file.close()


def test_a_handle_that_a_reader_opened_in_the_middle_of_an_append_is_not_appended_to() -> None:
    disk = make_host().disk
    cache = FileCache(disk, open_max=2)
    file = LogFile(cache, "/data/a", create=True)
    file.append([b"012"])

    class TakenAway:
        """A handle that the cache gives up, and a reader opens again, while it is being appended to."""

        inner = disk.open("/data/a")

        def append(self, parts: Sequence[Buffer]) -> int:
            file.handle = None
            assert file.read(0, 9) == b"012"
            return self.inner.append(parts)

    file.close()
    file.handle = TakenAway()  # type: ignore[assignment]
    assert file.append([b"34"]) == 3
    assert file.append([b"5"]) == 5
    assert file.read(0, 9) == b"012345"
    TakenAway.inner.close()
    file.close()


def test_readers_and_a_writer_and_syncs_side_by_side(tmp_path: Path, runtime: Runtime) -> None:
    """With one descriptor for all, every read and append has to win its file back again and again."""
    caches = Caches(runtime.disk, open_files_max=1, index_bytes_max=1000)
    config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
    log = Log.open(runtime, str(tmp_path / "t-0"), TopicPartition("t", 0), config, caches=caches)
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                end = log.end_offset
                for offset in range(0, end, 7):
                    found = log.locate(offset, 1, limit=end, at_least_one=True)
                    (got,) = split(found.file.read(found.position, found.length))
                    assert got.base_offset == offset
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            errors.append(error)

    def sync() -> None:
        try:
            while not done.is_set():
                log.sync()
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=read), threading.Thread(target=read), threading.Thread(target=sync)]
    for thread in threads:
        thread.start()
    for number in range(400):
        append_one(log, batch(b"%d" % number), leader_epoch=number // 100, now_ms=NOW_MS)
    done.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    log.sync()
    assert log.recovery_point == log.end_offset == 400
    log.close()
