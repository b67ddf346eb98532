"""Topics in a table: every record once, whatever fails on the way; small files joined in one step."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests.spark.topics import make_topic

from headrace.client.producer.blocking import Producer
from headrace.spark.pipelines import land_lake
from headrace.spark.pipelines.declaring import PipelineError, WrongOptionError, parsed
from headrace.spark.pipelines.files import Files
from headrace.spark.pipelines.land import OPTIONS, check_packages, open_table, run
from headrace.testing import BrokerProcess

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000
COUNT = 120


@pytest.fixture(scope="module")
def clicks(kafka: BrokerProcess) -> str:
    """Records of two days in three partitions."""
    make_topic(kafka.address, "clicks", partitions=3, **{"retention.ms": "-1"})
    with Producer({"bootstrap.servers": kafka.address}) as producer:
        for number in range(COUNT):
            producer.send(
                "clicks",
                b"%d" % number,
                b"key",
                partition=number % 3,
                timestamp=START_MS + number % 2 * DAY_MS,
                headers=[("n", b"%d" % number)] if number % 2 else [],
            )
    return "clicks"


def _options(kafka: BrokerProcess, path: Path, **options: Any) -> dict[str, Any]:
    base = {"path": str(path), "topics": "clicks", "servers": kafka.address, "max_per_batch": 40, "text": True}
    return parsed(OPTIONS, {**base, "compact_every": 0, **options})


def _values(options: dict[str, Any]) -> Counter[tuple[str, str]]:
    """What readers without Spark see: (date, value), counted."""
    table: Any
    if options["format"] == "delta":
        import deltalake

        table = deltalake.DeltaTable(options["path"]).to_pyarrow_table()
    elif options["format"] == "iceberg":
        from pyiceberg.catalog import load_catalog

        where = f"sqlite:///{options['path']}/catalog.db"
        catalog = load_catalog("headrace", type="sql", uri=where, warehouse=f"file://{options['path']}")
        table = catalog.load_table(options["table"]).scan().to_arrow()
    elif not list(Path(options["path"]).glob("date=*/*.parquet")):
        return Counter()
    else:
        table = ds.dataset(options["path"], partitioning="hive", format="parquet").to_table()
    return Counter((str(row["date"]), row["value"]) for row in table.select(["date", "value"]).to_pylist())


def _expected() -> Counter[tuple[str, str]]:
    first = datetime.date(2026, 1, 1)
    return Counter((str(first + datetime.timedelta(days=n % 2)), str(n)) for n in range(COUNT))


def _failing(plain: Callable[..., Any], at: list[int], *, after: bool) -> Callable[..., Any]:
    """The function, failing at its n-th call, before or after it is done."""

    def call(*args: Any, **keywords: Any) -> Any:
        at[0] -= 1
        if at[0] == 0 and not after:
            raise PipelineError("injected")
        result = plain(*args, **keywords)
        if at[0] == 0:
            raise PipelineError("injected")
        return result

    return call


def _land_with_failures(
    spark: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: list[int]
) -> None:
    """Run again and again, each time failing at another call; then to the end."""
    plain = getattr(owner, name)
    for number, call in enumerate(calls):
        monkeypatch.setattr(owner, name, _failing(plain, [call], after=bool(number % 2)))
        with pytest.raises(PipelineError, match="injected"):
            run(options, spark)
        assert not _values(options) - _expected()
    monkeypatch.setattr(owner, name, plain)
    run(options, spark)


@pytest.mark.slow
def test_parquet_has_every_record_once_though_every_kind_of_rename_failed(
    spark: Any, kafka: BrokerProcess, clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(kafka, tmp_path / "table")
    # Calls 1: the list; 2…: its files to their places. Before and after they are done, in turn.
    _land_with_failures(spark, options, monkeypatch, Files, "rename", [1, 1, 3, 2])
    assert _values(options) == _expected()
    # Spark's own readers see the same, and nothing of what is hidden.
    assert spark.read.parquet(options["path"]).count() == COUNT
    assert run(options, spark).document["landed"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_driver_leaves_no_half_and_no_double_records(
    spark: Any, kafka: BrokerProcess, clicks: str, tmp_path: Path
) -> None:
    options = _options(kafka, tmp_path / "table", checkpoint=str(tmp_path / "checkpoint"))
    program = (
        "import os, signal, sys\n"
        "from headrace.spark.pipelines import land\n"
        "from headrace.spark.pipelines.declaring import parsed\n"
        "from headrace.spark.pipelines.files import Files\n"
        "plain, calls = Files.rename, [0]\n"
        "def rename(*args):\n"
        "    plain(*args)\n"
        "    calls[0] += 1\n"
        "    if calls[0] == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Files.rename = rename\n"
        "land.run(parsed(land.OPTIONS, eval(sys.argv[1])))\n"
    )
    given = {name: value for name, value in options.items() if value is not None} | {"master": "local[2,4]"}
    ended = subprocess.run(
        [sys.executable, "-c", program, repr(given)], env={**os.environ}, capture_output=True, timeout=300, check=False
    )
    assert ended.returncode == -9, ended.stderr.decode()
    seen = _values(options)
    assert seen
    assert not seen - _expected()
    run(options, spark)
    assert _values(options) == _expected()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_table_formats_have_every_record_once_and_are_compacted(
    spark: Any, kafka: BrokerProcess, clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    pytest.importorskip("deltalake" if format == "delta" else "pyiceberg", reason="pip install 'headrace[lake]'")
    options = _options(kafka, tmp_path / "table", format=format)
    owner = land_lake.DeltaTable if format == "delta" else land_lake.IcebergTable
    plain = owner.append
    # After the commit the driver forgets that it was made; before it, files are there and no commit.
    for patch, name, after in ((land_lake, "_stage", True), (owner, "append", True)):
        whole = getattr(patch, name)
        monkeypatch.setattr(patch, name, _failing(whole, [1], after=after))
        with pytest.raises(PipelineError, match="injected"):
            run(options, spark)
        monkeypatch.setattr(patch, name, whole)
    assert owner.append is plain
    run(options, spark)
    assert _values(options) == _expected()

    done = run({**options, "compact": True, "small_files": 3}, spark).document
    assert done["files_joined"] > done["files_made"] == 2
    assert _values(options) == _expected()
    assert run(options, spark).document["landed"] == 0


@pytest.mark.slow
def test_joining_parquet_files_swaps_directories_and_survives_a_crash(
    spark: Any, kafka: BrokerProcess, clicks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(kafka, tmp_path / "table", max_per_batch=30)
    run(options, spark)
    table: Any = open_table(spark, options)
    before = {one.path for one in table.files.listed("") if one.path.startswith("date=")}
    joined = {**options, "compact": True, "small_files": 2}

    plain = Files.exchange
    for after in (False, True):
        monkeypatch.setattr(Files, "exchange", _failing(plain, [1], after=after))
        with pytest.raises(PipelineError, match="injected"):
            run(joined, spark)
        assert _values(options) == _expected()
    monkeypatch.setattr(Files, "exchange", plain)
    # A batch put a file in between the look and the swap, just before the crash: it comes back.
    (hidden,) = (tmp_path / "table/_headrace/compacting").iterdir()
    old = next((hidden / "new").glob("[!.]*.parquet"))
    (hidden / "new" / "late.parquet").write_bytes(old.read_bytes())
    late = ds.dataset(str(old), format="parquet").to_table()["value"].to_pylist()
    done = run(joined, spark).document
    assert done["files_made"] >= 1
    after_all = [one.path for one in table.files.listed("") if one.path.startswith("date=")]
    assert len(after_all) < len(before)
    assert not list((tmp_path / "table/_headrace/compacting").iterdir())
    extra = _values(options) - _expected()
    assert sorted(value for _, value in extra) == sorted(late)


def test_a_missing_package_and_bad_options_are_said_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(WrongOptionError, match=r"pip install 'headrace\[lake\]'"):
        check_packages("delta")
    with pytest.raises(WrongOptionError, match="say what to land"):
        run(parsed(OPTIONS, {"path": "x"}))
    with pytest.raises(WrongOptionError, match="--small-mb"):
        run(parsed(OPTIONS, {"path": "x", "topics": "a", "small_mb": 0}))
    with pytest.raises(WrongOptionError, match="--format is parquet, delta, iceberg"):
        parsed(OPTIONS, {"path": "x", "topics": "a", "format": "orc"})
