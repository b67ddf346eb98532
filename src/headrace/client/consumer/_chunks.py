"""What one fetch brought for one partition: batches looked at by their headers, decoded into columns when wanted.

Control batches and, for read_committed, batches of aborted transactions are left out here, before anything is decoded.

A signal's handler may raise between any two steps of this. So what follows from a look at the bytes is stored in plain
assignments, one behind the other, when the look is over: what was interrupted is done again, and nothing is done twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.client.compiled import count_rows
from headrace.client.consumer.errors import RecordDeserializationError
from headrace.client.consumer.records import PartitionColumns
from headrace.errors import HeadraceError, UnsupportedForMessageFormatError
from headrace.protocol.messages.fetch import AbortedTransaction
from headrace.records import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    Columns,
    TimestampType,
    check,
    decode_columns,
    decode_legacy,
    decode_spans,
    decode_stretch,
    is_legacy,
    is_wrapper,
    legacy_timestamp_type,
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
_NO_EPOCH = -1

Buffer = bytes | bytearray | memoryview


class _Group:
    """Consecutive batches that are decoded together: same format, same leader epoch, same kind of timestamp."""

    __slots__ = ("batches", "bytes", "is_legacy", "kind", "leader_epoch", "spans", "stretch")

    def __init__(self, leader_epoch: int, kind: TimestampType, *, is_legacy: bool = False) -> None:
        self.leader_epoch = leader_epoch
        self.kind = kind
        self.is_legacy = is_legacy
        self.batches: list[Batch] = []
        self.spans: list[tuple[BatchHeader, int, int]] | None = []
        """Where each batch's records lie in what was fetched; None when some are compressed."""
        self.bytes = 0
        self.stretch: Stretch | None = None
        """All batches of the fetch at once, none of them looked at: then this is the only group, without `batches`."""

    def takes(self, leader_epoch: int, kind: TimestampType, *, is_legacy: bool) -> bool:
        return (
            self.leader_epoch == leader_epoch
            and self.kind is kind
            and self.is_legacy is is_legacy
            and self.bytes <= DECODE_BYTES_MAX
        )

    def with_batches(self, batches: list[Batch]) -> _Group:
        """Some of its batches, as a group of their own."""
        made = _Group(self.leader_epoch, self.kind, is_legacy=self.is_legacy)
        made.batches, made.spans = batches, None
        made.bytes = sum(len(batch.buffer) for batch in batches)
        return made


