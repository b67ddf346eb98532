"""What only the real runtime can be asked: real errors, real threads, real processes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import os
import random
import subprocess
import sys
import threading
import time

import pytest

from headrace.runtime import DirectoryLockedError, DiskError, OverloadedError, Runtime, real_runtime
from headrace.runtime.real_disk import RealDisk
from headrace.runtime.system import RWF_NOWAIT
from headrace.runtime.threads import ThreadPool

needs_nowait = pytest.mark.skipif(not RWF_NOWAIT, reason="no reading without a wait here, or it is not to be used")


def test_clock_is_the_clock_of_the_machine():
    runtime = real_runtime()
    before = runtime.clock.boottime()
    assert before <= runtime.clock.boottime() < before + 5.0
    assert abs(runtime.clock.now_ms() - time.time() * 1000) < 5_000
    assert runtime.clock.monotonic() <= runtime.clock.monotonic()


def test_real_randomness_is_the_systems_and_a_seed_repeats():
    assert isinstance(real_runtime().rng, random.SystemRandom)
    assert real_runtime(seed=5).uuid() == real_runtime(seed=5).uuid()


def test_uuids_are_version_4_and_never_start_with_a_dash():
    runtime = real_runtime(seed=2)
    ids = [runtime.uuid() for _ in range(5_000)]
    assert len(set(ids)) == 5_000
    for value in ids:
        assert len(value) == 16
        assert value[6] >> 4 == 4
        assert value[8] >> 6 == 2
        assert not base64.urlsafe_b64encode(value).startswith(b"-")


def test_a_broken_random_source_is_said_not_looped_on():
    class Stuck(random.Random):
        def randbytes(self, n: int) -> bytes:
            return b"\xf8" * n  # "-Pj4..." in base64

    real = real_runtime()
    runtime = Runtime(real.clock, Stuck(), real.disk, real.network, real.workers)
    with pytest.raises(AssertionError, match="random source is broken"):
        runtime.uuid()


# Disk errors, by making the system calls fail.


def test_append_that_hits_a_full_disk_is_cut_off_again(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"before"])
    real_pwrite = os.pwrite

    def short_then_full(number, data, position):
        if position == 6:
            return real_pwrite(number, data[:3], position)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", short_then_full)
    monkeypatch.setattr(
        os, "pwritev", lambda number, parts, position: short_then_full(number, b"".join(parts), position)
    )
    with pytest.raises(DiskError, match="Free space") as caught:
        file.append([b"abcdef", b"ghi"])
    assert (caught.value.errno, caught.value.operation, caught.value.rolled_back) == (errno.ENOSPC, "append", True)
    assert (tmp_path / "a").read_bytes() == b"before"
    assert file.size() == 6
    monkeypatch.undo()
    assert file.append([b"after"]) == 6
    assert file.read(0, 99) == b"beforeafter"
    file.close()


def test_append_says_when_it_could_not_be_cut_off(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"before"])

    def fail(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwrite", fail)
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(DiskError, match="could not be cut back") as caught:
        file.append([b"abcdef"])
    assert not caught.value.rolled_back
    assert file.size() == 6
    file.close()


@pytest.mark.parametrize("step", [1, 3, 7])
def test_short_writes_are_continued(tmp_path, monkeypatch, step):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    real_pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, position: real_pwrite(number, data[:step], position))
    monkeypatch.setattr(
        os, "pwritev", lambda number, parts, position: real_pwrite(number, b"".join(parts)[:step], position)
    )
    assert file.append([b"hello", b"", b" world", memoryview(b"!")]) == 0
    assert file.append([b"0123456789"]) == 12
    file.pwrite(0, b"HELLO")
    assert file.read(0, 99) == b"HELLO world!0123456789"
    file.close()


def test_a_write_of_nothing_without_a_reason_is_an_error_not_a_loop(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskError, match="EIO"):
        file.append([b"abc"])
    file.close()


def test_short_reads_are_continued(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"0123456789"])
    real_pread, real_preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda number, length, position: real_pread(number, min(length, 3), position))
    monkeypatch.setattr(os, "preadv", lambda number, buffers, position: real_preadv(number, [buffers[0][:3]], position))
    assert file.read(1, 8) == b"12345678"
    assert file.read(1, 80) == b"123456789"
    buffer = bytearray(7)
    assert file.read_into(1, buffer) == 7
    assert buffer == b"1234567"
    file.close()


def test_a_sync_that_failed_once_never_succeeds_again(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)

    def fail(_):
        raise OSError(errno.EIO, "broken")

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, fail, raising=False)
    with pytest.raises(DiskError, match="EIO"):
        file.sync()
    monkeypatch.undo()
    with pytest.raises(DiskError, match="an earlier sync of this file failed"):
        file.sync()
    file.close()


@needs_nowait
def test_read_nowait_is_none_when_only_a_part_is_in_memory(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"0123456789"])
    real_preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda number, buffers, position, _: real_preadv(number, [memoryview(buffers[0])[:4]], position)
    )
    assert file.read_nowait(0, 10) is None
    assert file.read_nowait(6, 10) == b"6789"  # a part, and the end of the file: that is all there is
    file.close()


@needs_nowait
def test_read_nowait_gives_up_where_the_file_system_cannot_tell(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"0123456789"])
    calls = []

    def unsupported(*_):
        calls.append(1)
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "preadv", unsupported)
    assert file.read_nowait(0, 10) is None
    assert file.read_nowait(0, 10) is None
    assert calls == [1]
    file.close()


@needs_nowait
def test_read_nowait_is_none_when_it_would_block(tmp_path, monkeypatch):
    file = RealDisk().open(str(tmp_path / "a"), create=True)

    def blocks(*_):
        raise BlockingIOError(errno.EAGAIN, "later")

    monkeypatch.setattr(os, "preadv", blocks)
    assert file.read_nowait(0, 10) is None
    file.close()


def test_a_broken_disk_does_not_look_like_an_empty_one(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "stat", fail)
    for operation in (RealDisk().exists, RealDisk().is_dir):
        with pytest.raises(DiskError, match="EIO"):
            operation(str(tmp_path))


def test_replace_file_keeps_the_old_content_and_leaves_no_copy_when_it_fails(tmp_path, monkeypatch):
    disk, path = RealDisk(), str(tmp_path / "checkpoint")
    disk.replace_file(path, b"old")

    def fail(_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskError, match=r"replace_file of .*checkpoint'.*ENOSPC"):
            disk.replace_file(path, b"new")
    assert disk.listdir(str(tmp_path)) == ["checkpoint"]
    assert disk.read_file(path) == b"old"


def test_closing_during_a_read_does_not_give_the_read_another_file(tmp_path, monkeypatch):
    """The number of a closed descriptor is reused at once, so a running read has to keep it open."""
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "other").write_bytes(b"other")
    file = RealDisk().open(str(tmp_path / "mine"))
    real_pread = os.pread
    others = []

    def close_and_reopen_first(number, length, position):
        file.close()
        others.append(os.open(tmp_path / "other", os.O_RDONLY))
        return real_pread(number, length, position)

    monkeypatch.setattr(os, "pread", close_and_reopen_first)
    assert file.read(0, 99) == b"mine"
    for number in others:
        os.close(number)


def open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_a_forgotten_file_is_reported_and_its_descriptor_closed(tmp_path):
    path = str(tmp_path / "a")
    held = [RealDisk().open(path, create=True)]
    with pytest.warns(ResourceWarning, match="was never closed"):
        held.clear()
    # Not how many there are: threads of other tests may still be closing theirs.
    assert path not in open_files()


# Locks between processes.


def test_a_lock_holds_against_another_process_and_ends_with_it(tmp_path):
    path = str(tmp_path / ".lock")
    script = (
        "import sys; from headrace.runtime.real_disk import RealDisk\n"
        f"lock = RealDisk().lock({path!r}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(DirectoryLockedError, match=f"process {holder.pid} holds it") as caught:
                RealDisk().lock(path)
            assert caught.value.holder_pid == holder.pid
        finally:
            holder.kill()
    RealDisk().lock(path).release()


def test_a_lock_holds_against_a_posix_lock_as_apache_kafka_takes_it(tmp_path):
    path = str(tmp_path / ".lock")
    script = (
        "import sys, fcntl\n"
        f"file = open({path!r}, 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(DirectoryLockedError, match="another process holds it"):
                RealDisk().lock(path)
        finally:
            holder.kill()


# Threads.


def test_offloaded_work_runs_on_another_thread_and_its_error_comes_back(tmp_path):
    async def main():
        runtime = real_runtime(io_threads=2)
        assert await runtime.offload(threading.get_ident) != threading.get_ident()
        with pytest.raises(DiskError):
            await runtime.offload(runtime.disk.size, str(tmp_path / "none"))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await runtime.offload(next, iter(()))
        await runtime.close()
        with pytest.raises(RuntimeError, match="is closed"):
            runtime.offload(threading.get_ident)

    asyncio.run(main())


def test_a_pool_starts_no_more_threads_than_work_or_its_limit_and_ends_them():
    async def main():
        before = threading.active_count()
        pool = ThreadPool("test", 3, queued_max=100)
        assert threading.active_count() == before
        await pool.submit(int)
        assert threading.active_count() == before + 1
        gate = threading.Event()
        waiting = [pool.submit(gate.wait) for _ in range(10)]
        assert threading.active_count() == before + 3
        gate.set()
        await asyncio.gather(*waiting)
        await pool.close()
        assert threading.active_count() == before

    asyncio.run(main())


def test_a_pool_of_one_keeps_the_order_of_thousands():
    async def main():
        pool = ThreadPool("test", 1, queued_max=10_000)
        done: list[int] = []
        futures = [pool.submit(done.append, i) for i in range(5_000)]
        await asyncio.gather(*futures)
        assert done == list(range(5_000))
        await pool.close()

    asyncio.run(main())


def test_a_full_pool_refuses_and_recovers():
    async def main():
        pool = ThreadPool("test", 1, queued_max=3)
        gate = threading.Event()
        futures = [pool.submit(gate.wait) for _ in range(3)]
        with pytest.raises(OverloadedError):
            pool.submit(gate.wait)
        gate.set()
        await asyncio.gather(*futures)
        await pool.submit(gate.wait)
        await pool.close()

    asyncio.run(main())


def test_a_runtime_can_be_used_by_one_loop_after_another():
    runtime = real_runtime(io_threads=1)

    async def use() -> int:
        return await runtime.offload(int, "5")

    assert asyncio.run(use()) == 5
    assert asyncio.run(use()) == 5
    asyncio.run(runtime.close())


def test_a_pool_refuses_a_second_loop_while_the_first_has_work():
    pool = ThreadPool("test", 1, queued_max=10)
    gate = threading.Event()

    async def leave_work() -> None:
        pool.submit(gate.wait)

    async def second() -> None:
        with pytest.raises(RuntimeError, match="still has work of another event loop"):
            pool.submit(int)

    asyncio.run(leave_work())
    asyncio.run(second())
    gate.set()
    pool._queue.put(None)  # close() would wait for work whose loop is gone


def test_a_pool_needs_a_thread():
    with pytest.raises(ValueError, match="at least one thread"):
        ThreadPool("test", 0, queued_max=1)
