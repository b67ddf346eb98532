"""Records of one partition that travel together: filled by the accumulator, encoded when sent, and told how it went."""

from __future__ import annotations

import itertools
import logging
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, cast, overload

from headrace.client.producer._failures import Unheard, UnheardFailures, count_silent, is_silent
from headrace.client.producer._flushes import FlushWait
from headrace.client.producer._unpacked import Unpacked
from headrace.client.producer.delivery import (
    CALLBACK,
    ON_DELIVERY,
    OWNER,
    PLACE,
    BatchDelivery,
    Callbacks,
    DeliveredRange,
    Delivery,
    DeliveryCallback,
    HeaderList,
    RecordMetadata,
)
from headrace.errors import HeadraceError, InvalidRecordError
from headrace.functions import check_has_run
from headrace.records.batch import HEADER_BYTES, Codec, increment_sequence, seal
from headrace.records.build import (
    BatchOptions,
    Built,
    build_batch_from_columns,
    build_batch_of,
    build_batch_of_values,
)
from headrace.records.columns import BytesColumn, Columns
from headrace.words import plural

log = logging.getLogger("headrace.client.producer")

Handles = list[Delivery] | Callbacks | BatchDelivery
"""Who wants to know how rows fared: users with handles, callbacks alone, or one handle for many rows."""
NO_SEQUENCE = -1
_places = itertools.count()
_IDENTITY_AT = 43
_IDENTITY = struct.Struct(">qhi")
_CALLBACK_OF = itemgetter(CALLBACK)
_new_metadata = tuple.__new__


class RowRun:
    """Neighbouring rows of a batch that were sent by the same kind of call."""

    __slots__ = ("count", "handles")

    def __init__(self, handles: Handles, count: int) -> None:
        self.handles = handles
        self.count = count


