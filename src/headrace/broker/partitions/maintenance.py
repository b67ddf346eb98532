"""What a broker does from time to time: retention, checkpoints, syncs, compaction, closing idle connections.

Each duty is a task that sleeps most of the time. Work on logs goes through their directories' writers, in order with
the appends. Whatever goes wrong in a duty, or with one of the logs it looks after, is said in the broker's log and in
`Maintenance.failing`; the others go on, and at its next turn it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.producer_memory import ProducerMemory
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.view import ClusterView
from headrace.errors import HeadraceError, KafkaStorageError
from headrace.log import Log, checkpoints
from headrace.log.cleaner import Cleaner, CompactionWorker
from headrace.log.compaction_job import CleaningLimits
from headrace.runtime import Runtime

log = logging.getLogger("headrace.broker.partitions.maintenance")

SWEEP_INTERVAL_S = 5.0
FLUSH_CHECK_INTERVAL_S = 1.0
NEVER_MS = 2**62
SEGMENTS_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class OtherDuties:
    """What is due from time to time of other rooms."""

    sweep_connections: Callable[[], None]
    take_snapshot_if_due: Callable[[], Awaitable[None]]


class Maintenance:
    """The periodic duties of one broker."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: ClusterView,
        replicas: Replicas,
        duties: OtherDuties,
        compaction_worker: CompactionWorker | None,
        producer_bytes_max: int,
    ) -> None:
        self._clock = runtime.clock
        self._cluster = cluster
        self._replicas = replicas
        self._duties = duties
        config = cluster.config
        limits = CleaningLimits(
            dedupe_bytes=config.get_int("log.cleaner.dedupe.buffer.size"),
            load_factor=config.get_float("log.cleaner.io.buffer.load.factor"),
            io_bytes_per_s=config.get_float("log.cleaner.io.max.bytes.per.second"),
        )
        self.cleaner = Cleaner(
            runtime,
            limits,
            compaction_worker=compaction_worker,
            change=self._change,
            sync=self._sync,
            write_checkpoint=self._write_cleaned,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        # What is wrong now: the duty, or the duty and the log, and its last failure. Gone when it goes well again.
        self.failing: dict[str, str] = {}
        self.producer_memory = ProducerMemory(producer_bytes_max, self._partitions, runtime.clock.monotonic)
        # What was written down last. With the directory: each has its own, and that of a log that was moved knows
        # nothing of it yet. And after how many cuts: before one less is written down, and it may be given up.
        self._checkpointed: tuple[int, dict[tuple[str, int], tuple[str, int, int, int]]] = (0, {})
        self._watermarks: tuple[int, dict[tuple[str, int], tuple[str, int]]] = (0, {})

    def start(self) -> None:
        config = self._cluster.config
        retention_s = config.get_int("log.retention.check.interval.ms") / 1000
        checkpoint_s = config.get_int("log.flush.offset.checkpoint.interval.ms") / 1000
        self._every(SWEEP_INTERVAL_S, self._sweep)
        self._every(SWEEP_INTERVAL_S, self._forget_producers)
        self._every(FLUSH_CHECK_INTERVAL_S, self._flush)
        self._every(retention_s, self._retain)
        self._every(checkpoint_s, self._checkpoint)
        watermarks_s = config.get_int("replica.high.watermark.checkpoint.interval.ms") / 1000
        self._every(watermarks_s, self._checkpoint_watermarks)
        self._every(min(retention_s, 60.0), self._tidy)
        if config.get_bool("log.cleaner.enable"):
            self._every(config.get_int("log.cleaner.backoff.ms") / 1000, self._compact)

    async def stop(self) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await self.cleaner.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _every(self, interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(interval_s, duty)))

    async def _repeat(self, interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        name = duty.__name__.strip("_")
        while True:
            await asyncio.sleep(interval_s)
            await self._tried(name, duty())

    async def _tried(self, what: str, work: Awaitable[object]) -> None:
        """Do something of which nobody else hears; that it failed is noted, and no reason to stop."""
        try:
            await work
        except asyncio.CancelledError as error:
            if self._is_stopping:
                raise
            self._note_failure(what, error)  # something that it waited for was cancelled, not the duty
        except Exception as error:  # noqa: BLE001 - a duty that ends is never done again, and the disk fills up
            self._note_failure(what, error)
        else:
            if self.failing.pop(what, None) is not None:
                log.info("%s went well again", what)

    def _note_failure(self, what: str, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        is_new = self.failing.get(what) != text
        self.failing[what] = text
        if isinstance(error, HeadraceError):
            log.error("%s failed, and is tried again at its next turn: %s", what, text)
        elif is_new:
            log.error(
                "%s failed by a defect of the broker, and is tried again at its next turn; please report it",
                what,
                exc_info=error,
            )
        else:
            log.error("%s failed again in the same way (%s); please report it", what, text)

    # --- duties

    async def _sweep(self) -> None:
        self._duties.sweep_connections()

    async def _forget_producers(self) -> None:
        """Forget producer ids where there are more than there is room for."""
        await self.producer_memory.tidy()

    async def _flush(self) -> None:
        """Sync the logs whose topic asks for it by time (`flush.ms`)."""
        now_ms = self._clock.now_ms()
        due = [
            self._tried(f"flush of {partition.key}", partition.sync())
            for partition in self._partitions()
            if partition.log.config.flush_ms < NEVER_MS and partition.log.sync_due(now_ms)
        ]
        # All at once: a directory's writer syncs many files in the time that a few take one after the other.
        await asyncio.gather(*due)

    async def _retain(self) -> None:
        """Delete segments that are too old or too many, and end those that compaction waits for."""
        now_ms = self._clock.now_ms()
        for partition in self._partitions():
            # Its disk may fail, or its topic be deleted: no reason to keep the others waiting.
            await self._tried(f"retention of {partition.key}", self._retain_log(partition, now_ms))
        self._forget_absent()

    async def _retain_log(self, partition: Partition, now_ms: int) -> None:
        """A few segments at a time: each costs some syncs, while appends to all logs of the directory wait."""
        deleted: list[int] = []
        while not deleted or deleted[-1] == SEGMENTS_AT_ONCE:
            await partition.turns.change_log(_retain, now_ms, deleted)
        if any(deleted):
            log.info("%s: %d segments deleted by retention", partition.key, sum(deleted))

    async def _checkpoint(self) -> None:
        """Write down how far each log is durable, where it starts and what is committed; only when that has changed."""
        directories = self._replicas.directories
        logs = [(key, partition.log) for key, partition in self._replicas.partitions.items()]
        state = {key: (log.directory, log.recovery_point, log.start_offset, log.high_watermark) for key, log in logs}
        due = (directories.cuts_ended, state)
        if due != self._checkpointed:
            await self._replicas.change_directories(directories.checkpoint)
            self._checkpointed = due

    async def _checkpoint_watermarks(self) -> None:
        """Write down what is committed where other replicas decide that: a lone one finds it in its log."""
        directories = self._replicas.directories
        marks = {
            key: (partition.log.directory, partition.log.high_watermark)
            for key, partition in self._replicas.partitions.items()
            if len(partition.leadership.replicas) > 1
        }
        due = (directories.cuts_ended, marks)
        if due != self._watermarks:
            await self._replicas.change_directories(directories.checkpoint, checkpoints.HIGH_WATERMARK)
            self._watermarks = due

    async def _compact(self) -> None:
        """Compact the logs that need it, one after the other, until none does."""
        while any(partition.log.config.compact for partition in self._partitions()):
            if await self.cleaner.clean_once([partition.log for partition in self._partitions()]) is None:
                return

    async def _change(self, partition_log: Log, change: Callable[[], None]) -> None:
        """A change of a log by the cleaner, in order with the appends."""
        topic, index = partition_log.partition

        def unless_exchanged(current: Log) -> None:
            if current is not partition_log:
                raise KafkaStorageError(f"{current.partition} was moved or made anew while it was compacted")
            change()

        await self._replicas.get(topic, index).turns.change_log(unless_exchanged)

    async def _sync(self, partition_log: Log) -> None:
        await self._replicas.get(*partition_log.partition).sync()

    async def _write_cleaned(self, path: str, offset_of: Callable[[Log], int | None]) -> None:
        await self._replicas.change_directories(self._replicas.directories.write_cleaned, path, offset_of)

    async def _tidy(self) -> None:
        """Remove what was deleted some time ago, and keep the metadata log short."""
        await self._tried("removal of deleted logs", self._remove_deleted())
        await self._tried("snapshot of the metadata", self._duties.take_snapshot_if_due())

    async def _remove_deleted(self) -> None:
        """One after the other, as thousands of files may take minutes: what the metadata says of logs comes between."""
        replicas, clean_up = self._replicas, self._replicas.directories.clean_up
        now_ms = self._clock.now_ms()
        while await replicas.change_directories(clean_up, now_ms, 1):
            pass

    def _forget_absent(self) -> None:
        """What failed with a log that is not here any more has come to its end."""
        here = {str(partition.key) for partition in self._partitions()}
        for what in list(self.failing):
            duty, is_of_log, key = what.partition(" of ")
            if is_of_log and duty in ("flush", "retention") and key not in here:
                del self.failing[what]

    def _partitions(self) -> list[Partition]:
        return [partition for partition in self._replicas.partitions.values() if not partition.is_offline]


def _retain(partition_log: Log, now_ms: int, deleted: list[int]) -> None:
    deleted.append(len(partition_log.apply_retention(now_ms, SEGMENTS_AT_ONCE)))
    partition_log.remove_discarded(now_ms)
    partition_log.roll_if_due(now_ms)
    partition_log.producers.remove_expired(now_ms)
