"""Rows of columns laid out anew, compiled: as Python's byte strings, or end to end as Arrow wants them.

Python makes many objects at once fastest when it reads them from its own serialized form. A list of byte strings that a
kernel has laid out in that form takes 25 ns a row to read; cutting a row out of a buffer takes four times that. That
form is Python's and may change: `cpython` has it, and says whether it is what we think (`LOADS_LISTS`).
"""

from __future__ import annotations

from typing import Any

from headrace.records import cpython
from headrace.records.buffers import SHARED, zeros
from headrace.records.columns import MAX_COLUMN_BYTES, BytesColumn
from headrace.records.compiling import (
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
    np,
    pooled,
    types,
)

_LIST, _BYTES, _NONE, _HEAD_BYTES = cpython.LIST_CODE, cpython.BYTES_CODE, cpython.NONE_CODE, cpython.HEAD_BYTES
_LONG_ROW_BYTES = 4000


@helper
def _put_size(out: Any, at: Any, kind: Any, size: Any) -> Any:
    out[at] = kind
    for step in range(4):
        out[at + 1 + step] = np.uint8((size >> (8 * step)) & 0xFF)
    return at + _HEAD_BYTES


@kernel(i64(ints_in))
def _has_any(lengths: Any) -> Any:
    """Whether there is a row that is not null."""
    for row in range(len(lengths)):
        if lengths[row] >= 0:
            return 1
    return 0


@kernel(types.UniTuple(i64, 2)(ints_in))
def _present(lengths: Any) -> Any:
    """How many rows are not null, and how many bytes they have."""
    rows = 0
    total = np.int64(0)
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        if length >= 0:
            rows += 1
            total += length
    return rows, total


@kernel(i64(bytes_in, ints_in, ints_in, bytes_out))
def _serialize(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    at = _put_size(out, 0, _LIST, len(lengths))
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        if length < 0:
            out[at] = _NONE
            at += 1
        else:
            at = _put_size(out, at, _BYTES, length)
            copy(out, at, data, np.int64(starts[row]), length)
            at += length
    return at


def to_list(column: BytesColumn) -> list[bytes | None]:
    """Every row as bytes, or None for null."""
    lengths = as_array(column.lengths, np.int32)
    count = len(lengths)
    present, total = _present(lengths)
    if not present:
        return [None] * count
    if not cpython.LOADS_LISTS or total > count * _LONG_ROW_BYTES:
        # Of long rows the bytes cost more than the objects: they are copied once only.
        return column.to_list()
    out = SHARED.take(_HEAD_BYTES + count * _HEAD_BYTES + total)
    _serialize(as_array(column.data, np.uint8), as_array(column.starts, np.int32), lengths, as_array(out, np.uint8))
    return cpython.load_list(out)


@kernel(i64(ints_in, ints_out, i64, i64))
def lay_ends(lengths: Any, ends: Any, first: Any, total: Any) -> Any:
    """Where each row ends when rows are laid end to end from `total` on; `ends[first]` is where they begin."""
    ends[first] = total
    for row in range(len(lengths)):
        total += max(np.int64(lengths[row]), 0)
        ends[first + row + 1] = total
    return total


@kernel(types.UniTuple(i64, 2)(bytes_in, ints_in, ints_in, i64, i64, ints_out, bytes_out))
def _gather(data: Any, starts: Any, lengths: Any, first: Any, end: Any, ends: Any, out: Any) -> Any:
    """Where the last row ends, and how many are null."""
    nulls = np.int64(0)
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        if length > 0:
            copy(out, end, data, np.int64(starts[row]), length)
            end += length
        elif length < 0:
            nulls += 1
        ends[first + row + 1] = end
    return end, nulls


def _bound(column: BytesColumn, lengths: Any) -> int:
    """So many bytes at most (`BytesColumn.bytes_max`, with compiled sums)."""
    return column.bytes_max if column.is_ordered or not len(lengths) else int(_present(lengths)[1])


def gather(*columns: BytesColumn) -> tuple[bytes | memoryview, memoryview, int]:
    """The bytes of all columns end to end, and n + 1 positions: Arrow's layout. Null rows are empty; how many are."""
    count = sum(map(len, columns))
    if not any(_has_any(as_array(column.lengths, np.int32)) for column in columns):
        return b"", zeros(4 * (count + 1)).cast("i"), count
    parts = [arrays_of(column) for column in columns]
    ends = pooled(4 * (count + 1), np.int32)
    ends[0] = 0
    bound = sum(_bound(column, part[2]) for column, part in zip(columns, parts))
    if bound > MAX_COLUMN_BYTES:
        raise ValueError(f"a column of {bound} bytes passes the limit of {MAX_COLUMN_BYTES}: take fewer records")
    out = pooled(bound, np.uint8)
    first = end = nulls = 0
    for data, starts, lengths in parts:
        end, missing = _gather(data, starts, lengths, first, end, ends, out)
        nulls += missing
        first += len(lengths)
    return memoryview(out)[:end], memoryview(ends), int(nulls)
