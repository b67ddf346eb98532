"""Records of one size, as `walk` compares them: many at a time, the same byte of all of them at once."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import NamedTuple

from headrace.records.batch import Buffer
from headrace.records.kernels_plain import MIN_BODY_BYTES, MalformedFieldError, read_varint, read_varlong

_at_address = c_char.from_buffer
_ALL_BYTES = bytes(range(0x100))
# How the numbers from 0 on are written as zigzag varints, byte by byte, of one byte and of two; and how those of more
# bytes begin, until it begins anew.
_NUMBERED = {
    1: (bytes(number << 1 for number in range(1 << 6)),),
    2: (
        bytes(number << 1 & 0x7F | 0x80 for number in range(1 << 13)),
        bytes(number >> 6 for number in range(1 << 13)),
    ),
}
_LOWEST_BYTES = _NUMBERED[2][0][:64]
# Where the varint of an offset delta gets another byte. More than three are only in batches that nobody takes, or where
# a number is written with more bytes than it needs.
WIDER_AT = (1 << 6, 1 << 13, 1 << 20)
# By so many bytes the last records of a batch are longer than the first where only offsets and timestamps differ.
_MORE_BYTES_MAX = 4


def bytes_in(column: bytes) -> bytes:
    """Which bytes are in a column, each once, the smallest first."""
    first = column[:1]
    if column == first * len(column):
        return first
    return _ALL_BYTES.translate(None, _ALL_BYTES.translate(None, column))


def largest_number(columns: list[bytes], found: list[bytes]) -> int | None:
    """The largest of numbers, as they are written, that lie byte by byte in these columns, of each of which is given
    which bytes it has; None where those with the largest last bytes are not neighbours, as those of timestamps mostly
    are."""
    number = 0
    for place in range(len(columns) - 1, -1, -1):
        column, largest = columns[place], found[place][-1:]
        number = number << 7 | largest[0] & 0x7F
        if place and len(found[place]) > 1:
            begin, end = column.index(largest), column.rindex(largest) + 1
            if column[begin:end] != largest * (end - begin):
                return None
            columns = [part[begin:end] for part in columns[:place]]
            found = [bytes_in(part) for part in columns]
    return number


def numbered(first: int, count: int, width: int) -> list[bytes]:
    """Byte by byte, how the offsets of records from a place on are written that all take so many bytes."""
    if width <= 2:
        return [column[first : first + count] for column in _NUMBERED[width]]
    columns = []
    for place in range(width):
        more = 0x80 if place < width - 1 else 0
        if place == 0:
            begin = first % 64
            columns.append((_LOWEST_BYTES * (count // 64 + 2))[begin : begin + count])
            continue
        # The same byte for so many records.
        size = 1 << (7 * place - 1)
        start = first // size
        cycle = b"".join(
            bytes((number & 0x7F | more,)) * size for number in range(start, (first + count - 1) // size + 1)
        )
        begin = first - start * size
        columns.append(cycle[begin : begin + count])
    return columns


class RecordShape(NamedTuple):
    """How a record is laid out; all positions count from its first byte."""

    size: int
    fixed: list[int]
    """Where bytes are, behind the first, that others of its shape have too."""
    stamp_at: int
    stamp_width: int
    number_at: int
    number_width: int
    has_key: bool


def shape_at(raw: Buffer, at: int, end: int, index: int) -> RecordShape | None:
    """Of the record at a position of bytes that end at another, which has that place in its batch. None when it is not
    whole, has headers, or another offset than its place, or writes that in many bytes."""
    start = at
    try:
        size, at = _number_at(raw, at, end)
        stop = at + size
        if stop > end or size < MIN_BODY_BYTES:
            return None
        fixed = [*range(1, at - start)]
        stamp_at = at + 1
        delta_at = stamp_at + 1 if raw[stamp_at] < 0x80 else read_varlong(raw, stamp_at, stop)[1]
        delta, key_at = _number_at(raw, delta_at, stop)
        if delta != index or key_at - delta_at > len(WIDER_AT):
            return None
        key_length, at = _number_at(raw, key_at, stop)
        fixed += range(key_at - start, at - start)
        value_at = at + key_length if key_length > 0 else at
        length, at = _number_at(raw, value_at, stop)
        fixed += range(value_at - start, at - start)
        if length > 0:
            at += length
    except (MalformedFieldError, IndexError):
        return None
    if at != stop - 1 or raw[at] != 0:
        return None
    fixed.append(at - start)
    return RecordShape(
        stop - start,
        fixed,
        stamp_at - start,
        delta_at - stamp_at,
        delta_at - start,
        key_at - delta_at,
        key_length >= 0,
    )


def _number_at(raw: Buffer, at: int, end: int) -> tuple[int, int]:
    """As `read_varint`, faster for numbers of one and two bytes, and less careful about where it ends."""
    byte = raw[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    second = raw[at + 1]
    if second < 0x80:
        byte = byte & 0x7F | second << 7
        return byte >> 1 ^ -(byte & 1), at + 2
    return read_varint(raw, at, end)


def bytes_behind(view: memoryview) -> tuple[bytearray, int] | None:
    """The bytes that a view is a part of, and where in them it begins, or None where nobody can say: slices of them
    with a step are made many times as fast as of the view."""
    base = view.obj
    if type(base) is not bytearray or view.readonly or not view.c_contiguous or not view:
        return None
    return base, addressof(_at_address(view)) - addressof(_at_address(base))


def is_like_the_first(records: Buffer, count: int) -> bool:
    """Whether records may all be of the first one's size, by the bytes that they take: their offsets and timestamps,
    which get larger, may take some more."""
    try:
        size, at = read_varint(records, 0, len(records))
    except MalformedFieldError:
        return False
    return 0 <= len(records) - count * (at + size) <= count * _MORE_BYTES_MAX
