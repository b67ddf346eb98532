"""Producer state on disk: Kafka's `<offset>.snapshot` files, one when a segment ends and one at a clean stop."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from headrace.errors import HeadraceError
from headrace.log.producer_state import LogProducers, ProducerEntry, WrittenBatch
from headrace.runtime import Disk, FileMissingError

SUFFIX = ".snapshot"
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_CRC_FROM = 6


class DamagedSnapshotError(HeadraceError):
    """A snapshot that cannot be used: the state is rebuilt from the log instead."""


def encode(producers: Iterable[ProducerEntry]) -> bytes:
    entries = [
        _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.batches[-1].offset_delta if producer.batches else 0,
            producer.last_timestamp_ms,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
        for producer in producers
    ]
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def check(data: bytes) -> None:
    """Raise DamagedSnapshotError unless the bytes are a whole snapshot."""
    if len(data) < _HEAD.size:
        raise DamagedSnapshotError(f"{len(data)} bytes are too few for a snapshot")
    version, stored_crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise DamagedSnapshotError(f"version {version}; the only known one is {_VERSION}")
    if crc32c(memoryview(data)[_CRC_FROM:]) != stored_crc:
        raise DamagedSnapshotError("its checksum does not match its bytes")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise DamagedSnapshotError(f"{len(data)} bytes do not hold the {count} producers it names")


def decode(data: bytes) -> list[ProducerEntry]:
    check(data)
    producers = []
    for entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first_offset = entry
        batches = (WrittenBatch(last_sequence, last_offset, delta, timestamp_ms),) if last_offset >= 0 else ()
        producers.append(
            ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp_ms, max(first_offset, -1), batches)
        )
    return producers


class SnapshotFiles:
    """The snapshots of one log, by offset."""

    __slots__ = ("_disk", "directory", "dropped", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)
        self.dropped = 0

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def path(self, offset: int) -> str:
        return os.path.join(self.directory, f"{offset:020d}{SUFFIX}")

    def take(self, state: LogProducers) -> None:
        """Keep the state as of its end offset. Not synced: a checksum tells a torn one, and the log can replace it."""
        offset = state.end_offset
        file = self._disk.open(self.path(offset), create=True)
        try:
            if file.size():
                file.truncate(0)
            file.append([encode(state.producers.values())])
        finally:
            file.close()
        if offset not in self.offsets:
            self.offsets = sorted([*self.offsets, offset])

    def sync(self, offset: int) -> None:
        file = self._disk.open(self.path(offset))
        try:
            file.sync()
        finally:
            file.close()

    def is_whole(self, offset: int) -> bool:
        """Whether there is one, and no power loss has torn it."""
        try:
            check(self._disk.read_file(self.path(offset)))
        except (DamagedSnapshotError, FileMissingError):
            return False
        return True

    def read(self, offset: int) -> list[ProducerEntry]:
        """Raises DamagedSnapshotError, or FileMissingError."""
        return decode(self._disk.read_file(self.path(offset)))

    def drop(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
        self.dropped += 1
        try:
            self._disk.remove(self.path(offset))
        except FileMissingError:
            return

    def drop_strays(self, segment_bases: Sequence[int]) -> None:
        """Remove those that belong to no segment but for the newest of them, as each clean stop leaves one behind."""
        strays = [offset for offset in self.offsets if offset not in segment_bases]
        for offset in strays[:-1]:
            self.offsets.remove(offset)
            self._disk.remove(self.path(offset))

    def drop_after(self, offset: int) -> None:
        for known in [known for known in self.offsets if known > offset]:
            self.drop(known)
