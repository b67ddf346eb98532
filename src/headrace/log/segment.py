"""One segment of a log: its file, its indexes, and where an offset or a timestamp lies in it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.log.config import LogConfig
from headrace.log.files import FileCache, LogFile
from headrace.log.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from headrace.log.offset_index import DamagedIndexError, OffsetIndex
from headrace.log.runs import NO_ROOM, SegmentRoom
from headrace.log.scanning import WouldBlockError, find_batch, scan_headers
from headrace.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from headrace.log.time_index import NO_TIMESTAMP, TimeIndex
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.transaction_index import parse as parse_aborted
from headrace.records import BatchHeader
from headrace.records.walk import INT64_MAX
from headrace.runtime import Buffer, Disk, DiskError, File, FileMissingError

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
TEMPORARY: Final = ".tmp"

_RELATIVE_OFFSET_MAX = 2**31 - 1
_RECENT_MAX = 512
_HINTS_MAX = 16
_UNINDEXED_BYTES_MAX = 1024 * 1024
_LOOKUP_CHUNK_BYTES = 8 * 1024
_RENAMES_MAX = 4
_REBUILT_INTERVAL_BYTES = 4096
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
_Indexes = tuple[OffsetIndex, TimeIndex]


class Segment:
    """Changed by its log's writer. Readers on other threads have a view of the log, which says how much of it is there.

    What they use here only grows, or is put in place whole: lists of batches and indexes get longer, but a segment that
    is cut is another one from then on (`cut_at`). Readers may load or make again what is not in memory, but they write
    no files: those of a segment may have been given to another by then.

    The active segment's indexes live in memory and reach the disk when it ends (`seal`): a crash before that rebuilds
    them, because the recovery point never passes the active segment. An ended segment's are loaded when needed.
    """

    __slots__ = (
        "_aborted",
        "_caches",
        "_hints",
        "_indexes",
        "_newest",
        "_recent",
        "active",
        "base_offset",
        "bytes_since_entry",
        "created_ms",
        "directory",
        "discarded",
        "file",
        "first_timestamp_ms",
        "indexes_missing",
        "jitter_ms",
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
        # Whether all of it is durable, its index files too: only ever of a segment that has ended.
        self.synced = False
        # Whether it was taken out of use: its files have other names, or are gone.
        self.discarded = False
        # Whether its index files were found missing or damaged: the writer makes them again.
        self.indexes_missing = False
        # Both at once, so that nobody sees one without the other.
        self._indexes: _Indexes | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.bytes_since_entry = 0
        # None: not looked up yet.
        self.first_timestamp_ms: int | None = None
        self._newest: tuple[int, int] | None = None
        self._hints: dict[int, tuple[int, int]] = {}
        self._recent: _Recent | None = None

    @classmethod
    def create(cls, caches: Caches, directory: str, base_offset: int, now_ms: int, suffix: str = "") -> Segment:
        """A new, empty, active segment; its file exists afterwards (durable once the directory is synced)."""
        segment = cls(caches, directory, base_offset, 0, now_ms)
        segment.moved_to(directory, suffix)
        segment.file.create = True
        segment.file.ensure_open()
        if segment.file.size():
            segment.file.truncate(0)
        segment.start_empty()
        return segment

    def start_empty(self) -> None:
        """Indexes of a segment without batches; it becomes the active one."""
        self.active = True
        self._indexes = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._aborted = []
        self._newest = NO_TIMESTAMP, self.base_offset
        self.bytes_since_entry = 0
        self._recent = (array("q"), array("q"), self.base_offset)

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)}, {self.size} bytes)"

    def path(self, kind: str) -> str:
        return os.path.join(self.directory, file_name(self.base_offset, kind) + self.suffix)

    # ---- writing -------------------------------------------------------------------------------------------------

    def write(self, parts: Sequence[Buffer]) -> None:
        """Put the bytes at the end of the file. Nobody reads them before a view says that they are there."""
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
        newest = self._newest
        assert newest is not None
        if max_timestamp_ms > newest[0]:
            newest = max_timestamp_ms, last_offset
        if self.bytes_since_entry > index_interval_bytes:
            assert self._indexes is not None
            offsets, times = self._indexes
            offsets.append(last_offset, position)
            times.append(*newest)
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
        # Last: who looks for the newest record must find it within the size.
        self._newest = newest

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        self.aborted().append(transaction)

    def full_for(
        self, batch_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether a batch belongs into a new segment: size, age, full index, or an offset too far from the base."""
        if self.size > config.segment_bytes - batch_bytes or last_offset - self.base_offset > _RELATIVE_OFFSET_MAX:
            return True
        assert self._indexes is not None
        offsets, times = self._indexes
        if len(offsets) >= config.segment_index_bytes // OFFSET_ENTRY_BYTES:
            return self.size > 0
        if len(times) >= config.segment_index_bytes // TIME_ENTRY_BYTES - 1:
            return self.size > 0
        return self.size > 0 and self.age_ms(now_ms, max_timestamp_ms) > config.segment_age_max_ms - self.jitter_ms

    def room(self, now_ms: int, config: LogConfig) -> SegmentRoom:
        """What may be written together for sure before `full_for` would say that a new segment is due."""
        if not self.size:
            return NO_ROOM  # what comes first says how old the segment is
        assert self._indexes is not None
        entries = config.segment_index_bytes // TIME_ENTRY_BYTES - 1 - max(len(self._indexes[0]), len(self._indexes[1]))
        first, age_max_ms = self.first_timestamp(), config.segment_age_max_ms - self.jitter_ms
        if first < 0 and now_ms - self.created_ms > age_max_ms:
            return NO_ROOM
        newest_ms = first + age_max_ms if first >= 0 else INT64_MAX
        return SegmentRoom(
            entries, config.segment_bytes - self.size, self.base_offset + _RELATIVE_OFFSET_MAX, newest_ms
        )

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
        self.write_indexes()
        self.end()

    def end(self) -> None:
        """Nothing more comes. Its indexes are written before."""
        if not self.active:
            return
        self.active = False
        self._recent = None
        self._caches.indexes.loaded(self, _memory_bytes(self.indexes()))

    def write_indexes(self) -> None:
        """Write the index files as they would be if the segment ended now; more may be appended afterwards."""
        offsets, times = self.indexes()
        times.append(*self.max_timestamp())
        self._write_file(OFFSET_INDEX, offsets.to_bytes())
        self._write_file(TIME_INDEX, times.to_bytes())
        aborted = self.aborted()
        if aborted or self._caches.disk.exists(self.path(TXN_INDEX)):
            self._write_file(TXN_INDEX, b"".join(entry.to_bytes() for entry in aborted))

    def _write_file(self, kind: str, data: bytes) -> None:
        with contextlib.closing(self._caches.disk.open(self.path(kind), create=True)) as file:
            if file.size():
                file.truncate(0)
            if data:
                file.append([data])

    def sync(self) -> None:
        """Make what is in the file now durable, and the indexes too when the segment has ended. May run beside appends.

        Of a segment that is discarded beside this nothing has to be durable any more.
        """
        # Looked at first: what is appended while the disk syncs is not covered, and a segment that ends meanwhile has
        # more than was synced.
        has_ended = not self.active
        try:
            self.file.sync()
        except FileMissingError:
            if self.discarded:
                return
            raise
        if not has_ended:
            return
        for kind in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            try:
                file = self._caches.disk.open(self.path(kind))
            except FileMissingError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        self.synced = True

    # ---- finding -------------------------------------------------------------------------------------------------

    def translate(self, offset: int, size: int | None = None, *, nowait: bool = False) -> tuple[int, int] | None:
        """(position, size) of the first batch that ends at or after `offset`; None when all end before it.

        Readers say by `size` how much of the segment there is for them; the writer means all of it.
        """
        if size is None:
            size = self.size
        recent = self._recent
        if recent is not None and offset >= recent[2]:
            lasts, positions, _ = recent
            # Positions are noted before offsets, so there is one for each of these.
            count = len(lasts)
            at = bisect_left(lasts, offset, 0, count)
            if at >= count:
                return None
            position = positions[at]
            if position >= size:
                return None  # noted after the reader's view was made
            after = positions[at + 1] if at + 1 < count else size
            return position, after - position
        hint = self._hints.get(offset)
        if hint is not None:
            return hint if hint[0] < size else None
        start = self.offset_index(nowait=nowait).lookup(offset)
        chunk = max(_LOOKUP_CHUNK_BYTES, 64)
        found = find_batch(self.file, start, size, offset, chunk_bytes=chunk, nowait=nowait)
        if found is not None:
            if len(self._hints) >= _HINTS_MAX:
                self._hints = {}
            self._hints[offset] = found
        return found

    def headers(self, position: int = 0, size: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        return scan_headers(self.file, position, self.size if size is None else size)

    def position_for_time(self, timestamp_ms: int, start_offset: int) -> int:
        """Where a scan for the first batch with a timestamp not below this one may begin."""
        offsets, times = self.indexes()
        return offsets.lookup(max(times.lookup(timestamp_ms), start_offset))

    def max_timestamp(self) -> tuple[int, int]:
        """(greatest timestamp, last offset of its batch); (-1, base offset) when no batch has one."""
        newest = self._newest
        if newest is None:
            newest = self._newest = self.indexes()[1].last()
        return newest

    def largest_timestamp_ms(self) -> int:
        """By which its age is measured: the greatest timestamp, or when no batch has one, the file's own time."""
        timestamp, _ = self.max_timestamp()
        return timestamp if timestamp >= 0 else self._caches.disk.mtime_ms(self.file.path)

    # ---- indexes -------------------------------------------------------------------------------------------------

    def indexes(self, *, nowait: bool = False) -> _Indexes:
        """Both indexes; read, or made again, when they are not in memory."""
        indexes = self._indexes
        if indexes is None:
            if nowait:
                raise WouldBlockError(f"{self.path(OFFSET_INDEX)}: not in memory")
            indexes, _ = self._load_indexes()
        return indexes

    def offset_index(self, *, nowait: bool = False) -> OffsetIndex:
        return self.indexes(nowait=nowait)[0]

    def aborted(self, *, nowait: bool = False) -> list[AbortedTransaction]:
        entries = self._aborted
        if entries is None:
            if nowait:
                raise WouldBlockError(f"{self.path(TXN_INDEX)}: not in memory")
            entries = parse_aborted(self._read_aborted(), self.base_offset)
            # Another reader, or the writer, may have been faster: then theirs is the one that is kept.
            entries = self._aborted = self._aborted or entries
        return entries

    def set_aborted(self, entries: list[AbortedTransaction] | None) -> None:
        """Begin anew where the index is damaged; with None, whoever needs it looks into the file, and is told."""
        self._aborted = entries

    def load_aborted(self) -> bool:
        """Have in memory what readers need when the files are gone; whether there is, or may be, anything."""
        with contextlib.suppress(DamagedIndexError):
            return bool(self.aborted())
        return True

    def _read_aborted(self) -> bytes:
        """The file's bytes; none when there is no file. But "no file" must not be said of one that was renamed."""
        disk = self._caches.disk
        for _ in range(_RENAMES_MAX if not self.file.gone else 0):
            named, log, path = self._named, self.path(LOG), self.path(TXN_INDEX)
            data: bytes | None
            try:
                data = disk.read_file(path)
            except FileMissingError:
                # The log is the first file to be renamed or removed: while it is there, so are the others.
                data = b"" if disk.exists(log) else None
            if data is not None and named == self._named and not self.file.gone:
                return data
            if self._aborted is not None:
                return b"".join(entry.to_bytes() for entry in self._aborted)  # loaded before it was discarded
        raise FileMissingError("read", self.path(TXN_INDEX), errno.ENOENT)

    @property
    def _named(self) -> tuple[str, str, bool]:
        """By what its files are named. What was read while this changed may have been another segment's."""
        return self.directory, self.suffix, self.discarded

    def load_indexes(self) -> str | None:
        """Read both index files; where they are missing or damaged, make them again, on disk too. Why, if that was so.

        Only for whoever opens the log, before there are readers.
        """
        _, reason = self._load_indexes()
        if reason is not None:
            self.restore_indexes()
        return reason

    def _load_indexes(self) -> tuple[_Indexes, str | None]:
        disk, size = self._caches.disk, self.size
        named, reason = self._named, None
        try:
            offsets = OffsetIndex.from_bytes(disk.read_file(self.path(OFFSET_INDEX)), self.base_offset, size)
            times = TimeIndex.from_bytes(disk.read_file(self.path(TIME_INDEX)), self.base_offset)
            if size and not times:
                raise DamagedIndexError("its time index is empty")
            if size > _UNINDEXED_BYTES_MAX and not offsets:
                raise DamagedIndexError("its offset index is empty")
            indexes = offsets, times
        except FileMissingError as error:
            reason = f"{os.path.basename(error.path)} is missing"
        except DamagedIndexError as error:
            reason = f"an index of {file_name(self.base_offset, LOG)} is damaged: {error}"
        if reason is not None or named != self._named or self.file.gone:
            indexes = _indexes_from(self.file, self.base_offset, size, _REBUILT_INTERVAL_BYTES)
            self.indexes_missing = reason is not None
        self._indexes = indexes
        if not self.active and not self.discarded:
            self._caches.indexes.loaded(self, _memory_bytes(indexes))
        return indexes, reason

    def restore_indexes(self) -> None:
        """Write the index files of an ended segment again after they were found missing or damaged."""
        if not self.indexes_missing or self.discarded:
            return
        # Whole and durable at once: this segment may lie before the recovery point, where nothing is made twice.
        offsets, times = self.indexes()
        self._caches.disk.replace_file(self.path(OFFSET_INDEX), offsets.to_bytes())
        self._caches.disk.replace_file(self.path(TIME_INDEX), times.to_bytes())
        self.indexes_missing = False

    def unload_indexes(self) -> None:
        """Give the memory back; only of an ended segment."""
        if not self.active:
            self._indexes = None

    # ---- cutting, renaming, removing -----------------------------------------------------------------------------

    def cut_at(self, offset: int, now_ms: int) -> Segment:
        """The segment as it is without every batch that ends at or after `offset`: active, on the same file.

        Nothing is changed by this; `cut_to` does it. This one is left as it was also then: readers that have it find
        nothing where it was cut, but never something else.
        """
        found = self.translate(offset)
        cut = Segment(self._caches, self.directory, self.base_offset, self.size, self.created_ms)
        cut.file = self.file
        cut.jitter_ms, cut.first_timestamp_ms = self.jitter_ms, self.first_timestamp_ms
        cut.active = True
        offsets, times = self.indexes()
        cut._indexes = offsets.up_to(offset), times.up_to(offset)
        cut._aborted = [entry for entry in self.aborted() if entry.last_offset < offset]
        if found is not None:
            cut.size = found[0]
        if cut.size == 0:
            cut.created_ms = now_ms
            cut.first_timestamp_ms = None
        cut._newest = cut._find_newest()
        cut._recent = (array("q"), array("q"), offset)
        return cut

    def cut_to(self, cut: Segment, file: File) -> None:
        """Let `cut` take the place of this one. `file` is an open one, so that no descriptor is needed."""
        self._caches.indexes.forget(self)
        if cut.size < self.size:
            file.truncate(cut.size)
            # One that was opened before would append where the file ended.
            self.file.close()

    def resume(self, end_offset: int) -> None:
        """Make an opened segment the active one: what comes next has `end_offset`."""
        self.active = True
        self._caches.indexes.forget(self)
        self.indexes()
        self.max_timestamp()
        self.aborted()
        self._recent = (array("q"), array("q"), end_offset)

    def _find_newest(self) -> tuple[int, int]:
        offsets, times = self.indexes()
        timestamp, offset = times.last()
        for _, header in scan_headers(self.file, offsets.lookup(offset), self.size):
            if indexed_timestamp(header) > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        return timestamp, offset

    def discard(self) -> None:
        """Take it out of use: its files get another name. Readers that have a slice of it still know what to skip."""
        self.load_aborted()
        self.discarded = True
        self._caches.indexes.forget(self)
        self.rename(DELETED)

    def rename(self, suffix: str) -> None:
        """Give all files another suffix after their kind ("" for none). Where an index file is missing, none is there
        then either: what was discarded before under the same names may have left one."""
        for kind in SUFFIXES:
            source = self.path(kind)
            target = os.path.join(self.directory, file_name(self.base_offset, kind) + suffix)
            if kind == LOG:
                self.file.rename(target)
                continue
            try:
                self._caches.disk.rename(source, target)
            except FileMissingError:
                with contextlib.suppress(FileMissingError):
                    self._caches.disk.remove(target)
        self.suffix = suffix

    def moved_to(self, directory: str, suffix: str | None = None) -> None:
        """The directory, or its files, have another name now."""
        self.directory = directory
        self.suffix = self.suffix if suffix is None else suffix
        self.file.moved_to(self.path(LOG))

    def remove(self) -> None:
        """Delete all files."""
        self.discarded = True
        had_names, self.file.gone = not self.file.gone, True
        self.close()
        for kind in SUFFIXES if had_names else ():
            with contextlib.suppress(FileMissingError):
                self._caches.disk.remove(self.path(kind))

    def close(self) -> None:
        """Let go of the descriptor and of memory; nothing is written."""
        self._caches.indexes.forget(self)
        self.file.close()


def _memory_bytes(indexes: _Indexes) -> int:
    return 256 + indexes[0].memory_bytes + indexes[1].memory_bytes


def _indexes_from(file: LogFile, base_offset: int, size: int, index_interval_bytes: int) -> _Indexes:
    """Both indexes of an ended segment, made from its batches' headers."""
    offsets, times = OffsetIndex(base_offset), TimeIndex(base_offset)
    newest = NO_TIMESTAMP, base_offset
    bytes_since_entry = 0
    for position, header in scan_headers(file, 0, size):
        if indexed_timestamp(header) > newest[0]:
            newest = header.max_timestamp, header.last_offset
        if bytes_since_entry > index_interval_bytes:
            offsets.append(header.last_offset, position)
            times.append(*newest)
            bytes_since_entry = 0
        bytes_since_entry += header.size
    times.append(*newest)
    return offsets, times
