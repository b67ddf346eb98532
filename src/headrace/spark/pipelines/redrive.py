"""`redrive`: dead letters back to the topics they came from, each once, after what failed was mended.

Which letters were put back is kept as `headrace deadletters` keeps it: offsets and notes of the group
`<dead letters>.redriven`. Here they are committed in the transaction that puts the letters back, so a crash puts back
all of a step's letters and says so, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.offsets import OffsetAndMetadata
from headrace.errors import UnknownTopicOrPartitionError
from headrace.parallel.finished import Interval, decode_finished, encode_finished, merge
from headrace.parallel.letters import PART
from headrace.parallel.retries import (
    DAMAGED,
    ERROR,
    ERROR_TYPE,
    FAILED_MS,
    GROUP,
    ORIGIN_TOPIC,
    PREFIX,
    REASON,
    REASONS,
)
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
)
from headrace.spark.pipelines.moments import moment_ms
from headrace.spark.pipelines.parts import OFFSETS, whole_letters
from headrace.spark.pipelines.ranges import read_ranges
from headrace.spark.pipelines.running import PipelineRun
from headrace.spark.pipelines.transacted import Transacted
from headrace.spark.planning import Offsets
from headrace.topics import TopicPartition
from headrace.words import plural

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession

REDRIVEN = "headrace-redriven"
"""A header of records that were put back: how often. Its name lacks the prefix of those that retries take off."""

_LETTERS_MAX = 5_000_000
_SHOWN = 20
_LOOKED_AT = ("partition", "offset", "fits", "target", "reason", "error", "is_part")
Parts = dict[int, tuple[int, ...]]
"""Of letters of one partition that were written in parts: the offsets of all, by that of the last."""
_A_PART = "^[0-9]{1,9}/[0-9]{1,9}$"

OPTIONS = (
    Option("topic", str, None, "The dead-letter topic.", required=True, there=HERE),
    SERVERS,
    CLIENT_CONFIG,
    CHECKPOINT,
    MASTER,
    Option("to", str, None, "Put them here, not where they came from.", there=HERE),
    Option("reason", list, None, "Only letters that are there for these reasons.", choices=REASONS),
    Option("error", str, None, "Only letters whose error has this text."),
    Option("error_type", list, None, "Only letters with these types of error."),
    Option("group", list, None, "Only letters of these consumer groups."),
    Option("origin", list, None, "Only letters that came from these topics."),
    Option("since", str, None, "Only what failed at this time (UTC) or later: 2026-01-31T12:00, or milliseconds."),
    Option("until", str, None, "Only what failed before this time."),
    Option("max_attempts", int, None, "Only letters that were put back fewer times than this."),
    Option("max_letters", int, None, "At most so many, the oldest of each partition first."),
    Option("everything", bool, False, "All letters that were not put back yet; needed where nothing else chooses."),
    Option("per_step", int, 50_000, "So many letters in a transaction."),
    Option("dry_run", bool, False, "Only say what would be done."),
)
_CHOOSING = ("reason", "error", "error_type", "group", "origin", "since", "until", "max_attempts", "max_letters")


def redrive(topic: str, *, session: SparkSession | None = None, watch: Watch | None = None, **options: Any) -> Result:
    """Put dead letters back; see `OPTIONS`. `document` counts letters that fit, were put back, are left."""
    return run(parsed(OPTIONS, {"topic": topic, **options}), session, watch=watch)


def run(options: Mapping[str, Any], session: SparkSession | None = None, *, watch: Watch | None = None) -> Result:
    _check(options)
    with PipelineRun("redrive", OPTIONS, options, session=session, watch=watch) as running:
        running.state.groups = [group_of(options["topic"])]
        name = f"headrace-redrive-{options['topic']}"
        with Transacted(running.kafka, name, on_retry=lambda text: running.tell(note=f"again: {text[:80]}")) as writer:
            return _Redrive(running, writer, options).go()


def group_of(topic: str) -> str:
    """The group whose offsets say what was put back."""
    return f"{topic}.redriven"


def _check(options: Mapping[str, Any]) -> None:
    if not options["everything"] and not any(options[name] is not None for name in _CHOOSING):
        flags = ", ".join("--" + name.replace("_", "-") for name in _CHOOSING)
        raise WrongOptionError(f"say which letters: {flags}; or --everything")
    for name in ("max_attempts", "max_letters", "per_step"):
        if options[name] is not None and options[name] < 1:
            raise WrongOptionError(f"--{name.replace('_', '-')} is at least 1, not {options[name]}")
    for name in ("since", "until"):
        moment_ms(options[name], f"--{name}")
    if DAMAGED in (options["reason"] or ()):
        raise WrongOptionError(
            f"--reason {DAMAGED}: such a letter has the bytes of a batch that nobody could read, and no record to put "
            "back. `headrace deadletters show` gives them to whoever looks into it"
        )
    if options["to"] == options["topic"]:
        raise WrongOptionError(f"--to {options['to']} is the dead-letter topic itself: the letters would never end")


# --- what was put back: pure ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ledger:
    """What of a partition was put back: everything before `base`, and the intervals behind it."""

    base: int = 0
    done: tuple[Interval, ...] = ()

    @classmethod
    def of(cls, committed: OffsetAndMetadata | None, earliest: int) -> Ledger:
        """As the group has it. What is deleted needs no note: it counts as done."""
        if committed is None:
            return cls().adding([(0, earliest)])
        done = decode_finished(committed.offset, committed.metadata)
        return cls(committed.offset, tuple(done or ())).adding([(0, max(earliest, committed.offset))])

    def has(self, offset: int) -> bool:
        return offset < self.base or any(first <= offset < last for first, last in self.done)

    def adding(self, intervals: Iterable[Interval]) -> Ledger:
        merged = merge(sorted([(0, self.base), *self.done, *intervals]))
        base = merged[0][1] if merged and merged[0][0] == 0 else 0
        return Ledger(base, tuple(one for one in merged if one[0] > base))

    def note(self) -> tuple[OffsetAndMetadata, bool]:
        """For the commit, and whether all of it fits into a commit's metadata."""
        text, is_whole = encode_finished(self.base, self.done)
        return OffsetAndMetadata(self.base, text), is_whole


