"""Dead letters that were written in parts, put together in a task: the parts of a partition come in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.client.consumer.records import ConsumerRecord
from headrace.parallel.deadletters import joined
from headrace.records import TimestampType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
OFFSETS = "offsets"
"""The column with the offsets that a letter is made of: one where it is whole."""
_ROWS_MAX = 1_000
_BYTES_MAX = 4 * 1024 * 1024


def whole_letters(rows: DataFrame) -> DataFrame:
    """The letters that records are, or are parts of, in order, each with its `OFFSETS`; it stands where its last part
    does. Without those that cannot be put together."""
    from pyspark.sql.types import ArrayType, LongType, StructType

    rows = rows.select(*COLUMNS)
    schema = StructType([*rows.schema.fields]).add(OFFSETS, ArrayType(LongType()))
    return rows.mapInArrow(_join, schema)


def _join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of the records of one partition, in the order of their offsets."""
    import pyarrow as pa

    schema: Any = None
    made: list[dict[str, Any]] = []
    size = 0

    def records() -> Iterator[ConsumerRecord]:
        nonlocal schema
        for batch in batches:
            schema = batch.schema.append(pa.field(OFFSETS, pa.list_(pa.int64())))
            for row in batch.to_pylist():
                headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
                kind = TimestampType.CREATE_TIME
                # The time is Spark's own value, and is handed on as it is.
                yield ConsumerRecord(
                    "", row["partition"], row["offset"], row["timestamp"], kind, row["key"], row["value"], headers
                )

    for letter, offsets in joined(records()):
        headers = [{"key": name, "value": value} for name, value in letter.headers]
        values = (letter.partition, letter.offset, letter.timestamp, letter.key, letter.value, headers)
        made.append({**dict(zip(COLUMNS, values)), OFFSETS: list(offsets)})
        size += len(letter.value or b"")
        if len(made) >= _ROWS_MAX or size >= _BYTES_MAX:
            yield pa.RecordBatch.from_pylist(made, schema=schema)
            made, size = [], 0
    if made:
        yield pa.RecordBatch.from_pylist(made, schema=schema)
