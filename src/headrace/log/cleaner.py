"""The log cleaner: picks the log that needs compaction most, has it compacted off the loop, swaps the result in."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from headrace.errors import HeadraceError
from headrace.log import checkpoints
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.log.cleaning_choice import Candidate, cleanable, job_for
from headrace.log.compaction import CleaningFailedError, CleaningStoppedError, clean
from headrace.log.compaction_job import CleaningLimits, CleanJob, CleanResult, CleanStatistics, SegmentGroup
from headrace.log.files import LogFile
from headrace.log.log import Log
from headrace.log.offset_index import DamagedIndexError
from headrace.log.segment import CLEANED, LOG, SUFFIXES, Segment, file_name
from headrace.records import CorruptBatchError
from headrace.runtime import DiskError, FileMissingError, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log.cleaner")

_LOOK_EVERY_S = 0.5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

Change = Callable[[Log, Callable[[], None]], Awaitable[None]]
"""Run something that changes a log, in order with its appends: on the loop, or by its directory's writer."""
Sync = Callable[[Log], Awaitable[None]]
"""Make a log durable, one sync of it at a time."""
WriteCheckpoint = Callable[[str, Callable[[Log], int | None]], Awaitable[None]]
"""Write down up to where each log of a directory was compacted, in order with all that changes the directory."""


class _Cleaned(NamedTuple):
    """Where a log's last compaction ended. Of this log alone: what has its name later, another topic or a copy that was
    moved here, may not be compacted as far."""

    log: Log
    offset: int
    cuts: int
    """How often it had been cut before."""


class CompactionWorker(Protocol):
    """Where compactions are done. One at a time."""

    async def do(self, job: CleanJob) -> CleanResult:
        """Raises CleaningStoppedError, CleaningFailedError or a DiskError. Cancelling it ends the work in time."""
        ...

    async def close(self) -> None:
        """End what is under way, and whatever the worker keeps running."""
        ...


