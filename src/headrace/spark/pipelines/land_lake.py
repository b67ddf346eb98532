"""Tables in the formats of Delta and Iceberg, by `deltalake` and `pyiceberg`: Spark's tasks write the files, and the
driver adds them to the table together with the batch's number, in one commit of the table's log.

A batch that comes again finds its number and does nothing. Files of a batch that was not committed are seen by nobody,
and are removed when another attempt has committed it: before that they may still be added by whoever wrote them. Of two
that commit the same batch, the table's log refuses the second.
"""

from __future__ import annotations

import importlib
import json
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.spark.history import digest_of
from headrace.spark.once import WrongHistoryError
from headrace.spark.pipelines.declaring import PipelineError, WrongOptionError
from headrace.spark.pipelines.files import Files, TableFile
from headrace.spark.pipelines.land_parquet import Compacted, check_source, older_than_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("headrace.spark")

_COMMITTED, _SOURCE = "headrace.batch.", "headrace.source."
_DATA = "data/headrace"
_DRIVER_BYTES_MAX = 8 * 1024 * 1024 * 1024


def needed(module: str, package: str) -> Any:
    """A package that is not installed with this one; says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WrongOptionError(
            f"this needs the package {package}: pip install 'headrace[lake]' (or pip install '{package}'; {error})"
        ) from None


def _stage(files: Files, rows: DataFrame, query: str, batch: int) -> list[TableFile]:
    """Have the tasks write a batch's files; `_date` names their directories, so that `date` stays in them too."""
    from pyspark.sql import functions as F

    staging = f"{_DATA}/{query}/{batch:09d}-{uuid.uuid4().hex[:8]}"
    rows.withColumn("_date", F.col("date")).write.partitionBy("_date").parquet(files.url(staging))
    staged = files.listed(staging)
    if not files.exists(staging):
        raise PipelineError(f"{files.url(staging)} was taken away while it was written")
    return staged


def _tidy(files: Files, query: str, batch: int, kept: list[TableFile]) -> None:
    """Remove what other attempts of a batch have left, now that it is committed with the files of this one."""
    place = f"{_DATA}/{query}"
    used = {one.path.removeprefix(f"{place}/").partition("/")[0] for one in kept}
    for name in files.names(place):
        if name.startswith(f"{batch:09d}-") and name not in used:
            files.delete(f"{place}/{name}")


def _is_in(last: int | None, theirs: str, query: str, batch: int, source: str, where: str) -> bool:
    """Whether a batch is in; `last` is the one that was committed last. Raises where it is of another history."""
    if last is None or last < batch:
        return False
    if source and last > batch:
        raise WrongHistoryError(older_than_table(batch, last, where))
    check_source(theirs, source, query, batch)
    return True


def _left_for_later(where: str, date: object, error: Exception) -> None:
    """The table changed while files were joined, and its log refused what was made of the old ones: nothing is lost."""
    log.info("%s: the files of %s are joined the next time: %s", where, date, error)


def _number_of(source: str) -> int:
    """A digest as Delta takes it: a number of 63 bits."""
    return int(digest_of([source])[:15], 16)


def _date_of(one: TableFile) -> str:
    return one.path.rpartition("/")[0].rpartition("_date=")[2]


def _has_more(have: Any, wanted: Any, at: str = "") -> bool:
    """Whether a type of Delta's, as JSON, has fields that the table's has not; raises where one has another type."""
    if isinstance(have, str) or isinstance(wanted, str) or have["type"] != wanted["type"]:
        if have != wanted:
            raise PipelineError(
                f"the table's column {at} is {_named(have)}, and the topic's schema says {_named(wanted)} now: a "
                "column of Delta keeps its type. Land in another place from here on"
            )
        return False
    more = False
    if have["type"] == "struct":
        known = {one["name"]: one["type"] for one in have["fields"]}
        for one in wanted["fields"]:
            name = f"{at}.{one['name']}".lstrip(".")
            more = one["name"] not in known or _has_more(known[one["name"]], one["type"], name) or more
        return more
    for part, name in (("elementType", "[]"), ("valueType", "{}")):
        if part in have:
            more = _has_more(have[part], wanted[part], at + name) or more
    return more


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _arrow_schema(rows: DataFrame) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # Without what Spark notes beside a column: the schema of a topic's values goes on, and tables compare notes.
    return pa.schema([one.remove_metadata() for one in to_arrow_schema(rows.schema, timezone="UTC")])


