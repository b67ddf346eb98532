"""Arrow tables into columns that the record kernels encode: positions in Arrow's own buffers, nothing copied.

Needs pyarrow and numpy (`pip install 'headrace[fast]'`); imported only by `send_arrow`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.errors import SerializationError
from headrace.client.producer._column_rows import planner, view
from headrace.client.producer._rows import ColumnRows, Rows
from headrace.client.producer.delivery import BatchDelivery
from headrace.client.producer.partitioners import Partitioner
from headrace.records.columns import BytesColumn, Columns, bytes_column, encode_headers

_COLUMNS = ("value", "key", "headers", "timestamp", "partition")
_INT32_MAX = 2_147_483_647


def arrow_rows(
    delivery: BatchDelivery,
    topic: str,
    data: Any,
    partition: int | None,
    partitioner: Partitioner | None,
    ignore_keys: bool,
    now_ms: int,
) -> ColumnRows | Rows:
    """The records of a table or record batch. A custom partitioner is asked row by row, so it gets rows."""
    batch = _one_batch(data)
    count = batch.num_rows
    columns = Columns(
        view(np.arange(count, dtype=np.int64)),
        view(_timestamps(batch, now_ms)),
        _bytes(batch, "key"),
        _bytes(batch, "value"),
        _headers(batch),
    )
    fixed = _partitions(batch, partition)
    if partitioner is not None and (fixed is None or (fixed < 0).any()):
        return _as_rows(delivery, topic, columns, fixed)
    return ColumnRows(delivery, topic, columns, planner(columns, fixed, ignore_keys))


def _one_batch(data: Any) -> Any:
    if isinstance(data, pa.Table):
        chunks = data.combine_chunks().to_batches()
        data = chunks[0] if chunks else pa.RecordBatch.from_pylist([], schema=data.schema)
        if len(chunks) > 1:
            raise SerializationError(
                f"the table has columns of over 2 GiB: send it in parts ({len(chunks)} record batches)"
            )
    if not isinstance(data, pa.RecordBatch):
        raise TypeError(f"send_arrow takes an Arrow table or record batch, not {type(data).__name__}")
    names = set(data.schema.names)
    if "value" not in names and "key" not in names:
        raise SerializationError(f"the Arrow data has the columns {sorted(names)}: value (or key) is missing")
    unknown = names - set(_COLUMNS)
    if unknown:
        raise SerializationError(
            f"the Arrow data has the columns {sorted(unknown)}; only {', '.join(_COLUMNS)} can be sent"
        )
    return data


def _bytes(batch: Any, name: str) -> BytesColumn:
    """A column's values as positions in its own buffer."""
    count = batch.num_rows
    if name not in batch.schema.names:
        lengths = np.full(count, -1, np.int32)
        return BytesColumn(b"", view(np.zeros(count, np.int32)), view(lengths))
    array = batch.column(name)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_null(kind):
        array = pa.nulls(count, pa.binary())
    elif pa.types.is_binary_view(kind) or pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        try:
            array = array.cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise SerializationError(f"the column {name} has over 2 GiB: send it in parts ({error})") from error
    elif not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise SerializationError(f"the column {name} is {kind}, not binary or string: cast it, or serialize it first")
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + count + 1] if count else np.zeros(1, np.int32)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return BytesColumn(b"" if data is None else memoryview(data), view(ends[:-1].copy()), view(lengths))


def _timestamps(batch: Any, now_ms: int) -> Any:
    if "timestamp" not in batch.schema.names:
        return np.full(batch.num_rows, now_ms, np.int64)
    array = batch.column("timestamp")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(array.type):
        raise SerializationError(
            f"the column timestamp is {array.type}: milliseconds since 1970, or an Arrow timestamp"
        )
    stamps = pc.fill_null(array.cast(pa.int64()), now_ms).to_numpy(zero_copy_only=False)
    if len(stamps) and stamps.min() < 0:
        raise SerializationError(f"the column timestamp has {stamps.min()}: it must not be negative")
    return np.ascontiguousarray(stamps)


def _partitions(batch: Any, partition: int | None) -> Any:
    """Partition per row, -1 where none is given; None when none is given at all."""
    if partition is not None:
        return np.full(batch.num_rows, partition, np.int32)
    if "partition" not in batch.schema.names:
        return None
    array = batch.column("partition")
    if not pa.types.is_integer(array.type):
        raise SerializationError(f"the column partition is {array.type}, not an integer")
    if array.null_count == len(array):
        return None
    given = array.drop_null()
    if pc.min(given).as_py() < 0 or pc.max(given).as_py() > _INT32_MAX:
        raise SerializationError("the column partition has a number that is not a partition")
    return pc.fill_null(array.cast(pa.int32()), -1).to_numpy(zero_copy_only=False)


def _headers(batch: Any) -> BytesColumn | None:
    """Headers as a map, or a list of structs with the fields key and value (as Spark has them)."""
    if "headers" not in batch.schema.names or batch.column("headers").null_count == batch.num_rows:
        return None
    sections = []
    for number, row in enumerate(batch.column("headers").to_pylist()):
        try:
            pairs = [(h["key"], h["value"]) if isinstance(h, dict) else h for h in row or ()]
            sections.append(
                encode_headers((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SerializationError(
                f"the headers of row {number} are {row!r}: each has to be a name (text, not null) and its value "
                f"(bytes, text or null), as a map or a list of structs with the fields key and value ({error})"
            ) from error
    return bytes_column(sections)


def _as_rows(delivery: BatchDelivery, topic: str, columns: Columns, fixed: Any) -> Rows:
    headers = None if columns.headers is None else [columns.headers_of(row) for row in range(len(columns))]
    partitions = None if fixed is None else [None if p < 0 else int(p) for p in fixed.tolist()]
    return Rows(
        delivery,
        topic,
        columns.values.to_list(),
        columns.keys.to_list(),
        partitions,
        columns.timestamps.tolist(),
        headers,
    )
