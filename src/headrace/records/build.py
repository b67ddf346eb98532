"""Build batches: from records, from columns, transaction markers, and the empty ones that compaction leaves.

| from | by | because |
|---|---|---|
| record tuples | `build_batch` | brokers and tests have a few, one by one |
| parallel sequences | `build_batch_of` | a producer holds those: nothing is made per record |
| columns | `build_batch_from_columns` | Arrow and compaction have buffers with positions: nothing is copied before |
| the values of a list | `build_batch_of_values` | `send_batch`'s own is read in place: no array, no slice of it |
| one record | `build_one` | in a round trip, what is made for thousands costs more than the socket |

The records themselves are written by four encoders: from sequences with look-up tables (`_encode_rows`), for numbers
beyond those (`_encode_large_rows`), and compiled, from columns (`kernels_fast.encode_records`) and from the values of a
list (`kernels_fast_objects.encode_values`). `build_one` packs its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, repeat
from operator import add, lt
from typing import Any, Literal, TypedDict, Unpack, cast, overload

from headrace.records import kernels, varint
from headrace.records.batch import (
    CONTROL_BIT,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAX_SEQUENCE,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    Codec,
    TimestampType,
    seal,
)
from headrace.records.buffers import SHARED
from headrace.records.columns import BytesColumn, Columns, encode_headers, int_column
from headrace.records.compression import compress

HeaderList = Sequence[tuple[str, bytes | None]]
RecordTuple = (
    tuple[int, bytes | None, bytes | None, HeaderList] | tuple[int, bytes | None, bytes | None, HeaderList, int]
)
"""Timestamp, key, value, headers, and optionally the offset relative to the batch's base offset."""

Built = bytearray | memoryview

_MAX_BATCH_BYTES = 2147483647
_PLACEHOLDER = bytes(HEADER_BYTES)
_ROOT = bytearray()


class BatchOptions(TypedDict, total=False):
    """What may be said about a batch; see `_Options` for the defaults."""

    base_offset: int
    last_offset: int | None
    codec: Codec
    level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    leader_epoch: int
    timestamp_type: TimestampType
    log_append_time: int | None
    delete_horizon: int | None


@dataclass(slots=True)
class _Options:
    base_offset: int = 0
    last_offset: int | None = None
    codec: Codec = Codec.NONE
    level: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    log_append_time: int | None = None
    delete_horizon: int | None = None
    pooled: bool = False
    """Whether the batch may live in memory that is used again once no view of it is left."""

    def check(self) -> None:
        """Refuse what Java's builder refuses."""
        if self.transactional and self.producer_id == NO_PRODUCER_ID:
            raise ValueError("a transactional batch needs a producer id")
        if self.producer_id != NO_PRODUCER_ID:
            if self.producer_epoch == NO_PRODUCER_EPOCH:
                raise ValueError(f"producer {self.producer_id} needs an epoch")
            if self.base_sequence < 0 and not self.control:
                raise ValueError(f"producer {self.producer_id} needs a sequence number, got {self.base_sequence}")
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME and self.log_append_time is None:
            raise ValueError("a batch with log append time needs log_append_time")

    @property
    def attributes(self) -> int:
        bits = int(self.codec)
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            bits |= LOG_APPEND_TIME_BIT
        if self.transactional:
            bits |= TRANSACTIONAL_BIT
        if self.control:
            bits |= CONTROL_BIT
        if self.horizon is not None:
            bits |= DELETE_HORIZON_BIT
        return bits

    @property
    def horizon(self) -> int | None:
        """Java takes a negative horizon as none."""
        return self.delete_horizon if self.delete_horizon is not None and self.delete_horizon >= 0 else None


class ControlType(IntEnum):
    """Types of control records; all but the first two belong to KRaft."""

    ABORT = 0
    COMMIT = 1


def build_batch(records: Iterable[RecordTuple], **options: Unpack[BatchOptions]) -> bytearray:
    """One batch of record tuples (timestamp_ms, key, value, headers[, offset delta]), in order of their offsets."""
    rows = records if isinstance(records, list) else list(records)
    if not rows:
        raise ValueError("a batch needs at least one record")
    timestamps, keys, values, headers, *rest = zip(*rows)
    return build_batch_of(timestamps, keys, values, headers, rest[0] if rest else None, **options)


