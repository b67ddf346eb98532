"""One log directory: the logs in it, the names they have there, and the checkpoints at its root.

Checkpoints are Kafka's, keyed by the name of a partition. A name may be used again, by another topic or by a log that
comes back from elsewhere, so an entry must never outlive the log that it was written for: before a log is put at a
name, the entries of that name are gone from the disk (`free`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.log import checkpoints
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.log.directory_names import DirectoryKind, temporary_name
from headrace.log.log import Log
from headrace.runtime import Disk, Lock, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log")


def _start_that_no_name_tells(log: Log) -> int | None:
    return log.start_offset if log.start_offset > log.segments[0].base_offset else None


OFFSETS: Final[dict[str, Callable[[Log], int | None]]] = {
    checkpoints.RECOVERY_POINT: lambda log: log.recovery_point,
    checkpoints.LOG_START: _start_that_no_name_tells,
    checkpoints.HIGH_WATERMARK: lambda log: log.high_watermark,
}
"""What is written down of each log, by the name of the file."""


@dataclass(slots=True, frozen=True)
class Unopened:
    """A log that is too damaged to be served; what the checkpoints say of it is kept for when it is repaired."""

    path: str
    reason: str
    offsets: dict[str, int]


@dataclass(slots=True)
class Directory:
    """`offline` has the reason when the disk failed. Its methods raise the DiskError of their disk."""

    path: str
    lock: Lock | None = None
    directory_id: str = ""
    offline: str | None = None
    clean: bool = False
    stopped_in_epoch: int = -1
    """The broker's epoch when it was last stopped cleanly; -1 when it was not, or is not known."""
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    futures: dict[TopicPartition, Log] = field(default_factory=dict)
    unopened: dict[TopicPartition, Unopened] = field(default_factory=dict)
    stale: set[TopicPartition] = field(default_factory=set)
    """Names without a log of which a checkpoint may still have an entry."""
    cuts: dict[TopicPartition, int] = field(default_factory=dict)
    """Logs that are about to be cut, and where: nothing from there on counts as durable any more."""
    written: dict[TopicPartition, int] = field(default_factory=dict)
    """The recovery points that are on disk, or may be: replaced as a whole."""

    @property
    def count(self) -> int:
        return len(self.logs) + len(self.futures)

    # ---- names ---------------------------------------------------------------------------------------------------

    def home(self, partition: TopicPartition) -> str:
        """Where a partition's log is, or would be."""
        return os.path.join(self.path, str(partition))

    def rename(self, runtime: Runtime, path: str, partition: TopicPartition, state: DirectoryKind) -> str:
        """Give a partition's directory a name that says what is to become of it; not durable until `sync_dir`."""
        target = os.path.join(self.path, temporary_name(partition, runtime.uuid(), state))
        runtime.disk.rename(path, target)
        if path == self.home(partition):
            self.stale.add(partition)
        return target

    def set_aside(self, runtime: Runtime, path: str, partition: TopicPartition, why: str) -> None:
        """Keep a directory that nobody may use under a `-stray` name. Nothing of it is changed or removed."""
        target = self.rename(runtime, path, partition, DirectoryKind.STRAY)
        runtime.disk.sync_dir(self.path)
        logger.warning("%s %s: it is kept as %s, and nothing of it is deleted", path, why, os.path.basename(target))

    def free(self, runtime: Runtime, partition: TopicPartition) -> None:
        """See to it that nothing is at a partition's name, and that no checkpoint knows the name."""
        home = self.home(partition)
        if runtime.disk.exists(home):
            self.set_aside(runtime, home, partition, "is in the way of a new log of the same name")
            self.unopened.pop(partition, None)
        if partition in self.stale:
            self.write_checkpoints(runtime.disk)
            self._drop_from_cleaner_checkpoint(runtime.disk)
            self.stale.clear()

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def read_checkpoint(self, disk: Disk, name: str) -> dict[TopicPartition, int]:
        path = os.path.join(self.path, name)
        try:
            return checkpoints.read_offsets(disk, path)
        except DamagedCheckpointError as error:
            logger.warning("%s is damaged (%s): its offsets are found out from the logs", path, error)
            return {}

    def find_stale(self, known: dict[str, dict[TopicPartition, int]]) -> None:
        """Look for checkpoints' entries of which there is no log any more; `known` is what they say."""
        self.written = known[checkpoints.RECOVERY_POINT]
        for entries in known.values():
            self.stale.update(entries)
        self.stale.difference_update(self.logs, self.unopened)

    def write_checkpoints(self, disk: Disk) -> None:
        for name in OFFSETS:
            self.write_checkpoint(disk, name)

    def write_checkpoint(self, disk: Disk, name: str, extra: dict[TopicPartition, int] | None = None) -> None:
        """Write down one thing of every log here, and `extra` entries."""
        known = {partition: log.offsets[name] for partition, log in self.unopened.items() if name in log.offsets}
        offset_of = OFFSETS[name]
        for partition, log in self.logs.items():
            offset = offset_of(log)
            if offset is not None:
                known[partition] = offset
        known |= extra or {}
        path = os.path.join(self.path, name)
        if name != checkpoints.RECOVERY_POINT:
            checkpoints.write_offsets(disk, path, known)
            return
        # Before the cuts are looked at: one that begins after that finds here what is about to be written.
        self.written = {partition: max(offset, self.written.get(partition, 0)) for partition, offset in known.items()}
        self._heed_cuts(known)
        checkpoints.write_offsets(disk, path, known)
        self.written = known

    def _heed_cuts(self, recovery_points: dict[TopicPartition, int]) -> None:
        """Take back what was durable when it was looked at, and is cut off: cuts begin and end beside this.

        One that is under way is among `cuts`; of one that has ended since, the log itself knows by now.
        """
        for partition, offset in list(self.cuts.items()):
            if partition in recovery_points:
                recovery_points[partition] = min(recovery_points[partition], offset)
        for partition, log in self.logs.items():
            recovery_points[partition] = min(recovery_points[partition], log.recovery_point)

    def _drop_from_cleaner_checkpoint(self, disk: Disk) -> None:
        known = self.read_checkpoint(disk, checkpoints.CLEANER)
        kept = {partition: offset for partition, offset in known.items() if partition not in self.stale}
        if kept != known:
            checkpoints.write_offsets(disk, os.path.join(self.path, checkpoints.CLEANER), kept)
