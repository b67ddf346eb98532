"""Polled columns as one Arrow record batch: topic and partition beside offset, timestamp, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.client.consumer_records import PartitionColumns
from headrace.records.arrow import arrow_arrays
from headrace.records.arrow import schema as record_schema
from headrace.records.buffers import SHARED

if TYPE_CHECKING:
    import pyarrow


def arrow_schema(*, headers: bool = False) -> pyarrow.Schema:
    """topic (dictionary), partition, leader_epoch, timestamp_type, then offset, timestamp, key, value (and headers)."""
    import pyarrow

    fields = [
        pyarrow.field("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        pyarrow.field("partition", pyarrow.int32()),
        pyarrow.field("leader_epoch", pyarrow.int32()),
        pyarrow.field("timestamp_type", pyarrow.int8()),
    ]
    return pyarrow.schema([*fields, *record_schema(headers=headers)])


def pieces_to_arrow(pieces: list[PartitionColumns], *, headers: bool = False) -> pyarrow.RecordBatch:
    """All pieces in one batch. Keys and values are copied once; numbers too, unless there is a single piece."""
    import pyarrow

    schema = arrow_schema(headers=headers)
    if not pieces:
        return pyarrow.RecordBatch.from_pylist([], schema=schema)
    counts = [len(piece) for piece in pieces]
    topics = list(dict.fromkeys(piece.topic for piece in pieces))
    indexes = _repeated(pyarrow, pyarrow.int32(), "i", [topics.index(piece.topic) for piece in pieces], counts)
    constants = [
        pyarrow.DictionaryArray.from_arrays(indexes, pyarrow.array(topics, pyarrow.string())),
        _repeated(pyarrow, pyarrow.int32(), "i", [piece.partition for piece in pieces], counts),
        _repeated(pyarrow, pyarrow.int32(), "i", [piece.leader_epoch for piece in pieces], counts),
        _repeated(pyarrow, pyarrow.int8(), "b", [int(piece.timestamp_type) for piece in pieces], counts),
    ]
    arrays = arrow_arrays([piece.columns for piece in pieces], headers=headers)
    return pyarrow.RecordBatch.from_arrays([*constants, *arrays], schema=schema)


def _repeated(arrow: Any, kind: Any, dtype: str, numbers: list[int], counts: list[int]) -> Any:
    """An array that has each number so many times."""
    import numpy

    count = sum(counts)
    memory = SHARED.take(max(1, count * numpy.dtype(dtype).itemsize))
    filled: Any = numpy.frombuffer(memory, dtype)[:count]
    at = 0
    for number, rows in zip(numbers, counts):
        filled[at : at + rows] = number
        at += rows
    return arrow.Array.from_buffers(kind, count, [None, arrow.py_buffer(memory)])