def check_ledgers(ledgers: Mapping[TopicPartition, Ledger], latest: Offsets, group: str) -> None:
    """Refuse notes that go beyond the topic: it was made anew, and they would pass letters of now for put back."""
    for one, ledger in ledgers.items():
        if ledger.base > latest[one]:
            raise PipelineError(
                f"the group {group} says that {one} was put back up to offset {ledger.base}, but it ends at "
                f"{latest[one]}: the topic was made anew. Delete the group, and then put back"
            )


def settle(
    ledger: Ledger, there: Sequence[int], wanted: Sequence[int], parts: Parts | None = None
) -> tuple[list[int], Ledger]:
    """Those of the wanted letters that can be written down as put back, the first ones, and the ledger with them.

    `there`: every offset of the partition that has a letter, or a part of one, ascending. What is between them has none
    and needs none.
    """
    offsets_of = parts or {}
    low, high = 0, len(wanted)
    best: tuple[int, Ledger] = (0, ledger)
    while low <= high:
        middle = (low + high + 1) // 2
        made = _settled(ledger, there, wanted[:middle], offsets_of)
        if made.note()[1]:
            best = (middle, made)
            low = middle + 1
        else:
            high = middle - 1
    return list(wanted[: best[0]]), best[1]


def _settled(ledger: Ledger, there: Sequence[int], chosen: Sequence[int], parts: Parts) -> Ledger:
    if not chosen:
        return ledger
    last, done = chosen[-1], set(_with_parts(chosen, parts))
    gaps: list[Interval] = []
    before = ledger.base
    for offset in there:
        if offset > last:
            gaps.append((last + 1, offset))
            break
        if offset > before:
            gaps.append((before, offset))
        if offset in done:
            gaps.append((offset, offset + 1))
        before = offset + 1
    return ledger.adding([one for one in gaps if one[0] < one[1]])


def _with_parts(letters: Iterable[int], parts: Parts) -> list[int]:
    """Every offset that these letters are made of, ascending."""
    return sorted(offset for letter in letters for offset in parts.get(letter, (letter,)))


# --- with Spark -------------------------------------------------------------------------------------------------------


