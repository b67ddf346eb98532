"""The kernels in plain Python: they serve where numba is missing, and are what the compiled ones are held against."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

from headrace.records.batch import Buffer, to_int64
from headrace.records.columns import BytesColumn, bytes_column, joined
from headrace.records.murmur2 import murmur2

NAME = "plain"

NO_STAMP = -(1 << 63)
"""In a batch table: records keep their own timestamps."""

TABLE_WIDTH = 6
"""Numbers per batch in a batch table: start, end, count, base offset, base timestamp, append time or NO_STAMP."""


class DecodeFault(IntEnum):
    """Why decoding stopped."""

    NONE = 0
    CUT = 1
    SIZE = 2
    STRUCTURE = 3
    HEADER_COUNT = 4
    HEADER_KEY = 5
    MISMATCH = 6
    REMAINING = 7
    COUNT = 8


class Decoded(NamedTuple):
    """Columns of all whole records up to the first fault, and where that is."""

    offsets: memoryview
    timestamps: memoryview
    key_starts: memoryview
    key_lengths: memoryview
    value_starts: memoryview
    value_lengths: memoryview
    header_starts: memoryview
    header_lengths: memoryview
    fault: int
    fault_at: int


class Stretch(NamedTuple):
    """Neighbouring batches that are all of the plain kind: what their headers say, for all of them together."""

    table: Sequence[int]
    """As `decode_records` wants it."""
    capacity: int
    record_count: int
    next_offset: int
    leader_epoch: int
    is_log_append_time: bool
    codec_id: int = 0
    """How all of them are compressed. If they are, the capacity means nothing before they are decompressed."""


def survey_batches(data: Buffer, position: int, bytes_max: int) -> Stretch | None:
    """The batches of a fetch that end behind a position, if all are of format 2, of no transaction, of one leader
    epoch, one codec and one kind of timestamp, and together no larger than that. None: look at each of them.

    Here always None: without compiled code, looking twice at a header costs more than it saves.
    """
    return None


def decode_records(data: Buffer, table: Sequence[int], capacity: int) -> Decoded:
    """Decode the batches that `table` describes (see TABLE_WIDTH). `capacity` bounds the rows."""
    raw = data if type(data) is bytes else bytes(data)
    lists: tuple[list[int], ...] = ([], [], [], [], [], [], [], [])
    fault, at = int(DecodeFault.NONE), 0
    for entry in range(0, len(table), TABLE_WIDTH):
        fault, at = _decode_batch(raw, table[entry : entry + TABLE_WIDTH], lists)
        if fault:
            break
    offsets, timestamps = _int64_column(lists[0]), _int64_column(lists[1])
    positions = tuple(memoryview(array("i", numbers)) for numbers in lists[2:])
    key_starts, key_lengths, value_starts, value_lengths, header_starts, header_lengths = positions
    return Decoded(
        offsets,
        timestamps,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        header_starts,
        header_lengths,
        fault,
        at,
    )


def _int64_column(numbers: list[int]) -> memoryview:
    try:
        return memoryview(array("q", numbers))
    except OverflowError:
        return memoryview(array("q", map(to_int64, numbers)))


def _decode_batch(raw: bytes, entry: Sequence[int], lists: tuple[list[int], ...]) -> tuple[int, int]:
    """Append one batch's records to the lists.

    Short varints are read inline, as a call costs more than they do, and without a look at the bounds: a field that
    runs past its record leaves the position past the record's end, and `_fault_of` then says what was wrong.
    """
    at, end, count, base_offset, base_timestamp, stamp = entry
    if count <= 0:
        return (DecodeFault.COUNT if count else DecodeFault.NONE), at
    append_offset, append_timestamp, append_key_start, append_key_length = (numbers.append for numbers in lists[:4])
    append_value_start, append_value_length, append_header_start, append_header_length = (
        numbers.append for numbers in lists[4:]
    )
    zigzag = _ZIGZAG
    stamped = stamp != NO_STAMP
    record_at = at
    try:
        for _ in range(count):
            record_at = at
            byte, second = raw[at], raw[at + 1]
            if byte < 0x80:
                size, at = zigzag[byte], at + 1
            elif second < 0x80:
                rest = byte & 0x7F | second << 7
                size, at = rest >> 1 ^ -(rest & 1), at + 2
            else:
                size, at = read_varint(raw, at, end)
            record_end = at + size
            byte = raw[at + 1]
            delta, at = (zigzag[byte], at + 2) if byte < 0x80 else read_varlong(raw, at + 1, record_end)
            timestamp = stamp if stamped else base_timestamp + delta
            byte, second = raw[at], raw[at + 1]
            if byte < 0x80:
                delta, at = zigzag[byte], at + 1
            elif second < 0x80:
                rest = byte & 0x7F | second << 7
                delta, at = rest >> 1 ^ -(rest & 1), at + 2
            else:
                delta, at = read_varint(raw, at, record_end)
            byte = raw[at]
            key_length, at = (zigzag[byte], at + 1) if byte < 0x80 else read_varint(raw, at, record_end)
            key_start = at
            if key_length > 0:
                at += key_length
            byte, second = raw[at], raw[at + 1]
            if byte < 0x80:
                value_length, at = zigzag[byte], at + 1
            elif second < 0x80:
                rest = byte & 0x7F | second << 7
                value_length, at = rest >> 1 ^ -(rest & 1), at + 2
            else:
                value_length, at = read_varint(raw, at, record_end)
            value_start = at
            if value_length > 0:
                at += value_length
            header_start = at
            at = at + 1 if raw[at] == 0 else skip_headers(raw, at, record_end)
            if at != record_end or at > end:
                return _fault_of(raw, record_at, end), record_at
            append_offset(base_offset + delta)
            append_timestamp(timestamp)
            append_key_start(key_start)
            append_key_length(key_length if key_length >= 0 else -1)
            append_value_start(value_start)
            append_value_length(value_length if value_length >= 0 else -1)
            append_header_start(header_start)
            append_header_length(at - header_start)
    except (MalformedFieldError, IndexError):
        return _fault_of(raw, record_at, end), record_at
    if at != end:
        for numbers in lists:
            numbers.pop()
        return DecodeFault.REMAINING, record_at
    return DecodeFault.NONE, at


def _fault_of(raw: bytes, at: int, end: int) -> DecodeFault:
    """What is wrong with the record at `at`, looked at field by field with all bounds."""
    try:
        size, at = read_varint(raw, at, end, DecodeFault.CUT)
        record_end = at + size
        if record_end > end:
            return DecodeFault.SIZE
        if size < MIN_BODY_BYTES:
            return DecodeFault.STRUCTURE
        _, at = read_varlong(raw, at + 1, record_end)
        _, at = read_varint(raw, at, record_end)
        for _ in ("key", "value"):
            length, at = read_varint(raw, at, record_end)
            at += max(length, 0)
        at = skip_headers(raw, at, record_end)
    except MalformedFieldError as bad:
        return bad.fault
    if at == record_end:
        raise AssertionError("a record was refused that is right")
    return DecodeFault.MISMATCH


MIN_BODY_BYTES = 6
_ZIGZAG = tuple(number >> 1 ^ -(number & 1) for number in range(0x80))


class MalformedFieldError(Exception):
    """A field of a record cannot be read."""

    def __init__(self, fault: DecodeFault) -> None:
        self.fault = fault


def read_varint(raw: Buffer, at: int, end: int, fault: DecodeFault = DecodeFault.STRUCTURE) -> tuple[int, int]:
    if at < end:
        byte = raw[at]
        if byte < 0x80:
            return byte >> 1 ^ -(byte & 1), at + 1
        rest = byte & 0x7F
        for shift in (7, 14, 21, 28):
            at += 1
            if at >= end:
                break
            byte = raw[at]
            if byte < 0x80:
                rest |= (byte << shift) & 0xFFFFFFFF
                return rest >> 1 ^ -(rest & 1), at + 1
            rest |= (byte & 0x7F) << shift
    raise MalformedFieldError(fault)


def read_varlong(raw: Buffer, at: int, end: int) -> tuple[int, int]:
    rest = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            rest &= 0xFFFFFFFFFFFFFFFF
            return rest >> 1 ^ -(rest & 1), at
        shift += 7
    raise MalformedFieldError(DecodeFault.STRUCTURE)


def skip_headers(raw: Buffer, at: int, end: int) -> int:
    count, at = read_varint(raw, at, end)
    if count < 0 or count > end - at:
        raise MalformedFieldError(DecodeFault.HEADER_COUNT)
    for _ in range(count):
        length, at = read_varint(raw, at, end)
        if length < 0:
            raise MalformedFieldError(DecodeFault.HEADER_KEY)
        length, at = read_varint(raw, at + length, end)
        if length > 0:
            at += length
    return at


def offset_deltas(offsets: memoryview, base_offset: int) -> memoryview | None:
    """Offsets relative to the base, or None when they are 0, 1, 2 and so on."""
    numbers = offsets.tolist()
    if numbers == list(range(base_offset, base_offset + len(numbers))):
        return None
    return _int64_column([number - base_offset for number in numbers])


def pack(rows: Sequence[bytes | None]) -> BytesColumn:
    """Python byte strings laid end to end."""
    return bytes_column(rows)


def running_sizes(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], overhead: int
) -> tuple[Sequence[int], int]:
    """Where each record ends when its key, value and an overhead are counted, and the size of the largest."""
    sizes = [overhead + (0 if value is None else len(value)) for value in values]
    if keys is not None:
        sizes = [size + (0 if key is None else len(key)) for size, key in zip(sizes, keys)]
    return list(accumulate(sizes)), max(sizes)


def to_list(column: BytesColumn) -> list[bytes | None]:
    """Every row as bytes, or None for null."""
    return column.to_list()


def gather(*columns: BytesColumn) -> tuple[bytes | memoryview, memoryview, int]:
    """The bytes of all columns end to end, and n + 1 positions: Arrow's layout. Null rows are empty; how many are."""
    rows = [row for column in columns for row in column.to_list()]
    data, lengths = joined(rows)
    ends = memoryview(array("i", accumulate((max(length, 0) for length in lengths), initial=0)))
    return data, ends, rows.count(None)


def last_per_key(column: BytesColumn) -> memoryview:
    """A mask of the rows that compaction would keep among these: the last of each key. Null keys are all kept."""
    mask = bytearray(len(column))
    seen: set[bytes] = set()
    for row in range(len(column) - 1, -1, -1):
        key = column[row]
        if key is None:
            mask[row] = 1
        elif key not in seen:
            seen.add(key)
            mask[row] = 1
    return memoryview(mask)


def murmur2_column(column: BytesColumn) -> memoryview:
    """Murmur2 of every key, signed 32-bit; 0 for null."""
    data = bytes(column.data)
    return memoryview(
        array(
            "i",
            [
                murmur2(data[start : start + length]) if length >= 0 else 0
                for start, length in zip(column.starts, column.lengths)
            ],
        )
    )
