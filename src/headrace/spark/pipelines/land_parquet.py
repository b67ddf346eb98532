"""A table that is a directory of Parquet files, `date=…/…`: batches put in once, small files joined.

A batch is first written where no reader looks (`_headrace/`), each attempt in a place of its own. Then a list of its
files is made in one step, by one attempt only: from then on the batch is in, and its files are moved to their places,
one rename each. A batch that comes again finds the list and only moves what is not moved yet. A reader that lists the
directory sees whole files, and each row once. Small files are joined by one process at a time.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from headrace.spark.once import WrongHistoryError
from headrace.spark.pipelines.declaring import PipelineError
from headrace.spark.pipelines.files import Files, TableFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.spark")

HIDDEN = "_headrace"
_COMPACTING = f"{HIDDEN}/compacting"
_LISTS_KEPT = 20
FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did."""

    before: int = 0
    after: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(self.before + other.before, self.after + other.after)


@dataclass(frozen=True, slots=True)
class BatchList:
    """What makes a batch be in: whose it is, from which offsets of the source, and where its files go."""

    query: str
    batch: int
    source: str = ""
    moves: dict[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> BatchList:
        given = json.loads(text)
        if not isinstance(given.get("moves"), dict):
            # An earlier version wrote the moves alone.
            return cls("", -1, "", given)
        return cls(given["query"], int(given["batch"]), given.get("source", ""), given["moves"])


def older_than_table(batch: int, newest: int, where: str) -> str:
    return (
        f"batch {batch} comes although batch {newest} is in {where}: Spark repeats its last batch only, so the "
        "checkpoint is older than the table. Start with the newest checkpoint, or land in another place"
    )


def check_source(theirs: str, ours: str, query: str, batch: int) -> None:
    """Refuse a batch that is in from other offsets of the source: to skip it would lose rows."""
    if theirs and ours and theirs != ours:
        raise WrongHistoryError(
            f"batch {batch} of query {query} is in, but from other offsets of the source: the checkpoint was restored "
            "from a backup, or is a copy. Start with the newest checkpoint, or land in another place"
        )


class ParquetTable:
    """Files below a path. Several queries may put batches in; each has its own lists."""

    def __init__(self, session: SparkSession, path: str, files: Files | None = None) -> None:
        self._session = session
        self.files = Files(session, path) if files is None else files

    def append(self, rows: DataFrame, query: str, batch: int, source: str = "") -> None:
        """Put a batch in, or finish putting it in, or do nothing: it is in once."""
        name = f"{batch:09d}"
        place = f"{HIDDEN}/{query}"
        known = self._listed(place, name)
        if known is None:
            self._check_newest(place, name)
            known = self._stage(rows, place, name, BatchList(query, batch, source))
        check_source(known.source, source, query, batch)
        self._publish(known.moves)
        self._tidy(place, name)
        self._forget(place)

    def _listed(self, place: str, name: str) -> BatchList | None:
        text = self.files.read(f"{place}/{name}.json")
        return None if text is None else BatchList.of(text)

    def _check_newest(self, place: str, name: str) -> None:
        newest = max((one[:9] for one in self.files.names(place) if one.endswith(".json")), default="")
        if newest > name:
            raise WrongHistoryError(older_than_table(int(name), int(newest), self.files.root))

    def _stage(self, rows: DataFrame, place: str, name: str, made: BatchList) -> BatchList:
        # Another attempt, dead or not, has a place of its own: neither takes the other's files away.
        staging = f"{place}/{name}-{uuid.uuid4().hex[:8]}"
        rows.write.partitionBy("date").parquet(self.files.url(staging))
        for number, one in enumerate(self.files.listed(staging)):
            date = one.path.removeprefix(f"{staging}/").rpartition("/")[0]
            made.moves[one.path] = f"{date}/{name}-{number:05d}-{made.query}.parquet"
        if not self.files.exists(staging):
            raise PipelineError(f"{self.files.url(staging)} was taken away while it was written")
        if self.files.create(f"{place}/{name}.json", made.to_text()):
            try:
                # Lists of long ago are thrown away: whoever slept so long has made one that was there before.
                self._check_newest(place, name)
            except WrongHistoryError:
                self.files.delete(f"{place}/{name}.json")
                self.files.delete(staging)
                raise
            return made
        found = self._listed(place, name)
        if found is None:
            raise WrongHistoryError(
                f"the list of batch {made.batch} of query {made.query} came and went: another run is ahead"
            )
        return found

    def _publish(self, moves: dict[str, str]) -> None:
        for path, to in moves.items():
            # What is not there any more was moved before the crash.
            if self.files.exists(path):
                self.files.make(to.rpartition("/")[0])
                self.files.rename(path, to)

    def _tidy(self, place: str, name: str) -> None:
        """What attempts have left, of this batch and those before it: they are in, so none of it is needed."""
        for one in self.files.names(place):
            is_aside = one.endswith(".new")
            if not one.endswith(".json") and (one[:9] < name or (one[:9] == name and not is_aside)):
                self.files.delete(f"{place}/{one}")

    def _forget(self, place: str) -> None:
        """Spark repeats the last batch at most: older lists are of no use."""
        lists = [one for one in self.files.names(place) if one.endswith(".json")]
        for one in lists[:-_LISTS_KEPT]:
            self.files.delete(f"{place}/{one}")

    # --- compaction ---------------------------------------------------------------------------------------------------

    def compact(self, small_bytes: int, files_min: int) -> Compacted:
        """Join the small files of every date that has at least so many of them."""
        if self.files.local is None:
            raise PipelineError(
                f"{self.files.root}: Parquet files are joined only on a file system of this machine, where two "
                "directories can be swapped in one step; elsewhere use --format delta or iceberg"
            )
        self.files.make(HIDDEN)
        with self.files.locked(f"{HIDDEN}/compacting.lock") as alone:
            if not alone:
                log.info("%s: another process joins its files", self.files.root)
                return Compacted()
            return self._compact(small_bytes, files_min)

    def _compact(self, small_bytes: int, files_min: int) -> Compacted:
        self._recover()
        done = Compacted()
        for date in self.files.names(""):
            if not date.startswith("date="):
                continue
            files = self.files.listed(date)
            small = [one for one in files if one.size < small_bytes]
            if len(small) >= max(2, files_min):
                done += self._join(date, small, [one for one in files if one.size >= small_bytes])
        return done

    def _join(self, date: str, small: list[TableFile], large: list[TableFile]) -> Compacted:
        """Make the date's directory anew beside it, then swap the two."""
        name = uuid.uuid4().hex
        place, raw = f"{_COMPACTING}/{name}/new", f"{_COMPACTING}/{name}/raw"
        count = max(1, round(sum(one.size for one in small) / FILE_BYTES))
        # Files of typed values differ where their schema went on: the joined one has the columns of all.
        files = [self.files.url(one.path) for one in small]
        rows = self._session.read.parquet(*files, mergeSchema=True).drop("date")
        rows = rows.coalesce(count).sortWithinPartitions("topic", "partition", "offset")
        rows.write.parquet(self.files.url(raw))
        self.files.make(place)
        made = []
        for number, one in enumerate(self.files.listed(raw)):
            made.append(f"joined-{name}-{number:05d}.parquet")
            self.files.rename(one.path, f"{place}/{made[-1]}")
        for one in large:
            self.files.link(one.path, f"{place}/{_base(one.path)}")
        taken = [_base(one.path) for one in (*small, *large)]
        self.files.create(f"{_COMPACTING}/{name}/plan.json", json.dumps({"date": date, "taken": taken, "made": made}))
        self.files.exchange(date, place)
        self._finish(name)
        return Compacted(len(small), len(made))

    def _recover(self) -> None:
        """Finish what a compaction that was killed had begun, or undo it. Only who holds the lock may: else what
        another one is about to swap would be taken for left behind."""
        for name in self.files.names(_COMPACTING):
            self._finish(name)

    def _finish(self, name: str) -> None:
        text = self.files.read(f"{_COMPACTING}/{name}/plan.json")
        if text is not None:
            plan = json.loads(text)
            place = f"{_COMPACTING}/{name}/new"
            if all(self.files.exists(f"{plan['date']}/{one}") for one in plan["made"]):
                # Swapped: what is here is the old content. A batch may have put files in meanwhile.
                for one in self.files.listed(place):
                    if _base(one.path) not in plan["taken"]:
                        self.files.rename(one.path, f"{plan['date']}/{_base(one.path)}")
        self.files.delete(f"{_COMPACTING}/{name}")


def _base(path: str) -> str:
    return path.rpartition("/")[2]
