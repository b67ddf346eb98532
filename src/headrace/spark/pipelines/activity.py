"""Raw user activity and system metrics to clean, typed rows; bad rows to dead letters; windowed counts. Exactly once.

Two queries over the same source. One writes every record either to the clean topic or, with the reason in its headers,
to the dead letters, both in one transaction per micro-batch. The other counts events in windows of event time and
writes every count that changed to a compacted topic, so the last record of a key is the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.cleaning import (
    DEFAULT_SCHEMA,
    PROBLEM,
    ROW,
    check_columns,
    cleaned,
    cleaned_by_registry,
    schema_of,
    schema_of_topic,
)
from headrace.spark.pipelines.declaring import HERE, STREAMING, Option, Result, Watch, WrongOptionError, parsed
from headrace.spark.pipelines.letters import letter_headers
from headrace.spark.pipelines.moments import check_duration, utc_text
from headrace.spark.pipelines.running import ROWS_OUT, TOO_LATE, PipelineRun
from headrace.spark.pipelines.topics import ensure_topics
from headrace.words import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_COUNTS = "none"
UTC_JSON = {"timeZone": "UTC"}
OPTIONS = (
    Option("source", list, help="Topics with JSON records; with --registry one.", required=True, there=HERE),
    Option("target", str, None, "Where clean rows go; default: SOURCE-clean.", names_run=True),
    Option("dead_letters", str, None, "Where bad rows go; default: SOURCE-dead.", names_run=True),
    Option("counts", str, None, f"Where counts go; default: SOURCE-counts. {NO_COUNTS}: not wanted.", names_run=True),
    Option(
        "schema",
        str,
        DEFAULT_SCHEMA,
        "The columns, in Spark's words; NOT NULL ones have to be there.",
        check=check_columns,
    ),
    Option("registry", str, None, "A schema registry: values have its schemas; clean rows get one, and are Avro."),
    Option("key", str, None, "The column that becomes the record's key; default: the key it has."),
    Option("time", str, "at", "The column with the event's time, for the counts; `timestamp`: the record's own."),
    Option("by", list, ["event"], "The columns that are counted by."),
    Option("window", str, "1 minute", "How long a window of counting is.", check=check_duration),
    Option(
        "lateness",
        str,
        "10 minutes",
        "How much later than the latest one an event may come and still be counted.",
        check=check_duration,
    ),
    Option("partitions", int, 0, "Of topics that are made; 0: as many as the source has."),
    *STREAMING,
)


def activity(*, session: SparkSession | None = None, watch: Watch | None = None, **options: Any) -> Result:
    """Run it; options as in `OPTIONS`. `activity(servers="…", source=["clicks"])`."""
    return run(parsed(OPTIONS, options), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    """The pipeline with checked options; ends when all there is is done, or (`continuous`) when it is stopped."""
    first = options["source"][0]
    target = options["target"] or f"{first}-clean"
    dead = options["dead_letters"] or f"{first}-dead"
    counts = options["counts"] or f"{first}-counts"
    topics = [target, dead] + ([] if counts == NO_COUNTS else [counts])
    if len({*topics, *options["source"]}) < len(topics) + len(options["source"]):
        raise WrongOptionError("--source, --target, --dead-letters and --counts have to be different topics")
    if options["registry"] and len(options["source"]) > 1:
        raise WrongOptionError("--registry takes one --source: each topic has a schema, and so columns, of its own")
    with PipelineRun("activity", OPTIONS, options, session=session, watch=watch) as run:
        schema = _checked_schema(run, counts=counts != NO_COUNTS)
        ensure_topics(
            run.kafka,
            {topic: {"cleanup.policy": "compact"} if topic == counts else {} for topic in topics},
            like=options["source"],
            partitions=options["partitions"],
        )
        queries = [_clean(run, schema, target, dead)]
        if counts != NO_COUNTS:
            run.state.groups.append(f"{run.name}-counts")
            queries.append(_count(run, schema, counts))
        run.follow(queries)
        return _result(run, target, dead, counts)


def _checked_schema(run: PipelineRun, *, counts: bool) -> StructType:
    options, session = run.values, run.session
    flag = "--schema"
    if options["registry"] and options["schema"] == DEFAULT_SCHEMA:
        flag = f"the schema of {options['source'][0]}"
        schema = schema_of_topic(options["registry"], options["source"][0])
    else:
        schema = schema_of(options["schema"], session)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    wanted = {"--key": [options["key"]] if options["key"] else [], "--by": options["by"] if counts else []}
    if counts and options["time"] != "timestamp":
        wanted["--time"] = [options["time"]]
    for option, names in wanted.items():
        for name in names:
            if name not in types:
                raise WrongOptionError(f"{option} names {name}, but {flag} has {', '.join(types)}")
    if counts and options["time"] != "timestamp" and types[options["time"]] != "timestamp":
        raise WrongOptionError(f"--time names {options['time']}, which is {types[options['time']]}, not timestamp")
    return schema


def _rows(run: PipelineRun, schema: StructType, **stream: Any) -> DataFrame:
    """The source's records, each with its row, or what is wrong with it."""
    rows = run.stream(run.values["source"], **stream)
    if run.values["registry"]:
        return cleaned_by_registry(rows, run.values["registry"], run.values["source"][0], schema)
    return cleaned(rows, schema)


