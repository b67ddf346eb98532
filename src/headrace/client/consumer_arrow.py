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
    topics = list(dict.fromkeys(piece.topic for piece in pieces))
    indexes, partitions, epochs, kinds = _constants(
        [len(piece) for piece in pieces],
        ("int32", [topics.index(piece.topic) for piece in pieces]),
        ("int32", [piece.partition for piece in pieces]),
        ("int32", [piece.leader_epoch for piece in pieces]),
        ("int8", [int(piece.timestamp_type) for piece in pieces]),
    )
    constants = [
        pyarrow.DictionaryArray.from_arrays(indexes, pyarrow.array(topics, pyarrow.string()), safe=False),
        partitions,
        epochs,
        kinds,
    ]
    arrays = arrow_arrays([piece.columns for piece in pieces], headers=headers)
    return pyarrow.RecordBatch.from_arrays([*constants, *arrays], schema=schema)


def _constants(counts: list[int], *columns: tuple[str, list[int]]) -> list[Any]:
    """Arrays that have each of their numbers so many times, all in one buffer; those of wider numbers come first."""
    import numpy
    import pyarrow

    count = sum(counts)
    widths = [numpy.dtype(dtype).itemsize for dtype, _ in columns]
    memory = SHARED.take(max(1, count * sum(widths)))
    arrays: list[Any] = []
    start = 0
    for (dtype, numbers), width in zip(columns, widths):
        part = memory[start : start + count * width]
        filled: Any = numpy.frombuffer(part, dtype) if count else ()
        at = 0
        for number, rows in zip(numbers, counts):
            filled[at : at + rows] = number
            at += rows
        buffers = [None, pyarrow.py_buffer(part)]
        arrays.append(pyarrow.Array.from_buffers(pyarrow.type_for_alias(dtype), count, buffers, null_count=0))
        start += count * width
    return arrays