@overload
def build_batch_of(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None = None,
    offset_deltas: Sequence[int] | None = None,
    **options: Unpack[BatchOptions],
) -> bytearray: ...
@overload
def build_batch_of(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None = None,
    offset_deltas: Sequence[int] | None = None,
    *,
    pooled: Literal[True],
    **options: Unpack[BatchOptions],
) -> Built: ...
def build_batch_of(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None = None,
    offset_deltas: Sequence[int] | None = None,
    *,
    pooled: bool = False,
    **options: Unpack[BatchOptions],
) -> Built:
    """One batch of parallel sequences: what a producer holds when it drains.

    A `pooled` one lives in memory that is used again once no view of it is left. The lists must not change meanwhile:
    values without keys and headers are read where they are, without the interpreter's lock.
    """
    chosen = _Options(**options, pooled=pooled)
    if chosen.pooled and headers is None and offset_deltas is None and type(values) is list:
        found = _build_values_alone(timestamps, keys, values, chosen)
        if found is not None:
            return found
    return _build_of(timestamps, keys, values, headers, offset_deltas, chosen)


def _build_values_alone(
    timestamps: Sequence[int], keys: Sequence[bytes | None], values: list[bytes | None], options: _Options
) -> Built | None:
    """Every byte is copied once, from the value to the batch; None when there is more to a record than its value."""
    if kernels.choose(len(values)) is kernels.PLAIN:
        return None
    from headrace.records import cpython
    from headrace.records import kernels_fast_objects as objects

    count = len(values)
    if not cpython.READS_LISTS or not count or len(timestamps) != count or options.horizon is not None:
        return None
    if keys.count(None) != count:
        return None
    measured, times = objects.measure(values), objects.deltas_of(timestamps)
    if measured is None or measured.nulls or times is None:
        return None
    deltas, highest = times
    lengths = memoryview(measured.lengths)
    return _build_values(cast("list[bytes]", values), 0, lengths, timestamps[0], highest, deltas, options)


def build_one(
    timestamp: int, key: bytes | None, value: bytes | None, producer_id: int, producer_epoch: int, sequence: int
) -> bytearray:
    """A batch of one record without headers, not compressed: the bytes of `build_batch_of` for less work."""
    if timestamp < NO_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp} is negative")
    key_size, value_size = (-1 if key is None else len(key)), (-1 if value is None else len(value))
    # Attributes and both deltas are 0, and there are no headers.
    record = b"".join((b"\0\0\0", varint.encode(key_size), key or b"", varint.encode(value_size), value or b"", b"\0"))
    out = _ROOT.join((_PLACEHOLDER, varint.encode(len(record)), record))
    length = len(out) - PREFIX_BYTES
    numbers = (timestamp, timestamp, producer_id, producer_epoch, sequence)
    HEADER.pack_into(out, 0, 0, length, NO_LEADER_EPOCH, CURRENT_MAGIC, 0, 0, 0, *numbers, 1)
    seal(out)
    return out


def _build_of(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None,
    offset_deltas: Sequence[int] | None,
    options: _Options,
) -> Built:
    options.check()
    if not timestamps:
        raise ValueError("a batch needs at least one record")
    sections: list[bytes] | None = None
    if headers is not None and any(headers):
        sections = [encode_headers(row) if row else b"\0" for row in headers]
    kernel = kernels.choose(len(timestamps))
    if kernel is kernels.PLAIN:
        return _build_rows(timestamps, keys, values, sections, offset_deltas, options)
    return _build_columns(
        None if offset_deltas is None else int_column("q", offset_deltas),
        int_column("q", timestamps),
        kernel.pack(keys),
        kernel.pack(values),
        None if sections is None else kernel.pack(sections),
        options,
    )


def build_batch_of_values(
    values: list[bytes], start: int, lengths: memoryview, timestamp: int, **options: Unpack[BatchOptions]
) -> Built:
    """As many values of the list as there are lengths, all at one time, without keys and headers: read where they are.
    Always pooled.

    The list must not change meanwhile. Needs the compiled kernels, and `cpython.READS_LISTS`.
    """
    from headrace.records.compiling import no_longs

    return _build_values(values, start, lengths, timestamp, timestamp, no_longs, _Options(**options, pooled=True))


def _build_values(
    values: list[bytes], start: int, lengths: memoryview, base: int, highest: int, deltas: Any, options: _Options
) -> Built:
    from headrace.records import kernels_fast_objects as objects

    options.check()
    count = len(lengths)
    _check_range(0, count - 1, True, base)
    size = HEADER_BYTES + objects.size_of_values(lengths, deltas)
    if size > _MAX_BATCH_BYTES:
        raise ValueError(f"{count} records of {size} bytes do not fit one batch: build smaller batches")
    out = SHARED.take(size)
    end = objects.encode_values(out, HEADER_BYTES, values, start, lengths, deltas)
    if end != size:
        raise AssertionError(f"encoded {end} bytes, sized {size}")
    return _finish(out, count, count - 1, base, highest, options)


