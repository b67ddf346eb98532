"""One log directory: the logs in it, the names they have there, and the checkpoints at its root.

Checkpoints are Kafka's, keyed by the name of a partition. A name may be used again, by another topic or by a log that
comes back from elsewhere, so an entry must never outlive the log that it was written for: before a log is put at a
name, the entries of that name are gone from the disk (`free`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from headrace.log import checkpoints
from headrace.log.checkpoints import DamagedCheckpointError
from headrace.log.directory_names import DirectoryKind, temporary_name
from headrace.log.foreign import check_place, remove_log
from headrace.log.log import Log
from headrace.runtime import Disk, FileMissingError, Lock, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.log")


OffsetOf = Callable[[Log], int | None]

OFFSETS: Final[dict[str, OffsetOf]] = {
    checkpoints.RECOVERY_POINT: lambda log: log.recovery_point,
    # Also where the name of the first segment tells it, which may not be durable: what it follows would come back.
    checkpoints.LOG_START: lambda log: log.start_offset or None,
    checkpoints.HIGH_WATERMARK: lambda log: log.high_watermark,
}
"""What is written down of each log, by the name of the file."""
_FILES: Final = (*OFFSETS, checkpoints.CLEANER)
"""All of those files: in one of them the cleaner notes up to where it has compacted each log."""


class LogCut(NamedTuple):
    """Nothing of the log from that offset on counts any more: not as durable, deleted, committed or compacted."""

    partition: TopicPartition
    offset: int


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
    """Names without a log of which a checkpoint may still have an entry, or that a power loss may bring back."""
    leaving: dict[TopicPartition, int] = field(default_factory=dict)
    """Names that are those of deleted logs, or may be after a power loss, until they are renamed for good; and when to
    remove each."""
    doomed: list[tuple[int, str]] = field(default_factory=list)
    """Directories to be removed, and when."""
    foreign: list[str] = field(default_factory=list)
    """Directories that are named as a partition's and hold no log: they are neither used nor touched."""
    cuts: list[LogCut] = field(default_factory=list)
    """Those that are about to be made; of one log perhaps several, for leaders that follow one another."""
    written: dict[str, dict[TopicPartition, int]] = field(default_factory=lambda: {name: {} for name in _FILES})
    """What the checkpoints on disk say, or may say: each is replaced as a whole."""

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

    def delete(self, runtime: Runtime, due_ms: dict[TopicPartition, int]) -> None:
        """Rename logs' directories to `…-delete`, for good; `clean_up` removes each when it is due.

        DiskError: not all of them are. For want of memory, say: then they are by the next `clean_up`, or `free`.
        """
        self.stale.update(due_ms)
        self.leaving.update(due_ms)
        self._rename_leaving(runtime)

    def _rename_leaving(self, runtime: Runtime) -> None:
        for partition, due_ms in self.leaving.items():
            with contextlib.suppress(FileMissingError):  # as it was renamed, and only not for good
                target = self.rename(runtime, self.home(partition), partition, DirectoryKind.DELETE)
                self.doomed.append((due_ms, target))
        runtime.disk.sync_dir(self.path)
        self.leaving.clear()

    def clean_up(self, runtime: Runtime, now_ms: int, at_most: int | None = None) -> int:
        """Remove what is due; how many that were. DiskError: the others are by the next one."""
        if self.leaving:
            self._rename_leaving(runtime)
        due = list(islice((entry for entry in self.doomed if entry[0] <= now_ms), at_most))
        for entry in due:
            with contextlib.suppress(FileMissingError):
                remove_log(runtime.disk, entry[1])
            self.doomed.remove(entry)
        return len(due)

    def free(self, runtime: Runtime, partition: TopicPartition) -> None:
        """See to it that nothing is at a partition's name, and that no checkpoint knows the name.

        KafkaStorageError: something is there that is no log.
        """
        home = self.home(partition)
        check_place(runtime.disk, home)
        if partition in self.leaving:
            self._rename_leaving(runtime)
        if runtime.disk.exists(home):
            self.set_aside(runtime, home, partition, "is in the way of a new log of the same name")
            self.unopened.pop(partition, None)
        if partition in self.stale:
            self.write_checkpoints(runtime.disk)
            if self.stale & self.written[checkpoints.CLEANER].keys():
                self.write_checkpoint(runtime.disk, checkpoints.CLEANER)
            self.stale = set(self.leaving)

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
        self.written = {name: known[name] for name in _FILES}
        for entries in known.values():
            self.stale.update(entries)
        self.stale.difference_update(self.logs, self.unopened)

    def write_checkpoints(self, disk: Disk) -> None:
        for name in OFFSETS:
            self.write_checkpoint(disk, name)

    def write_checkpoint(
        self,
        disk: Disk,
        name: str,
        extra: dict[TopicPartition, int] | None = None,
        offset_of: OffsetOf | None = None,
    ) -> None:
        """Write down one thing of every log here, and `extra` entries.

        `offset_of` tells it of a log; without, the log itself does, or what is written down already.
        """
        known = {partition: log.offsets[name] for partition, log in self.unopened.items() if name in log.offsets}
        offset_of = offset_of or OFFSETS.get(name) or (lambda log: self.written[name].get(log.partition))
        for partition, log in self.logs.items():
            offset = offset_of(log)
            if offset is not None:
                known[partition] = offset
        known |= extra or {}
        # Before the cuts are looked at: one that begins after that finds here what is about to be written.
        before = self.written[name]
        self.written[name] = before | {partition: max(at, before.get(partition, 0)) for partition, at in known.items()}
        self._heed_cuts(known, offset_of)
        checkpoints.write_offsets(disk, os.path.join(self.path, name), known)
        self.written[name] = known

    def _heed_cuts(self, known: dict[TopicPartition, int], offset_of: OffsetOf) -> None:
        """Take back what was so when it was looked at, and is cut off: cuts begin and end beside this.

        One that is under way is among `cuts`; of one that has ended since, the log itself knows by now.
        """
        for partition, cut_at in list(self.cuts):
            if partition in known:
                known[partition] = min(known[partition], cut_at)
        for partition, log in self.logs.items():
            if partition in known:
                offset = offset_of(log)
                if offset is None:
                    del known[partition]
                else:
                    known[partition] = min(known[partition], offset)

    def contradicts(self, cut: LogCut) -> bool:
        """Whether the disk says more of a log than is true once it is cut."""
        return cut.partition in self.leaving or bool(self._contradicting(cut))

    def _contradicting(self, cut: LogCut) -> list[str]:
        return [name for name, written in self.written.items() if written.get(cut.partition, 0) > cut.offset]

    def write_cut(self, runtime: Runtime, cut: LogCut) -> None:
        """Write down that nothing behind a cut, which is among `cuts`, counts any more."""
        if cut.partition in self.leaving:
            # It has moved away from here: found again, it would be longer than the log that is in use.
            self._rename_leaving(runtime)
        if cut.partition in self.logs:
            for name in self._contradicting(cut):
                self.write_checkpoint(runtime.disk, name)
