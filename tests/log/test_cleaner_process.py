"""The cleaner's own process: it does what the thread does, ends with its parent, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.log.making import append_one
from tests.waiting import becomes, eventually

from headrace.log import Log, LogConfig
from headrace.log.cleaner import Cleaner
from headrace.log.cleaner_process import InProcess
from headrace.log.compaction import CleaningFailedError, CleaningStoppedError
from headrace.log.compaction_job import CleaningLimits, CleanJob, CleanResult
from headrace.records import build_batch
from headrace.runtime import FileMissingError, Runtime, real_runtime
from headrace.topics import TopicPartition

from .compacting import consume, newest

CONFIG = LogConfig(compact=True, delete=False, segment_bytes=50_000, min_cleanable_dirty_ratio=0)
PARTITION = TopicPartition("p", 0)


def filled(runtime: Runtime, root: Path, batches: int = 40) -> Log:
    log = Log.open(runtime, str(root / "p-0"), PARTITION, CONFIG)
    for n in range(batches):
        records = [(0, b"k%d" % (m % 7), b"%d" % n * 10, []) for m in range(50)]
        append_one(log, build_batch(records), leader_epoch=0, now_ms=1)
    log.roll()
    log.update_high_watermark(log.end_offset)
    return log


@contextlib.asynccontextmanager
async def in_process(root: Path, **options: float) -> AsyncIterator[tuple[Log, Cleaner, InProcess]]:
    runtime = real_runtime()
    compaction_worker = InProcess(**options)  # type: ignore[arg-type]  # jobs_max is an int
    log = filled(runtime, root)
    cleaner = Cleaner(runtime, compaction_worker=compaction_worker)
    try:
        yield log, cleaner, compaction_worker
    finally:
        await cleaner.close()
        log.close()
        await runtime.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return False


def test_the_process_compacts_as_the_thread_does(tmp_path: Path) -> None:
    async def compacted(root: Path, thread: bool) -> dict[str, bytes]:
        runtime = real_runtime()
        log = filled(runtime, root)
        cleaner = Cleaner(runtime, compaction_worker=None if thread else InProcess())
        before = newest(consume(log, committed=True))
        report = await cleaner.clean_once([log])
        assert report is not None
        assert report.statistics.read_records == 2000
        assert newest(consume(log, committed=True)) == before
        assert len(consume(log, committed=True)) == 7
        await cleaner.close()
        log.close()
        await runtime.close()
        log_files = (root / "p-0").glob("*[gx]")
        return {path.name: path.read_bytes() for path in log_files if not path.name.endswith(".deleted")}

    by_thread = asyncio.run(compacted(tmp_path / "thread", True))
    by_process = asyncio.run(compacted(tmp_path / "process", False))
    assert by_thread == by_process
    assert len(by_thread) >= 4


@pytest.mark.slow
def test_one_process_does_many_jobs_and_is_replaced_when_it_is_old(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path, jobs_max=2) as (log, cleaner, compaction_worker):
            pids = []
            for n in range(3):
                append_one(log, build_batch([(0, b"k0", b"%d" % n, [])]), leader_epoch=0, now_ms=1)
                log.roll()
                log.update_high_watermark(log.end_offset)
                assert await cleaner.clean_once([log]) is not None
                pids.append(compaction_worker.pid)
            assert pids[0] is not None
            assert pids[1] is None, "its second job was its last"
            assert pids[2] not in (None, pids[0])
            eventually(lambda: gone(pids[0]), "the end of the process")
        assert compaction_worker.pid is None
        eventually(lambda: gone(pids[2] or 0), "the end of the process")

    asyncio.run(main())


@pytest.mark.slow
def test_an_idle_process_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path, idle_s=3600.0) as (log, cleaner, compaction_worker):
            assert await cleaner.clean_once([log]) is not None
            pid = compaction_worker.pid
            assert pid is not None
            compaction_worker._end_soon()  # as the timer does
            await becomes(lambda: compaction_worker.pid is None, "the end of the idle process")
            eventually(lambda: gone(pid), "the end of the process")

    asyncio.run(main())


@pytest.mark.slow
def test_closing_the_cleaner_ends_a_compaction_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path) as (log, cleaner, compaction_worker):
            cleaner.limits = CleaningLimits(io_bytes_per_s=1000)  # it would take minutes
            cleaning = asyncio.ensure_future(cleaner.clean_once([log]))
            await becomes(
                lambda: list(tmp_path.glob("p-0/*.cleaned")) or compaction_worker.pid, "a compaction under way"
            )
            pid = compaction_worker.pid
            await cleaner.close()
            assert await cleaning is None
            assert cleaner.metrics.given_up == 1
            assert pid is not None
            eventually(lambda: gone(pid), "the end of the process")
            assert not list(tmp_path.glob("p-0/*.cleaned"))
            assert len(consume(log, committed=False)) == 2000

    asyncio.run(main())


def test_a_log_that_is_deleted_meanwhile_ends_the_compaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path) as (log, cleaner, compaction_worker):
            cleaner.limits = CleaningLimits(io_bytes_per_s=1000)
            cleaning = asyncio.ensure_future(cleaner.clean_once([log]))
            await becomes(lambda: compaction_worker.pid, "a process")
            log.abandon()
            async with asyncio.timeout(30):
                assert await cleaning is None
            assert compaction_worker.pid is None

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_is_killed_costs_only_its_work(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path) as (log, cleaner, compaction_worker):
            cleaner.limits = CleaningLimits(io_bytes_per_s=1000)
            cleaning = asyncio.ensure_future(cleaner.clean_once([log]))
            await becomes(lambda: compaction_worker.pid, "a process")
            os.kill(compaction_worker.pid, signal.SIGKILL)
            assert await cleaning is None
            cleaner.limits = CleaningLimits()
            assert await cleaner.clean_once([log]) is not None

    asyncio.run(main())


@pytest.mark.slow
def test_errors_come_back_as_what_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with in_process(tmp_path) as (log, cleaner, compaction_worker):
            jobs: list[CleanJob] = []
            inner = compaction_worker.do

            async def spied(job: CleanJob) -> CleanResult:
                jobs.append(job)
                return await inner(job)

            compaction_worker.do = spied  # type: ignore[method-assign]  # to get hold of a job
            segment = log.segments[0]
            segment.file.pwrite(100, b"\xff")
            assert await cleaner.clean_once([log]) is None
            assert "checksum" in cleaner.metrics.uncleanable[PARTITION]
            with pytest.raises(CleaningFailedError):
                await inner(jobs[0])
            (tmp_path / "p-0").rename(tmp_path / "moved")
            with pytest.raises(FileMissingError):
                await inner(jobs[0])
            (tmp_path / "moved").rename(tmp_path / "p-0")
            await compaction_worker.close()
            with pytest.raises(CleaningStoppedError):
                await inner(jobs[0])

    asyncio.run(main())


PARENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from headrace.log.compaction_job import CleaningLimits
from tests.log.test_cleaner_process import in_process
from tests.waiting import becomes

async def main():
    async with in_process(Path(sys.argv[1])) as (log, cleaner, worker):
        cleaner.limits = CleaningLimits(io_bytes_per_s=1000)
        cleaning = asyncio.ensure_future(cleaner.clean_once([log]))
        await becomes(lambda: worker.pid, "a process")
        print(worker.pid, flush=True)
        await cleaning

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_process_does_not_outlive_a_killed_broker(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), root], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    eventually(lambda: gone(pid), "the end of the process")


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of descriptors, processes or memory: compaction waits for its next turn."""

    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        async with in_process(tmp_path) as (log, cleaner, _):
            with monkeypatch.context() as short:
                short.setattr(asyncio, "create_subprocess_exec", refuse)
                assert await cleaner.clean_once([log]) is None
            assert cleaner.metrics.given_up == 1
            assert await cleaner.clean_once([log]) is not None

    asyncio.run(main())
