"""What a broker does from time to time: retention, checkpoints, syncs, compaction, closing idle connections.

Each duty is a task that sleeps most of the time. Work on logs goes through their directories' writers, in order with
the appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.errors import HeadraceError, KafkaStorageError
from headrace.log import Log
from headrace.log.cleaner import Cleaner, Workshop
from headrace.log.compaction_job import CleaningLimits

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.maintenance")

SWEEP_INTERVAL_S = 5.0
FLUSH_CHECK_INTERVAL_S = 1.0
NEVER_MS = 2**62


class Maintenance:
    """The periodic duties of one broker."""

    def __init__(self, broker: Broker, workshop: Workshop | None) -> None:
        self._broker = broker
        config = broker.config
        limits = CleaningLimits(
            dedupe_bytes=config.get_int("log.cleaner.dedupe.buffer.size"),
            load_factor=config.get_float("log.cleaner.io.buffer.load.factor"),
            io_bytes_per_s=config.get_float("log.cleaner.io.max.bytes.per.second"),
        )
        self.cleaner = Cleaner(broker.runtime, limits, workshop=workshop, change=self._change)
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpointed: dict[tuple[str, int], tuple[int, int, int]] = {}

    def start(self) -> None:
        config = self._broker.config
        retention_s = config.get_int("log.retention.check.interval.ms") / 1000
        checkpoint_s = config.get_int("log.flush.offset.checkpoint.interval.ms") / 1000
        self._every(SWEEP_INTERVAL_S, self._sweep)
        self._every(FLUSH_CHECK_INTERVAL_S, self._flush)
        self._every(retention_s, self._retain)
        self._every(checkpoint_s, self._checkpoint)
        self._every(min(retention_s, 60.0), self._tidy)
        if config.get_bool("log.cleaner.enable"):
            self._every(config.get_int("log.cleaner.backoff.ms") / 1000, self._compact)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.cleaner.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _every(self, interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(interval_s, duty)))

    async def _repeat(self, interval_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await duty()
            except HeadraceError as error:
                log.error("%s failed, and is tried again in %.0f s: %s", duty.__name__.strip("_"), interval_s, error)

    # --- duties

    async def _sweep(self) -> None:
        self._broker.acceptor.sweep()

    async def _flush(self) -> None:
        """Sync the logs whose topic asks for it by time (`flush.ms`)."""
        now_ms = self._broker.runtime.clock.now_ms()
        due = [
            partition.sync()
            for partition in self._partitions()
            if partition.log.config.flush_ms < NEVER_MS and partition.log.sync_due(now_ms)
        ]
        # All at once: a directory's writer syncs many files in the time that a few take one after the other.
        for outcome in await asyncio.gather(*due, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _report("a log could not be synced", outcome)

    async def _retain(self) -> None:
        """Delete segments that are too old or too many, and end those that compaction waits for."""
        now_ms = self._broker.runtime.clock.now_ms()
        for partition in self._partitions():
            try:
                await partition.change_log(_retain, now_ms)
            except KafkaStorageError as error:
                # Its disk failed, or its topic was deleted: no reason to keep the others waiting.
                _report(f"{partition.key}: retention was not applied", error)

    async def _checkpoint(self) -> None:
        """Write down how far each log is durable, where it starts and what is committed; only when that has changed."""
        state = {
            key: (partition.log.recovery_point, partition.log.start_offset, partition.log.high_watermark)
            for key, partition in self._broker.replicas.partitions.items()
        }
        if state != self._checkpointed:
            await self._broker.replicas.change_directories(self._broker.directories.checkpoint)
            self._checkpointed = dict(state)

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

        await self._broker.partition(topic, index).change_log(unless_exchanged)

    async def _tidy(self) -> None:
        """Remove what was deleted some time ago, and keep the metadata log short."""
        now_ms = self._broker.runtime.clock.now_ms()
        await self._broker.replicas.change_directories(self._broker.directories.clean_up, now_ms)
        await self._broker.metadata.take_snapshot_if_due()

    def _partitions(self) -> list[Partition]:
        return [partition for partition in self._broker.replicas.partitions.values() if not partition.is_offline]


def _report(what: str, error: BaseException) -> None:
    if not isinstance(error, HeadraceError):
        raise error
    log.warning("%s: %s", what, error)


def _retain(partition_log: Log, now_ms: int) -> None:
    deleted = partition_log.apply_retention(now_ms)
    partition_log.remove_discarded(now_ms)
    partition_log.roll_if_due(now_ms)
    partition_log.producers.remove_expired(now_ms)
    if deleted:
        log.info("%s: %d segments deleted by retention", partition_log.partition, len(deleted))