class _Redrive:
    def __init__(self, running: PipelineRun, writer: Transacted, options: Mapping[str, Any]) -> None:
        self.running = running
        self.writer = writer
        self.options = options
        self.topic: str = options["topic"]
        self.group = group_of(self.topic)
        self._parts: dict[int, Parts] = {}
        """By partition: the letters that were put together of parts."""

    def go(self) -> Result:
        cluster = self.writer.cluster
        try:
            count = cluster.partition_counts([self.topic])[self.topic]
        except UnknownTopicOrPartitionError:
            raise WrongOptionError(f"there is no topic {self.topic}") from None
        if not self.options["dry_run"]:
            # Whatever an older run left open is decided before its notes are read.
            self.writer.resume()
        partitions = [TopicPartition(self.topic, index) for index in range(count)]
        earliest, latest = cluster.earliest(partitions), cluster.latest(partitions, read_committed=True)
        found = cluster.admin.list_group_offsets([self.group], require_stable=True)[self.group]
        ledgers = {one: Ledger.of(found.get(one), earliest[one]) for one in partitions}
        check_ledgers(ledgers, latest, self.group)
        records = self._look(ledgers, latest)
        letters = self._whole(records)
        chosen, skipped = self._choose(letters, ledgers)
        put_back = unrecorded = 0
        if not self.options["dry_run"]:
            put_back, unrecorded = self._put_back(records, letters, chosen, ledgers)
        in_parts = self._left_in_parts(records, ledgers)
        return self._result(letters, chosen, skipped, in_parts, put_back=put_back, unrecorded=unrecorded)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, ledgers: Mapping[TopicPartition, Ledger], latest: Offsets) -> pa.Table:
        """Every record that is not behind the committed offsets, a letter or a part of one: where it is, whether it
        fits, where it belongs."""
        import pyarrow as pa

        ranges = {one: (ledger.base, latest[one]) for one, ledger in ledgers.items() if latest[one] > ledger.base}
        if not ranges:
            return pa.table({name: [] for name in _LOOKED_AT})
        total = sum(end - begin for begin, end in ranges.values())
        if total > _LETTERS_MAX:
            raise PipelineError(
                f"{self.topic} has {total:,} letters; at most {_LETTERS_MAX:,} can be looked at at once"
            )
        self.running.tell(lag=total, note="looking at the letters")
        rows = read_ranges(self.running.session, self.running.kafka, ranges)
        return rows.select(*self._looked_at()).toArrow()

    def _looked_at(self) -> list[Column]:
        from pyspark.sql import functions as F

        return [
            F.col("partition"),
            F.col("offset"),
            self._fits().alias("fits"),
            (F.lit(self.options["to"]) if self.options["to"] else _text(ORIGIN_TOPIC)).alias("target"),
            _text(REASON).alias("reason"),
            F.substring(_text(ERROR), 1, 80).alias("error"),
            _is_part().alias("is_part"),
        ]

    def _whole(self, records: pa.Table) -> pa.Table:
        """The letters: those that are a record each, and those that can be put together of parts. Remembers which."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not records.num_rows or not any(flags := records["is_part"].to_pylist()):
            return records
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for index, offset, is_part in zip(records["partition"].to_pylist(), records["offset"].to_pylist(), flags):
            if is_part:
                one = TopicPartition(self.topic, index)
                begin, end = ranges.get(one, (offset, offset + 1))
                ranges[one] = (min(begin, offset), max(end, offset + 1))
        rows = read_ranges(self.running.session, self.running.kafka, ranges)
        found = whole_letters(rows.filter(_is_part())).select(*self._looked_at(), OFFSETS).toArrow()
        for index, offsets in zip(found["partition"].to_pylist(), found[OFFSETS].to_pylist()):
            self._parts.setdefault(index, {})[offsets[-1]] = tuple(offsets)
        alone = records.filter(pc.invert(records["is_part"]))
        return pa.concat_tables([alone, found.select(list(_LOOKED_AT)).cast(alone.schema)])

    def _left_in_parts(self, records: pa.Table, ledgers: Mapping[TopicPartition, Ledger]) -> int:
        """How many parts that fit are of no letter that could be put together."""
        used = {(index, one) for index, parts in self._parts.items() for offsets in parts.values() for one in offsets}
        return sum(
            row["fits"]
            and row["is_part"]
            and (row["partition"], row["offset"]) not in used
            and not ledgers[TopicPartition(self.topic, row["partition"])].has(row["offset"])
            for row in records.to_pylist()
        )

    def _fits(self) -> Column:
        from pyspark.sql import functions as F

        options = self.options
        # Of a damaged batch there is no record to put back: its bytes are for whoever looks into it.
        wanted = F.coalesce(_text(REASON) != F.lit(DAMAGED), F.lit(True))
        for name, header in (
            ("reason", REASON),
            ("error_type", ERROR_TYPE),
            ("group", GROUP),
            ("origin", ORIGIN_TOPIC),
        ):
            if options[name] is not None:
                wanted = wanted & _text(header).isin(options[name])
        if options["error"] is not None:
            wanted = wanted & F.contains(_text(ERROR), F.lit(options["error"]))
        failed_ms = F.coalesce(_number(FAILED_MS), F.unix_millis("timestamp"))
        if options["since"] is not None:
            wanted = wanted & (failed_ms >= F.lit(moment_ms(options["since"], "--since")))
        if options["until"] is not None:
            wanted = wanted & (failed_ms < F.lit(moment_ms(options["until"], "--until")))
        if options["max_attempts"] is not None:
            wanted = wanted & (F.coalesce(_number(REDRIVEN), F.lit(0)) < F.lit(options["max_attempts"]))
        return F.coalesce(wanted, F.lit(False))

    def _choose(
        self, letters: pa.Table, ledgers: Mapping[TopicPartition, Ledger]
    ) -> tuple[dict[TopicPartition, list[int]], int]:
        """Letters to put back, by partition, ascending; and how many that fit were put back before."""
        chosen: dict[TopicPartition, list[int]] = {}
        skipped = count = 0
        fitting = letters.filter(letters["fits"]) if letters.num_rows else letters
        for row in fitting.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
            one = TopicPartition(self.topic, row["partition"])
            if ledgers[one].has(row["offset"]):
                skipped += 1
                continue
            if self.options["max_letters"] is not None and count >= self.options["max_letters"]:
                break
            if row["target"] is None:
                raise PipelineError(
                    f"{one} at offset {row['offset']} has no header that says where it came from: name a topic (--to)"
                )
            if row["target"] == self.topic:
                raise PipelineError(
                    f"{one} at offset {row['offset']} came from {self.topic} itself: name a topic (--to)"
                )
            chosen.setdefault(one, []).append(row["offset"])
            count += 1
        return chosen, skipped

    # --- putting back -------------------------------------------------------------------------------------------------

    def _put_back(
        self,
        records: pa.Table,
        letters: pa.Table,
        chosen: Mapping[TopicPartition, list[int]],
        ledgers: dict[TopicPartition, Ledger],
    ) -> tuple[int, int]:
        """How many were put back, and how many were left because a commit's note has no room to say so."""
        put_back = unrecorded = 0
        there: dict[int, list[int]] = {}
        for row in records.select(["partition", "offset"]).to_pylist():
            there.setdefault(row["partition"], []).append(row["offset"])
        total = sum(map(len, chosen.values()))
        for one, offsets in chosen.items():
            known = sorted(there[one.partition])
            for begin in range(0, len(offsets), self.options["per_step"]):
                part = offsets[begin : begin + self.options["per_step"]]
                fitting, ledger = settle(ledgers[one], known, part, self._parts.get(one.partition))
                if fitting:
                    put_back += self._step(letters, one, fitting, ledger)
                    ledgers[one] = ledger
                self.running.tell(
                    rows_in=put_back, rows_out=put_back, batches=self.running.snapshot.batches + 1, lag=total - put_back
                )
                if len(fitting) < len(part):
                    unrecorded += len(offsets) - begin - len(fitting)
                    break
        return put_back, unrecorded

    def _step(self, letters: pa.Table, one: TopicPartition, offsets: list[int], ledger: Ledger) -> int:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyspark.sql import functions as F

        picked = letters.filter(
            pc.and_(
                pc.equal(letters["partition"], one.partition),
                pc.is_in(letters["offset"], value_set=pa.array(offsets, letters["offset"].type)),
            )
        )
        targets = sorted(set(picked["target"].to_pylist()))
        parts = self._parts.get(one.partition, {})
        every = _with_parts(offsets, parts)
        numbers = self.running.session.createDataFrame(pa.table({"offset": pa.array(every, pa.int64())}))
        rows = read_ranges(self.running.session, self.running.kafka, {one: (every[0], every[-1] + 1)})
        rows = rows.join(F.broadcast(numbers), "offset", "left_semi")
        if len(every) > len(offsets):
            rows = whole_letters(rows)
        target = F.lit(self.options["to"]) if self.options["to"] else _text(ORIGIN_TOPIC)
        rows = rows.select("key", "value", _own_headers().alias("headers"), target.alias("topic"))
        written = self.writer.write(
            rows, targets, {"put_back": len(offsets)}, offsets={self.group: {one: ledger.note()[0]}}
        )
        if written != len(offsets):
            raise PipelineError(
                f"{len(offsets)} letters of {one} were to be put back and {written} were: its records changed meanwhile"
            )
        return written

    # --- what is said -------------------------------------------------------------------------------------------------

    def _result(
        self,
        letters: pa.Table,
        chosen: Mapping[TopicPartition, list[int]],
        skipped: int,
        in_parts: int,
        *,
        put_back: int,
        unrecorded: int,
    ) -> Result:
        dry_run = self.options["dry_run"]
        rows = {(row["partition"], row["offset"]): row for row in letters.to_pylist()}
        picked = [rows[one.partition, offset] for one, offsets in chosen.items() for offset in offsets]
        by_target = Counter(str(row["target"]) for row in picked)
        damaged = sum(row["reason"] == DAMAGED for row in rows.values())
        by_reason = Counter(row["reason"] or "?" for row in picked)
        document = {
            "topic": self.topic,
            "letters": letters.num_rows,
            "fit": len(picked),
            "put_back": put_back,
            "put_back_before": skipped,
            "no_room": unrecorded,
            "in_parts": in_parts,
            "damaged": damaged,
            "dry_run": dry_run,
            "to": dict(by_target),
            "reasons": dict(by_reason),
        }
        lines = [f"{self.topic}: {plural(letters.num_rows, 'letter')}, {len(picked):,} fit, {put_back:,} put back"]
        lines += [f"  {'would go' if dry_run else 'went'} to {name}: {count:,}" for name, count in by_target.items()]
        if dry_run:
            lines += [
                f"  {row['partition']}:{row['offset']} → {row['target']}  {row['reason'] or '?'}: {row['error'] or ''}"
                for row in picked[:_SHOWN]
            ]
            if len(picked) > _SHOWN:
                lines.append(f"  … and {len(picked) - _SHOWN:,} more")
        if damaged:
            lines.append(f"  {damaged:,} of damaged batches stay: they have no record to put back")
        if in_parts:
            lines.append(
                f"  {in_parts:,} are parts of letters of which others are missing, or that make none together, and stay"
            )
        if unrecorded:
            lines.append(
                f"  {unrecorded:,} were left: too scattered for a commit's note (4 KB a partition). Put back, or "
                "delete, the letters between them first"
            )
        return Result("redrive", document, lines, has_findings=bool(unrecorded or in_parts))


def _text(header: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"cast(try_element_at(filter(headers, h -> h.key = '{header}'), -1).value as string)")


def _is_part() -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(_text(PART).rlike(_A_PART), F.lit(False))


def _number(header: str) -> Column:
    return _text(header).try_cast("bigint")


def _own_headers() -> Column:
    """The record's own headers, and how often it was put back."""
    from pyspark.sql import functions as F

    own = F.expr(
        f"filter(coalesce(headers, array()), h -> not startswith(h.key, '{PREFIX}') and h.key != '{REDRIVEN}')"
    )
    count = (F.coalesce(_number(REDRIVEN), F.lit(0)) + 1).cast("string").cast("binary")
    mark = F.array(F.struct(F.lit(REDRIVEN).alias("key"), count.alias("value")))
    return F.concat(own, mark).cast("array<struct<key:string,value:binary>>")


__all__ = ["OPTIONS", "Ledger", "check_ledgers", "group_of", "redrive", "run", "settle"]
