"""`land`: topics to a table by date, exactly once: Parquet files, Delta or Iceberg. Small files are joined.

A row is a record: key, value, topic, partition, offset, timestamp, timestampType, headers, and the UTC date of its
timestamp, by which the table is partitioned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.spark.batches import running_batch
from headrace.spark.pipelines.declaring import (
    HERE,
    STREAMING,
    Option,
    PipelineError,
    Result,
    Watch,
    WrongOptionError,
    parsed,
)
from headrace.spark.pipelines.land_parquet import Compacted, ParquetTable
from headrace.spark.pipelines.moments import utc_date
from headrace.spark.pipelines.running import PipelineRun
from headrace.words import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.spark")

_MB = 1024 * 1024

OPTIONS = (
    Option("path", str, None, "Where the table is.", required=True),
    Option("topics", list, None, "Topics to land.", names_run=True, there=HERE),
    Option("format", str, "parquet", "What the table is.", choices=("parquet", "delta", "iceberg"), names_run=True),
    Option("table", str, "headrace.landed", "Iceberg: namespace.name of the table.", names_run=True),
    Option("catalog", str, None, "Iceberg: a catalog of pyiceberg's configuration; default: SQLite, at the path."),
    Option("text", bool, False, "Keys and values as text (UTF-8), not as bytes."),
    Option("registry", str, None, "A schema registry: values as columns of the topic's newest schema (Avro)."),
    Option("compact", bool, False, "Only join small files, and land nothing."),
    Option("compact_every", int, 50, "Join small files after so many batches, and at the end; 0: never."),
    Option("small_mb", int, 32, "A file of less than this is small."),
    Option("small_files", int, 8, "Join when a date has at least so many small files."),
    *STREAMING,
)


class Table(Protocol):
    """What the formats have in common."""

    def append(self, rows: DataFrame, query: str, batch: int, source: str = "") -> None:
        """Put a batch of a query in: once, however often it comes. `source`: a digest of the offsets that it is of."""
        ...

    def compact(self, small_bytes: int, files_min: int) -> Compacted:
        """Join small files; readers see the table before, or after."""
        ...


def land(path: str, *, session: SparkSession | None = None, watch: Watch | None = None, **options: Any) -> Result:
    """Land topics in a table; see `OPTIONS`. The result's `document` says what was done."""
    return run(parsed(OPTIONS, {"path": path, **options}), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    if not options["topics"] and not options["compact"]:
        raise WrongOptionError("say what to land: --topics a,b (or only --compact)")
    for name in ("small_mb", "small_files", "compact_every", "max_per_batch"):
        if options[name] < (0 if name in ("compact_every", "max_per_batch") else 1):
            raise WrongOptionError(f"--{name.replace('_', '-')} is too small: {options[name]}")
    if options["registry"]:
        _check_typed(options)
    check_packages(options["format"])
    with PipelineRun("land", OPTIONS, options, session=session, watch=watch) as running:
        table = open_table(running.session, options)
        compacted = Compacted()
        if not options["compact"]:
            compacted = _land(running, table, options)
        if options["compact"] or (options["compact_every"] and not running.is_stopped):
            running.tell(note="joining small files")
            compacted += table.compact(options["small_mb"] * _MB, options["small_files"])
        return _result(running, options, compacted)


def check_packages(format: str) -> None:
    """Say at once, and not after Spark has started, that a package is missing."""
    from headrace.spark.pipelines.land_lake import needed

    if format == "delta":
        needed("deltalake", "deltalake")
    if format == "iceberg":
        needed("pyiceberg.catalog", "pyiceberg[sql-sqlite]")


def open_table(session: SparkSession, options: Mapping[str, Any]) -> Table:
    from headrace.spark.pipelines.land_lake import DeltaTable, IcebergTable

    if options["format"] == "delta":
        return DeltaTable(session, options["path"])
    if options["format"] == "iceberg":
        return IcebergTable(session, options["path"], options["table"], options["catalog"])
    return ParquetTable(session, options["path"])


def _land(running: PipelineRun, table: Table, options: Mapping[str, Any]) -> Compacted:
    compacted = Compacted()

    def write(rows: DataFrame, batch: int) -> int | None:
        nonlocal compacted
        running_one = running_batch(rows.sparkSession, batch)
        if running_one is None:
            raise PipelineError("the query's id is not known to its batches: this Spark is too old")
        # Timestamps as every reader knows them; Spark's own default is a type that the table formats refuse.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        table.append(rows, running_one.query, batch, running_one.source_digest)
        every = options["compact_every"]
        if every and batch % every == every - 1:
            compacted += table.compact(options["small_mb"] * _MB, options["small_files"])
        return None

    typed = {"value.schema.registry": options["registry"]} if options["registry"] else {}
    stream = running.stream(options["topics"], includeHeaders="true", **typed)
    running.writes_all = True
    table_rows = shaped(stream, text=options["text"], is_typed=bool(options["registry"]))
    writer = table_rows.writeStream.foreachBatch(running.gate.wrap(write))
    running.follow([running.started(writer)])
    return compacted


def _check_typed(options: Mapping[str, Any]) -> None:
    if options["text"]:
        raise WrongOptionError("--registry gives values their own types: it cannot go with --text")
    if len(options["topics"] or ()) > 1:
        raise WrongOptionError("--registry takes one topic: each has a schema, and so a table, of its own")


def shaped(rows: DataFrame, *, text: bool, is_typed: bool = False) -> DataFrame:
    """Records as the table has them. `is_typed`: their values have a schema, and what could not be read its reason."""
    from pyspark.sql import functions as F

    kind = "string" if text else "binary"
    value = F.col("value") if is_typed else F.col("value").cast(kind).alias("value")
    return rows.select(
        F.col("key").cast(kind).alias("key"),
        value,
        *(["value_error", "value_raw"] if is_typed else []),
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
        utc_date("timestamp").alias("date"),
    )


def _result(running: PipelineRun, options: Mapping[str, Any], compacted: Compacted) -> Result:
    landed = 0 if options["compact"] else running.snapshot.rows_in
    document = {
        "path": options["path"],
        "format": options["format"],
        "landed": landed,
        "batches": running.snapshot.batches,
        "files_joined": compacted.before,
        "files_made": compacted.after,
    }
    lines = [f"{plural(landed, 'record')} landed in {options['path']} ({options['format']})"]
    if compacted.before:
        lines.append(f"  {compacted.before:,} small files joined to {compacted.after:,}")
    return Result("land", document, lines)
