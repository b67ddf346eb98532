"""What one fetch brought for one partition: batches looked at by their headers, decoded into columns when wanted.

Control batches and, for read_committed, batches of aborted transactions are left out here, before anything is decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from headrace.client.compiled import count_rows
from headrace.client.consumer_errors import RecordDeserializationError
from headrace.client.consumer_records import PartitionColumns
from headrace.errors import HeadraceError
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.records import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    BytesColumn,
    Columns,
    TimestampType,
    check,
    decode_columns,
    decode_spans,
    decode_stretch,
    read_control,
    read_records,
    split,
    survey_stretch,
)
from headrace.records.kernels_plain import Stretch
from headrace.topics import TopicPartition

DECODE_BYTES_MAX = 4 * 1024 * 1024
"""Batches are decoded together up to this size (as fetched): few calls, and a bound on what is held decoded."""

_DAMAGED_OFFSETS_MAX = 1_000_000
"""A damaged batch that claims to hold more offsets than this lies about its end."""

_ABORT = 0

Buffer = bytes | bytearray | memoryview


class _Group:
    """Consecutive batches that are decoded together: same leader epoch, same kind of timestamp."""

    __slots__ = ("batches", "bytes", "is_log_append_time", "leader_epoch", "spans", "stretch")

    def __init__(self, leader_epoch: int, is_log_append_time: bool) -> None:
        self.leader_epoch = leader_epoch
        self.is_log_append_time = is_log_append_time
        self.batches: list[Batch] = []
        self.spans: list[tuple[BatchHeader, int, int]] | None = []
        """Where each batch's records lie in what was fetched; None when some are compressed."""
        self.bytes = 0
        self.stretch: Stretch | None = None
        """All batches of the fetch at once, none of them looked at: then this is the only group, without `batches`."""


