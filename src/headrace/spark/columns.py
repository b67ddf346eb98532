"""A DataFrame's columns as records: which are used, what types they may have, and to which topic each row goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BYTES = ("binary", "string")
_TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz", "bigint"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class WrongColumnsError(HeadraceError):
    """A DataFrame that cannot be written to Kafka as it is."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns of a DataFrame become records, and the topic of all rows (None: the column `topic` says)."""

    columns: tuple[str, ...]
    topic: str | None

    @property
    def has_partition(self) -> bool:
        return "partition" in self.columns

    @property
    def has_key(self) -> bool:
        return "key" in self.columns

    def by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows for each topic, in the order they have."""
        records = batch.select(list(self.columns))
        if self.topic is not None:
            if batch.num_rows:
                yield self.topic, records
            return
        import pyarrow.compute as pc

        topics = batch.column("topic")
        if topics.null_count:
            raise WrongColumnsError("a row has null for its topic: fill the column topic, or set the option topic")
        for topic in pc.unique(topics).to_pylist():
            yield topic, records.filter(pc.equal(topics, topic))


def shape_of(schema: StructType, topic: str | None, *, include_timestamp: bool = False) -> Shape:
    """Check a DataFrame's columns; the option `topic` takes precedence over the column, as in Spark."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise WrongColumnsError(f"the column value is missing: the DataFrame has {', '.join(types) or 'none'}")
    if topic is None and "topic" not in types:
        raise WrongColumnsError("no topic: set the option topic, or have a column topic")
    used = ["value"]
    for name in ("key", "headers", "partition"):
        if name in types:
            used.append(name)
    if include_timestamp:
        if "timestamp" not in types:
            raise WrongColumnsError("includeTimestamp is set, but there is no column timestamp")
        used.append("timestamp")
    checked = [*used, *(["topic"] if topic is None else [])]
    for name in checked:
        if _plain(types[name]) not in _TYPES[name]:
            raise WrongColumnsError(f"the column {name} is {types[name]}, not {' or '.join(_TYPES[name])}: cast it")
    return Shape(tuple(used), topic)


def _plain(name: str) -> str:
    """Type names without a string's collation."""
    return name.partition(" collate ")[0]
