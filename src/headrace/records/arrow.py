"""Columns to Arrow and back, without a Python object per record. Needs `headrace[fast]`; loads pyarrow on first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Unpack

from headrace.errors import MissingExtraError
from headrace.late_imports import late_import
from headrace.records import kernels
from headrace.records.buffers import SHARED, zeros
from headrace.records.build import BatchOptions, build_batch_from_columns
from headrace.records.columns import BytesColumn, Columns, encode_headers

if TYPE_CHECKING:
    import pyarrow

# pyarrow has no types of its own: what it hands out is Any.
_Arrow = Any

_EMPTY_SECTION = b"\0"


@cache
def need_arrow() -> _Arrow:
    """pyarrow; where it or numpy is missing, the error that says what to install."""
    try:
        late_import("numpy")  # only whether it is there
        return late_import("pyarrow")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"this needs Arrow, and {error.name} is not installed: pip install 'headrace[fast]'"
        ) from None


@cache
def schema(*, headers: bool = False) -> pyarrow.Schema:
    """Fields of `columns_to_arrow`."""
    arrow = need_arrow()
    fields = [
        ("offset", arrow.int64()),
        ("timestamp", arrow.timestamp("ms", tz="UTC")),
        ("key", arrow.binary()),
        ("value", arrow.binary()),
    ]
    if headers:
        fields.append(("headers", _headers_type(arrow)))
    return arrow.schema(fields)


def _headers_type(arrow: _Arrow) -> _Arrow:
    return arrow.list_(arrow.struct([("key", arrow.string()), ("value", arrow.binary())]))


def columns_to_arrow(columns: Columns, *, headers: bool = False) -> pyarrow.RecordBatch:
    """Offset, timestamp, key and value, and headers if asked for.

    Numbers share the columns' memory. Keys and values are copied once, because Arrow wants the bytes of a column end to
    end and a batch holds them row by row. Only rows that have headers cost Python objects, and only when wanted.
    """
    arrow = need_arrow()
    return arrow.RecordBatch.from_arrays(arrow_arrays([columns], headers=headers), schema=schema(headers=headers))


def arrow_arrays(pieces: Sequence[Columns], *, headers: bool = False) -> list[_Arrow]:
    """The arrays of `columns_to_arrow`, of all pieces one after the other. Every byte is copied once, however many."""
    arrow = need_arrow()
    count = sum(map(len, pieces))
    arrays = [
        arrow.Array.from_buffers(kind, count, [None, arrow.py_buffer(_end_to_end(numbers))], null_count=0)
        for kind, numbers in (
            (arrow.int64(), [piece.offsets for piece in pieces]),
            (arrow.timestamp("ms", tz="UTC"), [piece.timestamps for piece in pieces]),
        )
    ]
    arrays += [_bytes_to_arrow(arrow, [piece.keys for piece in pieces])]
    arrays += [_bytes_to_arrow(arrow, [piece.values for piece in pieces])]
    if headers:
        rows = [row for piece in pieces for row in _header_rows(piece)]
        arrays.append(arrow.array(rows, _headers_type(arrow)))
    return arrays


def _end_to_end(columns: Sequence[memoryview]) -> memoryview:
    """64-bit numbers in one buffer; those of a single column stay where they are."""
    if len(columns) == 1:
        return columns[0]
    whole = SHARED.take(sum(column.nbytes for column in columns))
    at = 0
    for column in columns:
        # As bytes: the same numbers may be called "q" here and "l" there.
        whole[at : at + column.nbytes] = column.cast("B")
        at += column.nbytes
    return whole


def _bytes_to_arrow(arrow: _Arrow, columns: Sequence[BytesColumn]) -> _Arrow:
    count = sum(map(len, columns))
    data, ends, nulls = kernels.choose(count).gather(*columns)
    if nulls == count:
        validity = arrow.py_buffer(zeros(-(-count // 8)))
    else:
        validity = _validity(arrow, columns) if nulls else None
    buffers = [validity, arrow.py_buffer(ends), arrow.py_buffer(data)]
    return arrow.Array.from_buffers(arrow.binary(), count, buffers, null_count=nulls)


def _validity(arrow: _Arrow, columns: Sequence[BytesColumn]) -> _Arrow:
    """A bit per row, set where it is not null."""
    import numpy

    present = numpy.concatenate([numpy.asarray(column.lengths) >= 0 for column in columns])
    return arrow.py_buffer(numpy.packbits(present, bitorder="little"))


def _header_rows(columns: Columns) -> list[list[dict[str, Any]]]:
    if columns.headers is None:
        return [[]] * len(columns)
    return [
        [{"key": key, "value": value} for key, value in columns.headers_of(row)] if length > 1 else []
        for row, length in enumerate(columns.headers.lengths)
    ]


def arrow_to_columns(
    batch: pyarrow.RecordBatch, *, default_timestamp_ms: int, base_offset: int = 0, headers: str = "headers"
) -> Columns:
    """Columns of a record batch with fields key and value, and optionally timestamp and headers; no bytes are copied.

    A missing key or value is null, a missing timestamp is `default_timestamp_ms`. Offsets count up from `base_offset`.
    """
    import numpy

    arrow = need_arrow()
    count = batch.num_rows
    names = set(batch.schema.names)
    if "timestamp" in names:
        stamps = _timestamps(arrow, batch.column("timestamp"), default_timestamp_ms)
    else:
        stamps = numpy.full(count, default_timestamp_ms, numpy.int64)
    offsets = numpy.arange(base_offset, base_offset + count, dtype=numpy.int64)
    keys, values = (
        _arrow_to_bytes(arrow, batch.column(name)) if name in names else _nulls(count) for name in ("key", "value")
    )
    sections = _arrow_to_headers(batch.column(headers)) if headers in names else None
    return Columns(_memory(offsets), _memory(stamps), keys, values, sections)


def arrow_to_batch(
    batch: pyarrow.RecordBatch, *, default_timestamp_ms: int, **options: Unpack[BatchOptions]
) -> bytearray:
    """One encoded batch of all rows."""
    columns = arrow_to_columns(
        batch, default_timestamp_ms=default_timestamp_ms, base_offset=options.get("base_offset", 0)
    )
    return build_batch_from_columns(columns, **options)


def _memory(numbers: Any) -> memoryview:
    return memoryview(numbers)


def _nulls(count: int) -> BytesColumn:
    import numpy

    return BytesColumn(b"", _memory(numpy.zeros(count, numpy.int32)), _memory(numpy.full(count, -1, numpy.int32)))


def _timestamps(arrow: _Arrow, column: _Arrow, default_timestamp_ms: int) -> Any:
    if not arrow.types.is_int64(column.type):
        # A finer unit is cut to milliseconds, which is all that Kafka keeps.
        zone = column.type.tz if arrow.types.is_timestamp(column.type) else None
        column = column.cast(arrow.timestamp("ms", tz=zone), safe=False).cast(arrow.int64())
    if column.null_count:
        column = column.fill_null(default_timestamp_ms)
    return column.to_numpy(zero_copy_only=True)


def _arrow_to_bytes(arrow: _Arrow, column: _Arrow) -> BytesColumn:
    import numpy

    kinds = arrow.types
    if kinds.is_null(column.type):
        return _nulls(len(column))
    if kinds.is_string(column.type) or kinds.is_large_string(column.type) or kinds.is_string_view(column.type):
        column = column.cast(arrow.binary())
    elif not kinds.is_binary(column.type):
        try:
            column = column.cast(arrow.binary())
        except arrow.ArrowNotImplementedError:
            raise TypeError(f"keys and values are binary or string columns, not {column.type}") from None
    count, first = len(column), column.offset
    if count == 0:
        return _nulls(0)
    validity, positions, data = column.buffers()
    ends = numpy.frombuffer(positions, numpy.int32)[first : first + count + 1]
    lengths = numpy.diff(ends)
    if validity is not None and column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    raw = b"" if data is None else memoryview(data)
    return BytesColumn(raw, _memory(ends[:-1]), _memory(lengths))


def _arrow_to_headers(column: _Arrow) -> BytesColumn | None:
    """Encoded header sections. Python objects are made for the rows that have headers, and for no others."""
    import numpy
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    rows = numpy.flatnonzero(lengths)
    if not len(rows):
        return None
    sections: list[bytes | None] = [_EMPTY_SECTION] * len(column)
    for row in rows.tolist():
        sections[row] = encode_headers((pair["key"], pair["value"]) for pair in column[row].as_py())
    return kernels.choose(len(sections)).pack(sections)
