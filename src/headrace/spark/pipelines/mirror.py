"""`mirror`: topics of one cluster to another, records as they are: keys, values, headers, timestamps, partitions.

Each step is one transaction at the target: the records, and how far the source is read. So nothing is kept on this
machine, and a mirror that is started again anywhere goes on exactly where it was. A header tells where a record comes
from: records that come from the target are not mirrored back to it, and groups' offsets are translated by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.runtime.real import RealClock
from headrace.spark.cluster import Cluster
from headrace.spark.options import Topics
from headrace.spark.pipelines import mirror_topics
from headrace.spark.pipelines.declaring import (
    CHECKPOINT,
    CLIENT_CONFIG,
    CONTINUOUS,
    HERE,
    MASTER,
    MAX_PER_BATCH,
    SERVERS,
    Option,
    PipelineError,
    Result,
    Watch,
    WrongOptionError,
    parsed,
)
from headrace.spark.pipelines.mirror_groups import HOP, GroupMirror
from headrace.spark.pipelines.mirror_topics import Naming
from headrace.spark.pipelines.ranges import read_ranges
from headrace.spark.pipelines.running import PipelineRun, kafka_config, stop_on_signals
from headrace.spark.pipelines.transacted import Transacted
from headrace.spark.planning import OffsetRange, Offsets, SourceOffsets, check_losses, limited, ranges_between, without
from headrace.spark.transaction import PROGRESS_TOPIC
from headrace.topics import TopicPartition
from headrace.words import plural

if TYPE_CHECKING:
    import threading

    from pyspark.sql import DataFrame, SparkSession

_IDLE_S = 1.0
_GROUPS_EVERY_S = 10.0
_NO_LIMIT = 2**62

OPTIONS = (
    Option("to", str, None, "Brokers of the cluster that is mirrored to.", required=True, is_cluster=True),
    SERVERS,
    Option("topics", list, None, "Topics to mirror.", names_run=True, there=HERE),
    Option("pattern", str, None, "Or: topics whose whole name matches this; new ones are picked up.", names_run=True),
    Option("exclude", str, None, "Not topics whose whole name matches this."),
    Option("rename", str, mirror_topics.TEMPLATE, "Names at the target, such as eu.{topic}.", names_run=True),
    Option("groups", str, None, "Translate the offsets of consumer groups whose whole name matches this."),
    Option("start", str, "earliest", "Where the first run starts.", choices=("earliest", "latest")),
    Option("configs", bool, True, "Keep the topics' configs like the source's."),
    Option("replication_factor", int, -1, "Of topics that are created; -1: the target's default."),
    Option("fail_on_data_loss", bool, True, "Stop when records were deleted before they were mirrored."),
    Option("name", str, "mirror", "Two mirrors between the same clusters need two names.", names_run=True),
    CLIENT_CONFIG,
    Option("to_config", str, None, "A properties file for clients of the target."),
    CHECKPOINT,
    CONTINUOUS,
    MAX_PER_BATCH,
    MASTER,
)


def mirror(to: str, *, session: SparkSession | None = None, watch: Watch | None = None, **options: Any) -> Result:
    """Mirror topics to another cluster; see `OPTIONS`. The result's `document` says what was done."""
    return run(parsed(OPTIONS, {"to": to, **options}), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    naming = _check(options)
    with PipelineRun("mirror", OPTIONS, options, session=session, watch=watch) as running:
        target_kafka = kafka_config(options["to"], options["to_config"])
        source, target = Cluster(running.kafka), Cluster(target_kafka)
        try:
            source_id = _identity(source, target, naming)
            name = f"headrace-mirror-{options['name']}-{source_id}"
            with Transacted(
                target_kafka, name, on_retry=lambda text: running.tell(note=f"again: {text[:80]}")
            ) as writer:
                return _Mirror(running, source, target, writer, naming, options).go()
        finally:
            source.close()
            target.close()


def _check(options: Mapping[str, Any]) -> Naming:
    if (options["topics"] is None) == (options["pattern"] is None):
        raise WrongOptionError("say which topics: --topics a,b or --pattern 'orders.*', one of them")
    for name in ("pattern", "exclude", "groups"):
        try:
            re.compile(options[name] or "")
        except re.error as error:
            raise WrongOptionError(f"--{name} {options[name]!r} is not a regular expression: {error}") from None
    if options["max_per_batch"] < 0:
        raise WrongOptionError(f"--max-per-batch is at least 0, not {options['max_per_batch']}")
    return Naming(options["rename"])


def _identity(source: Cluster, target: Cluster, naming: Naming) -> str:
    if source.id is None or target.id is None:
        raise WrongOptionError(
            "a cluster has no id (Kafka has them since 0.10.1): where records come from cannot be told"
        )
    if source.id == target.id and naming.is_same:
        raise WrongOptionError(
            f"--servers and --to are one cluster ({source.id}), where a topic would be mirrored to itself"
        )
    return source.id


class _Mirror:
    def __init__(
        self,
        running: PipelineRun,
        source: Cluster,
        target: Cluster,
        writer: Transacted,
        naming: Naming,
        options: Mapping[str, Any],
    ) -> None:
        self.running = running
        self.source = source
        self.target = target
        self.writer = writer
        self.naming = naming
        self.options = options
        self.positions: Offsets = {}
        """Where each partition is that this mirror ever read, also those that this run leaves alone."""
        self.ids: dict[str, str] = {}
        """The ids of their topics."""
        self.source_ids: dict[str, str] = {}
        """And those of the source's topics now."""
        self.is_first = True
        self._new: set[str] | None = None
        self.mirrored = self.returned = self.groups_moved = 0
        self.topics: dict[str, int] = {}
        self._exclude = re.compile(options["exclude"]) if options["exclude"] else None
        self._clock = RealClock()
        self._groups: GroupMirror | None = None
        self._groups_due = 0.0

    def go(self) -> Result:
        self.running.tell(note="finding out where it was")
        resumed = SourceOffsets.from_json(self.writer.resume().get("offsets", {}))
        if resumed.cluster is not None and resumed.cluster != self.source.id:
            raise PipelineError(
                f"this mirror has read the cluster {resumed.cluster}, but --servers leads to {self.source.id}: its "
                "positions mean nothing there. Give another --name, which begins anew"
            )
        self.positions, self.ids = resumed.offsets, dict(resumed.topics)
        self.is_first = not resumed.offsets
        if self.options["groups"]:
            self._groups = GroupMirror(self.source, self.target, self.writer.kafka, self.options["groups"])
        try:
            with stop_on_signals() as stop:
                self._rounds(stop.asked)
                self.running.is_stopped = stop.asked.is_set()
        finally:
            if self._groups is not None:
                self._groups.close()
        return self._result()

    def _rounds(self, stop: threading.Event) -> None:
        goal: Offsets | None = None
        while not stop.is_set():
            latest = self._latest()
            if not self.options["continuous"]:
                # Until what was there at the start is done, not for as long as somebody writes.
                goal = goal or latest
                latest = {one: min(end, goal[one]) for one, end in latest.items() if one in goal}
            moved = self._step(latest)
            self._translate(force=not moved and not self.options["continuous"])
            if moved:
                continue
            if not self.options["continuous"]:
                return
            stop.wait(_IDLE_S)

    # --- topics -------------------------------------------------------------------------------------------------------

    def _latest(self) -> Offsets:
        """Where each partition that is mirrored ends now. Topics at the target are made to fit first."""
        options = self.options
        wanted = Topics(names=tuple(options["topics"] or ()), pattern=options["pattern"])
        found = [one for one in self.source.partitions(wanted) if self._is_wanted(one.topic)]
        self.source_ids = dict(self.source.ids)
        names = {one.topic for one in found}
        there = mirror_topics.look(self.source.admin, names, with_configs=options["configs"])
        self._fit(there)
        return self.source.latest(found, read_committed=True)

    def _is_wanted(self, topic: str) -> bool:
        return topic != PROGRESS_TOPIC and not (self._exclude and self._exclude.fullmatch(topic))

    def _fit(self, there: Mapping[str, mirror_topics.Topic], *, create: bool | None = None) -> None:
        """Make the target's topics like these. Under other names they are created with their first record only:
        else two mirrors in both directions would make copies of copies for ever."""
        wanted = {self.naming.target(name): one for name, one in there.items()}
        known = mirror_topics.look(self.target.admin, wanted, with_configs=self.options["configs"])
        if not (self.naming.is_same if create is None else create):
            wanted = {name: one for name, one in wanted.items() if name in known}
        changes = mirror_topics.compare(wanted, known, with_configs=self.options["configs"])
        for line in mirror_topics.apply(
            self.target.admin, changes, replication_factor=self.options["replication_factor"]
        ):
            self.running.tell(note=line)
        made = {**known, **wanted}
        self.topics = {
            name: made[self.naming.target(name)].partitions for name in there if self.naming.target(name) in made
        }

    # --- records ------------------------------------------------------------------------------------------------------

    def _step(self, latest: Offsets) -> bool:
        """Mirror the next records; whether there were any."""
        begins, ranges = self._plan(latest)
        behind = sum(max(0, end - begins.get(one, end)) for one, end in latest.items())
        ids = {**self.ids, **{name: one for name, one in self.source_ids.items() if name in {p.topic for p in latest}}}
        if not ranges:
            if begins.keys() - self.positions.keys() and self.options["start"] == "latest":
                # Where it starts is a fact from now on: the next run goes on from there, and not from a later end.
                self._note(begins, ids)
            self.running.tell(lag=behind, note="")
            return False
        began = self._clock.monotonic()
        wanted = {one.partition: (one.start, one.end) for one in ranges}
        rows = self._rows(wanted)
        self._create_for(rows, wanted)
        used = {one: span for one, span in wanted.items() if one.topic in self.topics}
        ends = {**self.positions, **begins, **{one.partition: one.end for one in ranges}}
        written = 0
        position = {"offsets": SourceOffsets(ends, self.source.id, topics=ids).to_json()}
        if used:
            targets = [TopicPartition(self.naming.target(one.topic), one.partition) for one in used]
            written = self.writer.write(
                self._rows(used),
                {one.topic for one in targets},
                position,
                partitions=targets,
                include_timestamp=True,
            )
        # Topics of which nothing is to be mirrored yet: their place is written down with the next records.
        self.positions, self.ids, self.is_first = ends, ids, False
        count = sum(len(one) for one in ranges)
        self.mirrored += written
        self.returned += count - written
        self._show(ends)
        before = self.running.snapshot
        self.running.tell(
            rows_in=before.rows_in + count,
            rows_out=before.rows_out + written,
            batches=before.batches + 1,
            rate_per_s=count / max(0.001, self._clock.monotonic() - began),
            lag=max(0, behind - count),
            note="",
        )
        return True

    def _note(self, begins: Offsets, ids: dict[str, str]) -> None:
        """Write down where it is, without a record."""
        places = {**self.positions, **begins}
        self.writer.write(self._rows({}), [], {"offsets": SourceOffsets(places, self.source.id, topics=ids).to_json()})
        self.positions, self.ids, self.is_first = places, ids, False

    def _starts_late(self, one: TopicPartition) -> bool:
        """Whether a partition without a position starts at its end: in the first run, and where a run is the first to
        name a topic. What comes to be later is mirrored from its first record."""
        if self.options["start"] != "latest":
            return False
        assert self._new is not None
        return self.is_first or one.topic in self._new

    def _plan(self, latest: Offsets) -> tuple[Offsets, list[OffsetRange]]:
        """Where each partition is, and what is read next."""
        if self._new is None:
            known = {one.topic for one in self.positions}
            self._new = set(self.options["topics"] or ()) - known
        anew = SourceOffsets(self.positions, topics=self.ids).made_anew(self.source_ids)
        places = without(self.positions, anew)
        new = sorted(latest.keys() - places.keys())
        earliest = self.source.earliest(latest)
        begins = {one: offset for one, offset in places.items() if one in latest}
        for one in new:
            begins[one] = latest[one] if self._starts_late(one) else earliest[one]
        ends = limited(begins, latest, earliest, self.options["max_per_batch"] or _NO_LIMIT)
        ranges, losses = ranges_between(begins, ends, earliest)
        losses += [
            f"{name} was deleted and made anew: what was not mirrored of the old one is gone"
            for name in anew
            if any(one.topic == name for one in latest)
        ]
        losses += [
            f"{one.partition} begins at offset {earliest[one.partition]}, behind {one.start}, where the mirror is"
            for one in ranges
            if one.start < earliest[one.partition]
        ]
        warning = check_losses(losses, fail=self.options["fail_on_data_loss"])
        if warning is not None:
            self.running.tell(note=warning)
            for one in latest:
                if begins[one] < earliest[one] or begins[one] > latest[one]:
                    begins[one] = earliest[one]
            ends = limited(begins, latest, earliest, self.options["max_per_batch"] or _NO_LIMIT)
            ranges, _ = ranges_between(begins, ends, earliest)
        return begins, ranges

    def _rows(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> DataFrame | None:
        """The records of these ranges as they are to be at the target, without those that come from there."""
        if not ranges:
            return None
        from pyspark.sql import functions as F

        rows = read_ranges(
            self.running.session,
            self.running.kafka,
            ranges,
            fail_on_data_loss=self.options["fail_on_data_loss"],
        )
        passed_target = (
            f"exists(headers, h -> h.key = '{HOP}' and startswith(cast(h.value as string), '{self.target.id}/'))"
        )
        rows = rows.where(F.expr(f"not coalesce({passed_target}, false)"))
        place = F.concat_ws("/", F.lit(self.source.id), "topic", F.col("partition").cast("string"), F.col("offset"))
        hop = F.array(F.struct(F.lit(HOP).alias("key"), place.cast("binary").alias("value")))
        headers = F.concat(F.expr("coalesce(headers, array())"), hop).cast("array<struct<key:string,value:binary>>")
        before, _, after = self.naming.template.partition(mirror_topics.TEMPLATE)
        topic = F.concat(F.lit(before), F.col("topic"), F.lit(after))
        return rows.select("key", "value", headers.alias("headers"), topic.alias("topic"), "partition", "timestamp")

    def _create_for(self, rows: DataFrame | None, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Create topics under other names for which there is something to mirror now."""
        missing = {one.topic for one in ranges} - self.topics.keys()
        if not missing or rows is None:
            return
        targets = {self.naming.target(name): name for name in missing}
        needed = [row.topic for row in rows.where(rows.topic.isin(list(targets))).select("topic").distinct().collect()]
        known = dict(self.topics)
        there = mirror_topics.look(
            self.source.admin, [targets[name] for name in needed], with_configs=self.options["configs"]
        )
        self._fit(there, create=True)
        self.topics = {**known, **self.topics}

    def _show(self, ends: Offsets) -> None:
        """How far the source is read, as a consumer group there."""
        self.source.commit(self.running.name, {one: end for one, end in ends.items() if one.topic in self.topics})

    # --- groups -------------------------------------------------------------------------------------------------------

    def _translate(self, *, force: bool) -> None:
        now = self._clock.monotonic()
        if self._groups is None or (now < self._groups_due and not force):
            return
        self._groups_due = now + _GROUPS_EVERY_S
        targets = {
            one: TopicPartition(self.naming.target(one.topic), one.partition)
            for one in self.positions
            if one.topic in self.topics
        }
        done = self._groups.round(targets, self.positions)
        self.groups_moved += done.offsets
        if done.busy:
            self.running.tell(note=f"groups with members at the target are left alone: {', '.join(done.busy)}")

    def _result(self) -> Result:
        document = {
            "mirrored": self.mirrored,
            "returned": self.returned,
            "topics": {name: self.naming.target(name) for name in sorted(self.topics)},
            "group_offsets": self.groups_moved,
            "positions": SourceOffsets(self.positions).to_json(),
        }
        lines = [
            f"{plural(self.mirrored, 'record')} of {plural(len(self.topics), 'topic')} mirrored to {self.options['to']}"
        ]
        if self.returned:
            lines.append(
                f"  {self.returned:,} offsets had none for the target: its own records, and transactions' ends"
            )
        if self._groups is not None:
            lines.append(f"  {self.groups_moved:,} offsets of groups translated")
        return Result("mirror", document, lines)
