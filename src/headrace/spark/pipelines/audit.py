"""A topic, or an input against its output, checked for loss, duplicates, order, gaps and aborted transactions.

Records are matched by two 64-bit hashes of what identifies them and counted in one shuffle of Spark's, so memory is
bounded by Spark's, not by the number of records. Partitions are also looked at batch by batch, as they lie in the log.
Reads any Kafka and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.client.admin import ConfigResource, ResourceType
from headrace.spark.cluster import Cluster
from headrace.spark.options import Topics
from headrace.spark.pipelines.auditing import Sums, document_of, report_lines
from headrace.spark.pipelines.declaring import (
    CLIENT_CONFIG,
    HERE,
    MASTER,
    SERVERS,
    Option,
    Result,
    Watch,
    WrongOptionError,
    parsed,
)
from headrace.spark.pipelines.running import PipelineRun, kafka_config
from headrace.spark.pipelines.scanning import Scan, scan
from headrace.spark.planning import OffsetRange, Offsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OFFSET_BITS = 47
"""For an offset in the number of a place: 140 million million of them, in 65,536 partitions."""
_WAYS = "value, key, key+value, offset, json:FIELD, header:NAME"
OPTIONS = (
    Option("source", list, help="The topic to check; several are one input.", required=True, there=HERE),
    Option(
        "against",
        list,
        [],
        "The output: every record of the source has to be in these topics, once.",
        there=("against_servers", "against_client_config"),
    ),
    Option("match", str, "key+value", f"What makes two records the same: {_WAYS}."),
    Option("sequence", str, None, "What never goes back within a key, to check order: json:FIELD or timestamp."),
    Option("order", bool, True, "Check the order of each key, from input to output."),
    Option("scan", bool, True, "Look at every partition's batches: gaps, aborted and open transactions."),
    Option("show", int, 5, "So many examples of each finding."),
    SERVERS,
    CLIENT_CONFIG,
    Option("against_servers", str, None, "Brokers of the output's cluster, if it is another.", is_cluster=True),
    Option("against_client_config", str, None, "Its properties file."),
    MASTER,
)


def audit(*, session: SparkSession | None = None, watch: Watch | None = None, **options: Any) -> Result:
    """Run it; options as in `OPTIONS`. `audit(servers="…", source="a", against="b", match="json:id")`."""
    return run(parsed(OPTIONS, options), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    """The audit with checked options. Its result has findings if anything is wrong."""
    if set(options["source"]) & set(options["against"]) and not options["against_servers"]:
        raise WrongOptionError("--source and --against name the same topic: leave --against out to check one by itself")
    run = PipelineRun("audit", OPTIONS, options, session=session, watch=watch)
    run.tell(note="starting Spark" if session is None else "looking")
    here = kafka_config(options["servers"], options["client_config"])
    there = here
    if options["against_servers"] or options["against_client_config"]:
        there = kafka_config(options["against_servers"] or options["servers"], options["against_client_config"])
    _check_match(options["match"])
    inside = _Side(here, options["source"])
    outside = _Side(there, options["against"]) if options["against"] else None
    sums = _summed(run, inside, outside)
    run.tell(rows_in=sums.rows_in, rows_out=sums.rows_out, note="looking at batches")
    scans: dict[str, list[Scan]] = {"source": [], "against": []}
    if options["scan"]:
        scans = _scanned(run.session, inside, outside)
    compacted = inside.compacted | (outside.compacted if outside else set())
    document = document_of(options, sums, scans, compacted)
    return Result("audit", document, report_lines(document), has_findings=bool(document["findings"]))


class _Side:
    """Topics of one cluster, up to where they end now: both passes see the same."""

    def __init__(self, kafka: Mapping[str, str], topics: Sequence[str]) -> None:
        self.kafka = dict(kafka)
        self.topics = list(topics)
        cluster = Cluster(kafka)
        try:
            partitions = cluster.partitions(Topics(names=tuple(topics)))
            self.starts: Offsets = cluster.earliest(partitions)
            self.ends: Offsets = cluster.latest(partitions, read_committed=False)
            self.stable: Offsets = cluster.latest(partitions, read_committed=True)
            configs = cluster.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics])
            entries = {resource.name: configs[resource].get("cleanup.policy") for resource in configs.ok}
            self.compacted = {name for name, entry in entries.items() if entry and "compact" in (entry.value or "")}
        finally:
            cluster.close()

    def rows(self, session: SparkSession, *, headers: bool) -> DataFrame:
        reader = session.read.format("headrace").option("subscribe", ",".join(self.topics))
        for name, value in self.kafka.items():
            reader = reader.option(f"kafka.{name}", value)
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.option("startingOffsets", _json(self.starts)).option("endingOffsets", _json(self.stable))
        # What retention deletes while it is read is no loss on the pipeline's part, and would show as lost anyway.
        return reader.option("includeHeaders", str(headers).lower()).option("failOnDataLoss", "true").load()

    def ranges(self) -> list[OffsetRange]:
        return [OffsetRange(one, self.starts[one], self.ends[one]) for one in sorted(self.ends)]


def _scanned(session: SparkSession, inside: _Side, outside: _Side | None) -> dict[str, list[Scan]]:
    """Every partition's batches, by side; those of one cluster in one job."""
    if outside is None or outside.kafka != inside.kafka or set(outside.topics) & set(inside.topics):
        return {
            "source": scan(session, inside.kafka, inside.ranges()),
            "against": scan(session, outside.kafka, outside.ranges()) if outside else [],
        }
    found = scan(session, inside.kafka, inside.ranges() + outside.ranges())
    return {
        "source": [one for one in found if one.topic in inside.topics],
        "against": [one for one in found if one.topic in outside.topics],
    }


