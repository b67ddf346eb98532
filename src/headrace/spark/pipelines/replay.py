"""`replay`: a table back into a topic: at a rate, or at the pace of the rows' own times, or as fast as it goes.

The rows are first copied beside the checkpoint, in order and numbered: what is replayed does not change on the way, and
a replay that is started again goes on with the row behind the last one written, each row once.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.runtime.real import RealClock
from headrace.spark.pipelines import state as states
from headrace.spark.pipelines.declaring import (
    CHECKPOINT,
    CLIENT_CONFIG,
    HERE,
    MASTER,
    SERVERS,
    Option,
    PipelineError,
    Result,
    Watch,
    WrongOptionError,
    parsed,
    run_name,
)
from headrace.spark.pipelines.files import Files
from headrace.spark.pipelines.land import check_packages
from headrace.spark.pipelines.land_lake import needed
from headrace.spark.pipelines.pacing import Portion, at_pace, at_rate, unpaced
from headrace.spark.pipelines.running import PipelineRun, stop_on_signals
from headrace.spark.pipelines.transacted import Transacted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ORDER = ("timestamp", "topic", "partition", "offset")
_HEADERS = "array<struct<key:string,value:binary>>"
_ROW_BITS = 33
_WINDOWS_MAX = 5_000_000
_PARTS_MAX = 2_000
_COPY_ROWS = 500_000
_COPIES, _COPY_FILE = "rows", "copy.json"
"""Below the checkpoint: where copies of tables are, and the file that says which one is replayed."""

OPTIONS = (
    Option("path", str, None, "The table: a path (Iceberg: see --table).", required=True),
    Option("topic", str, None, "The topic to write to.", required=True, there=HERE),
    Option("format", str, "parquet", "parquet, delta, iceberg, or another that Spark reads.", names_run=True),
    Option("table", str, "headrace.landed", "Iceberg: namespace.name of the table.", names_run=True),
    Option("catalog", str, None, "Iceberg: a catalog of pyiceberg's configuration; default: SQLite, at the path."),
    Option("where", str, None, "Only rows for which this is true (SQL).", names_run=True),
    Option("order", list, None, "Columns to order by; default: timestamp, topic, partition, offset.", names_run=True),
    Option("key", str, None, "The column or SQL expression of keys; default: the column key, if there is one."),
    Option("value", str, None, "That of values; default: the column value, else the whole row as JSON."),
    Option("rate", float, None, "So many records a second."),
    Option("speed", float, None, "The rows' own pace by their timestamps, so many times as fast (1: as it was)."),
    Option("max_gap", float, None, "With --speed: no pause longer than so many seconds."),
    Option("time", str, "timestamp", "The column of the rows' times.", names_run=True),
    Option("keep_timestamps", bool, False, "Records get the rows' times, not that of the replay."),
    Option("keep_partitions", bool, False, "Records go to the partition that the column partition says."),
    Option("tick", float, 1.0, "Records are written together for so many seconds at a time."),
    Option("max_per_batch", int, 500_000, "At most so many records in a transaction."),
    Option("name", str, "replay", "Replaying the same again needs another name.", names_run=True),
    SERVERS,
    CLIENT_CONFIG,
    CHECKPOINT,
    MASTER,
)


def replay(
    path: str, topic: str, *, session: SparkSession | None = None, watch: Watch | None = None, **options: Any
) -> Result:
    """Write a table to a topic; see `OPTIONS`. The result's `document` says what was done."""
    return run(parsed(OPTIONS, {"path": path, "topic": topic, **options}), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    _check(options)
    with (
        PipelineRun("replay", OPTIONS, options, session=session, watch=watch) as running,
        Transacted(running.kafka, f"headrace-{running.name}") as writer,
    ):
        writer.cluster.partition_counts([options["topic"]])
        return _Replay(running, writer, options).go()


def _check(options: Mapping[str, Any]) -> None:
    if options["rate"] is not None and options["speed"] is not None:
        raise WrongOptionError("--rate and --speed exclude each other")
    for name in ("rate", "speed", "max_gap", "tick", "max_per_batch"):
        if options[name] is not None and not options[name] > 0:
            raise WrongOptionError(f"--{name.replace('_', '-')} is more than 0, not {options[name]}")
    if options["max_gap"] is not None and options["speed"] is None:
        raise WrongOptionError("--max-gap is for --speed")
    if _is_missing(options):
        raise WrongOptionError(f"--path: there is nothing at {options['path']}")
    check_packages(options["format"])


def _is_missing(options: Mapping[str, Any]) -> bool:
    """Whether this machine can tell, before Spark is started, that there is no table; not where it is copied already.

    Patterns, catalogs and what another machine would look for in a place of its own are left to Spark.
    """
    path, master = options["path"], options["master"]
    if "://" in path or any(sign in path for sign in "*?[{") or options["catalog"]:
        return False
    if master is not None and not master.startswith("local"):
        return False
    place = str(options["checkpoint"] or states.default_root() / run_name("replay", OPTIONS, options))
    is_copied = not states.is_local(place) or (states.directory_of(place) / _COPIES / _COPY_FILE).exists()
    return not is_copied and not os.path.exists(path)


@dataclass(frozen=True, slots=True)
class Copy:
    """The rows as they are replayed: an id, how many each of its parts has, and the directory that they are in."""

    id: str
    counts: tuple[int, ...]
    place: str = "data"

    @property
    def total(self) -> int:
        return sum(self.counts)

    def to_text(self) -> str:
        return json.dumps({"id": self.id, "counts": self.counts, "place": self.place})

    @classmethod
    def from_text(cls, text: str) -> Copy:
        given = json.loads(text)
        return cls(given["id"], tuple(given["counts"]), given.get("place", "data"))


class _Replay:
    def __init__(self, running: PipelineRun, writer: Transacted, options: Mapping[str, Any]) -> None:
        self.running = running
        self.writer = writer
        self.options = options
        place = running.checkpoint
        self.place = str(states.directory_of(place)) if states.is_local(place) else place.rstrip("/")
        self.files = Files(running.session, f"{self.place}/{_COPIES}")
        self._clock = RealClock()

    def go(self) -> Result:
        position = self.writer.resume()
        text = self.files.read(_COPY_FILE)
        if text is None and position:
            raise PipelineError(
                f"this replay has written {position['next']:,} rows, but its copy of the table at {self.files.root} is "
                "gone: give the checkpoint that it began with, or another --name to begin anew"
            )
        copy = self._copied() if text is None else Copy.from_text(text)
        if position and position["copy"] != copy.id:
            raise PipelineError(f"{self.files.root} is not the copy that this replay began with: give another --name")
        begun = int(position.get("next", 0))
        done = self._write(copy, begun)
        document = {"topic": self.options["topic"], "rows": copy.total, "before": begun, "written": done - begun}
        lines = [f"{done - begun:,} of {copy.total:,} rows written to {self.options['topic']}"]
        if begun:
            lines.append(f"  {begun:,} were written before")
        return Result("replay", document, lines)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _copied(self) -> Copy:
        """Write the rows down in order. `id` grows along the order: the part, and the row in it."""
        from pyspark.sql import functions as F

        self.running.tell(note="copying the table in order")
        # Another run may be copying too: each has a place of its own, and the first to be done is replayed.
        made_as = uuid.uuid4().hex
        place = f"data-{made_as}"
        rows = self._table(made_as)
        if self.options["where"]:
            rows = rows.where(self.options["where"])
        order = self._order(rows)
        records = [*_records(rows, self.options), self._time(rows).alias("_time")]
        ordered = rows.orderBy(*[f"`{name}`" for name in order])
        ordered = ordered.select(*records, F.monotonically_increasing_id().alias("_id"))
        ordered.write.parquet(self.files.url(place))
        written = self._read(place)
        parts = written.groupBy(F.shiftrightunsigned("_id", _ROW_BITS).alias("part")).count().collect()
        counts = {int(row["part"]): int(row["count"]) for row in parts}
        if len(counts) > _PARTS_MAX or (counts and max(counts) > 100 * _PARTS_MAX):
            raise PipelineError(f"Spark cut the table into {len(counts)} parts: lower spark.sql.shuffle.partitions")
        made = Copy(made_as, tuple(counts.get(part, 0) for part in range(max(counts, default=-1) + 1)), place)
        if not self.files.create(_COPY_FILE, made.to_text()):
            raise PipelineError(f"another run of this replay has copied the table to {self.files.root} meanwhile")
        for name in self.files.names(""):
            if name not in (place, _COPY_FILE):
                self.files.delete(name)
        return made

    def _table(self, made_as: str) -> DataFrame:
        session, options = self.running.session, self.options
        if options["format"] not in ("delta", "iceberg"):
            return session.read.format(options["format"]).load(options["path"])
        return session.read.parquet(self._imported(f"imported-{made_as}"))

    def _imported(self, place: str) -> str:
        """A table that Spark reads only with jars of its own, as Parquet files: batch by batch through the driver."""
        from pyarrow import fs
        from pyarrow import parquet as pq

        system, root = fs.FileSystem.from_uri(self.files.url(place))
        system.create_dir(root, recursive=True)
        reader = _batches(self.running.session, self.options)
        writer, number, rows = None, 0, 0
        for batch in reader:
            if writer is None or rows >= _COPY_ROWS:
                if writer is not None:
                    writer.close()
                writer = pq.ParquetWriter(f"{root}/{number:06d}.parquet", batch.schema, filesystem=system)
                number, rows = number + 1, 0
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None:
            raise PipelineError(f"the table at {self.options['path']} is empty")
        writer.close()
        return self.files.url(place)

    def _order(self, rows: DataFrame) -> list[str]:
        given = self.options["order"]
        missing = [name for name in given or () if name not in rows.columns]
        if missing:
            raise WrongOptionError(f"--order {missing[0]}: the table has {', '.join(rows.columns)}")
        if self.options["speed"] is not None or self.options["keep_timestamps"]:
            if self.options["time"] not in rows.columns:
                raise WrongOptionError(f"--time {self.options['time']}: the table has {', '.join(rows.columns)}")
            kind = dict(rows.dtypes)[self.options["time"]]
            if kind not in ("timestamp", "timestamp_ntz"):
                raise WrongOptionError(f"--time {self.options['time']} is {kind}, not a timestamp")
        found = given or [name for name in _ORDER if name in rows.columns]
        if self.options["speed"] is not None:
            found = [self.options["time"], *[name for name in found if name != self.options["time"]]]
        if not found:
            raise WrongOptionError(
                f"say by which columns rows are ordered (--order): the table has {', '.join(rows.columns)}"
            )
        return found

    def _time(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        name = self.options["time"]
        has = name in rows.columns and dict(rows.dtypes)[name] in ("timestamp", "timestamp_ntz")
        return (F.col(f"`{name}`") if has else F.lit(None)).cast("timestamp")

    def _read(self, place: str) -> DataFrame:
        return self.running.session.read.parquet(self.files.url(place))

    # --- writing ------------------------------------------------------------------------------------------------------

    def _portions(self, copy: Copy, begun: int) -> Iterator[Portion]:
        options, limit = self.options, self.options["max_per_batch"]
        if options["rate"] is not None:
            return at_rate(copy.total, begun, options["rate"], options["tick"], limit)
        if options["speed"] is not None:
            return at_pace(self._windows(copy), begun, options["tick"], limit, options["max_gap"])
        return unpaced(copy.total, begun, limit)

    def _windows(self, copy: Copy) -> list[tuple[int, int]]:
        from pyspark.sql import functions as F

        rows = self._read(copy.place)
        if rows.where("_time is null").limit(1).count():
            raise PipelineError(f"a row has no time (column {self.options['time']}): leave such out with --where")
        width_us = self.options["tick"] * self.options["speed"] * 1e6
        number = F.floor(F.unix_micros("_time") / F.lit(width_us)).alias("number")
        found = rows.groupBy(number).count().orderBy("number").limit(_WINDOWS_MAX + 1).collect()
        if len(found) > _WINDOWS_MAX:
            raise PipelineError(f"the rows lie in more than {_WINDOWS_MAX:,} ticks: give a longer --tick")
        return [(int(row["number"]), int(row["count"])) for row in found]

    def _write(self, copy: Copy, begun: int) -> int:
        """Write what is left, when it is due; the number of the row behind the last one written."""
        rows, done = self._numbered(copy), begun
        started = self._clock.monotonic()
        with stop_on_signals() as stop:
            for portion in self._portions(copy, begun):
                wait_s = started + portion.due_s - self._clock.monotonic()
                if wait_s > 0:
                    stop.asked.wait(wait_s)
                if stop.asked.is_set():
                    self.running.is_stopped = True
                    break
                part = rows.where(f"_number >= {portion.start} and _number < {portion.end}")
                # One task reads the portion, so that each partition gets its rows in their order.
                part = part.coalesce(1).sortWithinPartitions("_number").drop("_number")
                written = self.writer.write(
                    part,
                    [self.options["topic"]],
                    {"copy": copy.id, "next": portion.end},
                    topic=self.options["topic"],
                    include_timestamp=self.options["keep_timestamps"],
                )
                if written != portion.end - portion.start:
                    raise PipelineError(f"{portion.end - portion.start} rows were to be written and {written} were")
                done = portion.end
                passed_s = max(0.001, self._clock.monotonic() - started)
                self.running.tell(
                    rows_in=done - begun,
                    rows_out=done - begun,
                    batches=self.running.snapshot.batches + 1,
                    rate_per_s=(done - begun) / passed_s,
                    lag=copy.total - done,
                    note="",
                )
        return done

    def _numbered(self, copy: Copy) -> DataFrame:
        """The rows with their numbers: those of the parts before, and the row in its own."""
        from pyspark.sql import functions as F

        starts, before = [], 0
        for count in copy.counts:
            starts.append(before)
            before += count
        first = F.element_at(F.lit(starts or [0]), F.shiftrightunsigned("_id", _ROW_BITS).cast("int") + 1)
        number = first + F.col("_id").bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
        rows = self._read(copy.place).withColumn("_number", number).drop("_id")
        return rows.withColumnRenamed("_time", "timestamp")


def _records(rows: DataFrame, options: Mapping[str, Any]) -> list[Column]:
    """The columns of the records: value, and key, headers and partition where there are any."""
    from pyspark.sql import functions as F

    kinds = dict(rows.dtypes)
    made: list[Column] = []
    if options["value"]:
        made.append(F.expr(options["value"]).alias("value"))
    elif "value" in kinds:
        made.append(F.col("value"))
    else:
        made.append(F.to_json(F.struct(*[f"`{name}`" for name in rows.columns])).alias("value"))
    if options["key"]:
        made.append(F.expr(options["key"]).cast("string").alias("key"))
    elif "key" in kinds:
        made.append(F.col("key"))
    if kinds.get("headers") == _HEADERS:
        made.append(F.col("headers"))
    if options["keep_partitions"]:
        if kinds.get("partition") != "int":
            raise WrongOptionError("--keep-partitions needs a column partition of type int")
        made.append(F.col("partition"))
    return made


def _batches(session: SparkSession, options: Mapping[str, Any]) -> Iterator[Any]:
    """The rows of a Delta or Iceberg table, as record batches."""
    if options["format"] == "delta":
        delta = needed("deltalake", "deltalake")
        yield from delta.DeltaTable(options["path"]).to_pyarrow_dataset().to_batches()
        return
    from headrace.spark.pipelines.land_lake import IcebergTable

    yield from IcebergTable(session, options["path"], options["table"], options["catalog"]).batches()
