"""Compact a log's ended segments into new files: the last value of each key stays, and what producers' state needs.

Reads the segments' files, writes files with the suffix .cleaned and nothing else: the log itself puts them in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.errors import HeadraceError
from headrace.log.cleaned_transactions import CleanedTransactions
from headrace.log.compaction_job import CleanJob, CleanResult, CleanStatistics, SegmentGroup, SourceSegment, grouped
from headrace.log.config import INDEX_POSITION_MAX
from headrace.log.files import LogFile
from headrace.log.offset_map import OffsetMap
from headrace.log.scanning import check_whole, scan_batches
from headrace.log.segment import CLEANED, LOG, Caches, Segment, file_name, indexed_timestamp
from headrace.log.transaction_index import AbortedTransaction
from headrace.log.validation import RECORDS_MAX
from headrace.records import (
    Batch,
    BatchHeader,
    Columns,
    CorruptBatchError,
    MalformedRecordError,
    Retention,
    decode_columns,
    filter_batch,
    read_control,
    read_records,
)
from headrace.runtime import Buffer, Clock, Disk

CHUNK_BYTES = 1024 * 1024
_CHUNK_BATCHES = 1024
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""What the records of a batch may grow to for compaction to look into it. Larger ones are kept as they are."""
_TOGETHER_BYTES_MAX = 16 * 1024 * 1024
_OPEN_FILES = 4
_PAUSE_S_MAX = 0.2
_COMMIT = 1
_ABORT = 0


class CleaningStoppedError(HeadraceError):
    """Somebody wanted the compaction to end: nothing of it may be used."""


class CleaningFailedError(HeadraceError):
    """This log cannot be compacted as it is; trying again will not help."""


Stopped = Callable[[], bool]


def never() -> bool:
    return False


class CleanerThrottle:
    """Keeps reads and writes together below a rate, by pausing."""

    __slots__ = ("_bytes", "_clock", "_pause", "_rate", "_since", "_stopped")

    def __init__(
        self, bytes_per_s: float, clock: Clock, pause: Callable[[float], None] | None, stopped: Stopped = never
    ) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._pause = pause
        self._stopped = stopped
        self._since = clock.monotonic()
        self._bytes = 0

    def moved(self, size: int) -> None:
        """So many bytes were read or written: wait until they were due."""
        if self._stopped():
            raise CleaningStoppedError("the compaction was stopped")
        if self._pause is None or self._rate == float("inf"):
            return
        self._bytes += size
        due = self._since + self._bytes / self._rate
        while (left := due - self._clock.monotonic()) > 0:
            self._pause(min(left, _PAUSE_S_MAX))
            if self._stopped():
                raise CleaningStoppedError("the compaction was stopped")


def clean(
    disk: Disk,
    clock: Clock,
    job: CleanJob,
    *,
    pause: Callable[[float], None] | None = None,
    stopped: Stopped = never,
) -> CleanResult:
    """Do the job; the files it gives back are durable. Blocking; `pause` sleeps (without it nothing is throttled).

    When the keys do not fit the memory allowed, only the first part of the log is compacted, and `end_offset` says so.
    Raises CleaningStoppedError, CleaningFailedError, or a DiskError; then some .cleaned files may be left.
    """
    started = clock.monotonic()
    throttle = CleanerThrottle(job.limits.io_bytes_per_s, clock, pause, stopped)
    statistics = CleanStatistics()
    try:
        offsets = build_map(disk, job, throttle, statistics)
        statistics.map_s = clock.monotonic() - started
        statistics.map_utilization = offsets.utilization
        end_offset = offsets.latest + 1
        sources = [source for source in job.sources if source.base_offset < end_offset]
        rewriting = _Rewriting(disk, job, offsets, throttle, statistics)
        groups = [rewriting.rewrite(group) for group in grouped(sources, job.segment_bytes, job.segment_index_bytes)]
    except (CorruptBatchError, MalformedRecordError) as error:
        raise CleaningFailedError(f"{job.directory} cannot be compacted: {error}") from error
    disk.sync_dir(job.directory)
    statistics.total_s = clock.monotonic() - started
    return CleanResult(end_offset, groups, statistics)


# ---- reading -----------------------------------------------------------------------------------------------------


def _source_path(job: CleanJob, source: SourceSegment) -> str:
    return os.path.join(job.directory, file_name(source.base_offset, LOG))


