"""Compact in a process of its own, so that the broker's interpreter never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process

from headrace.log.compaction import CleaningFailedError, CleaningStoppedError
from headrace.log.compaction_job import CleanJob, CleanResult
from headrace.runtime import DiskError

_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class InProcess:
    """A worker that is started with the first job, stays for the next ones, and ends when there are none for a while.

    It ends with this process, whatever becomes of it: its input is a pipe that closes then.
    """

    def __init__(self, *, idle_s: float = 30.0, jobs_max: int = 200, job_s_max: float = 86_400.0) -> None:
        self._idle_s = idle_s
        self._jobs_max = jobs_max
        self._job_s_max = job_s_max
        self._process: Process | None = None
        self._jobs = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._busy = False
        self._asking = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return self._process.pid if self._process is not None else None

    async def do(self, job: CleanJob) -> CleanResult:
        if self._busy or self._closed:
            raise CleaningStoppedError("the worker is closed" if self._closed else "the worker has a job already")
        self._busy = True
        try:
            process = await self._worker()
            try:
                self._asking = True
                async with asyncio.timeout(self._job_s_max):
                    line = await _ask(process, job)
            except TimeoutError:
                raise CleaningStoppedError(f"the worker was not done after {self._job_s_max} s") from None
            finally:
                self._asking = False
            if not line.endswith(b"\n"):
                raise CleaningStoppedError(f"the worker ended with status {await process.wait()}")
        except BaseException:
            await self._end()
            raise
        finally:
            self._busy = False
        self._jobs += 1
        if self._jobs >= self._jobs_max:
            await self._end()
        else:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_soon)
        return _result(line)

    async def close(self) -> None:
        self._closed = True
        await self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _worker(self) -> Process:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._jobs = 0
        # The same headrace as this one, wherever it was imported from.
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace.log.cleaner_worker",
                stdin=PIPE,
                stdout=PIPE,
                limit=_ANSWER_BYTES_MAX,
                env=os.environ | {"PYTHONPATH": path},
                # A Ctrl-C at the terminal is for the broker, which ends its worker by itself.
                start_new_session=True,
            )
        except OSError as error:  # too many processes, too many open files, too little memory
            raise CleaningStoppedError(f"the worker could not be started: {error}") from error
        return self._process

    def _end_soon(self) -> None:
        if not self._busy:
            task = asyncio.ensure_future(self._end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self) -> None:
        """Kill the worker: it has nothing that it would have to put in order."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        await process.wait()
        if not self._asking:  # else it is read to its end by who waits for the answer
            await process.stdout.read()


async def _ask(process: Process, job: CleanJob) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(job.to_json().encode() + b"\n")
    with contextlib.suppress(ConnectionError):  # it died: the answer says so
        await process.stdin.drain()
    return await process.stdout.readline()


def _result(line: bytes) -> CleanResult:
    answer = json.loads(line)
    if "failed" in answer:
        raise CleaningFailedError(answer["failed"])
    if "disk" in answer:
        operation, path, number = answer["disk"]
        raise DiskError.of(OSError(number, ""), operation, path)
    return CleanResult.from_json(answer["result"])
