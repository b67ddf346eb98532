"""`format("headrace")` as a sink: at least once, as Spark's own. A task that is tried again writes its rows again.

Columns: `value` (required), `key`, `headers`, `topic`, `partition`; `timestamp` when asked for. Others are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.spark.columns import Shape, shape_of
from headrace.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""How much a task may have handed to its producer without an answer."""

_PRODUCER_DEFAULTS = {
    # Tasks have whole columns at hand: large batches, and no waiting for more.
    "batch.size": 1_000_000,
    "linger.ms": 0,
    "max.request.size": 4 * 1024 * 1024,
    "client.id": "headrace-spark",
}


@dataclass
class WrittenRows(WriterCommitMessage):
    """How many rows a task wrote."""

    rows: int


class _Writing:
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.shape: Shape = shape_of(schema, options.topic, include_timestamp=options.include_timestamp)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return WrittenRows(produce(iterator, self.shape, self.options.kafka))


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Writes a DataFrame once; a task that fails and is tried again writes its rows again."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ValueError("a topic cannot be overwritten: use mode('append')")
        super().__init__(options, schema)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes micro-batches; one that is replayed after a crash is written again."""


def produce(batches: Iterator[pa.RecordBatch], shape: Shape, kafka: Mapping[str, Any]) -> int:
    """Send every row and wait until all are acknowledged; how many there were. Raises the first failure."""
    # Loaded by tasks only: Spark makes writers in processes that never write.
    from headrace.spark.connections import expect_rows, lent_producer

    rows = in_flight = 0
    waiting: deque[tuple[Any, int]] = deque()
    with lent_producer({**_PRODUCER_DEFAULTS, **kafka}) as producer:
        for batch in batches:
            expect_rows(batch.num_rows)
            for topic, part in shape.by_topic(batch):
                size = part.nbytes
                while waiting and in_flight + size > IN_FLIGHT_BYTES:
                    delivery, freed = waiting.popleft()
                    delivery.result()
                    in_flight -= freed
                waiting.append((producer.send_arrow(topic, part), size))
                in_flight += size
                rows += part.num_rows
        for delivery, _ in waiting:
            delivery.result()
    return rows
