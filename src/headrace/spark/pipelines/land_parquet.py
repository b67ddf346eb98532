"""A table that is a directory of Parquet files, `date=…/…`: batches put in once, small files joined.

A batch is first written where no reader looks (`_headrace/`). Then a list of its files is written in one step: from
then on the batch is in, and its files are moved to their places, one rename each. A batch that comes again finds the
list and only moves what is not moved yet. A reader that lists the directory sees whole files, and each row once.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spark.pipelines.declaring import PipelineError
from headrace.spark.pipelines.files import File, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


class ParquetTable:
    """Files below a path. Several queries may put batches in; each has its own lists."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self.files = Files(session, path)

    def append(self, rows: DataFrame, query: str, batch: int) -> None:
        """Put a batch in, or finish putting it in, or do nothing: it is in once."""
        name = f"{batch:09d}"
        place = f"{HIDDEN}/{query}"
        known = self.files.read(f"{place}/{name}.json")
        if known is None:
            newest = max((one[:9] for one in self.files.names(place) if one.endswith(".json")), default="")
            if newest > name:
                # Its list is thrown away since: it is in for long.
                return
            known = self._stage(rows, place, name, query)
        self._publish(json.loads(known))
        self.files.delete(f"{place}/{name}")
        self._forget(place)

    def _stage(self, rows: DataFrame, place: str, name: str, query: str) -> str:
        staging = f"{place}/{name}"
        self.files.delete(staging)
        rows.write.partitionBy("date").parquet(self.files.url(staging))
        moves: dict[str, str] = {}
        for number, one in enumerate(self.files.listed(staging)):
            date = one.path.removeprefix(f"{staging}/").rpartition("/")[0]
            moves[one.path] = f"{date}/{name}-{number:05d}-{query}.parquet"
        text = json.dumps(moves)
        self.files.write(f"{place}/{name}.json", text)
        return text

    def _publish(self, moves: dict[str, str]) -> None:
        for path, to in moves.items():
            # What is not there any more was moved before the crash.
            if self.files.exists(path):
                self.files.make(to.rpartition("/")[0])
                self.files.rename(path, to)

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
        self.recover()
        done = Compacted()
        for date in self.files.names(""):
            if not date.startswith("date="):
                continue
            files = self.files.listed(date)
            small = [one for one in files if one.size < small_bytes]
            if len(small) >= max(2, files_min):
                done += self._join(date, small, [one for one in files if one.size >= small_bytes])
        return done

    def _join(self, date: str, small: list[File], large: list[File]) -> Compacted:
        """Make the date's directory anew beside it, then swap the two."""
        name = uuid.uuid4().hex
        place, raw = f"{_COMPACTING}/{name}/new", f"{_COMPACTING}/{name}/raw"
        count = max(1, round(sum(one.size for one in small) / FILE_BYTES))
        rows = self._session.read.parquet(*[self.files.url(one.path) for one in small]).drop("date")
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
        self.files.write(f"{_COMPACTING}/{name}/plan.json", json.dumps({"date": date, "taken": taken, "made": made}))
        self.files.exchange(date, place)
        self._finish(name)
        return Compacted(len(small), len(made))

    def recover(self) -> None:
        """Finish what a compaction that was killed had begun, or undo it."""
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