@overload
def build_batch_from_columns(columns: Columns, **options: Unpack[BatchOptions]) -> bytearray: ...
@overload
def build_batch_from_columns(columns: Columns, *, pooled: Literal[True], **options: Unpack[BatchOptions]) -> Built: ...
def build_batch_from_columns(columns: Columns, *, pooled: bool = False, **options: Unpack[BatchOptions]) -> Built:
    """One batch of columns; offsets are absolute, and `base_offset` defaults to the first. `pooled` as above."""
    if not len(columns):
        raise ValueError("a batch needs at least one record")
    options.setdefault("base_offset", columns.offsets[0])
    chosen = _Options(**options, pooled=pooled)
    chosen.check()
    kernel = kernels.choose(len(columns))
    deltas = kernel.offset_deltas(columns.offsets, chosen.base_offset)
    if kernel is kernels.PLAIN:
        keys, values = columns.keys.to_list(), columns.values.to_list()
        sections = None if columns.headers is None else [section or b"\0" for section in columns.headers.to_list()]
        relative = None if deltas is None else deltas.tolist()
        return _build_rows(columns.timestamps.tolist(), keys, values, sections, relative, chosen)
    return _build_columns(deltas, columns.timestamps, columns.keys, columns.values, columns.headers, chosen)


def _build_columns(
    deltas: memoryview | None,
    timestamps: memoryview,
    keys: BytesColumn,
    values: BytesColumn,
    headers: BytesColumn | None,
    options: _Options,
) -> Built:
    """The compiled way; where there is none, `_build_rows` is taken instead."""
    from headrace.records import kernels_fast as kernel

    count = len(timestamps)
    base_timestamp = timestamps[0] if options.horizon is None else options.horizon
    lengths = None if headers is None else headers.lengths
    survey = kernel.survey_records(deltas, timestamps, base_timestamp, keys.lengths, values.lengths, lengths)
    first, last = (0, count - 1) if deltas is None else (deltas[0], deltas[-1])
    _check_range(first, last, survey.increasing, survey.lowest_timestamp)
    if survey.size + HEADER_BYTES > _MAX_BATCH_BYTES:
        raise ValueError(f"{count} records of {survey.size} bytes do not fit one batch: build smaller batches")
    size = HEADER_BYTES + survey.size
    out: Built = SHARED.take(size) if options.pooled else bytearray(size)
    end = kernel.encode_records(out, HEADER_BYTES, deltas, timestamps, base_timestamp, keys, values, headers)
    if end != len(out):
        raise AssertionError(f"encoded {end} bytes, sized {len(out)}")
    return _finish(out, count, last, base_timestamp, survey.highest_timestamp, options)


def _build_rows(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    sections: list[bytes] | None,
    offset_deltas: Sequence[int] | None,
    options: _Options,
) -> Built:
    """The plain way, straight from Python's objects: columns would only be a detour."""
    count = len(timestamps)
    base_timestamp = timestamps[0] if options.horizon is None else options.horizon
    deltas: Sequence[int] = range(count) if offset_deltas is None else offset_deltas
    increasing = offset_deltas is None or all(map(lt, offset_deltas, offset_deltas[1:]))
    _check_range(deltas[0], deltas[-1], increasing, min(timestamps))
    out = _encode_rows(deltas, timestamps, base_timestamp, keys, values, sections)
    if len(out) > _MAX_BATCH_BYTES:
        raise ValueError(f"{count} records of {len(out)} bytes do not fit one batch: build smaller batches")
    return _finish(out, count, deltas[-1], base_timestamp, max(timestamps), options)


def _check_range(first: int, last: int, increasing: bool, lowest_timestamp: int) -> None:
    if not increasing:
        raise ValueError(f"offset deltas {first}..{last} are out of order: offsets must increase")
    if last > MAX_SEQUENCE or first < -MAX_SEQUENCE - 1:
        raise ValueError(f"offset deltas {first}..{last} do not fit 32 bits: build smaller batches")
    if lowest_timestamp < NO_TIMESTAMP:
        raise ValueError(f"timestamp {lowest_timestamp} is negative")


def _finish(
    out: Built, count: int, last_delta: int, base_timestamp: int, max_timestamp: int, options: _Options
) -> Built:
    """Compress what follows the room for the header, then write the header."""
    if options.codec is not Codec.NONE:
        packed = compress(options.codec, memoryview(out)[HEADER_BYTES:], options.level)
        out = _ROOT.join((_PLACEHOLDER, packed))
    if options.last_offset is not None:
        last_delta = options.last_offset - options.base_offset
    if options.timestamp_type is TimestampType.LOG_APPEND_TIME:
        assert options.log_append_time is not None
        max_timestamp = options.log_append_time
    return _write_header(out, options, last_delta, base_timestamp, max_timestamp, count)


