"""Several processes at one table: a zombie beside its heir, two that join files, an old checkpoint.

Without Spark: files of this machine, and rows that write themselves as lines of text.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.spark.once import WrongHistoryError
from headrace.spark.pipelines import land_lake
from headrace.spark.pipelines.files import Files, TableFile
from headrace.spark.pipelines.land_lake import DeltaTable
from headrace.spark.pipelines.land_parquet import HIDDEN, BatchList, ParquetTable

DATE = "date=2026-01-01"


class LocalFiles(Files):
    """Hadoop's part of `Files`, done with this machine's."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = f"file:{root}"
        self.path = root

    def exists(self, path: str) -> bool:
        return (self.path / path).exists()

    def listed(self, path: str, suffix: str = ".parquet") -> list[TableFile]:
        found = sorted((self.path / path).rglob(f"*{suffix}"))
        return [TableFile(str(one.relative_to(self.path)), one.stat().st_size, 0) for one in found]

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self.path / path)) if self.exists(path) else []

    def make(self, path: str) -> None:
        (self.path / path).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        there = self.path / path
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)

    def rename(self, path: str, to: str) -> None:
        os.replace(self.path / path, self.path / to)

    def read(self, path: str) -> str | None:
        there = self.path / path
        return there.read_text() if there.exists() else None

    def create(self, path: str, text: str) -> bool:
        try:
            with (self.path / path).open("x") as out:
                out.write(text)
        except FileExistsError:
            return False
        return True


class Rows:
    """Rows of one date; every call gives the same object, which writes them to one file."""

    def __init__(self, values: list[str], before: Callable[[], None] = lambda: None) -> None:
        self.values, self.before = values, before

    def __getattr__(self, name: str) -> Any:
        return self if name in ("write", "read") else lambda *arguments: self

    def parquet(self, url: str) -> None:
        self.before()
        directory = Path(url.removeprefix("file:"))
        if "/compacting/" not in url:
            directory /= DATE
        directory.mkdir(parents=True)
        (directory / "part-0.parquet").write_text("\n".join(self.values))


class Session:
    """Reads what `Rows` wrote."""

    read = property(lambda self: self)

    def parquet(self, *urls: str, **options: Any) -> Rows:
        return Rows([line for url in urls for line in Path(url.removeprefix("file:")).read_text().splitlines()])


def table(root: Path) -> ParquetTable:
    session: Any = Session()
    return ParquetTable(session, "", LocalFiles(root))


def put(into: ParquetTable, values: list[str], batch: int, source: str = "", **options: Any) -> None:
    rows: Any = Rows(values, **options)
    into.append(rows, "Q", batch, source)


def content(root: Path) -> Counter[str]:
    return Counter(line for one in root.glob("date=*/*.parquet") for line in one.read_text().splitlines())


def numbers(batch: int) -> list[str]:
    return [str(batch * 10 + number) for number in range(10)]


class Killed(BaseException):
    pass


def test_a_zombie_beside_its_heir_publishes_no_empty_list(tmp_path: Path) -> None:
    zombie, root = table(tmp_path / "t"), tmp_path / "t"
    listed = zombie.files.listed

    def after_the_heir(path: str, suffix: str = ".parquet") -> list[TableFile]:
        # The heir is killed too, when it has written its files.
        heir = table(root)
        heir.files.create = killed  # type: ignore[method-assign]  # a test double
        with pytest.raises(Killed):
            put(heir, numbers(0), 0)
        return listed(path, suffix)

    def killed(path: str, text: str) -> bool:
        raise Killed

    zombie.files.listed = after_the_heir  # type: ignore[method-assign]
    put(zombie, numbers(0), 0)
    put(table(root), numbers(0), 0)
    assert content(root) == Counter(numbers(0))


def test_a_zombie_that_wakes_when_its_heir_is_done_or_far_ahead_adds_nothing(tmp_path: Path) -> None:
    root = tmp_path / "t"

    def ahead(batches: int) -> Callable[[], None]:
        def go() -> None:
            for batch in range(batches):
                put(table(root), numbers(batch), batch)

        return go

    put(table(root), numbers(0), 0, before=ahead(1))
    assert content(root) == Counter(numbers(0))
    shutil.rmtree(root)
    # Lists of long ago are thrown away, this batch's too.
    with pytest.raises(WrongHistoryError, match="older than the table"):
        put(table(root), numbers(0), 0, before=ahead(30))
    assert content(root) == Counter(value for batch in range(30) for value in numbers(batch))
    assert f"{0:09d}.json" not in os.listdir(root / HIDDEN / "Q")
    # What zombies and killed ones have left is removed by the batches behind it.
    (root / HIDDEN / "Q" / f"{3:09d}-orphan").mkdir()
    (root / HIDDEN / "Q" / f"{4:09d}.json.x.new").touch()
    put(table(root), numbers(30), 30)
    assert all(name.endswith(".json") for name in os.listdir(root / HIDDEN / "Q"))


def test_a_batch_of_another_history_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    for batch in range(3):
        put(table(root), numbers(batch), batch, source=f"s{batch}")
    put(table(root), numbers(2), 2, source="s2")
    with pytest.raises(WrongHistoryError, match="from other offsets"):
        put(table(root), numbers(7), 2, source="other")
    (root / HIDDEN / "Q" / f"{1:09d}.json").unlink()
    with pytest.raises(WrongHistoryError, match="older than the table"):
        put(table(root), numbers(1), 1, source="s1")
    assert content(root) == Counter(value for batch in range(3) for value in numbers(batch))