class FetchedChunk:
    """The records that are left of one fetch of one partition: `peek` looks, `advance` counts as handed out."""

    __slots__ = (
        "_check_crcs",
        "_columns",
        "_end_epoch",
        "_error",
        "_groups",
        "_kind",
        "_next",
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
        self.leader_epoch = _NO_EPOCH
        """The leader epoch of the last record handed out; when all are, of the last batch, be it a marker."""
        self.byte_count = len(records)
        self._check_crcs = check_crcs
        self._groups: list[_Group] = []
        self._next = 0
        """Which of the groups is decoded next."""
        self._columns: Columns | None = None
        self._kind = TimestampType.CREATE_TIME
        self._row = 0
        self._end_epoch = _NO_EPOCH
        self._error: RecordDeserializationError | None = None
        self._records = records
        stretch = survey_stretch(records, fetch_offset, DECODE_BYTES_MAX)
        if stretch is not None:
            self._take_stretch(stretch)
        else:
            self._survey(records, aborted if read_committed else None)

    def _take_stretch(self, stretch: Stretch) -> None:
        """The usual case: nothing in this fetch is special, so no batch is looked at by itself."""
        kind = TimestampType.LOG_APPEND_TIME if stretch.is_log_append_time else TimestampType.CREATE_TIME
        group = _Group(stretch.leader_epoch, kind)
        group.stretch = stretch
        self._groups = [group]
        self.next_offset = stretch.next_offset
        self.leader_epoch = self._end_epoch = stretch.leader_epoch

    def _survey(self, records: Buffer, aborted: Sequence[AbortedTransaction] | None) -> None:
        pending = deque(sorted(aborted, key=lambda found: found.first_offset)) if aborted else None
        aborting: set[int] = set()
        groups: list[_Group] = []
        next_offset, end_epoch = self.position, _NO_EPOCH
        failure: RecordDeserializationError | None = None
        end = 0
        try:
            for batch in split(records):
                if is_legacy(batch):
                    end += len(batch.buffer)
                    if batch.base_offset >= self.position:
                        _add_legacy(groups, batch)
                        next_offset, end_epoch = batch.base_offset + 1, _NO_EPOCH
                    continue
                header = batch.header()
                start, end = end, end + header.size
                if header.next_offset <= self.position:
                    # Wholly before the position: a fetch from the middle of a batch gives the batch from its start.
                    continue
                if pending is not None:
                    while pending and pending[0].first_offset <= header.last_offset:
                        aborting.add(pending.popleft().producer_id)
                # Also of those that are left out: the position behind a marker of a new leader is that leader's.
                next_offset, end_epoch = header.next_offset, header.leader_epoch
                if header.is_control:
                    if pending is not None and _ends_abort(batch):
                        aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    _add(groups, batch, header, start, end)
        except HeadraceError as error:
            failure = _unreadable(self.partition, next_offset, Batch(memoryview(records)[end:]), None, error)
        self._groups, self._next = groups, 0
        self.next_offset, self._end_epoch, self._error = next_offset, end_epoch, failure
        self.leader_epoch = end_epoch

    @property
    def is_done(self) -> bool:
        """Whether everything was handed out (an error that stands at the end was not)."""
        return self._columns is None and self._next >= len(self._groups) and self._error is None

    @property
    def error(self) -> RecordDeserializationError | None:
        """What stands behind the records that can be read."""
        return self._error

    def batches(self) -> Iterator[tuple[Batch, BatchHeader]]:
        """The batches from the position on as they lie in the log, markers and aborted ones too, none decoded."""
        found = split(self._records)
        while True:
            try:
                batch = next(found, None)
            except HeadraceError:
                # What stands there instead of a batch (see `error`) was found when the headers were looked at.
                if self._error is None:
                    raise
                return
            if batch is None:
                return
            if is_legacy(batch):
                raise UnsupportedForMessageFormatError(
                    f"{self.partition} holds messages of a format before Kafka 0.11 at offset {batch.base_offset}: "
                    "they are no batches, and can only be read as records"
                )
            header = batch.header()
            if self._error is not None and header.base_offset >= self._error.offset:
                return
            if header.next_offset > self.position:
                yield batch, header

    @property
    def mark(self) -> tuple[Any, ...]:
        """How far this is, for `rewind`."""
        return (
            self._groups,
            self._next,
            self._columns,
            self._row,
            self._kind,
            self._error,
            self.leader_epoch,
            self.position,
        )

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """What was counted as handed out since `mark` was not: it comes again."""
        (
            self._groups,
            self._next,
            self._columns,
            self._row,
            self._kind,
            self._error,
            self.leader_epoch,
            self.position,
        ) = mark

    @property
    def place(self) -> tuple[Columns | None, int]:
        """The columns that are being handed out, and how many rows of them were: see `advance_to`."""
        return self._columns, self._row

    def peek(self, rows_max: int) -> PartitionColumns | None:
        """The next records, at most that many; None when none are left. Raises what stands in their place.

        They stay until `advance` says that they were handed out.
        """
        while self._columns is None:
            if self._next >= len(self._groups):
                if self._error is not None:
                    raise self._error
                return None
            self._decode()
        columns = self._columns
        end = min(len(columns), self._row + rows_max)
        epoch = next_epoch = self.leader_epoch
        if end == len(columns) and self._next >= len(self._groups) and self._error is None:
            next_offset, next_epoch = self.next_offset, self._end_epoch
        else:
            next_offset = columns.offsets[end - 1] + 1
        return PartitionColumns(
            self.partition, columns.rows(self._row, end), epoch, self._kind, next_offset, next_epoch
        )

    def advance(self, rows: int) -> None:
        """That many records of the last `peek` were handed out."""
        columns = self._columns
        if columns is not None and rows > 0:
            self.advance_to(columns, self._row + rows)

    def advance_to(self, columns: Columns, row: int) -> int:
        """Rows of these columns (see `place`) before `row` were handed out; how many of them are news."""
        before = self._row
        if columns is not self._columns or row <= before:
            return 0
        position, epoch = columns.offsets[row - 1] + 1, self.leader_epoch
        left: Columns | None = columns
        if row >= len(columns):
            left = None
            if self._next >= len(self._groups) and self._error is None:
                position, epoch = self.next_offset, self._end_epoch
        self._columns, self._row, self.position, self.leader_epoch = left, row, position, epoch
        return row - before

    def _decode(self) -> None:
        """Decode the next group; when that cannot be done, there are other groups instead of it afterwards."""
        group = self._groups[self._next]
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
            try:
                columns = self._decoded(group)
            except HeadraceError as error:
                self._until_bad(group, error)
                return
        start = bisect_left(columns.offsets, self.position) if len(columns) else 0
        left = columns if start < len(columns) else None
        self._columns, self._row, self._next = left, start, self._next + 1
        self.leader_epoch, self._kind = group.leader_epoch, group.kind

    def _decoded(self, group: _Group) -> Columns:
        if group.is_legacy:
            return decode_legacy(group.batches, check_crcs=self._check_crcs)
        count_rows(sum(batch.count for batch in group.batches))
        if self._check_crcs:
            for batch in group.batches:
                check(batch)
        if group.spans is not None:
            return decode_spans(self._records, group.spans)
        return decode_columns(group.batches)

    def _until_bad(self, group: _Group, error: HeadraceError) -> None:
        """The good batches before a bad one come first; its error stands where it was, for whoever asks again."""
        behind = self._groups[self._next + 1 :]
        following: list[int | None] = [batch.base_offset for batch in group.batches[1:]]
        following.append(behind[0].batches[0].base_offset if behind else None)
        good: list[Batch] = []
        for batch, next_base in zip(group.batches, following):
            try:
                self._decoded(group.with_batches([batch]))
            except HeadraceError as found:
                at = _first_offset(batch, good[-1] if good else None, self.position)
                failure = _unreadable(self.partition, at, batch, next_base, found)
                groups = [group.with_batches(good)] if good else []
                self._groups, self._next, self._error = groups, 0, failure
                return
            good.append(batch)
        # Each can be read, but not all together (they pass the limit of decompressed bytes): one after the other.
        if len(good) < 2:
            raise error
        self._groups, self._next = [group.with_batches([batch]) for batch in good] + behind, 0


def _add(groups: list[_Group], batch: Batch, header: BatchHeader, start: int, end: int) -> None:
    """Put a batch, whose bytes lie there in what was fetched, with those that it can be decoded with."""
    kind, epoch = header.timestamp_type, header.leader_epoch
    if not groups or not groups[-1].takes(epoch, kind, is_legacy=False):
        groups.append(_Group(epoch, kind))
    group = groups[-1]
    group.batches.append(batch)
    if header.codec_id:
        group.spans = None
    elif group.spans is not None:
        group.spans.append((header, start + HEADER_BYTES, end))
    group.bytes += header.size


def _add_legacy(groups: list[_Group], batch: Batch) -> None:
    kind = legacy_timestamp_type(batch)
    if not groups or not groups[-1].takes(_NO_EPOCH, kind, is_legacy=True):
        groups.append(_Group(_NO_EPOCH, kind, is_legacy=True))
    groups[-1].batches.append(batch)
    groups[-1].bytes += len(batch.buffer)


def _first_offset(batch: Batch, before: Batch | None, position: int) -> int:
    """Where a damaged batch begins, as far as can be told."""
    if is_legacy(batch) and is_wrapper(batch):
        # It says where it ends, not where it begins.
        return position if before is None else max(position, before.base_offset + 1)
    return max(position, batch.base_offset)


def _unreadable(
    partition: TopicPartition, offset: int, batch: Batch, next_base: int | None, cause: HeadraceError
) -> RecordDeserializationError:
    """What stands in the place of a damaged batch. Its header may lie, so the next batch's beginning bounds its end."""
    last = offset
    if len(batch.buffer) >= HEADER_BYTES and not is_legacy(batch):
        header = batch.header()
        if 0 < header.last_offset - header.base_offset < _DAMAGED_OFFSETS_MAX:
            last = max(offset, header.last_offset)
    elif len(batch.buffer) >= HEADER_BYTES // 2 and is_legacy(batch):
        last = batch.base_offset if 0 < batch.base_offset - offset < _DAMAGED_OFFSETS_MAX else offset
    if next_base is not None and next_base > offset:
        last = min(last, next_base - 1)
    error = RecordDeserializationError(partition, offset, str(cause), last_offset=last, raw=bytes(batch.buffer))
    error.__cause__ = cause
    return error


def _ends_abort(batch: Batch) -> bool:
    records = read_records(batch)
    return bool(records) and read_control(records[0]).control_type == _ABORT
