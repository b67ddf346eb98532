"""Lists of byte strings, read by compiled code where Python keeps them: no call, and no object, per row.

What a row is and how long it is takes two passes of `map` otherwise, 70 ns a row together, and laying the rows end to
end another; from here it is 10 ns and the copy itself. It needs to know how CPython lays out a list and a byte string:
`cpython` has that, and says whether it holds (`READS_LISTS`). Without it `map` does it all.

A list is only read with the interpreter's lock held, but for those that belong to us and that nobody changes any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.records import cpython
from headrace.records.columns import MAX_COLUMN_BYTES
from headrace.records.compiling import (
    Array,
    as_array,
    bytes_out,
    copy_from,
    helper,
    i64,
    ints_in,
    ints_out,
    kernel,
    load,
    longs_in,
    no_longs,
    np,
    pooled,
    types,
)

_WORD, _TYPE_AT, _SIZE_AT = cpython.WORD, cpython.TYPE_AT, cpython.SIZE_AT
_ITEMS_AT, _DATA_AT = cpython.LIST_ITEMS_AT, cpython.BYTES_DATA_AT
_OTHER = -1
_DELTA_MAX = 2**62 - 1


@kernel(types.UniTuple(i64, 2)(i64, i64, i64, i64, ints_out), nogil=False)
def _measure(rows: Any, count: Any, type_of_bytes: Any, none: Any, lengths: Any) -> Any:
    """The bytes of all rows of the list at that address, and how many are null; or that some are neither bytes nor
    null, or that the list has changed."""
    if load(rows + _SIZE_AT) != count:
        return _OTHER, 0
    items = load(rows + _ITEMS_AT)
    total = nulls = np.int64(0)
    for row in range(count):
        at = load(items + _WORD * row)
        if at == none:
            lengths[row] = -1
            nulls += 1
            continue
        size = load(at + _SIZE_AT)
        if load(at + _TYPE_AT) != type_of_bytes or size > MAX_COLUMN_BYTES:
            return _OTHER, 0
        lengths[row] = size
        total += size
    return total, nulls


class Measured(NamedTuple):
    """How long the rows of a list are: -1 for None."""

    lengths: Array
    total: int
    nulls: int


def measure(rows: list[Any]) -> Measured | None:
    """The length of every row; None when there is anything but byte strings and None."""
    if not cpython.READS_LISTS:
        return _measure_plain(rows)
    lengths = pooled(4 * len(rows), np.int32)
    total, nulls = _measure(cpython.address_of(rows), len(rows), cpython.TYPE_OF_BYTES, cpython.NONE, lengths)
    return None if total == _OTHER else Measured(lengths, int(total), int(nulls))


def _measure_plain(rows: Sequence[Any]) -> Measured | None:
    kinds = set(map(type, rows))
    if not kinds <= {bytes, type(None)}:
        return None
    sizes = map(len, rows) if kinds == {bytes} else (-1 if row is None else len(row) for row in rows)
    lengths = np.fromiter(sizes, np.int32, len(rows))
    return Measured(lengths, int(lengths.clip(0).sum(dtype=np.int64)), rows.count(None))


@kernel(types.void(i64, i64, ints_in, bytes_out), nogil=False)
def _lay(rows: Any, start: Any, lengths: Any, out: Any) -> Any:
    items = load(rows + _ITEMS_AT)
    at = np.int64(0)
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        if length > 0:
            copy_from(out, at, load(items + _WORD * (start + row)) + _DATA_AT, length)
            at += length


def lay(rows: list[Any], lengths: Array, total: int) -> bytes | memoryview:
    """The rows that were measured end to end, without the null ones."""
    if not cpython.READS_LISTS:
        return b"".join([row for row in rows if row is not None])
    out = pooled(total, np.uint8)
    _lay(cpython.address_of(rows), 0, lengths, out)
    return memoryview(out)


@helper
def _size_of(number: Any) -> Any:
    """Of a number that is not negative, as a zigzag varint."""
    size = 1
    rest = number >> 6
    while rest > 0:
        rest >>= 7
        size += 1
    return size


@helper
def _put(out: Any, at: Any, number: Any) -> Any:
    rest = number << 1
    while rest >= 0x80:
        out[at] = np.uint8((rest & 0x7F) | 0x80)
        rest >>= 7
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


_PLAIN_BYTES = 3
"""Of a record without key and headers: attributes, key and header count."""


@helper
def _body_of(lengths: Any, deltas: Any, row: Any) -> Any:
    length = np.int64(lengths[row])
    delta = deltas[row] if len(deltas) else np.int64(0)
    return _PLAIN_BYTES + _size_of(delta) + _size_of(row) + _size_of(length) + length


@kernel(i64(ints_in, longs_in))
def _size_of_values(lengths: Any, deltas: Any) -> Any:
    total = np.int64(0)
    for row in range(len(lengths)):
        body = _body_of(lengths, deltas, row)
        total += body + _size_of(body)
    return total


def size_of_values(lengths: memoryview, deltas: Array = no_longs) -> int:
    """Bytes of the records that `encode_values` makes."""
    return int(_size_of_values(as_array(lengths, np.int32), deltas))


@kernel(i64(bytes_out, i64, i64, i64, ints_in, longs_in))
def _encode_values(out: Any, at: Any, rows: Any, start: Any, lengths: Any, deltas: Any) -> Any:
    items = load(rows + _ITEMS_AT) + _WORD * start
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        at = _put(out, at, _body_of(lengths, deltas, row))
        out[at] = 0
        at = _put(out, at + 1, deltas[row] if len(deltas) else np.int64(0))
        at = _put(out, at, row)
        out[at] = 1
        at = _put(out, at + 1, length)
        copy_from(out, at, load(items + _WORD * row) + _DATA_AT, length)
        at += length
        out[at] = 0
        at += 1
    return at


def encode_values(
    out: bytearray | memoryview,
    at: int,
    rows: list[bytes],
    start: int,
    lengths: memoryview,
    deltas: Array = no_longs,
) -> int:
    """Records with these values and nothing else; gives the position after them. They are so many milliseconds, none of
    them negative, after the time of their batch, or all at that time.

    The list belongs to whoever calls, and nobody changes it any more: the interpreter's lock is not held meanwhile.
    """
    assert cpython.READS_LISTS
    target, sizes = as_array(out, np.uint8), as_array(lengths, np.int32)
    return int(_encode_values(target, at, cpython.address_of(rows), start, sizes, deltas))


def deltas_of(timestamps: Sequence[int]) -> tuple[Array, int] | None:
    """Milliseconds of each after the first, for `encode_values`, and the highest time; None when it cannot write them:
    some are before the first, or too long after it."""
    base = timestamps[0]
    if timestamps.count(base) == len(timestamps):
        return no_longs, base
    highest = max(timestamps)
    if min(timestamps) < base or highest - base > _DELTA_MAX:
        return None
    return np.array(timestamps, np.int64) - base, highest
