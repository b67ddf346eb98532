"""Without a descriptor left, what is only kept open is closed, and what is needed is done."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.log.files import FileCache, LogFile
from headrace.runtime import DiskError, descriptors, real_runtime
from headrace.runtime.descriptors import free_count
from headrace.runtime.real_disk import RealDisk


@pytest.fixture
def short() -> Iterator[Callable[[], None]]:
    """Leaves this process no descriptor, until the test is over."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take_all() -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        while True:  # the gaps below
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return

    taken: list[int] = []
    yield take_all
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for number in taken:
        os.close(number)


def test_files_that_are_kept_open_make_room_for_everything_a_disk_does(
    tmp_path: Path, short: Callable[[], None]
) -> None:
    disk = RealDisk()
    cache = FileCache(disk, open_max=100)
    files = [LogFile(cache, str(tmp_path / f"{number}"), create=True) for number in range(20)]
    for file in files:
        file.append([b"x"])
    (tmp_path / "directory" / "inner").mkdir(parents=True)
    short()
    disk.sync_dir(str(tmp_path))
    disk.replace_file(str(tmp_path / "new"), b"content")
    assert disk.read_file(str(tmp_path / "new")) == b"content"
    assert "new" in disk.listdir(str(tmp_path))
    disk.rmtree(str(tmp_path / "directory"))
    disk.lock(str(tmp_path / ".lock")).release()
    opened = [disk.open(str(tmp_path / "new")) for _ in range(5)]
    assert cache.open_count < 20
    for file in files:
        file.append([b"y"])
        assert file.read(0, 2) == b"xy"
    for handle in (*opened, *files):
        handle.close()


def test_a_thread_waits_for_a_descriptor_and_an_event_loop_does_not(
    tmp_path: Path, short: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    (tmp_path / "a").write_bytes(b"x")
    released = threading.Event()
    given_up = os.open("/dev/null", os.O_RDONLY)

    def look_again(seconds: float) -> None:
        if not released.is_set():
            released.set()
            os.close(given_up)

    async def on_a_loop() -> None:
        with pytest.raises(DiskError, match="ulimit") as raised:
            disk.read_file(str(tmp_path / "a"))
        assert raised.value.is_shortage

    loop = asyncio.new_event_loop()
    short()
    loop.run_until_complete(on_a_loop())
    assert not released.is_set()
    monkeypatch.setattr(descriptors.time, "sleep", look_again)
    assert disk.read_file(str(tmp_path / "a")) == b"x"
    assert released.is_set()
    loop.close()


def test_more_threads_than_open_files_come_to_an_end(tmp_path: Path) -> None:
    cache = FileCache(RealDisk(), open_max=1)
    files = [LogFile(cache, str(tmp_path / f"{number}"), create=True) for number in range(8)]
    errors: list[BaseException] = []

    def use(file: LogFile) -> None:
        try:
            for _ in range(300):
                file.append([b"x"])
                assert set(file.read(0, 10)) == set(b"x")
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=use, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {os.path.getsize(file.path) for file in files} == {300}
    for file in files:
        file.close()


def test_a_runtime_knows_how_many_are_left() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = free_count()
    number = os.open("/dev/null", os.O_RDONLY)
    assert free_count() == before - 1
    os.close(number)
    assert 0 < (real_runtime().descriptors or 0) < limit


def test_a_process_of_our_own_raises_its_limit_to_what_it_is_allowed() -> None:
    code = (
        "import resource; from headrace.runtime import raise_descriptor_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "raise_descriptor_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(300, 300)"