def _chunks(
    disk: Disk, job: CleanJob, source: SourceSegment, throttle: CleanerThrottle
) -> Iterator[list[tuple[Batch, BatchHeader]]]:
    """Every batch of a segment, checked, some at a time. All or CorruptBatchError: what is not read would be lost."""
    path = _source_path(job, source)
    file = disk.open(path)
    try:
        position = 0
        batches = (batch for _, batch in scan_batches(file, 0, source.size))
        while chunk := _take(batches):
            size = sum(header.size for _, header in chunk)
            position += size
            throttle.moved(size)
            yield chunk
        if position != source.size:
            raise CorruptBatchError(f"{path} has whole batches up to byte {position} only, of {source.size}")
    finally:
        file.close()


def _take(batches: Iterator[Batch]) -> list[tuple[Batch, BatchHeader]]:
    chunk = []
    size = 0
    for batch in islice(batches, _CHUNK_BATCHES):
        header = check_whole(batch)
        chunk.append((batch, header))
        size += header.size
        if size >= CHUNK_BYTES:
            break
    return chunk


@dataclass(slots=True)
class _Rows:
    """What compaction has to know of records, over several batches."""

    keys: list[bytes | None]
    offsets: list[int]
    value_lengths: list[int]


def _decode_together(batches: Sequence[Batch]) -> _Rows | None:
    """Of many batches at once: most topics that are compacted have small ones, and a call costs more than a record.

    None when one of them cannot be read, or they are too large together: each may be fine by itself.
    """
    try:
        return _rows(decode_columns(batches, _TOGETHER_BYTES_MAX) if batches else None)
    except MalformedRecordError:
        return None


def _decode_alone(batch: Batch, header: BatchHeader) -> _Rows | None:
    """Of one batch; None when it cannot be read, or would take more memory than a compaction may."""
    if header.count > RECORDS_MAX:
        return None
    try:
        return _rows(decode_columns(batch, UNPACKED_BYTES_MAX))
    except MalformedRecordError:
        return None


def _rows(columns: Columns | None) -> _Rows:
    if columns is None:
        return _Rows([], [], [])
    return _Rows(columns.keys.to_list(), columns.offsets.tolist(), columns.values.lengths.tolist())


# ---- the first pass: keys ----------------------------------------------------------------------------------------


def build_map(disk: Disk, job: CleanJob, throttle: CleanerThrottle, statistics: CleanStatistics) -> OffsetMap:
    """The newest offset of each key from the first dirty offset on, as far as memory allows; whole batches only."""
    offsets = OffsetMap(job.limits.dedupe_bytes, job.limits.load_factor)
    offsets.latest = job.first_dirty_offset - 1
    transactions = CleanedTransactions(job.aborted)
    for source in job.sources:
        if source.end_offset <= job.first_dirty_offset:
            continue
        for chunk in _chunks(disk, job, source, throttle):
            statistics.map_bytes += sum(header.size for _, header in chunk)
            dirty = [
                (batch, header)
                for batch, header in chunk
                if header.last_offset >= job.first_dirty_offset
                and not header.is_control
                and header.count > 0
                and not transactions.is_aborted(header)
            ]
            if not _put(offsets, dirty, job.first_dirty_offset, statistics):
                return offsets
            offsets.latest = max(offsets.latest, chunk[-1][1].last_offset)
        offsets.latest = source.end_offset - 1
    return offsets


def _put(
    offsets: OffsetMap, dirty: list[tuple[Batch, BatchHeader]], first_dirty_offset: int, statistics: CleanStatistics
) -> bool:
    """Take in these batches; False when only some of them fitted (the map's `latest` says which)."""
    rows = _decode_together([batch for batch, _ in dirty])
    if rows is not None and offsets.put(rows.keys, rows.offsets):
        statistics.map_records += len(rows.keys)
        return True
    at = 0
    for batch, header in dirty:
        one: _Rows | None
        if rows is None:
            one = _decode_alone(batch, header)
        else:
            end = at + header.count
            one = _Rows(rows.keys[at:end], rows.offsets[at:end], [])
            at = end
        # What cannot be read is kept as it is, and what it may replace is kept with it.
        if one is not None:
            first = offsets.latest < first_dirty_offset
            if not offsets.put(one.keys, one.offsets, force=first):
                return False
            statistics.map_records += header.count
        offsets.latest = header.last_offset
    return True


# ---- the second pass: rewriting ----------------------------------------------------------------------------------


