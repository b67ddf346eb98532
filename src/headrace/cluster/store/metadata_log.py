"""The metadata log of a cluster of one: `__cluster_metadata-0`, on this broker's own disk.

The records of a decision are one batch, so that a crash leaves all of them or none, and are synced before anyone hears
of them. When the log has grown, a snapshot (the image as records, named by offset and epoch as KRaft names its own)
takes the place of what is before it, so that starting reads what there is and not all that ever was.

Everything here was synced before anyone heard of it, but for the last batch, which a crash may tear. So anything else
that cannot be read is damage, and is refused: a shorter log would make topics unknown that are there.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.cluster.image import Image, InconsistentMetadataError
from headrace.cluster.records import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    MetadataRecord,
    NoOpRecord,
)
from headrace.cluster.store import DecisionTooLargeError, Reading
from headrace.cluster.store.batches import batch_of, batches_of, checked_batches, records_of, settled
from headrace.config import INT64_MAX
from headrace.errors import KafkaStorageError, StaleControllerEpochError
from headrace.log import Log, LogConfig, Origin, only
from headrace.records import split
from headrace.runtime import Disk, DiskError, FileMissingError, Runtime
from headrace.topics import TopicPartition

logger = logging.getLogger("headrace.cluster.store")

DIRECTORY_NAME: Final = f"{METADATA_TOPIC}-0"
END_FILE_NAME: Final = "headrace.end-offset"
DECISION_BYTES_MAX: Final = 64 * 1024 * 1024
SNAPSHOT_AFTER_BYTES: Final = 20 * 1024 * 1024
_READ_BYTES: Final = 4 * 1024 * 1024
_DIGITS_MAX: Final = 19
_SNAPSHOT_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")

_CONFIG: Final = LogConfig(
    max_message_bytes=DECISION_BYTES_MAX,
    retention_ms=-1,
    retention_bytes=-1,
    segment_ms=INT64_MAX,
    timestamp_after_max_ms=INT64_MAX,
    file_delete_delay_ms=0,
)


class MetadataSnapshot(NamedTuple):
    """A snapshot on disk: it stands for every record before `end_offset`."""

    end_offset: int
    epoch: int
    path: str


_NO_SNAPSHOT: Final = MetadataSnapshot(0, -1, "")


class MetadataLog:
    """The records, and the snapshot before them. Blocking; one thread at a time."""

    def __init__(self, runtime: Runtime, log: Log, snapshot: MetadataSnapshot, snapshot_after_bytes: int) -> None:
        """Use `MetadataLog.open`."""
        self._disk = runtime.disk
        self._clock = runtime.clock
        self._log = log
        self._snapshot = snapshot
        self._snapshot_after_bytes = snapshot_after_bytes
        self._epoch = max(log.leader_epoch, snapshot.epoch)
        log.update_high_watermark(log.end_offset)

    @classmethod
    def open(cls, runtime: Runtime, parent: str, *, snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES) -> MetadataLog:
        """Open the log in the log directory `parent`, or make it there. What a crash left half-done is removed."""
        directory = os.path.join(parent, DIRECTORY_NAME)
        snapshot = _latest_snapshot(runtime.disk, directory)
        # First of all: what the log has before the snapshot's end is dropped, which a damaged one cannot make up for.
        _check_snapshot(runtime.disk, snapshot)
        try:
            log = Log.open(
                runtime,
                directory,
                TopicPartition(METADATA_TOPIC, 0),
                _CONFIG,
                topic_id=METADATA_TOPIC_ID,
                recovery_point=_noted_end(runtime.disk, directory),
                start_offset=snapshot.end_offset,
                each_synced=True,
            )
        except KafkaStorageError as error:
            raise InconsistentMetadataError(
                f"the metadata log is damaged, and is left as it is: {error}. Without it the topics are taken over "
                "from their logs, but their configurations are lost"
            ) from error
        if log.end_offset < snapshot.end_offset:
            log.start_at(snapshot.end_offset)
        elif log.recovery.missing:
            raise InconsistentMetadataError(
                f"{directory}: records are lost ({log.recovery.missing}); restore the directory from a copy"
            )
        elif log.start_offset > snapshot.end_offset:
            raise InconsistentMetadataError(
                f"{directory}: the metadata log begins at {log.start_offset}, but its snapshot ends at "
                f"{snapshot.end_offset}: records between are lost, restore the directory from a copy"
            )
        return cls(runtime, log, snapshot, snapshot_after_bytes)

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def epoch(self) -> int:
        """The epoch of the latest controller."""
        return self._epoch

    @property
    def snapshot_end_offset(self) -> int:
        return self._snapshot.end_offset

    def elect(self, node_id: int) -> int:
        self._epoch += 1
        # Written down at once, so that no later controller gets the same epoch.
        self._append([NoOpRecord()])
        return self._epoch

    def append_if_epoch(self, epoch: int, records: Sequence[MetadataRecord]) -> int:
        if epoch != self._epoch:
            raise StaleControllerEpochError(f"The controller of epoch {epoch} was replaced: it is {self._epoch} now.")
        if records:
            self._append(records)
        return self._log.end_offset

    def _append(self, records: Iterable[MetadataRecord]) -> None:
        batch = batch_of(records, self._clock.now_ms())
        if len(batch) > DECISION_BYTES_MAX:
            raise DecisionTooLargeError(
                f"A decision of {len(batch)} bytes of metadata is too large; ask for less at once "
                f"(at most {DECISION_BYTES_MAX} bytes)."
            )
        only(self._log.append([self._log.check(batch, Origin.COORDINATOR)], self._epoch))
        try:
            self._log.sync()
        except DiskError as error:
            # The records are in the log all the same, and the next start will find them there: nothing may follow that
            # was decided without them.
            self._log.fail(error)
            raise KafkaStorageError(f"the metadata log could not be synced: {error}") from error
        self._log.update_high_watermark(self._log.end_offset)

    def read(self, offset: int) -> Reading:
        """Everything from an offset on; with the snapshot, if that has taken the place of something asked for."""
        snapshot = None
        if offset < self._snapshot.end_offset:
            snapshot = list(self._read_snapshot())
            offset = self._snapshot.end_offset
        records = list(settled(self._read_log(offset), self._log.directory))
        return Reading(records, self._log.end_offset, snapshot, self._snapshot.end_offset)

    def _read_log(self, offset: int) -> Iterator[tuple[int, MetadataRecord]]:
        while offset < self._log.end_offset:
            place = self._log.locate(offset, _READ_BYTES, limit=self._log.end_offset, at_least_one=True)
            data = place.file.read(place.position, place.length)
            before = offset
            for batch in split(data):
                header = batch.header()
                if header.last_offset >= offset and not header.is_control:
                    for at, record in records_of(batch, self._log.directory):
                        if at >= offset:
                            yield at, record
                offset = max(offset, header.next_offset)
            if offset == before:
                raise InconsistentMetadataError(f"{self._log.directory}: nothing can be read at offset {offset}")

    def _read_snapshot(self) -> Iterator[MetadataRecord]:
        for batch in checked_batches(self._disk.read_file(self._snapshot.path), self._snapshot.path):
            for _, record in records_of(batch, self._snapshot.path):
                yield record

    # --- snapshots ----------------------------------------------------------------------------------------------------

    @property
    def snapshot_due(self) -> bool:
        """Whether the log has grown enough to be replaced by a snapshot."""
        return self._log.size_bytes >= self._snapshot_after_bytes

    def take_snapshot(self, image: Image) -> None:
        """Replace all records so far by the image that they make. A crash at any point loses nothing."""
        if image.offset != self._log.end_offset:
            raise ValueError(
                f"the image is that of offset {image.offset}, but the log ends at {self._log.end_offset}: fold it first"
            )
        taken = MetadataSnapshot(image.offset, self._epoch, "")
        name = f"{taken.end_offset:020d}-{max(taken.epoch, 0):010d}.checkpoint"
        taken = taken._replace(path=os.path.join(self._log.directory, name))
        now_ms = self._clock.now_ms()
        data = b"".join(batches_of(image.to_records(), now_ms))
        self._disk.replace_file(taken.path, data)
        self._snapshot = taken
        self._log.roll()
        self._log.delete_records(taken.end_offset)
        self._log.apply_retention(now_ms)
        self._log.sync()
        self._log.remove_discarded(self._clock.now_ms())
        for old in _snapshots(self._disk, self._log.directory):
            if old.path != taken.path:
                self._disk.remove(old.path)

    def close(self) -> None:
        self._log.close()
        if self._log.failure is None:
            # So that the next start can tell a last batch that was damaged since from one that a crash tore.
            path = os.path.join(self._log.directory, END_FILE_NAME)
            try:
                self._disk.replace_file(path, b"%d\n" % self._log.end_offset)
            except DiskError as error:
                logger.warning("the end of the metadata log could not be noted: %s", error)


def _noted_end(disk: Disk, directory: str) -> int:
    """Where the log ended at its last stop in order; 0 when that is not known."""
    try:
        text = disk.read_file(os.path.join(directory, END_FILE_NAME)).strip()
    except FileMissingError:
        return 0
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0


def _latest_snapshot(disk: Disk, directory: str) -> MetadataSnapshot:
    """The newest snapshot. Older ones, which a crash kept from being removed, go with the next one that is taken."""
    if not disk.is_dir(directory):
        return _NO_SNAPSHOT
    for name in disk.listdir(directory):
        if name.endswith(".checkpoint.tmp"):
            disk.remove(os.path.join(directory, name))
    return max(_snapshots(disk, directory), default=_NO_SNAPSHOT)


def _snapshots(disk: Disk, directory: str) -> list[MetadataSnapshot]:
    found = []
    for name in disk.listdir(directory):
        match = _SNAPSHOT_NAME.fullmatch(name)
        if match is not None:
            found.append(MetadataSnapshot(int(match[1]), int(match[2]), os.path.join(directory, name)))
    return found


def _check_snapshot(disk: Disk, snapshot: MetadataSnapshot) -> None:
    if snapshot.path:
        for _ in checked_batches(disk.read_file(snapshot.path), snapshot.path):
            pass