class DeltaTable:
    """A Delta table at a path."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._delta = needed("deltalake", "deltalake")
        self.files = Files(session, path)

    def append(self, rows: DataFrame, query: str, batch: int, source: str = "") -> None:
        from pyarrow import fs
        from pyarrow import parquet as pq

        delta = self._delta
        table = self._table(rows)
        last, theirs = table.transaction_version(query), table.transaction_version(f"{query}/source")
        ours = str(_number_of(source)) if source else ""
        if _is_in(last, "" if theirs is None else str(theirs), query, batch, ours, self.files.root):
            return
        system, root = fs.FileSystem.from_uri(self.files.root)
        added = []
        staged = _stage(self.files, rows, query, batch)
        for one in staged:
            count = pq.read_metadata(f"{root}/{one.path}", filesystem=system).num_rows
            added.append(
                delta.transaction.AddAction(
                    one.path,
                    one.size,
                    {"date": _date_of(one)},
                    one.modified_ms,
                    True,
                    json.dumps({"numRecords": count}),
                )
            )
        marks = [delta.Transaction(query, batch)]
        if source:
            marks.append(delta.Transaction(f"{query}/source", _number_of(source)))
        marked = delta.CommitProperties(app_transactions=marks)
        table.create_write_transaction(added, "append", table.schema(), ["date"], commit_properties=marked)
        _tidy(self.files, query, batch, staged)

    def _table(self, rows: DataFrame) -> Any:
        importlib.import_module("deltalake.transaction")
        if not self._delta.DeltaTable.is_deltatable(self._url()):
            return self._delta.DeltaTable.create(self._url(), _arrow_schema(rows), mode="ignore", partition_by=["date"])
        table = self._delta.DeltaTable(self._url())
        wanted = self._delta.Schema.from_arrow(_arrow_schema(rows))
        if _has_more(json.loads(table.schema().to_json()), json.loads(wanted.to_json())):
            # A commit of its own: columns without rows, which the batch that comes again finds there.
            table.alter.add_columns(list(wanted.fields))
        return table

    def compact(self, small_bytes: int, files_min: int) -> Compacted:
        if not self._delta.DeltaTable.is_deltatable(self._url()):
            return Compacted()
        table = self._delta.DeltaTable(self._url())
        small: dict[str, int] = {}
        actions = table.get_add_actions(flatten=True)
        for date, size in zip(actions["partition.date"].to_pylist(), actions["size_bytes"].to_pylist()):
            if size < small_bytes:
                small[str(date)] = small.get(str(date), 0) + 1
        done = Compacted()
        refused = needed("deltalake.exceptions", "deltalake").CommitFailedError
        for date, count in small.items():
            if count >= max(2, files_min):
                try:
                    made = table.optimize.compact(partition_filters=[("date", "=", date)])
                except refused as error:
                    _left_for_later(self.files.root, date, error)
                    break
                done += Compacted(made["numFilesRemoved"], made["numFilesAdded"])
        return done

    def _url(self) -> str:
        return self.files.local or self.files.root


class IcebergTable:
    """An Iceberg table of a catalog: one of pyiceberg's configuration, or a SQLite file at the path."""

    def __init__(self, session: SparkSession, path: str, table: str, catalog: str | None) -> None:
        catalogs = needed("pyiceberg.catalog", "pyiceberg[sql-sqlite]")
        if table.count(".") != 1 or not all(table.split(".")):
            raise WrongOptionError(f"--table is namespace.name, not {table!r}")
        self._name = table
        self._session = session
        self.files = Files(session, path)
        if catalog is not None:
            self._catalog = catalogs.load_catalog(catalog)
        elif self.files.local is None:
            raise WrongOptionError(f"{self.files.root} is not on this machine: name a catalog of pyiceberg (--catalog)")
        else:
            self.files.make("")
            self._catalog = catalogs.load_catalog(
                "headrace", type="sql", uri=f"sqlite:///{self.files.local}/catalog.db", warehouse=self.files.root
            )

    def append(self, rows: DataFrame, query: str, batch: int, source: str = "") -> None:
        table = self._table(rows)
        last, theirs = (table.properties.get(name + query) for name in (_COMMITTED, _SOURCE))
        if _is_in(None if last is None else int(last), theirs or "", query, batch, source, table.location()):
            return
        files = Files(self._session, table.location())
        staged = _stage(files, rows, query, batch)
        added = [files.url(one.path) for one in staged]
        with table.transaction() as change:
            if added:
                change.add_files(added, snapshot_properties={"headrace.query": query, "headrace.batch": str(batch)})
            # A property of the table, since snapshots are thrown away some day.
            change.set_properties({_COMMITTED + query: str(batch), _SOURCE + query: source})
        _tidy(files, query, batch, staged)

    def batches(self) -> Iterator[Any]:
        """The table's rows, as record batches."""
        yield from self._catalog.load_table(self._name).scan().to_arrow_batch_reader()

    def _table(self, rows: DataFrame) -> Any:
        errors = needed("pyiceberg.exceptions", "pyiceberg[sql-sqlite]")
        try:
            table = self._catalog.load_table(self._name)
        except errors.NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._name.partition(".")[0])
        else:
            try:
                # Columns that the topic's schema has got since, and types that have become wider; else nothing.
                with table.update_schema() as change:
                    change.union_by_name(_arrow_schema(rows))
            except (errors.ValidationError, ValueError) as error:
                raise PipelineError(
                    f"{self._name} cannot take the columns of the topic's schema: {error}. Land in another table"
                ) from error
            return table
        with (
            self._catalog.create_table_transaction(self._name, schema=_arrow_schema(rows)) as made,
            made.update_spec() as spec,
        ):
            spec.add_identity("date")
        return self._catalog.load_table(self._name)

    def compact(self, small_bytes: int, files_min: int) -> Compacted:
        """Write dates with many small files anew. The rows of one date at a time pass through the driver."""
        equal_to = needed("pyiceberg.expressions", "pyiceberg[sql-sqlite]").EqualTo
        refused = needed("pyiceberg.exceptions", "pyiceberg[sql-sqlite]").CommitFailedException
        if not self._catalog.table_exists(self._name):
            return Compacted()
        table = self._catalog.load_table(self._name)
        small: dict[Any, int] = {}
        before: dict[Any, int] = {}
        for row in table.inspect.files().select(["partition", "file_size_in_bytes"]).to_pylist():
            date = row["partition"]["date"]
            before[date] = before.get(date, 0) + 1
            if row["file_size_in_bytes"] < small_bytes:
                small[date] = small.get(date, 0) + 1
        done = Compacted()
        for date, count in small.items():
            if count < max(2, files_min):
                continue
            only = equal_to("date", date.isoformat())
            rows = table.scan(row_filter=only).to_arrow()
            if rows.nbytes > _DRIVER_BYTES_MAX:
                raise PipelineError(f"{self._name}: {date} has {rows.nbytes:,} bytes, too many to join in the driver")
            said = {"headrace.compacted": date.isoformat()}
            try:
                table.overwrite(rows, overwrite_filter=only, snapshot_properties=said)
            except refused as error:
                _left_for_later(self._name, date, error)
                break
            table = self._catalog.load_table(self._name)
            done += Compacted(before[date], 1)
        return done
