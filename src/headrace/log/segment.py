"""One segment of a log: its file, its indexes, and where an offset or a timestamp lies in it."""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.log.config import LogConfig
from headrace.log.files import FileCache, LogFile
from headrace.log.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from headrace.log.offset_index import DamagedIndex, OffsetIndex
from headrace.log.scanning import WouldBlock, scan_headers
from headrace.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from headrace.log.time_index import NO_TIMESTAMP, TimeIndex
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.transaction_index import parse as parse_aborted
from headrace.records import BatchHeader
from headrace.runtime import Buffer, Disk, DiskError, FileMissing

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

_RELATIVE_OFFSET_MAX = 2**31 - 1
_RECENT_MAX = 512
_HINTS_MAX = 16
_UNINDEXED_BYTES_MAX = 1024 * 1024
_LOOKUP_CHUNK_BYTES = 8 * 1024
DEFAULT_INDEX_BYTES_MAX = 64 * 1024 * 1024


def indexed_timestamp(header: BatchHeader) -> int:
    """What a batch has to say to look-ups by time: nothing, if compaction left it without a record to answer with."""
    return header.max_timestamp if header.count > 0 else NO_TIMESTAMP


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class IndexCache:
    """Bounds the memory of ended segments' loaded indexes: the first loaded goes first. Safe from any thread."""

    def __init__(self, bytes_max: int = DEFAULT_INDEX_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._loaded: dict[Segment, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def loaded(self, segment: Segment, size: int) -> None:
        with self._lock:
            self._bytes += size - self._loaded.pop(segment, 0)
            self._loaded[segment] = size
            while self._bytes > self.bytes_max and len(self._loaded) > 1:
                oldest = next(iter(self._loaded))
                self._bytes -= self._loaded.pop(oldest)
                oldest.unload_indexes()

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._bytes -= self._loaded.pop(segment, 0)


class Caches:
    """What the logs of one broker share: open files, and indexes in memory."""

    def __init__(
        self, disk: Disk, *, open_files_max: int = 1024, index_bytes_max: int = DEFAULT_INDEX_BYTES_MAX
    ) -> None:
        self.disk = disk
        self.files = FileCache(disk, open_files_max)
        self.indexes = IndexCache(index_bytes_max)


# Of the batches written last: their last offsets, their positions, and the offset from which none is missing.
_Recent = tuple["array[int]", "array[int]", int]


class Segment:
    """Changed by one thread; readers on other threads see a consistent state, because what they use only grows.

    The active segment's indexes live in memory and reach the disk when it ends (`seal`): a crash before that rebuilds
    them, because the recovery point never passes the active segment. An ended segment's are loaded when needed.
    """

    __slots__ = (
        "_aborted",
        "_caches",
        "_hints",
        "_offset_index",
        "_recent",
        "_time_index",
        "active",
        "base_offset",
        "bytes_since_entry",
        "created_ms",
        "directory",
        "file",
        "first_timestamp_ms",
        "jitter_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "size",
        "suffix",
        "synced",
    )

    def __init__(self, caches: Caches, directory: str, base_offset: int, size: int, created_ms: int) -> None:
        self._caches = caches
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = ""
        self.file = LogFile(caches.files, os.path.join(directory, file_name(base_offset, LOG)))
        self.size = size
        self.created_ms = created_ms
        self.jitter_ms = 0
        self.active = False
        self.synced = False
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.bytes_since_entry = 0
        # None: not looked up yet.
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms: int | None = None
        self.max_timestamp_offset = base_offset
        self._hints: dict[int, tuple[int, int]] = {}
        self._recent: _Recent | None = None

    @classmethod
    def create(cls, caches: Caches, directory: str, base_offset: int, now_ms: int) -> Segment:
        """A new, empty, active segment; its file exists afterwards (durable once the directory is synced)."""
        segment = cls(caches, directory, base_offset, 0, now_ms)
        segment.file.create = True
        segment.file.ensure_open()
        if segment.file.size():
            segment.file.truncate(0)
        segment.start_empty()
        return segment

    def start_empty(self) -> None:
        """Indexes of a segment without batches; it becomes the active one."""
        self.active = True
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._aborted = []
        self.max_timestamp_ms, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.bytes_since_entry = 0
        self._recent = (array("q"), array("q"), self.base_offset)

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)}, {self.size} bytes)"

    def path(self, kind: str) -> str:
        return os.path.join(self.directory, file_name(self.base_offset, kind) + self.suffix)

    # ---- writing -------------------------------------------------------------------------------------------------

    def write(self, parts: Sequence[Buffer]) -> None:
        """Put the bytes at the end of the file. They can be read only after `note` has been called for them."""
        position = self.file.append(parts)
        if position != self.size:
            raise DiskError(
                "append",
                self.file.path,
                None,
                detail=f"the file ends at byte {position} but the log at {self.size}: something else writes to it",
                rolled_back=False,
            )

    def note(self, batch_bytes: int, last_offset: int, max_timestamp_ms: int, index_interval_bytes: int) -> None:
        """Take in one batch that was written at the end: indexes, greatest timestamp, size."""
        position = self.size
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        assert self.max_timestamp_ms is not None
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = max_timestamp_ms, last_offset
        if self.bytes_since_entry > index_interval_bytes:
            assert self._offset_index is not None
            assert self._time_index is not None
            self._offset_index.append(last_offset, position)
            self._time_index.append(self.max_timestamp_ms, self.max_timestamp_offset)
            self.bytes_since_entry = 0
        self.bytes_since_entry += batch_bytes
        recent = self._recent
        if recent is not None:
            lasts, positions, _ = recent
            positions.append(position)
            lasts.append(last_offset)
            if len(lasts) > _RECENT_MAX:
                # New arrays: a reader on another thread may be using these.
                cut = _RECENT_MAX // 2
                self._recent = (lasts[cut:], positions[cut:], lasts[cut - 1] + 1)
        self.size = position + batch_bytes
        self.synced = False

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        self.aborted().append(transaction)

    def full_for(
        self, batch_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether a batch belongs into a new segment: size, age, full index, or an offset too far from the base."""
        if self.size > config.segment_bytes - batch_bytes or last_offset - self.base_offset > _RELATIVE_OFFSET_MAX:
            return True
        assert self._offset_index is not None
        assert self._time_index is not None
        if len(self._offset_index) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES:
            return self.size > 0
        if len(self._time_index) >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1:
            return self.size > 0
        return self.size > 0 and self.age_ms(now_ms, max_timestamp_ms) > config.segment_age_max_ms - self.jitter_ms

    def age_ms(self, now_ms: int, timestamp_ms: int) -> int:
        """The span from the first batch's timestamp to this one; by the clock where the first has none."""
        first = self.first_timestamp()
        return timestamp_ms - first if first >= 0 else now_ms - self.created_ms

    def first_timestamp(self) -> int:
        """The first batch's timestamp; -1 when there is no batch, or it has none."""
        if self.first_timestamp_ms is None:
            for _, header in scan_headers(self.file, 0, self.size, chunk_bytes=64):
                self.first_timestamp_ms = header.max_timestamp
                break
            else:
                return NO_TIMESTAMP
        return self.first_timestamp_ms

    def seal(self) -> None:
        """End the segment: its greatest timestamp gets an entry, and the indexes reach the disk (not synced)."""
        self._write_indexes()
        self.active = False
        self._recent = None
        self._caches.indexes.loaded(self, self._index_bytes())

    def _index_bytes(self) -> int:
        offsets, times = self._offset_index, self._time_index
        return 256 + (offsets.memory_bytes if offsets else 0) + (times.memory_bytes if times else 0)

    def write_indexes(self) -> None:
        """Write the index files as they would be if the segment ended now; more may be appended afterwards."""
        self._write_indexes()

    def _write_indexes(self) -> None:
        offsets, times = self.offset_index(), self.time_index()
        timestamp, offset = self.max_timestamp()
        times.append(timestamp, offset)
        self._write_file(OFFSET_INDEX, offsets.to_bytes())
        self._write_file(TIME_INDEX, times.to_bytes())
        aborted = self.aborted()
        if aborted or self._caches.disk.exists(self.path(TXN_INDEX)):
            self._write_file(TXN_INDEX, b"".join(entry.to_bytes() for entry in aborted))

    def _write_file(self, kind: str, data: bytes) -> None:
        file = self._caches.disk.open(self.path(kind), create=True)
        try:
            if file.size():
                file.truncate(0)
            if data:
                file.append([data])
        finally:
            file.close()

    def sync(self) -> None:
        """Make what is in the file durable, and the indexes too when the segment has ended."""
        self.file.sync()
        if self.active:
            return
        for kind in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            try:
                file = self._caches.disk.open(self.path(kind))
            except FileMissing:
                continue
            try:
                file.sync()
            finally:
                file.close()
        self.synced = True

    # ---- finding -------------------------------------------------------------------------------------------------

    def translate(self, offset: int, *, nowait: bool = False) -> tuple[int, int] | None:
        """(position, size) of the first batch that ends at or after `offset`; None when all end before it."""
        recent = self._recent
        if recent is not None and offset >= recent[2]:
            lasts, positions, _ = recent
            at = bisect_left(lasts, offset)
            count = len(lasts)
            if at >= count:
                return None
            position = positions[at]
            after = positions[at + 1] if at + 1 < count else self.size
            return position, after - position
        hint = self._hints.get(offset)
        if hint is not None:
            return hint
        start = self.offset_index(nowait=nowait).lookup(offset)
        chunk = max(_LOOKUP_CHUNK_BYTES, 64)
        for position, header in scan_headers(self.file, start, self.size, chunk_bytes=chunk, nowait=nowait):
            if header.base_offset + header.last_offset_delta >= offset:
                found = (position, header.size)
                if len(self._hints) >= _HINTS_MAX:
                    self._hints = {}
                self._hints[offset] = found
                return found
        return None

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        return scan_headers(self.file, position, self.size)

    def position_for_time(self, timestamp_ms: int, start_offset: int) -> int:
        """Where a scan for the first batch with a timestamp not below this one may begin."""
        offset = max(self.time_index().lookup(timestamp_ms), start_offset)
        return self.offset_index().lookup(offset)

    def max_timestamp(self) -> tuple[int, int]:
        """(greatest timestamp, last offset of its batch); (-1, base offset) when no batch has one."""
        if self.max_timestamp_ms is None:
            self.max_timestamp_ms, self.max_timestamp_offset = self.time_index().last()
        return self.max_timestamp_ms, self.max_timestamp_offset

    def largest_timestamp_ms(self) -> int:
        """By which its age is measured: the greatest timestamp, or when no batch has one, the file's own time."""
        timestamp, _ = self.max_timestamp()
        return timestamp if timestamp >= 0 else self._caches.disk.mtime_ms(self.file.path)

    # ---- indexes -------------------------------------------------------------------------------------------------

    def offset_index(self, *, nowait: bool = False) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            if nowait:
                raise WouldBlock(f"{self.path(OFFSET_INDEX)}: not in memory")
            self.load_indexes()
            index = self._offset_index
            assert index is not None
        return index

    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            self.load_indexes()
            index = self._time_index
            assert index is not None
        return index

    def aborted(self, *, nowait: bool = False) -> list[AbortedTransaction]:
        entries = self._aborted
        if entries is None:
            if nowait:
                raise WouldBlock(f"{self.path(TXN_INDEX)}: not in memory")
            try:
                data = self._caches.disk.read_file(self.path(TXN_INDEX))
            except FileMissing:
                data = b""
            entries = self._aborted = parse_aborted(data, self.base_offset)
        return entries

    def load_indexes(self) -> str | None:
        """Read both index files; where they are missing or damaged, rebuild them from the log. Why, if that was so."""
        disk = self._caches.disk
        reason = None
        try:
            offsets = OffsetIndex.from_bytes(disk.read_file(self.path(OFFSET_INDEX)), self.base_offset, self.size)
            times = TimeIndex.from_bytes(disk.read_file(self.path(TIME_INDEX)), self.base_offset)
            if self.size and not times:
                raise DamagedIndex("its time index is empty")
            if self.size > _UNINDEXED_BYTES_MAX and not offsets:
                raise DamagedIndex("its offset index is empty")
            self._offset_index, self._time_index = offsets, times
        except FileMissing as error:
            reason = f"{os.path.basename(error.path)} is missing"
        except DamagedIndex as error:
            reason = f"an index of {file_name(self.base_offset, LOG)} is damaged: {error}"
        if reason is not None:
            self.rebuild_indexes(4096)
        if not self.active:
            self._caches.indexes.loaded(self, self._index_bytes())
        return reason

    def rebuild_indexes(self, index_interval_bytes: int) -> None:
        """Make both indexes again from the batches' headers, and write them unless this is the active segment."""
        aborted = self._aborted
        size, self.size = self.size, 0
        active = self.active
        self.start_empty()
        self._aborted = aborted
        self._recent = None
        position = 0
        for position, header in scan_headers(self.file, 0, size):
            self.size = position
            self.note(header.size, header.last_offset, indexed_timestamp(header), index_interval_bytes)
        self.size = size
        self.active = active
        if not active:
            # Whole and durable at once: this segment may lie before the recovery point, where nothing is made twice.
            times = self.time_index()
            times.append(*self.max_timestamp())
            self._caches.disk.replace_file(self.path(OFFSET_INDEX), self.offset_index().to_bytes())
            self._caches.disk.replace_file(self.path(TIME_INDEX), times.to_bytes())

    def unload_indexes(self) -> None:
        """Give the memory back; only of an ended segment."""
        if not self.active:
            self._offset_index = self._time_index = None

    # ---- cutting, renaming, removing -----------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Cut off every batch that ends at or after `offset`, make this the active segment; the bytes cut."""
        found = self.translate(offset)
        offsets, times, aborted = self.offset_index(), self.time_index(), self.aborted()
        self._caches.indexes.forget(self)
        self.active = True
        offsets.truncate_to(offset)
        times.truncate_to(offset)
        self._aborted = [entry for entry in aborted if entry.last_offset < offset]
        self._hints = {}
        cut = 0
        if found is not None:
            cut = self.size - found[0]
            self.file.truncate(found[0])
            self.size = found[0]
        if self.size == 0:
            self.created_ms = now_ms
            self.first_timestamp_ms = None
        self.bytes_since_entry = 0
        self._find_max_timestamp()
        self._recent = (array("q"), array("q"), offset)
        self.synced = False
        return cut

    def resume(self, end_offset: int) -> None:
        """Make an opened segment the active one: what comes next has `end_offset`."""
        self.active = True
        self._caches.indexes.forget(self)
        self.offset_index()
        self.max_timestamp()
        self.aborted()
        self._recent = (array("q"), array("q"), end_offset)

    def _find_max_timestamp(self) -> None:
        timestamp, offset = self.time_index().last()
        start = self.offset_index().lookup(offset)
        for _, header in scan_headers(self.file, start, self.size):
            if indexed_timestamp(header) > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        self.max_timestamp_ms, self.max_timestamp_offset = timestamp, offset

    def rename(self, suffix: str) -> None:
        """Give all files another suffix after their kind ("" for none). Missing index files are skipped."""
        for kind in SUFFIXES:
            source = self.path(kind)
            target = os.path.join(self.directory, file_name(self.base_offset, kind) + suffix)
            try:
                self._caches.disk.rename(source, target)
            except FileMissing:
                if kind == LOG:
                    raise
        self.suffix = suffix
        self.file.moved_to(self.path(LOG))

    def moved_to(self, directory: str) -> None:
        """The directory has another name now."""
        self.directory = directory
        self.file.moved_to(self.path(LOG))

    def remove(self) -> None:
        """Delete all files."""
        self.close()
        for kind in SUFFIXES:
            try:
                self._caches.disk.remove(self.path(kind))
            except FileMissing:
                continue

    def close(self) -> None:
        """Let go of the descriptor and of memory; nothing is written."""
        self._caches.indexes.forget(self)
        self.file.close()