def _write_header(
    out: Built, options: _Options, last_delta: int, base_timestamp: int, max_timestamp: int, count: int
) -> Built:
    HEADER.pack_into(
        out,
        0,
        options.base_offset,
        len(out) - PREFIX_BYTES,
        options.leader_epoch,
        CURRENT_MAGIC,
        0,
        options.attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    seal(out)
    return out


def _encode_rows(
    deltas: Sequence[int],
    timestamps: Sequence[int],
    base_timestamp: int,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    sections: list[bytes] | None,
) -> bytearray:
    """The encoded records behind room for the header.

    Every step runs over all rows at once inside the interpreter's C code, by look-up in tables: no bytecode per record.
    """
    tables = varint.tables()
    part, cost = tables.encoded.__getitem__, tables.costs.__getitem__
    key_lengths, key_bytes = _lengths(keys)
    value_lengths, value_bytes = _lengths(values)
    stamps = {stamp: b"\0" + varint.encode(stamp - base_timestamp) for stamp in set(timestamps)}
    stamp_parts = list(map(stamps.__getitem__, timestamps))
    if not 0 <= deltas[0] <= deltas[-1] < varint.SMALL or max(key_lengths) + max(value_lengths) >= varint.SMALL:
        return _encode_large_rows(deltas, stamp_parts, key_lengths, key_bytes, value_lengths, value_bytes, sections)
    if isinstance(deltas, range):
        offset_parts, offset_sizes = tables.encoded[: len(deltas)], tables.sizes[: len(deltas)]
    else:
        offset_parts, offset_sizes = list(map(part, deltas)), list(map(tables.sizes.__getitem__, deltas))
    field_sizes = map(add, map(cost, key_lengths), map(cost, value_lengths))
    header_sizes = repeat(1) if sections is None else map(len, sections)
    if len(stamps) == 1 and sections is None:
        other_sizes = map(add, offset_sizes, repeat(len(stamp_parts[0]) + 1))
    else:
        other_sizes = map(add, offset_sizes, map(add, map(len, stamp_parts), header_sizes))
    sizes = list(map(add, field_sizes, other_sizes))
    if max(sizes) >= varint.SMALL:
        return _encode_large_rows(deltas, stamp_parts, key_lengths, key_bytes, value_lengths, value_bytes, sections)
    rows = zip(
        map(part, sizes),
        stamp_parts,
        offset_parts,
        map(part, key_lengths),
        key_bytes,
        map(part, value_lengths),
        value_bytes,
        repeat(b"\0") if sections is None else sections,
    )
    return _ROOT.join(chain((_PLACEHOLDER,), chain.from_iterable(rows)))


def _lengths(rows: Sequence[bytes | None]) -> tuple[list[int], Sequence[bytes]]:
    """Length of each row, -1 for null, and the rows with nothing in place of null."""
    if None in rows:
        return [-1 if row is None else len(row) for row in rows], [row or b"" for row in rows]
    present = cast(Sequence[bytes], rows)
    return list(map(len, present)), present


def _encode_large_rows(
    deltas: Sequence[int],
    stamp_parts: Sequence[bytes],
    key_lengths: Sequence[int],
    keys: Sequence[bytes],
    value_lengths: Sequence[int],
    values: Sequence[bytes],
    sections: Sequence[bytes] | None,
) -> bytearray:
    """Records with numbers beyond the tables; copying their bytes takes longer than encoding the numbers."""
    encode = varint.encode
    parts: list[bytes] = [_PLACEHOLDER]
    for row, delta in enumerate(deltas):
        fields = (
            stamp_parts[row],
            encode(delta),
            encode(key_lengths[row]),
            keys[row],
            encode(value_lengths[row]),
            values[row],
            b"\0" if sections is None else sections[row],
        )
        parts.append(encode(sum(map(len, fields))))
        parts.extend(fields)
    return _ROOT.join(parts)


def control_batch(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The marker that ends a transaction: one control record that commits or aborts."""
    if producer_id == NO_PRODUCER_ID:
        raise ValueError("a transaction marker needs a producer id")
    key = struct.pack(">hh", 0, control_type)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return build_batch(
        [(timestamp, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def empty_batch(
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """A batch without records: compaction keeps it where a producer's last sequence number is still needed."""
    options = _Options(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
    )
    out = bytearray(HEADER_BYTES)
    _write_header(out, options, last_offset - base_offset, NO_TIMESTAMP, max_timestamp, 0)
    return out
