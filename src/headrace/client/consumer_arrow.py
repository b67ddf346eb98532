"""Polled columns as one Arrow record batch: topic and partition beside offset, timestamp, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.client.consumer_records import PartitionColumns
from headrace.records.arrow import columns_to_arrow
from headrace.records.arrow import schema as record_schema

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
    """All pieces in one batch. A single piece is not copied again; several are laid end to end, which copies once."""
    import pyarrow

    schema = arrow_schema(headers=headers)
    if not pieces:
        return pyarrow.RecordBatch.from_pylist([], schema=schema)
    topics = list(dict.fromkeys(piece.topic for piece in pieces))
    dictionary = pyarrow.array(topics, pyarrow.string())
    batches = [_batch(pyarrow, piece, topics.index(piece.topic), dictionary, schema, headers) for piece in pieces]
    return batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)


def _batch(arrow: Any, piece: PartitionColumns, topic: int, dictionary: Any, schema: Any, headers: bool) -> Any:
    import numpy

    count = len(piece)
    made = columns_to_arrow(piece.columns, headers=headers)
    constants = [
        arrow.DictionaryArray.from_arrays(arrow.array(numpy.full(count, topic, numpy.int32)), dictionary),
        arrow.array(numpy.full(count, piece.partition, numpy.int32)),
        arrow.array(numpy.full(count, piece.leader_epoch, numpy.int32)),
        arrow.array(numpy.full(count, int(piece.timestamp_type), numpy.int8)),
    ]
    return arrow.RecordBatch.from_arrays([*constants, *made.columns], schema=schema)
