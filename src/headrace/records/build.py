"""Build batches: from records, from columns, transaction markers, and the empty ones that compaction leaves."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TypedDict, Unpack

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
from headrace.records.columns import BytesColumn, Columns, bytes_column, encode_headers
from headrace.records.compression import compress

HeaderList = Sequence[tuple[str, bytes | None]]
RecordTuple = (
    tuple[int, bytes | None, bytes | None, HeaderList] | tuple[int, bytes | None, bytes | None, HeaderList, int]
)
"""Timestamp, key, value, headers, and optionally the offset relative to the batch's base offset."""

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


@dataclass(slots=True, frozen=True)
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


def build_batch_of(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None = None,
    offset_deltas: Sequence[int] | None = None,
    **options: Unpack[BatchOptions],
) -> bytearray:
    """One batch of parallel sequences: what a producer holds when it drains."""
    chosen = _Options(**options)
    chosen.check()
    if not timestamps:
        raise ValueError("a batch needs at least one record")
    base_timestamp = timestamps[0] if chosen.horizon is None else chosen.horizon
    sections: list[bytes] | None = None
    if headers is not None and any(headers):
        sections = [encode_headers(row) if row else b"\0" for row in headers]
    if kernels.choose(len(timestamps)) is kernels.PLAIN:
        deltas: Sequence[int] = range(len(timestamps)) if offset_deltas is None else offset_deltas
        parts = _encode_rows(deltas, timestamps, base_timestamp, keys, values, sections)
        return _finish(parts, None, len(timestamps), deltas, base_timestamp, timestamps, chosen)
    column = None if sections is None else bytes_column(sections)
    stamps = memoryview(array("q", timestamps))
    offsets = memoryview(array("q", range(len(stamps)) if offset_deltas is None else offset_deltas))
    return _build(offsets, stamps, bytes_column(keys), bytes_column(values), column, chosen)


def build_batch_from_columns(columns: Columns, **options: Unpack[BatchOptions]) -> bytearray:
    """One batch of columns; offsets are absolute, and `base_offset` defaults to the first."""
    if not len(columns):
        raise ValueError("a batch needs at least one record")
    options.setdefault("base_offset", columns.offsets[0])
    chosen = _Options(**options)
    chosen.check()
    base = chosen.base_offset
    deltas = memoryview(array("q", [offset - base for offset in columns.offsets.tolist()])) if base else columns.offsets
    return _build(deltas, columns.timestamps, columns.keys, columns.values, columns.headers, chosen)


def _build(
    deltas: memoryview,
    timestamps: memoryview,
    keys: BytesColumn,
    values: BytesColumn,
    headers: BytesColumn | None,
    options: _Options,
) -> bytearray:
    count = len(deltas)
    kernel = kernels.choose(count)
    stamps = timestamps.tolist()
    base_timestamp = stamps[0] if options.horizon is None else options.horizon
    timestamp_deltas = memoryview(array("q", [stamp - base_timestamp for stamp in stamps]))
    lengths = None if headers is None else headers.lengths
    size = kernel.size_records(deltas, timestamp_deltas, keys.lengths, values.lengths, lengths)
    if size + HEADER_BYTES > _MAX_BATCH_BYTES:
        raise ValueError(f"{count} records of {size} bytes do not fit one batch: build smaller batches")
    out = bytearray(HEADER_BYTES + size)
    end = kernel.encode_records(out, HEADER_BYTES, deltas, timestamp_deltas, keys, values, headers)
    if end != len(out):
        raise AssertionError(f"encoded {end} bytes, sized {len(out)}")
    return _finish(None, out, count, deltas, base_timestamp, stamps, options)


def _finish(
    parts: list[bytes] | None,
    out: bytearray | None,
    count: int,
    deltas: Sequence[int],
    base_timestamp: int,
    timestamps: Sequence[int],
    options: _Options,
) -> bytearray:
    """Compress, then write the header in front. `parts` starts with room for the header, and so does `out`."""
    _check_order(deltas, timestamps)
    if out is None:
        assert parts is not None
        out = _ROOT.join(parts)
    if options.codec is not Codec.NONE:
        packed = compress(options.codec, memoryview(out)[HEADER_BYTES:], options.level)
        out = _ROOT.join((_PLACEHOLDER, packed))
    last_delta = deltas[-1] if options.last_offset is None else options.last_offset - options.base_offset
    if options.timestamp_type is TimestampType.LOG_APPEND_TIME:
        assert options.log_append_time is not None
        max_timestamp = options.log_append_time
    else:
        max_timestamp = max(timestamps)
    return _write_header(out, options, last_delta, base_timestamp, max_timestamp, count)


def _check_order(deltas: Sequence[int], timestamps: Sequence[int]) -> None:
    if not isinstance(deltas, range):
        previous = deltas[0] - 1
        for delta in deltas:
            if delta <= previous:
                raise ValueError(f"offset delta {delta} follows {previous}: offsets must increase")
            previous = delta
        if deltas[-1] > MAX_SEQUENCE or deltas[0] < -MAX_SEQUENCE - 1:
            raise ValueError(f"offset deltas {deltas[0]}..{deltas[-1]} do not fit 32 bits: build smaller batches")
    lowest = min(timestamps)
    if lowest < NO_TIMESTAMP:
        raise ValueError(f"timestamp {lowest} is negative")


def _write_header(
    out: bytearray, options: _Options, last_delta: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
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
) -> list[bytes]:
    """Parts of the encoded records, the first one room for the header. bench/records.py says how fast."""
    small = varint.table()
    parts: list[bytes] = [_PLACEHOLDER]
    extend = parts.extend
    last_stamp = timestamps[0] - 1
    stamp_part, fixed = b"", 0
    encode = varint.encode
    for delta, stamp, key, value, section in zip(
        deltas, timestamps, keys, values, [b"\0"] * len(timestamps) if sections is None else sections
    ):
        if stamp != last_stamp:
            last_stamp = stamp
            stamp_part = b"\0" + encode(stamp - base_timestamp)
            fixed = len(stamp_part)
        offset_part = small[delta] if 0 <= delta < varint.SMALL else encode(delta)
        if key is None:
            key, key_part = b"", b"\x01"
        else:
            length = len(key)
            key_part = small[length] if length < varint.SMALL else encode(length)
        if value is None:
            value, value_part = b"", b"\x01"
        else:
            length = len(value)
            value_part = small[length] if length < varint.SMALL else encode(length)
        size = fixed + len(offset_part) + len(key_part) + len(key) + len(value_part) + len(value) + len(section)
        size_part = small[size] if size < varint.SMALL else encode(size)
        extend((size_part, stamp_part, offset_part, key_part, key, value_part, value, section))
    return parts


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
    return _write_header(bytearray(HEADER_BYTES), options, last_offset - base_offset, NO_TIMESTAMP, max_timestamp, 0)


def join_batches(batches: Iterable[bytes | bytearray]) -> bytearray:
    """Batches one after another, as a produce request or a segment holds them."""
    return _ROOT.join(chain(batches))