def _json(offsets: Offsets) -> str:
    found: dict[str, dict[str, int]] = {}
    for one, offset in offsets.items():
        found.setdefault(one.topic, {})[str(one.partition)] = offset
    return json.dumps(found)


# --- the job ----------------------------------------------------------------------------------------------------------


def identity(match: str) -> Column:
    """What is the same for two records that are one."""
    from pyspark.sql import functions as F

    kind, _, name = match.partition(":")
    if kind == "json":
        return F.get_json_object(F.col("value").cast("string"), f"$.{name}")
    if kind == "header":
        return F.try_element_at(F.filter("headers", lambda one: one["key"] == name), F.lit(-1))["value"]
    if match in ("value", "key"):
        return F.col(match)
    if match == "key+value":
        # A hash passes over nulls: (null, x) would be (x, null).
        return F.struct(F.isnull("key").alias("no_key"), "key", F.isnull("value").alias("no_value"), "value")
    return F.struct("partition", "offset")


def _check_match(match: str) -> None:
    kind, _, name = match.partition(":")
    if match not in ("value", "key", "key+value", "offset") and not (kind in ("json", "header") and name):
        raise WrongOptionError(f"--match is {_WAYS}, not {match!r}")


class _Places:
    """Where records are, as one number each: Spark aggregates those in place, which it cannot do with structs."""

    def __init__(self, *sides: _Side | None) -> None:
        self.partitions = sorted({one for side in sides if side is not None for one in side.ends})
        if len(self.partitions) >= 1 << (63 - _OFFSET_BITS):
            raise WrongOptionError(
                f"{len(self.partitions)} partitions are too many for one audit: audit topics one by one"
            )

    def column(self) -> Column:
        from pyspark.sql import functions as F

        first: dict[str, int] = {}
        for at, one in enumerate(self.partitions):
            first.setdefault(one.topic, at - one.partition)
        base = F.create_map(*(F.lit(value) for pair in first.items() for value in pair))[F.col("topic")]
        return F.shiftleft((base + F.col("partition")).cast("long"), _OFFSET_BITS).bitwiseOR(F.col("offset"))

    def text(self, place: int) -> str:
        return f"{self.partitions[place >> _OFFSET_BITS]}@{place & ((1 << _OFFSET_BITS) - 1)}"


def _hashed(rows: DataFrame, match: str, places: _Places, *, is_input: bool) -> DataFrame:
    """A row per record: two hashes of its identity (null: it has none), its key's, and where it is."""
    from pyspark.sql import functions as F

    it = identity(match)
    place, none = places.column(), F.lit(None).cast("long")
    return rows.select(
        F.xxhash64(it).alias("h1"),
        F.xxhash64(F.lit(2_654_435_761), it).alias("h2"),
        (it.isNull() if match != "key+value" else F.lit(False)).alias("blank"),
        F.xxhash64(F.col("key")).alias("k"),
        F.lit(1 if is_input else 0).alias("n_in"),
        F.lit(0 if is_input else 1).alias("n_out"),
        (place if is_input else none).alias("p_in"),
        (none if is_input else place).alias("p_out"),
    )


