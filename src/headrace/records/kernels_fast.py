"""The compiled twins of the plain kernels: same functions, same results, by numba with explicit signatures and a cache.

`survey_records` and `encode_records` have their plain twin in `build`, which writes records straight from rows.
Importing this module imports numba: only `kernels` does so, and only when a caller asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.records.batch import Buffer
from headrace.records.columns import MAX_COLUMN_BYTES, BytesColumn, bytes_column
from headrace.records.compiling import (
    Array,
    arrays_of,
    as_array,
    bytes_in,
    bytes_out,
    copy,
    helper,
    i64,
    ints_in,
    ints_out,
    kernel,
    longs_in,
    longs_out,
    no_bytes,
    no_ints,
    no_longs,
    np,
    pooled,
    quad,
    triple,
    types,
)
from headrace.records.kernels_fast_batches import survey_batches
from headrace.records.kernels_fast_objects import lay, measure
from headrace.records.kernels_fast_rows import gather, lay_ends, to_list
from headrace.records.kernels_plain import MIN_BODY_BYTES, NO_STAMP, TABLE_WIDTH, Decoded, DecodeFault

__all__ = [
    "NAME",
    "decode_records",
    "gather",
    "last_per_key",
    "murmur2_column",
    "offset_deltas",
    "pack",
    "running_sizes",
    "survey_batches",
    "to_list",
]

NAME = "fast"

_CUT, _SIZE, _STRUCTURE = int(DecodeFault.CUT), int(DecodeFault.SIZE), int(DecodeFault.STRUCTURE)
_HEADER_COUNT, _HEADER_KEY = int(DecodeFault.HEADER_COUNT), int(DecodeFault.HEADER_KEY)
_MISMATCH, _REMAINING, _COUNT = int(DecodeFault.MISMATCH), int(DecodeFault.REMAINING), int(DecodeFault.COUNT)


_ROW_BYTES = 40
"""What a decoded row takes: two numbers of 64 bits, six of 32."""


@helper
def _varint(data: Any, at: Any, end: Any) -> Any:
    """A 32-bit zigzag varint and the position after it, or position -1."""
    if at >= end:
        return 0, -1
    byte = np.int64(data[at])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    if at + 1 < end:
        second = np.int64(data[at + 1])
        if second < 0x80:
            rest = (byte & 0x7F) | (second << 7)
            return (rest >> 1) ^ -(rest & 1), at + 2
    rest = byte & 0x7F
    shift = 7
    for step in range(1, 5):
        if at + step >= end:
            return 0, -1
        byte = np.int64(data[at + step])
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            rest &= 0xFFFFFFFF
            return (rest >> 1) ^ -(rest & 1), at + step + 1
        shift += 7
    return 0, -1


@helper
def _varlong(data: Any, at: Any, end: Any) -> Any:
    """A 64-bit zigzag varint and the position after it, or position -1."""
    rest = np.uint64(0)
    shift = np.uint64(0)
    for step in range(10):
        if at + step >= end:
            return 0, -1
        byte = np.uint64(data[at + step])
        rest |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            half = np.int64(rest >> np.uint64(1))
            return half ^ -np.int64(rest & np.uint64(1)), at + step + 1
        shift += np.uint64(7)
    return 0, -1


@helper
def _skip_headers(data: Any, at: Any, end: Any) -> Any:
    """Fault and the position after the header section."""
    count, at = _varint(data, at, end)
    if at < 0:
        return _STRUCTURE, at
    if count < 0 or count > end - at:
        return _HEADER_COUNT, at
    for _ in range(count):
        length, at = _varint(data, at, end)
        if at < 0:
            return _STRUCTURE, at
        if length < 0:
            return _HEADER_KEY, at
        length, at = _varint(data, at + length, end)
        if at < 0:
            return _STRUCTURE, at
        if length > 0:
            at += length
    return 0, at


@kernel(triple(bytes_in, longs_in, longs_out, longs_out, ints_out, ints_out, ints_out, ints_out, ints_out, ints_out))
def _decode(
    data: Any,
    table: Any,
    offsets: Any,
    timestamps: Any,
    key_starts: Any,
    key_lengths: Any,
    value_starts: Any,
    value_lengths: Any,
    header_starts: Any,
    header_lengths: Any,
) -> Any:
    """Rows, fault, position of the fault."""
    row = 0
    for entry in range(0, len(table), TABLE_WIDTH):
        at = table[entry]
        end = table[entry + 1]
        count = table[entry + 2]
        base_offset = table[entry + 3]
        base_timestamp = table[entry + 4]
        stamp = table[entry + 5]
        if count < 0:
            return row, _COUNT, at
        record_at = at
        for _ in range(count):
            record_at = at
            size, at = _varint(data, at, end)
            if at < 0:
                return row, _CUT, record_at
            record_end = at + size
            if record_end > end:
                return row, _SIZE, record_at
            if size < MIN_BODY_BYTES:
                return row, _STRUCTURE, record_at
            delta, at = _varint(data, at + 1, record_end)
            # More than two bytes may be a real 64-bit delta, of which the short reader drops the top.
            if at < 0 or at > record_end - size + 3:
                delta, at = _varlong(data, record_end - size + 1, record_end)
                if at < 0:
                    return row, _STRUCTURE, record_at
            timestamps[row] = stamp if stamp != NO_STAMP else base_timestamp + delta
            delta, at = _varint(data, at, record_end)
            if at < 0:
                return row, _STRUCTURE, record_at
            offsets[row] = base_offset + delta
            length, at = _varint(data, at, record_end)
            if at < 0:
                return row, _STRUCTURE, record_at
            key_starts[row] = at
            key_lengths[row] = max(length, -1)
            at += max(length, 0)
            length, at = _varint(data, at, record_end)
            if at < 0:
                return row, _STRUCTURE, record_at
            value_starts[row] = at
            value_lengths[row] = max(length, -1)
            at += max(length, 0)
            header_starts[row] = at
            header_lengths[row] = record_end - at
            if at == record_end - 1 and data[at] == 0:
                at = record_end
            else:
                fault, at = _skip_headers(data, at, record_end)
                if fault != 0:
                    return row, fault, record_at
                if at != record_end:
                    return row, _MISMATCH, record_at
            row += 1
        if count > 0 and at != end:
            return row - 1, _REMAINING, record_at
    return row, 0, 0


def decode_records(data: Buffer, table: Sequence[int], capacity: int) -> Decoded:
    """Decode the batches that `table` describes. `capacity` bounds the rows."""
    numbers = pooled(capacity * _ROW_BYTES, np.int64)
    longs = [numbers[start : start + capacity] for start in (0, capacity)]
    halves = numbers[2 * capacity :].view(np.int32)
    ints = [halves[start : start + capacity] for start in range(0, 6 * capacity, max(1, capacity))] or [halves] * 6
    rows, fault, at = _decode(as_array(data, np.uint8), np.array(table, np.int64), *longs, *ints)
    columns = [memoryview(column[:rows]) for column in (*longs, *ints)]
    return Decoded._make((*columns, fault, at))


@helper
def _size_of(number: Any) -> Any:
    rest = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@kernel(i64(longs_in, i64))
def _count_up(offsets: Any, base_offset: Any) -> Any:
    for row in range(len(offsets)):
        if offsets[row] != base_offset + row:
            return 0
    return 1


def offset_deltas(offsets: memoryview, base_offset: int) -> memoryview | None:
    """Offsets relative to the base, or None when they are 0, 1, 2 and so on."""
    numbers = as_array(offsets, np.int64)
    return None if _count_up(numbers, base_offset) else memoryview(numbers - np.int64(base_offset))


@kernel(quad(longs_in, longs_in, i64, ints_in, ints_in, ints_in))
def _survey(
    deltas: Any, timestamps: Any, base_timestamp: Any, key_lengths: Any, value_lengths: Any, header_lengths: Any
) -> Any:
    total = 0
    has_deltas = len(deltas) > 0
    has_headers = len(header_lengths) > 0
    increasing = 1
    previous = np.int64(NO_STAMP)
    lowest = timestamps[0]
    highest = lowest
    for row in range(len(timestamps)):
        delta = deltas[row] if has_deltas else row
        if delta <= previous:
            increasing = 0
        previous = delta
        timestamp = timestamps[row]
        lowest = min(lowest, timestamp)
        highest = max(highest, timestamp)
        key = np.int64(key_lengths[row])
        value = np.int64(value_lengths[row])
        headers = max(np.int64(header_lengths[row]), 1) if has_headers else 1
        body = 1 + _size_of(timestamp - base_timestamp) + _size_of(delta) + _size_of(key) + _size_of(value)
        body += headers + max(key, 0) + max(value, 0)
        total += body + _size_of(body)
    return total, lowest, highest, increasing


class Survey(NamedTuple):
    """What has to be known about records before they are encoded."""

    size: int
    lowest_timestamp: int
    highest_timestamp: int
    increasing: bool


def survey_records(
    deltas: memoryview | None,
    timestamps: memoryview,
    base_timestamp: int,
    key_lengths: memoryview,
    value_lengths: memoryview,
    header_lengths: memoryview | None,
) -> Survey:
    """Bytes of the encoded records, range of their timestamps, and whether their offsets increase.

    `deltas` None is 0, 1, 2 and so on. Length -1 is null; a header length of 0 is a record without headers.
    """
    size, lowest, highest, increasing = _survey(
        no_longs if deltas is None else as_array(deltas, np.int64),
        as_array(timestamps, np.int64),
        base_timestamp,
        as_array(key_lengths, np.int32),
        as_array(value_lengths, np.int32),
        no_ints if header_lengths is None else as_array(header_lengths, np.int32),
    )
    return Survey(size, lowest, highest, bool(increasing))


@helper
def _put(out: Any, at: Any, number: Any) -> Any:
    rest = np.uint64((number << 1) ^ (number >> 63))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@kernel(
    i64(
        bytes_out,
        i64,
        longs_in,
        longs_in,
        i64,
        bytes_in,
        ints_in,
        ints_in,
        bytes_in,
        ints_in,
        ints_in,
        bytes_in,
        ints_in,
        ints_in,
    )
)
def _encode(
    out: Any,
    at: Any,
    deltas: Any,
    timestamps: Any,
    base_timestamp: Any,
    key_data: Any,
    key_starts: Any,
    key_lengths: Any,
    value_data: Any,
    value_starts: Any,
    value_lengths: Any,
    header_data: Any,
    header_starts: Any,
    header_lengths: Any,
) -> Any:
    has_deltas = len(deltas) > 0
    has_headers = len(header_lengths) > 0
    for row in range(len(timestamps)):
        key = np.int64(key_lengths[row])
        value = np.int64(value_lengths[row])
        headers = np.int64(header_lengths[row]) if has_headers else 0
        delta = deltas[row] if has_deltas else row
        timestamp_delta = timestamps[row] - base_timestamp
        body = 1 + _size_of(timestamp_delta) + _size_of(delta) + _size_of(key) + _size_of(value)
        body += max(headers, 1) + max(key, 0) + max(value, 0)
        at = _put(out, at, body)
        out[at] = 0
        at = _put(out, at + 1, timestamp_delta)
        at = _put(out, at, delta)
        at = _put(out, at, key)
        if key > 0:
            copy(out, at, key_data, np.int64(key_starts[row]), key)
            at += key
        at = _put(out, at, value)
        if value > 0:
            copy(out, at, value_data, np.int64(value_starts[row]), value)
            at += value
        if headers > 0:
            copy(out, at, header_data, np.int64(header_starts[row]), headers)
            at += headers
        else:
            out[at] = 0
            at += 1
    return at


def encode_records(
    out: bytearray | memoryview,
    at: int,
    deltas: memoryview | None,
    timestamps: memoryview,
    base_timestamp: int,
    keys: BytesColumn,
    values: BytesColumn,
    headers: BytesColumn | None,
) -> int:
    """Write the records into `out` from `at` on; gives the position after them. survey_records said the room."""
    return int(
        _encode(
            as_array(out, np.uint8),
            at,
            no_longs if deltas is None else as_array(deltas, np.int64),
            as_array(timestamps, np.int64),
            base_timestamp,
            *arrays_of(keys),
            *arrays_of(values),
            *((no_bytes, no_ints, no_ints) if headers is None else arrays_of(headers)),
        )
    )


def pack(rows: Sequence[bytes | None]) -> BytesColumn:
    """Python byte strings laid end to end."""
    listed = rows if type(rows) is list else list(rows)
    count = len(listed)
    measured = measure(listed)
    if measured is None:
        return bytes_column(rows)
    lengths, total, _ = measured
    if total > MAX_COLUMN_BYTES:
        raise ValueError(f"a column of {total} bytes passes the limit of {MAX_COLUMN_BYTES}: build smaller batches")
    ends = pooled(4 * (count + 1), np.int32)
    lay_ends(lengths, ends, 0, 0)
    data = lay(listed, lengths, total) if total else b""
    return BytesColumn(data, memoryview(ends)[:-1], memoryview(lengths), is_ordered=True)


@kernel(i64(ints_in, ints_in, i64, longs_out))
def _running_sizes(keys: Any, values: Any, overhead: Any, ends: Any) -> Any:
    end = largest = np.int64(0)
    has_keys = len(keys) > 0
    for row in range(len(values)):
        size = overhead + max(np.int64(values[row]), 0)
        if has_keys:
            size += max(np.int64(keys[row]), 0)
        end += size
        ends[row] = end
        largest = max(largest, size)
    return largest


def running_sizes(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], overhead: int
) -> tuple[Sequence[int], int]:
    """Where each record ends when its key, value and an overhead are counted, and the size of the largest."""
    return running_sizes_of(no_ints if keys is None else _lengths(keys), _lengths(values), overhead)


def running_sizes_of(key_lengths: Array, value_lengths: Array, overhead: int) -> tuple[Sequence[int], int]:
    """The same, of lengths; no lengths of keys where there are no keys."""
    ends = pooled(8 * len(value_lengths), np.int64)
    largest = _running_sizes(key_lengths, value_lengths, overhead, ends)
    return memoryview(ends), int(largest)


def _lengths(rows: Sequence[bytes | None]) -> Array:
    measured = measure(rows if type(rows) is list else list(rows))
    if measured is not None:
        return measured[0]
    return np.array([-1 if row is None else len(row) for row in rows], np.int32)


@helper
def _murmur2(data: Any, start: Any, length: Any) -> Any:
    """The unsigned hash of one key."""
    multiplier = np.uint64(0x5BD1E995)
    mask = np.uint64(0xFFFFFFFF)
    hashed = np.uint64(0x9747B28C) ^ np.uint64(length)
    words = length >> 2
    for index in range(words):
        at = start + index * 4
        word = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        word |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        word = (word * multiplier) & mask
        word ^= word >> np.uint64(24)
        hashed = ((hashed * multiplier) & mask) ^ ((word * multiplier) & mask)
    at = start + words * 4
    rest = length & 3
    if rest:
        if rest == 3:
            hashed ^= np.uint64(data[at + 2]) << np.uint64(16)
        if rest >= 2:
            hashed ^= np.uint64(data[at + 1]) << np.uint64(8)
        hashed ^= np.uint64(data[at])
        hashed = (hashed * multiplier) & mask
    hashed ^= hashed >> np.uint64(13)
    hashed = (hashed * multiplier) & mask
    return np.int64(hashed ^ (hashed >> np.uint64(15)))


@kernel(types.void(bytes_in, ints_in, ints_in, ints_out))
def _murmur2_column(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    for row in range(len(lengths)):
        if lengths[row] < 0:
            out[row] = 0
        else:
            out[row] = np.int32(_murmur2(data, np.int64(starts[row]), np.int64(lengths[row])))


def murmur2_column(column: BytesColumn) -> memoryview:
    """Murmur2 of every key, signed 32-bit; 0 for null."""
    data, starts, lengths = arrays_of(column)
    out = np.empty(len(lengths), np.int32)
    _murmur2_column(data, starts, lengths, out)
    return memoryview(out)


@kernel(types.void(bytes_in, ints_in, ints_in, ints_out, bytes_out))
def _last_per_key(data: Any, starts: Any, lengths: Any, slots: Any, mask: Any) -> Any:
    """Open addressing over a table of a power of two: a slot holds the row of the key's last record, plus one."""
    wrap = len(slots) - 1
    for row in range(len(lengths) - 1, -1, -1):
        length = np.int64(lengths[row])
        start = np.int64(starts[row])
        if length < 0:
            mask[row] = 1
            continue
        slot = _murmur2(data, start, length) & wrap
        while True:
            other = np.int64(slots[slot]) - 1
            if other < 0:
                slots[slot] = row + 1
                mask[row] = 1
                break
            if np.int64(lengths[other]) == length:
                same = True
                other_start = np.int64(starts[other])
                for index in range(length):
                    if data[start + index] != data[other_start + index]:
                        same = False
                        break
                if same:
                    mask[row] = 0
                    break
            slot = (slot + 1) & wrap


def last_per_key(column: BytesColumn) -> memoryview:
    """A mask of the rows that compaction would keep among these: the last of each key. Null keys are all kept."""
    data, starts, lengths = arrays_of(column)
    mask = np.empty(len(lengths), np.uint8)
    slots = np.zeros(1 << max(4, (2 * len(lengths)).bit_length()), np.int32)
    _last_per_key(data, starts, lengths, slots, mask)
    return memoryview(mask)