def _written(run: PipelineRun, schema: StructType, target: str) -> Column:
    """Good rows as values: JSON, or Avro with a schema of their own in the registry."""
    from pyspark.sql import functions as F

    if not run.values["registry"]:
        return F.to_json(ROW, UTC_JSON).cast("binary")
    from headrace.spark.schemas import struct_to_registry

    good = F.when(F.col(PROBLEM).isNull(), F.col(ROW))
    return struct_to_registry(good, schema, run.values["registry"], f"{target}-value")


def _clean(run: PipelineRun, schema: StructType, target: str, dead: str) -> Any:
    from pyspark.sql import functions as F

    from headrace.spark.foreach_batch import exactly_once

    is_good = F.col(PROBLEM).isNull()
    key = run.values["key"]
    good_key = F.col(ROW).getField(key).cast("string").cast("binary") if key else F.col("key")
    rows = _rows(run, schema, includeHeaders=True)
    rows = rows.observe("rows", F.count(F.lit(1)).alias(ROWS_OUT), F.count(F.col(PROBLEM)).alias("dead"))
    records = rows.select(
        F.when(is_good, F.lit(target)).otherwise(F.lit(dead)).alias("topic"),
        F.when(is_good, good_key).otherwise(F.col("key")).alias("key"),
        F.when(is_good, _written(run, schema, target)).otherwise(F.col("value")).alias("value"),
        F.when(is_good, F.col("headers")).otherwise(letter_headers(F.col(PROBLEM), run.name)).alias("headers"),
        "timestamp",
    )
    sink = exactly_once([target, dead], config=run.kafka, include_timestamp=True, group_id=run.name)

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)

    return run.started(records.writeStream.foreachBatch(run.gate.wrap(write)), "clean")


def _count(run: PipelineRun, schema: StructType, counts: str) -> Any:
    from pyspark.sql import functions as F

    from headrace.spark.foreach_batch import exactly_once

    by: Sequence[str] = run.values["by"]
    time = run.values["time"]
    group = f"{run.name}-counts"
    rows = _rows(run, schema, group=group).where(F.col(PROBLEM).isNull())
    at = F.col("timestamp") if time == "timestamp" else F.col(ROW).getField(time)
    events = rows.select(at.alias("_at"), *(F.col(ROW).getField(name).alias(name) for name in by))
    counted = (
        events.where(F.col("_at").isNotNull())
        .withWatermark("_at", run.values["lateness"])
        .groupBy(F.window("_at", run.values["window"]).alias("window"), *by)
        .count()
    )
    counted = counted.observe("counts", F.count(F.lit(1)).alias("count_updates"))
    said = F.struct(F.col("window.start").alias("start"), F.col("window.end").alias("end"), *by, "count")
    records = counted.select(
        count_key(utc_text("window.start"), by).alias("key"), F.to_json(said, UTC_JSON).alias("value")
    )
    sink = exactly_once(counts, config=run.kafka, group_id=group)

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)

    writer = records.writeStream.outputMode("update").foreachBatch(run.gate.wrap(write))
    return run.started(writer, "counts")


def count_key(start: Column, by: Sequence[str]) -> Column:
    """A count's key, `2026-01-31T12:00:00Z|view`: another one for whatever is counted apart, as the last one of a key
    is the count. A `|` or a backslash in a value has a backslash before it, and no value is `\\N`."""
    from pyspark.sql import functions as F

    texts = [F.regexp_replace(F.col(f"`{name}`").cast("string"), r"([\\|])", r"\\$1") for name in by]
    return F.concat_ws("|", start, *(F.coalesce(text, F.lit("\\N")) for text in texts))


def _result(run: PipelineRun, target: str, dead: str, counts: str) -> Result:
    said, seen = run.snapshot, run.observed
    wrong = seen.get("dead", 0)
    good = seen.get(ROWS_OUT, 0) - wrong
    document = {
        "pipeline": run.name,
        "source": run.values["source"],
        "rows_in": said.rows_in,
        "clean": {"topic": target, "rows": good},
        "dead_letters": {"topic": dead, "rows": wrong},
        "counts": None,
        "batches": said.batches,
        "seconds": round(said.elapsed_s, 3),
        "lag": said.lag,
        "stopped": run.is_stopped,
        "checkpoint": run.checkpoint,
    }
    lines = [
        f"{', '.join(run.values['source'])}: {plural(said.rows_in, 'record')} in "
        f"{plural(said.batches, 'micro-batch')}, {said.elapsed_s:.1f} s" + (", stopped" if run.is_stopped else ""),
        f"  {good:>12,} clean rows  → {target}",
        f"  {wrong:>12,} bad rows    → {dead}" + (f"   (why: headrace deadletters list {dead})" if wrong else ""),
    ]
    if counts != NO_COUNTS:
        updates, late = seen.get("count_updates", 0), seen.get(TOO_LATE, 0)
        document["counts"] = {"topic": counts, "updates": updates, "too_late": late}
        lines.append(f"  {updates:>12,} counts      → {counts}" + (f"   ({late:,} came too late)" if late else ""))
    return Result("activity", document, lines)