def test_a_list_of_an_earlier_version_is_read() -> None:
    assert BatchList.of('{"a/b.parquet": "date=x/1.parquet"}').moves == {"a/b.parquet": "date=x/1.parquet"}
    assert BatchList.of(BatchList("Q", 3, "s", {"a": "b"}).to_text()) == BatchList("Q", 3, "s", {"a": "b"})


def filled(root: Path) -> Counter[str]:
    for batch in range(8):
        put(table(root), numbers(batch), batch)
    return Counter(value for batch in range(8) for value in numbers(batch))


@pytest.mark.parametrize("step", ["make", "rename", "create", "exchange"])
@pytest.mark.parametrize("files_min", [8, 100])
def test_two_that_join_files_at_once_lose_and_double_nothing(tmp_path: Path, step: str, files_min: int) -> None:
    root = tmp_path / "t"
    expected = filled(root)
    first = table(root)
    plain = getattr(first.files, step)

    def beside(*arguments: Any) -> Any:
        if "compacting" in arguments[-1] or step == "exchange":
            table(root).compact(1 << 20, files_min)
        return plain(*arguments)

    setattr(first.files, step, beside)
    done = first.compact(1 << 20, 8)
    assert (done.before, done.after) == (8, 1)
    assert content(root) == expected
    table(root).compact(1 << 20, 2)
    assert content(root) == expected


@pytest.mark.parametrize("call", range(1, 8))
def test_a_compaction_killed_at_any_step_is_finished_or_undone_by_the_next(tmp_path: Path, call: int) -> None:
    root = tmp_path / "t"
    expected = filled(root)
    first = table(root)
    calls = [0]

    def dying(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                raise Killed
            return plain(*arguments)

        return step

    for name in ("rename", "create", "exchange", "link", "delete", "make"):
        setattr(first.files, name, dying(getattr(first.files, name)))
    try:
        first.compact(1 << 20, 8)
    except Killed:
        # A batch comes in meanwhile.
        put(table(root), numbers(8), 8)
        expected += Counter(numbers(8))
    assert content(root) - expected == Counter()
    table(root).compact(1 << 20, 2)
    assert content(root) == expected


# --- Delta, whose log decides -----------------------------------------------------------------------------------------


def delta_table(root: Path) -> Any:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    made = object.__new__(DeltaTable)
    made._delta, made.files = deltalake, LocalFiles(root)
    return made


def test_files_that_another_commit_overtakes_are_joined_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta_table(tmp_path / "d")
    import deltalake.exceptions
    import pyarrow as pa

    for number in range(3):
        rows = pa.table({"value": [str(number)], "date": ["2026-01-01"]})
        deltalake.write_deltalake(str(tmp_path / "d"), rows, mode="append", partition_by=["date"])
    plain = deltalake.table.TableOptimizer.compact

    def overtaken(self: Any, **options: Any) -> Any:
        raise deltalake.exceptions.CommitFailedError("Concurrent transaction failed.")

    monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", overtaken)
    assert table.compact(1 << 20, 2).before == 0
    monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", plain)
    assert table.compact(1 << 20, 2).before == 3


def test_a_zombie_of_delta_commits_its_own_files_or_none_and_a_batch_of_another_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "d"
    zombie, heir = delta_table(root), delta_table(root)
    import pyarrow as pa
    from deltalake.exceptions import CommitFailedError
    from pyarrow import parquet as pq

    schema = pa.schema([("value", pa.string()), ("date", pa.string())])
    monkeypatch.setattr(land_lake, "_arrow_schema", lambda rows: schema)
    attempts: list[str] = []

    def staged(files: LocalFiles, rows: Any, query: str, batch: int) -> list[TableFile]:
        attempts.append(f"data/headrace/{query}/{batch:09d}-{len(attempts)}")
        directory = files.path / attempts[-1] / "_date=2026-01-01"
        directory.mkdir(parents=True)
        pq.write_table(
            pa.table({"value": rows.values, "date": ["2026-01-01"] * len(rows.values)}, schema), directory / "f.parquet"
        )
        found = files.listed(attempts[-1])
        rows.before()
        return found

    monkeypatch.setattr(land_lake, "_stage", staged)

    def append(
        into: Any, values: list[str], batch: int, source: str, before: Callable[[], None] = lambda: None
    ) -> None:
        rows: Any = Rows(values, before)
        into.append(rows, "Q", batch, source)

    def dies() -> None:
        raise Killed

    def heir_dies() -> None:
        with pytest.raises(Killed):
            append(heir, numbers(0), 0, "s0", dies)

    append(zombie, numbers(0), 0, "s0", heir_dies)
    with pytest.raises((CommitFailedError, FileNotFoundError)):
        append(zombie, numbers(1), 1, "s1", lambda: append(heir, numbers(1), 1, "s1"))
    append(heir, numbers(1), 1, "s1")
    with pytest.raises(WrongHistoryError, match="from other offsets"):
        append(heir, numbers(7), 1, "other")
    with pytest.raises(WrongHistoryError, match="older than the table"):
        append(heir, numbers(0), 0, "s0")
    import deltalake

    found = deltalake.DeltaTable(str(root)).to_pyarrow_table()["value"].to_pylist()
    assert sorted(found) == sorted(numbers(0) + numbers(1))