class _Rewriting:
    """Writes the new segments, one group after the other, in the order of the log."""

    def __init__(
        self, disk: Disk, job: CleanJob, offsets: OffsetMap, throttle: CleanerThrottle, statistics: CleanStatistics
    ) -> None:
        self._disk = disk
        self._job = job
        self._offsets = offsets
        self._throttle = throttle
        self._statistics = statistics
        self._transactions = CleanedTransactions(job.aborted)
        self._last_records = {record.producer_id: record for record in job.last_records}
        self._caches = Caches(disk, open_files_max=_OPEN_FILES)

    def rewrite(self, group: list[SourceSegment]) -> SegmentGroup:
        """Make one segment of several."""
        job = self._job
        output = _Output(self._caches, job, group[0].base_offset, self._throttle, self._statistics)
        try:
            for source in group:
                for chunk in _chunks(self._disk, job, source, self._throttle):
                    self._statistics.read_bytes += sum(header.size for _, header in chunk)
                    self._statistics.read_records += sum(max(header.count, 0) for _, header in chunk)
                    self._filter(chunk, output, group[-1].end_offset)
            output.finish(self._disk.mtime_ms(_source_path(job, group[-1])))
        finally:
            output.close()
        return SegmentGroup(group[0].base_offset, [source.base_offset for source in group])

    def _filter(self, chunk: list[tuple[Batch, BatchHeader]], output: _Output, group_end: int) -> None:
        latest = self._offsets.latest
        # In the order of the log, before anything else: ends of transactions are judged by the data before them.
        unneeded = [self._is_unneeded(batch, header, output) for batch, header in chunk]
        looked_at = [
            not gone and not header.is_control and header.count > 0 and header.base_offset <= latest
            for (_, header), gone in zip(chunk, unneeded)
        ]
        rows = _decode_together([batch for (batch, _), looks in zip(chunk, looked_at) if looks])
        newest = [] if rows is None else self._newest(rows)
        at = 0
        for (batch, header), gone, looks in zip(chunk, unneeded, looked_at):
            if header.is_control and header.count > 0:
                self._write_control(batch, header, gone, output, group_end)
            elif gone or header.count <= 0:
                if self._is_needed_empty(header, group_end):
                    output.put(_emptied(batch, header), 0)
            elif not looks:
                output.put(batch.buffer, header.count)
            else:
                if rows is None:
                    self._filter_alone(batch, header, output, group_end)
                    continue
                end = at + header.count
                self._filter_one(batch, header, newest[at:end], rows.value_lengths[at:end], output, group_end)
                at = end
        # Now, because one small batch that waits would keep the memory of all that was read with it.
        output.flush()

    def _newest(self, rows: _Rows) -> list[bool]:
        self._statistics.keyless_records += rows.keys.count(None)
        return self._offsets.rows_to_keep(rows.keys, rows.offsets)

    def _filter_alone(self, batch: Batch, header: BatchHeader, output: _Output, group_end: int) -> None:
        rows = _decode_alone(batch, header)
        if rows is None:
            self._statistics.unread_batches += 1
            output.put(batch.buffer, header.count)
            return
        self._filter_one(batch, header, self._newest(rows), rows.value_lengths, output, group_end)

    def _filter_one(
        self,
        batch: Batch,
        header: BatchHeader,
        newest: list[bool],
        value_lengths: list[int],
        output: _Output,
        group_end: int,
    ) -> None:
        kept = self._kept_rows(header, newest, value_lengths)
        tombstones = any(value_lengths[row] < 0 for row in kept)
        self._write(batch, header, kept, tombstones, output, group_end)

    def _kept_rows(self, header: BatchHeader, newest: list[bool], value_lengths: list[int]) -> list[int]:
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is not None and horizon_ms <= self._job.now_ms:
            return [row for row, is_newest in enumerate(newest) if is_newest and value_lengths[row] >= 0]
        return [row for row, is_newest in enumerate(newest) if is_newest]

    def _write(
        self,
        batch: Batch,
        header: BatchHeader,
        kept: list[int],
        tombstones: bool,
        output: _Output,
        group_end: int,
    ) -> None:
        if not kept:
            if self._is_needed_empty(header, group_end):
                output.put(_emptied(batch, header), 0)
            return
        if len(kept) == header.count and (not tombstones or header.has_delete_horizon):
            output.put(batch.buffer, header.count)
            return
        changed = filter_batch(
            batch,
            lambda columns: kept,
            Retention.DELETE_EMPTY,
            delete_horizon_ms=self._horizon_ms,
            level=self._job.levels.get(header.codec_id),
        )
        assert changed is not None
        output.put(changed, len(kept))

    def _is_unneeded(self, batch: Batch, header: BatchHeader, output: _Output) -> bool:
        """Whether transactions make the batch superfluous: aborted data, or the end of one of which nothing is left."""
        if not header.is_control:
            return self._transactions.is_aborted(header)
        if header.count <= 0:
            return True
        kind = read_control(read_records(batch)[0]).control_type
        if kind not in (_COMMIT, _ABORT):
            return False
        unneeded, index_entry = self._transactions.end(header, kind == _COMMIT)
        if index_entry is not None:
            output.note_aborted(index_entry)
        return unneeded

    def _write_control(
        self, batch: Batch, header: BatchHeader, unneeded: bool, output: _Output, group_end: int
    ) -> None:
        """An end of a transaction stays while data of it does, and then for `delete.retention.ms`."""
        horizon_ms = header.delete_horizon_ms
        if unneeded and horizon_ms is not None and horizon_ms <= self._job.now_ms:
            if self._is_needed_empty(header, group_end):
                output.put(_emptied(batch, header), 0)
            return
        kept = filter_batch(
            batch,
            lambda columns: list(range(len(columns))),
            Retention.RETAIN_EMPTY,
            delete_horizon_ms=self._horizon_ms,
            holds_marker_of_empty_transaction=unneeded,
        )
        assert kept is not None
        output.put(kept, header.count)

    @property
    def _horizon_ms(self) -> int:
        # Capped: a horizon is a 64-bit field, and the retention may be "for ever".
        return min(self._job.now_ms + self._job.delete_retention_ms, 2**63 - 1)

    def _is_needed_empty(self, header: BatchHeader, group_end: int) -> bool:
        """Whether a batch has to stay though none of its records does.

        For its producer, whose last sequence number (or, with nothing but a marker, epoch) it carries; or as the
        segment's last one, so that each segment goes on where the one before it ends.
        """
        if header.next_offset == group_end:
            return True
        record = self._last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if record is None:
            return False
        if record.last_offset >= 0:
            return header.last_offset == record.last_offset
        return header.is_control and header.producer_epoch == record.epoch