class ProducerBatch:
    """One batch. It holds rows (lists), or columns as they were given by `send_arrow`; never both."""

    __slots__ = (
        "attempts",
        "base_offset",
        "columns",
        "count",
        "created",
        "doubt_until",
        "encoded",
        "error",
        "flushes",
        "headers",
        "in_flight",
        "is_closed",
        "is_done",
        "keys",
        "last_error",
        "log_append_time_ms",
        "partition",
        "place",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "retry_at",
        "runs",
        "sender",
        "sequence",
        "size",
        "timestamps",
        "topic",
        "transactional",
        "unheard",
        "unsent_attempts",
        "values",
        "waiters",
    )

    def __init__(self, sender: Any, topic: str, partition: int, created: float, *, transactional: bool = False) -> None:
        self.sender = sender
        self.transactional = transactional
        self.topic = topic
        self.partition = partition
        self.created = created
        self.count = 0
        self.size = HEADER_BYTES
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: Sequence[int] = []
        self.headers: list[HeaderList] | None = None
        self.columns: Columns | Unpacked | None = None
        self.runs: list[RowRun] = []
        self.is_closed = False
        self.encoded: Built | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequence = NO_SEQUENCE
        self.place: tuple[int, ...] = (next(_places),)
        """Where it stands among those of its partition: each comes after those that were made before it, and the parts
        of one that was split are where that was."""
        self.attempts = 0
        self.unsent_attempts = 0
        """Those that ended before anything was sent, which are not counted against `retries`."""
        self.retry_at = 0.0
        self.doubt_until = 0.0
        """Above zero: an attempt ended without a word, or with one that does not say whether the batch was written;
        until then it may still lie before the broker, unread."""
        self.in_flight = False
        self.is_done = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: HeadraceError | None = None
        self.last_error: HeadraceError | None = None
        """Why it is sent again."""
        self.record_errors: dict[int, str | None] = {}
        self.unheard: Unheard | None = None
        """Set when it failed, and not every delivery has a callback that was called."""
        self.waiters: list[Callable[[], None]] = []
        self.flushes: list[FlushWait] = []

    def __repr__(self) -> str:
        return f"<ProducerBatch {self.topic}-{self.partition}: {self.count} records, sequence {self.sequence}>"

    # --- filling ------------------------------------------------------------------------------------------------------

    def append_rows(
        self,
        handles: Handles,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[HeaderList | None] | None,
        size: int,
    ) -> None:
        """Take more rows. Deliveries learn their batch and their row in it."""
        if type(handles) is list:
            row = self.count
            for delivery in handles:
                delivery[OWNER] = self
                delivery[PLACE] = row
                row += 1
        added = len(values)
        if headers is not None or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * self.count
            self.headers.extend([()] * added if headers is None else [row_headers or () for row_headers in headers])
        self.keys.extend(keys)
        self.values.extend(values)
        assert isinstance(self.timestamps, list)
        self.timestamps.extend(timestamps)
        self.runs.append(RowRun(handles, added))
        self.count += added
        self.size += size

    def take_one(self, delivery: Delivery, key: bytes | None, value: bytes | None, timestamp: int, size: int) -> None:
        """Be a batch of this record, and of no other."""
        delivery[OWNER], delivery[PLACE] = self, 0
        self.keys, self.values, self.timestamps = [key], [value], [timestamp]
        self.runs = [RowRun([delivery], 1)]
        self.count = 1
        self.size += size
        self.is_closed = True

    def take_columns(self, columns: Columns | Unpacked, delivery: BatchDelivery, size: int) -> None:
        """Be a batch of these columns."""
        self.columns = columns
        self.timestamps = columns.timestamps
        self.count = len(columns)
        self.size += size
        self.runs.append(RowRun(delivery, self.count))

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.sequence, self.count - 1)

    def identify(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """Give the batch its producer and sequence number; an encoded one is patched in place."""
        self.producer_id, self.producer_epoch, self.sequence = producer_id, producer_epoch, sequence
        if self.encoded is not None:
            # A fresh copy: the old bytes may still be on their way out of an earlier attempt.
            self.encoded = bytearray(self.encoded)
            _IDENTITY.pack_into(self.encoded, _IDENTITY_AT, producer_id, producer_epoch, sequence)
            seal(self.encoded)

    def encode(self, codec: Codec, level: int | None) -> Built:
        """The batch as it travels; made once, and kept for retries."""
        if self.encoded is None:
            self.encoded = self._built(
                {
                    "base_offset": 0,
                    "codec": codec,
                    "level": level,
                    "producer_id": self.producer_id,
                    "producer_epoch": self.producer_epoch,
                    "base_sequence": self.sequence,
                    "transactional": self.transactional,
                }
            )
        return self.encoded

    def _built(self, options: BatchOptions) -> Built:
        columns = self.columns
        if columns is None:
            return build_batch_of(self.timestamps, self.keys, self.values, self.headers, pooled=True, **options)
        if isinstance(columns, Unpacked):
            return build_batch_of_values(
                columns.source, columns.start, columns.lengths, columns.timestamp_ms, **options
            )
        return build_batch_from_columns(columns, pooled=True, **options)

    def split(self) -> list[ProducerBatch]:
        """Two halves of a batch that a broker found too large, with the same sequence numbers between them."""
        half = self.count // 2
        parts = [self._part(0, half), self._part(half, self.count)]
        if self.sequence != NO_SEQUENCE:
            parts[0].identify(self.producer_id, self.producer_epoch, self.sequence)
            parts[1].identify(self.producer_id, self.producer_epoch, increment_sequence(self.sequence, half))
        for number, part in enumerate(parts):
            part.place = (*self.place, number)
            part.is_closed = True
            part.attempts = self.attempts
            part.unsent_attempts = self.unsent_attempts
            part.last_error = self.last_error
            part.waiters = self.waiters
        return parts

    def _part(self, start: int, end: int) -> ProducerBatch:
        part = ProducerBatch(self.sender, self.topic, self.partition, self.created, transactional=self.transactional)
        row = 0
        for run in self.runs:
            low, high = max(start - row, 0), min(end - row, run.count)
            if low < high:
                handles = run.handles if isinstance(run.handles, BatchDelivery) else run.handles[low:high]
                part._take(self, handles, row + low, row + high)
            row += run.count
        if self.columns is not None:
            part.columns = slice_columns(self.columns, start, end)
        part.size = max(HEADER_BYTES, self.size * part.count // self.count)
        return part

    def _take(self, whole: ProducerBatch, handles: Handles, start: int, end: int) -> None:
        if whole.columns is not None:
            self.runs.append(RowRun(handles, end - start))
            self.count += end - start
            return
        headers = None if whole.headers is None else whole.headers[start:end]
        stamps = whole.timestamps[start:end]
        self.append_rows(handles, whole.keys[start:end], whole.values[start:end], stamps, headers, 0)

    # --- the end ------------------------------------------------------------------------------------------------------

    def timestamp_of(self, row: int) -> int:
        if self.log_append_time_ms >= 0:
            return self.log_append_time_ms
        return self.timestamps[row] if row < len(self.timestamps) else -1

    def metadata_of(self, row: int) -> RecordMetadata:
        offset = self.base_offset + row if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, self.timestamp_of(row))

    def error_of(self, row: int) -> HeadraceError | None:
        """Why a record failed: the broker may have named the ones at fault in the batch."""
        if self.error is None or not self.record_errors:
            return self.error
        if row in self.record_errors:
            why = self.record_errors[row] or str(self.error)
            return InvalidRecordError(f"the record at row {row} for {self.topic}-{self.partition} was refused: {why}")
        return InvalidRecordError(
            f"the record at row {row} for {self.topic}-{self.partition} was not written because its batch has "
            f"{plural(len(self.record_errors), 'record')} that the broker refused; send it again"
        )

    def finish(self, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> BaseException | None:
        """Acknowledged, or failed for good: tell everybody. Called once.

        What a callback raised that is no error but an end (`SystemExit`, `KeyboardInterrupt`), for when all is told.
        """
        self.is_done = True
        self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
        if error is not None:
            self._count_unheard(error)
        interruption: BaseException | None = None
        row = 0
        for run in self.runs:
            if isinstance(run.handles, list):
                interruption = self._tell_each(list(map(_CALLBACK_OF, run.handles)), row) or interruption
            elif isinstance(run.handles, Callbacks):
                interruption = self._tell_each(run.handles.functions, row) or interruption
            else:
                delivered = None
                if error is None:
                    first = base_offset + row if base_offset >= 0 else -1
                    delivered = DeliveredRange(self.topic, self.partition, first, run.count)
                interruption = tell_batch(run.handles, run.count, delivered, error) or interruption
            row += run.count
        # Handles keep the batch alive; the records need not stay with it.
        self.keys, self.values, self.headers, self.runs = [], [], None, []
        self.encoded = self.columns = None
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()
        return interruption

    def _count_unheard(self, error: HeadraceError) -> None:
        """Before anybody is told, and may ask."""
        failures = failures_of(self.sender)
        if failures is None:
            return
        silent = 0
        for run in self.runs:
            if isinstance(run.handles, list):
                silent += count_silent(map(_CALLBACK_OF, run.handles))
            elif isinstance(run.handles, Callbacks):
                silent += count_silent(run.handles.functions)
        if silent:
            self.unheard = failures.add(
                silent, error, self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
            )

    def _tell_each(self, callbacks: list[DeliveryCallback | None], row: int) -> BaseException | None:
        count = len(callbacks)
        if callbacks.count(None) == count:
            return None
        base = self.base_offset
        offsets: Iterable[int] = range(base + row, base + row + count) if base >= 0 else repeat(-1)
        appended = self.log_append_time_ms
        stamps: Iterable[int] = repeat(appended) if appended >= 0 else self.timestamps[row : row + count]
        rows = zip(repeat(self.topic), repeat(self.partition), offsets, stamps)
        # Made in C: what is left per record is the user's function, and a look at what it gave.
        reports = map(_new_metadata, repeat(RecordMetadata), rows)
        errors: Iterable[HeadraceError | None] = repeat(None)
        if self.error is not None:
            errors = repeat(self.error) if not self.record_errors else map(self.error_of, range(row, row + count))
        interruption: BaseException | None = None
        calls = zip(callbacks, errors, cast("Iterable[RecordMetadata]", reports))
        while True:
            try:
                for callback, error, metadata in calls:
                    if callback is not None and (result := callback(error, metadata)) is not None:
                        check_has_run(result, ON_DELIVERY)
                return interruption
            except Exception:
                # It goes on with the next record's.
                log.exception("a delivery callback for %s-%d raised", self.topic, self.partition)
            except BaseException as ended:  # noqa: BLE001 - told to whoever may be ended by it, once all is told
                interruption = ended


def failures_of(sender: Any) -> UnheardFailures | None:
    """Where failures are counted; not in a transaction, whose end says that."""
    failures: UnheardFailures | None = getattr(sender, "failures", None)
    return None if getattr(sender, "is_transactional", False) else failures


def tell_batch(
    delivery: BatchDelivery, rows: int, delivered: DeliveredRange | None, error: HeadraceError | None
) -> BaseException | None:
    """Some rows of a `send_batch` are done; with the last of them its callback is called (see `finish`)."""
    delivery.finished(rows, delivered, error)
    interruption: BaseException | None = None
    if not delivery.is_done:
        return None
    failures = failures_of(delivery.sender)
    if delivery.error is not None and is_silent(delivery.callback) and failures is not None:
        delivery.unheard = failures.add(delivery.failed_rows, delivery.error, delivery.topic)
    if delivery.callback is not None:
        try:
            check_has_run(delivery.callback(delivery.error, delivery.ranges), ON_DELIVERY)
        except Exception:
            log.exception("a delivery callback for %s raised", delivery.topic)
        except BaseException as ended:  # noqa: BLE001 - as in `_tell_each`
            interruption = ended
    waiters, delivery.waiters = delivery.waiters, []
    for waiter in waiters:
        waiter()
    return interruption


@overload
def slice_columns(columns: Columns, start: int, end: int) -> Columns: ...
@overload
def slice_columns(columns: Columns | Unpacked, start: int, end: int) -> Columns | Unpacked: ...
def slice_columns(columns: Columns | Unpacked, start: int, end: int) -> Columns | Unpacked:
    """Neighbouring rows; nothing is copied."""
    if isinstance(columns, Unpacked):
        return columns.rows(start, end)
    return Columns(
        columns.offsets[: end - start],
        columns.timestamps[start:end],
        _slice(columns.keys, start, end),
        _slice(columns.values, start, end),
        None if columns.headers is None else _slice(columns.headers, start, end),
    )


def _slice(column: BytesColumn, start: int, end: int) -> BytesColumn:
    return column.rows(start, end)


def cut(ends: Sequence[int], start: int, room: int) -> int:
    """How far rows from `start` on fit into `room` bytes, given where each ends (running totals of their sizes)."""
    before = ends[start - 1] if start else 0
    return bisect_right(ends, before + room, start)