def _summed(run: PipelineRun, inside: _Side, outside: _Side | None) -> Sums:
    from pyspark.sql import functions as F

    match, show = run.values["match"], run.values["show"]
    headers = match.startswith("header:")
    places = _Places(inside, outside)
    rows = _hashed(inside.rows(run.session, headers=headers), match, places, is_input=True)
    if outside is not None:
        output = _hashed(outside.rows(run.session, headers=headers), match, places, is_input=False)
        rows = rows.unionByName(output)
    each = rows.groupBy("h1", "h2", "blank").agg(
        F.sum("n_in").alias("n_in"),
        F.sum("n_out").alias("n_out"),
        *(F.min(name).alias(f"{name}_min") for name in ("p_in", "p_out")),
        *(F.max(name).alias(f"{name}_max") for name in ("p_in", "p_out")),
        # The output's, where there is one: that is the key by which order is seen.
        F.max(F.when(F.col("n_out") == 1, F.col("k"))).alias("k"),
    )
    with_order = outside is not None and run.values["order"]
    if with_order:
        each = each.persist()
    try:
        sums = _counted(each, two=outside is not None)
        if show:
            _add_examples(sums, each, places, show, two=outside is not None)
        if with_order:
            sums.out_of_order, sums.examples["out of order"] = _disorder(each, places, show)
    finally:
        if with_order:
            each.unpersist()
    if run.values["sequence"]:
        side = outside or inside
        sums.went_back = _went_back(side.rows(run.session, headers=headers), run.values["sequence"])
    return sums


def _missing() -> Column:
    from pyspark.sql import functions as F

    return F.greatest(F.col("n_in") - F.col("n_out"), F.lit(0))


def _extra() -> Column:
    from pyspark.sql import functions as F

    return F.when(F.col("n_in") > 0, F.greatest(F.col("n_out") - F.col("n_in"), F.lit(0))).otherwise(0)


def _counted(each: DataFrame, *, two: bool) -> Sums:
    from pyspark.sql import functions as F

    sums = Sums()
    known = F.col("n_in") > 0
    found = each.groupBy("blank").agg(
        F.sum("n_in").alias("rows_in"),
        F.sum("n_out").alias("rows_out"),
        F.sum(_missing()).alias("lost"),
        F.sum(_extra()).alias("duplicated"),
        F.sum(F.when(~known, F.col("n_out")).otherwise(0)).alias("unknown"),
        F.sum(F.greatest(F.col("n_in") - 1, F.lit(0))).alias("repeated"),
    )
    for row in found.collect():
        numbers = {name: int(number or 0) for name, number in row.asDict().items() if name != "blank"}
        if row["blank"]:
            sums.blank_in, sums.blank_out = numbers["rows_in"], numbers["rows_out"]
            continue
        for name, number in numbers.items():
            setattr(sums, name, number)
    if not two:
        sums.lost = 0
    return sums


def _add_examples(sums: Sums, each: DataFrame, places: _Places, show: int, *, two: bool) -> None:
    from pyspark.sql import functions as F

    wanted = {"repeated": (F.col("n_in") > 1, "p_in")}
    if two:
        unknown = F.col("n_in") == 0
        wanted = {
            "lost": (_missing() > 0, "p_in"),
            "duplicated": (_extra() > 0, "p_out"),
            "unknown": (unknown, "p_out"),
        }
    for name, (where, place) in wanted.items():
        if getattr(sums, name):
            some = each.where(where & ~F.col("blank")).select(f"{place}_min", f"{place}_max").limit(show).collect()
            sums.examples[name] = [" and ".join(dict.fromkeys(map(places.text, row))) for row in some]


def _disorder(each: DataFrame, places: _Places, show: int) -> tuple[int, list[str]]:
    """Records that overtook an earlier one of their key on the way; those without keys are one key in a partition."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    once = each.where("n_in = 1 AND n_out = 1 AND NOT blank")
    ways = (F.shiftright("p_in_min", _OFFSET_BITS), F.shiftright("p_out_min", _OFFSET_BITS), F.col("k"))
    before = F.lag("p_in_min").over(Window.partitionBy(*ways).orderBy("p_out_min"))
    late = once.withColumn("before", before).where(F.col("before") > F.col("p_in_min"))
    count = late.count()
    shown = late.select("p_in_min", "p_out_min").limit(show).collect() if count and show else []
    return count, [f"{places.text(row[0])}, now {places.text(row[1])}" for row in shown]


def _went_back(rows: DataFrame, sequence: str) -> int:
    """How many records have a smaller number than the one before them of their key (or partition, without a key)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kind, _, name = sequence.partition(":")
    if sequence == "timestamp":
        number = F.col("timestamp").cast("double")
    elif kind == "json" and name:
        number = F.get_json_object(F.col("value").cast("string"), f"$.{name}").try_cast("double")
    else:
        raise WrongOptionError(f"--sequence is json:FIELD or timestamp, not {sequence!r}")
    numbered = rows.select("topic", "partition", "offset", F.xxhash64("key").alias("k"), number.alias("s"))
    way = Window.partitionBy("topic", "partition", "k").orderBy("offset")
    return numbered.withColumn("before", F.lag("s").over(way)).where("before > s").count()
