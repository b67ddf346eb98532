"""Rows of one lane as one value: a shuffle then moves a few large rows, not every record by itself.

Spark takes rows from Python, into a shuffle, out of it and back to Python one by one. A parcel (Arrow's stream format)
it only passes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

LANE, PARCEL = "__headrace_lane", "__headrace_parcel"
PARCELS_DDL = f"`{LANE}` INT, `{PARCEL}` BINARY"
_SCHEMA = pa.schema([(LANE, pa.int32()), (PARCEL, pa.binary())])
_PARCEL_BYTES = 1 << 18
"""About so much in one, or a row that is larger. The JVM's collector treats objects from 512 KB on as a burden."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Spark would compress them for the shuffle, and has them to move before and after it."""


def pack(batch: pa.RecordBatch, lanes: Any) -> pa.RecordBatch:
    """The rows in parcels, with the lane of each; within a lane in the order in which they came."""
    lanes = np.asarray(lanes, np.int64)
    ordered = batch.take(pa.array(np.argsort(lanes, kind="stable")))
    rows_max = max(1, _PARCEL_BYTES * batch.num_rows // max(1, ordered.nbytes))
    sink = pa.BufferOutputStream()
    made, ends = [], [0]
    start = 0
    for lane, count in enumerate(np.bincount(lanes).tolist()):
        end = start + count
        for first in range(start, end, rows_max):
            with pa.ipc.new_stream(sink, ordered.schema, options=_COMPRESSED) as stream:
                stream.write_batch(ordered.slice(first, min(rows_max, end - first)))
            made.append(lane)
            ends.append(sink.tell())
        start = end
    # The parcels lie one after the other where they were written: an array of them needs no copy.
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), sink.getvalue()]
    parcels = pa.Array.from_buffers(pa.binary(), len(made), buffers)
    return pa.RecordBatch.from_arrays([pa.array(made, pa.int32()), parcels], schema=_SCHEMA)


def unpack(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """What `pack` was given, a lane's rows at a time."""
    for lane, parcel in zip(batch.column(LANE).to_pylist(), batch.column(PARCEL)):
        with pa.ipc.open_stream(parcel.as_buffer()) as stream:
            for rows in stream:
                yield lane, rows
