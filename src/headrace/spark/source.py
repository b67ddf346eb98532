"""`format("headrace")`: Kafka topics as a Spark source and sink, with the options and columns of Spark's own connector.

The classes here only speak Spark's data source API; what is read is decided in `planning`, and read in `reading`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.runtime.real import RealClock
from headrace.spark.options import (
    Mode,
    NoMatch,
    SourceOptions,
    ValueSchemaOptions,
    includes_headers,
    read_sink_options,
    read_source_options,
    value_schema_options,
)
from headrace.spark.planning import (
    OffsetRange,
    Offsets,
    SourceOffsets,
    TriggerDelay,
    batch_ranges,
    capped,
    check_losses,
    limited,
    pieces,
    ranges_between,
    waiting,
    without,
)

# What only planning and reading need is loaded there: Spark has a process of its own for each step before them, which
# would load it for nothing.
if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.cluster import Cluster
    from headrace.spark.schemas import ValueSchema

log = logging.getLogger("headrace.spark")

FORMAT = "headrace"
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS_SCHEMA = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


_TYPES = {
    **dict.fromkeys(("key", "value"), "binary"),
    **dict.fromkeys(("partition", "timestampType"), "int"),
    "topic": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}


class CheckpointClusterError(HeadraceError):
    """A checkpoint's offsets are those of another cluster."""


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)