class Chunk:
    """The records that are left of one fetch of one partition. `take` hands them out in order."""

    __slots__ = (
        "_check_crcs",
        "_columns",
        "_error",
        "_groups",
        "_kind",
        "_records",
        "_row",
        "byte_count",
        "leader_epoch",
        "next_offset",
        "partition",
        "position",
    )

    def __init__(
        self,
        partition: TopicPartition,
        fetch_offset: int,
        records: Buffer,
        aborted: Sequence[AbortedTransaction] | None,
        *,
        read_committed: bool,
        check_crcs: bool,
    ) -> None:
        self.partition = partition
        self.position = fetch_offset
        """The offset that comes next: after the last record handed out."""
        self.next_offset = fetch_offset
        """Where the next fetch goes on."""
        self.leader_epoch = -1
        """The leader epoch of the last record handed out; when all are, of the last batch."""
        self.byte_count = len(records)
        self._check_crcs = check_crcs
        self._groups: deque[_Group] = deque()
        self._columns: Columns | None = None
        self._kind = TimestampType.CREATE_TIME
        self._row = 0
        self._error: HeadraceError | None = None
        self._records = records
        stretch = survey_stretch(records, fetch_offset, DECODE_BYTES_MAX)
        if stretch is not None:
            self._take_stretch(stretch)
        else:
            self._survey(records, aborted if read_committed else None)

    def _take_stretch(self, stretch: Stretch) -> None:
        """The usual case: nothing in this fetch is special, so no batch is looked at by itself."""
        group = _Group(stretch.leader_epoch, stretch.is_log_append_time)
        group.stretch = stretch
        self._groups.append(group)
        self.next_offset = stretch.next_offset
        self.leader_epoch = stretch.leader_epoch

    def _survey(self, records: Buffer, aborted: Sequence[AbortedTransaction] | None) -> None:
        pending = deque(sorted(aborted, key=lambda found: found.first_offset)) if aborted else None
        aborting: set[int] = set()
        group: _Group | None = None
        end = 0
        try:
            for batch in split(records):
                header = batch.header()
                start, end = end, end + header.size
                if header.next_offset <= self.position:
                    # Wholly before the position: a fetch from the middle of a batch gives the batch from its start.
                    continue
                if pending is not None:
                    while pending and pending[0].first_offset <= header.last_offset:
                        aborting.add(pending.popleft().producer_id)
                self.next_offset = header.next_offset
                if header.is_control:
                    if pending is not None and _ends_abort(batch):
                        aborting.discard(header.producer_id)
                    continue
                if header.is_transactional and header.producer_id in aborting:
                    continue
                append_time = header.is_log_append_time
                if (
                    group is None
                    or group.leader_epoch != header.leader_epoch
                    or group.is_log_append_time != append_time
                    or group.bytes > DECODE_BYTES_MAX
                ):
                    group = _Group(header.leader_epoch, append_time)
                    self._groups.append(group)
                group.batches.append(batch)
                if header.codec_id:
                    group.spans = None
                elif group.spans is not None:
                    group.spans.append((header, start + HEADER_BYTES, end))
                group.bytes += header.size
                self.leader_epoch = header.leader_epoch
        except HeadraceError as error:
            self._error = _unreadable(self.partition, self.next_offset, Batch(memoryview(records)[end:]), None, error)

    @property
    def is_done(self) -> bool:
        """Whether everything was handed out (an error that stands at the end was not)."""
        return self._columns is None and not self._groups and self._error is None

    def peek(self, rows_max: int) -> PartitionColumns | None:
        """The next records, at most that many; None when none are left. Raises what stands in their place.

        They stay until `advance` says that they were handed out.
        """
        while self._columns is None:
            if not self._groups:
                if self._error is not None:
                    raise self._error
                self.position = self.next_offset
                return None
            self._decode()
        columns = self._columns
        end = min(len(columns), self._row + rows_max)
        is_last = end == len(columns) and not self._groups and self._error is None
        next_offset = self.next_offset if is_last else columns.offsets[end - 1] + 1
        return PartitionColumns(
            self.partition, columns.rows(self._row, end), self.leader_epoch, self._kind, next_offset
        )

    def advance(self, rows: int) -> None:
        """That many records of the last `peek` were handed out."""
        columns = self._columns
        if columns is None or rows <= 0:
            return
        self._row += rows
        self.position = columns.offsets[self._row - 1] + 1
        if self._row >= len(columns):
            self._columns = None
            if not self._groups and self._error is None:
                self.position = self.next_offset

    def _decode(self) -> None:
        group = self._groups.popleft()
        if group.stretch is not None:
            count_rows(group.stretch.record_count)
            found = decode_stretch(self._records, group.stretch, check_crcs=self._check_crcs)
            if found is None:
                # One of them is damaged: which, and what comes before it, shows when each is looked at. (None is of a
                # transaction, so which were aborted does not matter.)
                self._survey(self._records, None)
                return
            columns = found
        else:
            count_rows(sum(batch.count for batch in group.batches))
            columns = self._decoded(group)
        start = bisect_left(columns.offsets, self.position) if len(columns) else 0
        if start >= len(columns):
            return
        self._columns, self._row = columns, start
        self.leader_epoch = group.leader_epoch
        self._kind = TimestampType.LOG_APPEND_TIME if group.is_log_append_time else TimestampType.CREATE_TIME

    def _decoded(self, group: _Group) -> Columns:
        try:
            if self._check_crcs:
                for batch in group.batches:
                    check(batch)
            if group.spans is not None:
                return decode_spans(self._records, group.spans)
            return decode_columns(group.batches)
        except HeadraceError as error:
            return self._until_bad(group, error)

    def _until_bad(self, group: _Group, error: HeadraceError) -> Columns:
        """The good batches before a bad one come first; its error stands where it was, for whoever asks again."""
        good: list[Batch] = []
        following: list[int | None] = [batch.base_offset for batch in group.batches[1:]]
        following.append(self._groups[0].batches[0].base_offset if self._groups else None)
        for batch, next_base in zip(group.batches, following):
            try:
                if self._check_crcs:
                    check(batch)
                decode_columns(batch)
            except HeadraceError as found:
                at = max(self.position, batch.base_offset)
                self._error = _unreadable(self.partition, at, batch, next_base, found)
                break
            good.append(batch)
        else:
            # Each can be read, but not all together (they pass the limit of decompressed bytes): one after the other.
            if len(group.batches) < 2:
                raise error
            for batch in reversed(group.batches):
                alone = _Group(group.leader_epoch, group.is_log_append_time)
                alone.batches, alone.bytes, alone.spans = [batch], len(batch.buffer), None
                self._groups.appendleft(alone)
            return _NOTHING
        self._groups.clear()
        return decode_columns(good) if good else _NOTHING


def _unreadable(
    partition: TopicPartition, offset: int, batch: Batch, next_base: int | None, cause: HeadraceError
) -> RecordDeserializationError:
    """What stands in the place of a damaged batch. Its header may lie, so the next batch's beginning bounds its end."""
    last = offset
    if len(batch.buffer) >= HEADER_BYTES:
        header = batch.header()
        if 0 < header.last_offset - header.base_offset < _DAMAGED_OFFSETS_MAX:
            last = max(offset, header.last_offset)
    if next_base is not None and next_base > offset:
        last = min(last, next_base - 1)
    error = RecordDeserializationError(partition, offset, str(cause), last_offset=last, raw=bytes(batch.buffer))
    error.__cause__ = cause
    return error


def _ends_abort(batch: Batch) -> bool:
    records = read_records(batch)
    return bool(records) and read_control(records[0]).control_type == _ABORT


_EMPTY_INTS = memoryview(b"").cast("i")
_EMPTY_LONGS = memoryview(b"").cast("q")
_NOTHING = Columns(
    _EMPTY_LONGS,
    _EMPTY_LONGS,
    BytesColumn(b"", _EMPTY_INTS, _EMPTY_INTS),
    BytesColumn(b"", _EMPTY_INTS, _EMPTY_INTS),
)