class InThread:
    """Compacts on a thread of this process: for simulations, tests, and where processes cannot be started.

    It holds the interpreter's lock most of the time, which a broker's clients notice. `pause` sleeps, for the limit on
    bytes per second; without it there is no such limit.
    """

    def __init__(self, runtime: Runtime, *, pause: Callable[[float], None] | None = None) -> None:
        self._runtime = runtime
        self._pool = runtime.workers.pool("cleaner", 1, queued_max=2)
        self._pause = pause
        self._stopped = False

    async def do(self, job: CleanJob) -> CleanResult:
        self._stopped = False
        work = self._pool.submit(self._clean, job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopped = True
            # Its files must not be written to any more when the caller removes them.
            await asyncio.wait((work,))
            raise

    def _clean(self, job: CleanJob) -> CleanResult:
        runtime = self._runtime
        return clean(runtime.disk, runtime.clock, job, pause=self._pause, stopped=lambda: self._stopped)

    async def close(self) -> None:
        self._stopped = True
        await self._pool.close()


@dataclass(slots=True, frozen=True)
class CleanReport:
    """One compaction that is in place."""

    partition: TopicPartition
    first_dirty_offset: int
    end_offset: int
    ratio: float
    """The uncompacted share of the log before."""
    segments_before: int
    segments_after: int
    statistics: CleanStatistics

    def summary(self) -> str:
        return (
            f"{self.partition}: compacted offsets {self.first_dirty_offset} to {self.end_offset}, "
            f"{self.segments_before} segments became {self.segments_after}; {self.statistics.summary()}"
        )


@dataclass(slots=True)
class CleanerMetrics:
    """What the cleaner did since it was made."""

    cleaned: int = 0
    given_up: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    longest_s: float = 0.0
    last_run_ms: int = -1
    dirtiest_ratio: float = 0.0
    overdue_ms_max: int = 0
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that cannot be compacted, and why; they are left alone until the next start."""


class Cleaner:
    """Call from the event loop. Give every log of the broker to each `clean_once`."""

    def __init__(
        self,
        runtime: Runtime,
        limits: CleaningLimits | None = None,
        *,
        compaction_worker: CompactionWorker | None = None,
        change: Change | None = None,
        sync: Sync | None = None,
        write_checkpoint: WriteCheckpoint | None = None,
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self.limits = limits or CleaningLimits()
        self.compaction_worker = compaction_worker or InThread(runtime)
        self._change = change or _inline
        self._sync = sync or self._sync_here
        self._write_checkpoint = write_checkpoint
        self._checkpoints: dict[str, dict[TopicPartition, _Cleaned]] = {}
        self._cuts_known: dict[TopicPartition, int] = {}
        # Those that were given up, and those that had their turn since: until all that are due had theirs.
        self._passed_over: set[TopicPartition] = set()
        self._one_at_a_time = asyncio.Lock()
        self.metrics = CleanerMetrics()

    async def clean_once(self, logs: Iterable[Log]) -> CleanReport | None:
        """Compact the log that needs it most; None when none does, or when it had to be given up.

        A DiskError is the log directory's: its log is out of service already if the log found it.
        """
        async with self._one_at_a_time:
            known = list(logs)
            now_ms = self._runtime.clock.now_ms()
            self.metrics.last_run_ms = now_ms
            candidate, wrong = await self._runtime.offload(self._choose, known, now_ms)
            for root in wrong:
                await self._write_offsets(root, known)
            if candidate is None:
                return None
            partition = candidate.log.partition
            self._passed_over.add(partition)
            try:
                report = await self._clean(candidate, known, now_ms)
                if len(self._passed_over) == 1:
                    self._passed_over.clear()  # no other waits for its turn to be over
                return report
            except CleaningStoppedError as stopped:
                self.metrics.given_up += 1
                logger.info("%s: compaction given up: %s", partition, stopped)
            except (CleaningFailedError, DamagedIndexError) as error:
                self.metrics.given_up += 1
                self._leave_alone(partition, error)
            except DiskError as error:
                self.metrics.given_up += 1
                if candidate.log.failure is not None:
                    # It failed, or was deleted and its files with it, while it was read.
                    logger.info("%s: compaction given up: %s", partition, error)
                elif error.errno in _NO_ROOM:
                    logger.error("%s: no room to compact: %s", partition, error)
                else:
                    raise
            return None

    def _leave_alone(self, partition: TopicPartition, error: HeadraceError | DamagedIndexError) -> None:
        self.metrics.uncleanable[partition] = str(error)
        logger.error("%s: will not be compacted until the next start: %s", partition, error)

    async def close(self) -> None:
        """End a compaction that is under way; the logs may be closed afterwards."""
        await self.compaction_worker.close()

    def forget(self, partition: TopicPartition) -> None:
        """The partition was deleted: one of the same name begins anew."""
        for cleaned in list(self._checkpoints.values()):
            cleaned.pop(partition, None)
        self._cuts_known.pop(partition, None)
        self._passed_over.discard(partition)
        self.metrics.uncleanable.pop(partition, None)

    def checkpoint_of(self, log: Log) -> int | None:
        """Where the log's last compaction ended."""
        cleaned = self._cleaned(log)
        return None if cleaned is None else cleaned.offset

    def _cleaned(self, log: Log) -> _Cleaned | None:
        cleaned = self._checkpoints.get(os.path.dirname(log.directory), {}).get(log.partition)
        return None if cleaned is None or cleaned.log is not log else cleaned

    def _still_cleaned(self, log: Log) -> int | None:
        """As `checkpoint_of`, without what was cut off since; asked on whichever thread."""
        cleaned = self._cleaned(log)
        return None if cleaned is None else log.view.recovered((cleaned.offset, cleaned.cuts))

    # ---- choosing ------------------------------------------------------------------------------------------------

    def _choose(self, logs: list[Log], now_ms: int) -> tuple[Candidate | None, set[str]]:
        """What to compact next, and the directories whose checkpoint turned out to be wrong."""
        candidates = []
        wrong = set()
        for root in {os.path.dirname(log.directory) for log in logs} - set(self._checkpoints):
            self._checkpoints[root] = self._read_offsets(root, logs)
        for log in logs:
            if not log.config.compact or log.failure is not None or log.partition in self.metrics.uncleanable:
                continue
            cuts_known = self._cuts_known.get(log.partition, 0)
            try:
                candidate = cleanable(log, now_ms, self.checkpoint_of(log), cuts_known)
            except (CorruptBatchError, DamagedIndexError) as error:
                self._leave_alone(log.partition, error)
                continue
            except DiskError as error:
                logger.error("%s: whether it is to be compacted cannot be told for now: %s", log.partition, error)
                continue
            if candidate is None:
                continue
            if candidate.right_checkpoint is not None:
                logger.info("%s: compaction begins again at offset %d", log.partition, candidate.first_dirty_offset)
                wrong.add(self._note_offset(candidate, candidate.right_checkpoint))
            self._cuts_known[log.partition] = candidate.cut_count
            candidates.append(candidate)
        self.metrics.dirtiest_ratio = max((candidate.ratio for candidate in candidates), default=0.0)
        self.metrics.overdue_ms_max = max((candidate.overdue_ms for candidate in candidates), default=0)
        due = [candidate for candidate in candidates if candidate.due]
        if all(candidate.log.partition in self._passed_over for candidate in due):
            self._passed_over.clear()
        first = [candidate for candidate in due if candidate.log.partition not in self._passed_over]
        return max(first, key=lambda candidate: (candidate.ratio, candidate.dirty_bytes), default=None), wrong

    def _read_offsets(self, root: str, logs: list[Log]) -> dict[TopicPartition, _Cleaned]:
        """What the file says of the logs that are there: they have their names from before it is read."""
        path = os.path.join(root, checkpoints.CLEANER)
        try:
            offsets = checkpoints.read_offsets(self._disk, path)
        except DamagedCheckpointError as error:
            logger.warning("%s is damaged (%s): compaction begins again at each log's start", path, error)
            return {}
        return {
            log.partition: _Cleaned(log, offsets[log.partition], 0)
            for log in logs
            if log.partition in offsets and os.path.dirname(log.directory) == root
        }

    def _note_offset(self, candidate: Candidate, offset: int) -> str:
        """Note where a log's compaction ended; the directory whose checkpoint is to be written."""
        log, root = candidate.log, os.path.dirname(candidate.directory)
        for cleaned in list(self._checkpoints.values()):
            cleaned.pop(log.partition, None)  # of where it was before
        self._checkpoints.setdefault(root, {})[log.partition] = _Cleaned(log, offset, candidate.cut_count)
        return root

    async def _write_offsets(self, root: str, logs: list[Log]) -> None:
        if self._write_checkpoint is not None:
            await self._write_checkpoint(root, self._still_cleaned)
            return
        offsets = {
            log.partition: offset
            for log in logs
            if log.failure is None
            and os.path.dirname(log.directory) == root
            and (offset := self._still_cleaned(log)) is not None
        }
        await self._runtime.offload(
            checkpoints.write_offsets, self._disk, os.path.join(root, checkpoints.CLEANER), offsets
        )

    # ---- cleaning ------------------------------------------------------------------------------------------------

    async def _clean(self, candidate: Candidate, logs: list[Log], now_ms: int) -> CleanReport:
        log = candidate.log
        offload = self._runtime.offload
        job = await offload(job_for, candidate, self._disk, now_ms, self.limits)
        known_to = log.end_offset
        try:
            result = await self._watched(candidate, self.compaction_worker.do(job))
            segments = {segment.base_offset: segment for segment in candidate.segments}
            if log.recovery_point < known_to and candidate.still_holds(()):
                # What was left out is gone for good with the first of them that is in place. What it was left out for
                # must not be lost then: newer values in the others, and behind them ends of transactions, and the last
                # batches of producers.
                await self._sync(log)
            for group in result.groups:
                await self._change(log, partial(self._swap, candidate, group, segments))
        except BaseException:
            if log.failure is None:
                await offload(self._remove_outputs, job)
            raise
        if log.failure is None:
            await self._write_offsets(self._note_offset(candidate, result.end_offset), logs)
        report = CleanReport(
            log.partition,
            candidate.first_dirty_offset,
            result.end_offset,
            candidate.ratio,
            sum(len(group.replaces) for group in result.groups),
            len(result.groups),
            result.statistics,
        )
        self._note(report)
        return report

    async def _sync_here(self, log: Log) -> None:
        await self._runtime.offload(log.sync)

    async def _watched(self, candidate: Candidate, work: Awaitable[CleanResult]) -> CleanResult:
        """Wait for the work, but not for work that cannot be used any more."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=_LOOK_EVERY_S)
                if not task.done() and not candidate.still_holds(()):
                    raise CleaningStoppedError("the log was cut, moved, deleted or taken out of service")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        return task.result()

    def _swap(self, candidate: Candidate, group: SegmentGroup, segments: dict[int, Segment]) -> None:
        """Put one new segment in place of its old ones, in order with the log's appends.

        Group by group, from the log's start on: whatever a crash leaves, nothing that was replaced is newer than
        something that was not, so no deleted value comes back.
        """
        log = candidate.log
        old = [segments[base_offset] for base_offset in group.replaces]
        if not candidate.still_holds(old):
            ends = dict(zip((segment.base_offset for segment in candidate.segments), candidate.ends))
            if candidate.still_holds(()) and ends[group.replaces[-1]] <= log.start_offset:
                self._remove_cleaned(candidate.directory, group.base_offset)  # retention was faster
                return
            raise CleaningStoppedError("the log's segments are not those any more that were compacted")
        path = os.path.join(candidate.directory, file_name(group.base_offset, LOG) + CLEANED)
        now_ms = self._runtime.clock.now_ms()
        new = Segment(log.caches, candidate.directory, group.base_offset, self._disk.size(path), now_ms)
        new.suffix = CLEANED
        new.file = LogFile(log.caches.files, path)
        new.synced = True
        log.replace_segments([new], old)

    def _remove_outputs(self, job: CleanJob) -> None:
        for source in job.sources:
            self._remove_cleaned(job.directory, source.base_offset)

    def _remove_cleaned(self, directory: str, base_offset: int) -> None:
        for kind in SUFFIXES:
            try:
                self._disk.remove(os.path.join(directory, file_name(base_offset, kind) + CLEANED))
            except FileMissingError:
                continue

    def _note(self, report: CleanReport) -> None:
        metrics = self.metrics
        metrics.cleaned += 1
        metrics.read_bytes += report.statistics.read_bytes
        metrics.written_bytes += report.statistics.written_bytes
        metrics.longest_s = max(metrics.longest_s, report.statistics.total_s)
        logger.info("%s", report.summary())


async def _inline(log: Log, change: Callable[[], None]) -> None:
    change()