class HeadraceSource(DataSource):
    """Kafka for Spark. See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        wanted = value_schema_options(self.options)
        headers = f", {HEADERS_SCHEMA}" if includes_headers(self.options) else ""
        if wanted is None:
            return SCHEMA + headers
        from headrace.spark.schemas import typed_columns

        return typed_columns(_chosen(wanted), headers=bool(headers))

    def _check(self, schema: StructType) -> None:
        """Refuse a schema of the user's that is another: found out by a task, it would be a KeyError."""
        if value_schema_options(self.options) is not None:
            return
        given = {one.name: one.dataType.simpleString() for one in schema}
        other = [f"{name} {kind}" for name, kind in given.items() if _TYPES.get(name) != kind]
        if other:
            raise ValueError(
                f"this source has the columns {SCHEMA} (with includeHeaders, {HEADERS_SCHEMA}), and not "
                f"{', '.join(other)}: leave .schema(…) out, and select or cast columns afterwards"
            )

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return BatchReader(read_source_options(self.options, Mode.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return StreamReader(read_source_options(self.options, Mode.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.sink import BatchWriter

        return BatchWriter(read_sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from headrace.spark.sink import StreamWriter

        return StreamWriter(read_sink_options(self.options), schema)


def _chosen(wanted: ValueSchemaOptions, text: str | None = None) -> ValueSchema:
    """The schema to read as. `text`: it was chosen already, when the DataFrame was made."""
    from headrace.spark.schemas import ValueSchema, choose

    if text is not None:
        return ValueSchema.of(text, wanted.registry, wanted.settings)
    return choose(
        wanted.registry,
        subject=wanted.subject,
        schema=wanted.schema,
        location=wanted.location,
        message=wanted.message,
        settings=wanted.settings,
    )


class _Reading:
    """What readers of both kinds share. The connection is made on first use, and does not travel to the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        from headrace.spark.reading import ReadPlan

        self.options = options
        self.schema = schema
        self.plan = ReadPlan.of(
            options.kafka,
            read_committed=options.read_committed,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout_ms=options.poll_timeout_ms,
            value_schema=self._value_schema(options, schema),
        )
        self._cluster: Cluster | None = None

    @staticmethod
    def _value_schema(options: SourceOptions, schema: StructType) -> ValueSchema | None:
        if options.value_schema is None:
            return None
        from headrace.spark.schemas import schema_in

        return _chosen(options.value_schema, schema_in(schema))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            from headrace.spark.cluster import Cluster

            self._cluster = Cluster(self.options.kafka)
        return self._cluster

    def tasks(self, ranges: list[OffsetRange]) -> list[InputPartition]:
        cut = pieces(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [RangePartition(one) for one in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from headrace.spark.reading import read_arrow

        if partition.value is None:
            # Spark makes a task of its own when there is nothing to read.
            return iter(())
        return read_arrow(self.plan, partition.value, to_arrow_schema(self.schema, timezone="UTC"))


class BatchReader(_Reading, DataSourceReader):
    """From offsets to offsets, once."""

    def partitions(self) -> list[InputPartition]:
        options, cluster = self.options, self.cluster
        try:
            cluster.check_reachable()
            found = cluster.partitions(options.topics)
            start = cluster.bound(
                options.start,
                found,
                read_committed=options.read_committed,
                no_match=options.no_match,
                option="startingOffsets",
            )
            end = cluster.bound(
                options.end,
                found,
                read_committed=options.read_committed,
                no_match=NoMatch.LATEST,
                option="endingOffsets",
            )
        finally:
            cluster.close()
            self._cluster = None
        return self.tasks(batch_ranges(found, start, end))


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches. Lives in one process beside the driver, so it may remember."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._clock = RealClock()
        self._target: Offsets | None = None
        self._patience = TriggerDelay(options.min_offsets or 0, options.max_delay_ms)
        self._committed: Offsets | None = None
        self._newest: Offsets | None = None
        self._is_planned = False

    def initialOffset(self) -> dict[str, Any]:
        options = self.options
        self.cluster.check_reachable()
        start = self.cluster.bound(
            options.start,
            self.cluster.partitions(options.topics),
            read_committed=options.read_committed,
            no_match=options.no_match,
            option="startingOffsets",
        )
        return replace(self._progress(start), is_initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = self._checked(start)
        # Spark asks for the next end when the last batch is done: so far the query has come.
        self._show_progress(begun.offsets)
        latest = self._newest = self._latest()
        if self._target is not None:
            latest = capped(latest, self._target)
        anew = begun.made_anew(self.cluster.ids)
        offsets = without(begun.offsets, anew)
        new = latest.keys() - offsets.keys()
        earliest = self.cluster.earliest(sorted(new))
        if not isinstance(limit, ReadAllAvailable):
            if self.options.min_offsets is not None and self._target is None:
                count = waiting(offsets, latest, earliest)
                if self._patience.holds_back(count, self._clock.monotonic() * 1000):
                    return start
            if isinstance(limit, ReadMaxRows):
                latest = limited(offsets, latest, earliest, limit.max_rows)
        if latest == begun.offsets and not begun.is_initial and not anew:
            # Spark takes any other text for something new.
            return start
        # Partitions that are gone, and logs that were cut short, are told of when the batch is planned.
        return replace(self._progress(latest), began=begun.offsets if begun.is_initial else None).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        # What the last batch was planned with: asking again would cost every batch a round trip.
        return None if self._newest is None else self._progress(self._newest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Also of a batch that is planned again from the log: its offsets may be another cluster's.
        begun, until = self._checked(start), self._checked(end)
        ids = dict(until.topics)
        if not self._is_planned:
            # What an earlier run has logged may be of topics that are not there any more.
            self._is_planned = True
            self.cluster.partitions(self.options.topics)
            ids |= self.cluster.ids
        gone = until.made_anew(ids)
        anew = sorted({*begun.made_anew(until.topics), *gone})
        # Of a first batch Spark asks anew where it begins, which need not be where it began.
        from_offsets = without(begun.offsets if until.began is None else until.began, anew)
        to_offsets = without(until.offsets, gone)
        new = sorted(to_offsets.keys() - from_offsets.keys())
        ranges, losses = ranges_between(from_offsets, to_offsets, self.cluster.earliest(new))
        losses += [f"{name} was deleted and made anew: what was not read of the old one is gone" for name in anew]
        warning = check_losses(losses, fail=self.options.fail_on_data_loss)
        if warning is not None:
            log.warning("%s", warning)
        return self.tasks(ranges)

    def commit(self, end: dict[str, Any]) -> None:
        self._show_progress(SourceOffsets.from_json(end).offsets)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- help ---------------------------------------------------------------------------------------------------------

    def _latest(self) -> Offsets:
        found = self.cluster.partitions(self.options.topics)
        return self.cluster.latest(found, read_committed=self.options.read_committed)

    def _progress(self, offsets: Offsets) -> SourceOffsets:
        used = {one.topic for one in offsets}
        ids = {name: one for name, one in self.cluster.ids.items() if name in used}
        return SourceOffsets(offsets, self.cluster.id, self.options.group_id, ids)

    def _checked(self, start: dict[str, Any]) -> SourceOffsets:
        begun = SourceOffsets.from_json(start)
        if begun.cluster is not None and self.cluster.id is not None and begun.cluster != self.cluster.id:
            raise CheckpointClusterError(
                f"the checkpoint has offsets of the cluster {begun.cluster}, but kafka.bootstrap.servers leads to "
                f"{self.cluster.id}: offsets mean nothing there. Use a new checkpoint, or the brokers it was made with"
            )
        return begun

    def _show_progress(self, offsets: Offsets) -> None:
        """Let the group that the user named show how far the query is. What cannot be shown does not stop it."""
        group = self.options.group_id
        if group is None or offsets == self._committed:
            return
        try:
            self.cluster.commit(group, offsets)
        except HeadraceError as error:
            log.warning("the progress of the query could not be committed to group %s: %s", group, error)
            return
        self._committed = dict(offsets)
