"""Polled columns as one Arrow record batch: topic and partition beside offset, timestamp, key and value.

What does not depend on the records is made once and kept. A poll has streamed megabytes through the processor's caches,
and small things that are made anew after that take several times what they take alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from headrace.client.consumer.records import PartitionColumns
from headrace.records.arrow import arrow_arrays
from headrace.records.arrow import schema as record_schema
from headrace.records.buffers import SHARED, zeros

if TYPE_CHECKING:
    import pyarrow

_TOPIC_LISTS_MAX = 64


@cache
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


@lru_cache(_TOPIC_LISTS_MAX)
def _topic_names(topics: tuple[str, ...]) -> Any:
    import pyarrow

    return pyarrow.array(topics, pyarrow.string())


def pieces_to_arrow(pieces: list[PartitionColumns], *, headers: bool = False) -> pyarrow.RecordBatch:
    """All pieces in one batch. Keys and values are copied once; numbers too, unless there is a single piece."""
    import pyarrow

    schema = arrow_schema(headers=headers)
    if not pieces:
        return pyarrow.RecordBatch.from_pylist([], schema=schema)
    topics = tuple(dict.fromkeys(piece.topic for piece in pieces))
    counts = [len(piece) for piece in pieces]
    int32, int8 = pyarrow.int32(), pyarrow.int8()
    constants = [
        pyarrow.DictionaryArray.from_arrays(
            _constants(counts, [topics.index(piece.topic) for piece in pieces], int32, "int32"),
            _topic_names(topics),
            safe=False,
        ),
        _constants(counts, [piece.partition for piece in pieces], int32, "int32"),
        _constants(counts, [piece.leader_epoch for piece in pieces], int32, "int32"),
        _constants(counts, [int(piece.timestamp_type) for piece in pieces], int8, "int8"),
    ]
    arrays = arrow_arrays([piece.columns for piece in pieces], headers=headers)
    return pyarrow.RecordBatch.from_arrays([*constants, *arrays], schema=schema)


def with_types(batch: pyarrow.RecordBatch, topics: list[str], deserializers: Mapping[str, Any]) -> pyarrow.RecordBatch:
    """Keys and values as what their deserializers make of whole columns, if they can; else as they are, bytes.

    Beside such a column stands another one, `key_error` or `value_error`: why a row could not be read, and is null.
    """
    for name, deserializer in deserializers.items():
        to_columns = getattr(deserializer, "to_columns", None)
        if to_columns is None:
            continue
        array, errors = to_columns(list(dict.fromkeys(topics)), batch.column(name))
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, array).append_column(f"{name}_error", errors)
    return batch


def _constants(counts: list[int], numbers: list[int], kind: Any, dtype: str) -> Any:
    """An array that has each of its numbers so many times."""
    import numpy
    import pyarrow

    count = sum(counts)
    size = count * numpy.dtype(dtype).itemsize
    memory = SHARED.take(size) if any(numbers) else zeros(size)
    if any(numbers) and count:
        filled = numpy.frombuffer(memory, dtype)
        at = 0
        for number, rows in zip(numbers, counts):
            filled[at : at + rows] = number
            at += rows
    return pyarrow.Array.from_buffers(kind, count, [None, pyarrow.py_buffer(memory)], null_count=0)