def _emptied(batch: Batch, header: BatchHeader) -> Buffer:
    if header.count <= 0:
        return batch.buffer
    emptied = filter_batch(batch, lambda columns: [], Retention.RETAIN_EMPTY, delete_horizon_ms=-1)
    assert emptied is not None
    return emptied


class _Output:
    """One new segment, written in large pieces."""

    def __init__(
        self, caches: Caches, job: CleanJob, base_offset: int, throttle: CleanerThrottle, statistics: CleanStatistics
    ) -> None:
        self._disk = caches.disk
        self._interval_bytes = job.index_interval_bytes
        self._throttle = throttle
        self._statistics = statistics
        self._parts: list[Buffer] = []
        self._waiting_bytes = 0
        self._segment = segment = Segment(caches, job.directory, base_offset, 0, job.now_ms)
        segment.suffix = CLEANED
        segment.file = LogFile(caches.files, segment.path(LOG), create=True)
        segment.file.ensure_open()
        if segment.file.size():
            segment.file.truncate(0)  # left over from a compaction that did not end
        segment.start_empty()

    def put(self, batch: Buffer, records: int) -> None:
        self._parts.append(batch)
        self._waiting_bytes += len(batch)
        self._statistics.written_records += records

    def note_aborted(self, entry: AbortedTransaction) -> None:
        self._segment.note_aborted(entry)

    def flush(self) -> None:
        if not self._parts:
            return
        segment = self._segment
        if segment.size + self._waiting_bytes > INDEX_POSITION_MAX:
            raise CleaningFailedError(f"{segment.path(LOG)} would pass 2 GiB: recompressed batches became larger")
        segment.write(self._parts)
        for part in self._parts:
            header = Batch(part).header()
            segment.note(header.size, header.last_offset, indexed_timestamp(header), self._interval_bytes)
        self._statistics.written_bytes += self._waiting_bytes
        size, self._waiting_bytes, self._parts = self._waiting_bytes, 0, []
        self._throttle.moved(size)

    def finish(self, mtime_ms: int) -> None:
        """Write the rest and the indexes, and make all of it durable."""
        self.flush()
        segment = self._segment
        segment.seal()
        # By which a segment's age is measured when its records have no timestamps.
        self._disk.set_mtime_ms(segment.path(LOG), mtime_ms)
        segment.sync()

    def close(self) -> None:
        self._segment.close()
