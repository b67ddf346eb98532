"""What a task of the source does: fetch a range of offsets, decode it into columns, hand Arrow batches to Spark.

No thread, and no Python object per record. Reading is the client's (`headrace.client.ranges`): the next fetch is sent
before the last one is decoded, so the broker works meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.client.cluster.drivers import BlockingClient
from headrace.client.consumer.config import ConsumerSettings
from headrace.client.consumer.records import PartitionColumns
from headrace.client.ranges import Loss, RangeReader, range_settings
from headrace.errors import RequestTimedOutError
from headrace.records import Batch, BatchHeader
from headrace.records.arrow import columns_to_arrow
from headrace.records.columns import Columns
from headrace.spark.connections import expect_rows, forget, shared_client
from headrace.spark.planning import DataLossError, OffsetRange

if TYPE_CHECKING:
    from headrace.spark.schemas import ValueSchema

log = logging.getLogger("headrace.spark")

_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_DEFAULTS = {"max.partition.fetch.bytes": str(_FETCH_BYTES), "fetch.max.bytes": str(16 * _FETCH_BYTES)}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What every task of a read is told."""

    kafka: Mapping[str, str] = field(repr=False)
    include_headers: bool
    fail_on_data_loss: bool
    timeout_ms: int
    settings: ConsumerSettings
    value_schema: ValueSchema | None = None

    @classmethod
    def of(
        cls,
        kafka: Mapping[str, str],
        *,
        read_committed: bool,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
        timeout_ms: int = 120_000,
        value_schema: ValueSchema | None = None,
    ) -> ReadPlan:
        isolation = "read_committed" if read_committed else "read_uncommitted"
        settings = range_settings({**_FETCH_DEFAULTS, **kafka, "isolation.level": isolation})
        return cls(dict(kafka), include_headers, fail_on_data_loss, timeout_ms, settings, value_schema)


class RangeFetcher:
    """Reads one range, in order. Bounded by the range's end and by a time without progress."""

    def __init__(self, client: BlockingClient, plan: ReadPlan, wanted: OffsetRange) -> None:
        self._reader = RangeReader.over(client, plan.settings)
        self._plan = plan
        self._range = {wanted.partition: (wanted.start, wanted.end)}

    def pieces(self) -> Iterator[PartitionColumns]:
        """Columns in order of offsets, each with at least one row, all inside the range."""
        timeout_s = self._plan.timeout_ms / 1000
        try:
            yield from self._reader.read(self._range, timeout=timeout_s, on_loss=self._lost, was_written=True)
        except RequestTimedOutError as error:
            raise self._late(error) from error

    def batches(self) -> Iterator[tuple[Batch, BatchHeader]]:
        """The range as batches, as they lie in the log: each that reaches into it, in order."""
        timeout_s = self._plan.timeout_ms / 1000
        try:
            yield from self._reader.read_batches(self._range, timeout=timeout_s, on_loss=self._lost, was_written=True)
        except RequestTimedOutError as error:
            raise self._late(error) from error

    def _lost(self, loss: Loss) -> None:
        if self._plan.fail_on_data_loss:
            raise DataLossError(
                f"{loss.what}. Retention deleted it, or the topic was deleted and made anew. To go on with what is "
                "there, set failOnDataLoss to false"
            )
        log.warning("%s (failOnDataLoss=false: reading goes on)", loss.what)

    def _late(self, error: RequestTimedOutError) -> RequestTimedOutError:
        return RequestTimedOutError(f"{error} (kafkaConsumer.pollTimeoutMs={self._plan.timeout_ms})")


def read_arrow(plan: ReadPlan, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a range as Arrow batches with Spark's columns."""
    client = shared_client(plan.kafka, [wanted.partition.topic])
    expect_rows(len(wanted))
    finished = False
    try:
        for piece in RangeFetcher(client, plan, wanted).pieces():
            yield to_spark(piece, schema, plan.value_schema)
        finished = True
    finally:
        if not finished:
            # An answer may still be on its way: nobody is to take it for an answer to a later question.
            forget(client)


_MILLISECONDS_MAX = (2**63 - 1) // 1000


def to_spark(piece: PartitionColumns, schema: pa.Schema, value_schema: ValueSchema | None = None) -> pa.RecordBatch:
    """Spark's columns: key, value, topic, partition, offset, timestamp, timestampType and, if wanted, headers."""
    columns = piece.columns
    count = len(columns)
    offsets, _, keys, values = columns_to_arrow(columns).columns
    arrays = {
        "key": keys,
        "value": values,
        "topic": _repeated(piece.topic, count),
        "partition": pa.array(np.full(count, piece.partition, np.int32)),
        "offset": offsets,
        "timestamp": _timestamps(np.asarray(columns.timestamps), pa.timestamp("us", "UTC")),
        "timestampType": pa.array(np.full(count, int(piece.timestamp_type), np.int32)),
    }
    if value_schema is not None:
        from headrace.spark.schemas import typed

        arrays |= typed(value_schema, values, schema)
    if "headers" in schema.names:
        arrays["headers"] = _headers(columns, schema.field("headers").type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _timestamps(milliseconds: np.ndarray, kind: pa.DataType) -> pa.Array:
    """As Spark counts them, in microseconds. Null where that is more than it can count: nanoseconds, say, taken for
    milliseconds by whoever wrote them."""
    are_too_large = np.abs(milliseconds) > _MILLISECONDS_MAX
    if not are_too_large.any():
        return pa.Array.from_buffers(kind, len(milliseconds), [None, pa.py_buffer(milliseconds * 1000)])
    return pa.array(np.where(are_too_large, 0, milliseconds) * 1000, pa.int64(), mask=are_too_large).cast(kind)


def _repeated(text: str, count: int) -> pa.Array:
    """One text in every row, laid out at once."""
    data = text.encode()
    ends = np.arange(0, (count + 1) * len(data), len(data), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def _headers(columns: Columns, kind: pa.DataType) -> pa.Array:
    """Headers as Spark has them: null for a record without any. Only rows that have some cost Python objects."""
    lengths = [1] * len(columns) if columns.headers is None else columns.headers.lengths.tolist()
    rows = [
        [{"key": name, "value": value} for name, value in columns.headers_of(row)] if length > 1 else None
        for row, length in enumerate(lengths)
    ]
    return pa.array(rows, kind)
