"""A table back into a topic: every row once and in order, when it is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.pipelines.reading import everything
from tests.spark.topics import make_topic

from headrace.spark.pipelines.declaring import PipelineError, PipelineProgress, WrongOptionError, parsed
from headrace.spark.pipelines.pacing import Portion, at_pace, at_rate, unpaced
from headrace.spark.pipelines.replay import OPTIONS, run
from headrace.spark.pipelines.transacted import Transacted
from headrace.testing import BrokerProcess

# --- when rows are due ------------------------------------------------------------------------------------------------


def test_a_rate_makes_portions_of_a_tick() -> None:
    assert list(at_rate(25, 0, 10, 1, 1000)) == [Portion(0, 10, 0), Portion(10, 20, 1), Portion(20, 25, 2)]
    assert list(at_rate(25, 15, 10, 0.5, 1000)) == [Portion(15, 20, 0), Portion(20, 25, 0.5)]
    # Slower than a row a tick, and more than a transaction takes.
    assert [one.due_s for one in at_rate(3, 0, 0.5, 1, 1000)] == [0, 2, 4]
    assert list(at_rate(10, 0, 100, 1, 5)) == [Portion(0, 5, 0), Portion(5, 10, 0.05)]
    assert list(unpaced(5, 1, 3)) == [Portion(1, 4, 0), Portion(4, 5, 0)]


def test_the_rows_own_pace_has_their_pauses_unless_they_are_cut() -> None:
    windows = [(100, 3), (101, 2), (500, 4)]
    assert list(at_pace(windows, 0, 1, 100, None)) == [Portion(0, 3, 0), Portion(3, 5, 1), Portion(5, 9, 400)]
    assert [one.due_s for one in at_pace(windows, 0, 1, 100, 7)] == [0, 1, 8]
    # Started again within a tick: what is left of it comes at once.
    assert list(at_pace(windows, 4, 1, 3, 7)) == [Portion(4, 5, 0), Portion(5, 8, 7), Portion(8, 9, 7)]


def test_options_that_contradict_each_other_are_refused() -> None:
    base = {"path": "x", "topic": "t"}
    for wrong, text in (
        ({"rate": 5, "speed": 1}, "exclude"),
        ({"rate": 0}, "--rate is more than 0"),
        ({"max_gap": 3}, "--max-gap is for --speed"),
    ):
        with pytest.raises(WrongOptionError, match=text):
            run(parsed(OPTIONS, {**base, **wrong}))


# --- with a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> str:
    """1,000 rows in several files, out of order: ten a second, with an hour's pause in the middle."""
    path = str(tmp_path / "table")
    rows = spark.range(1000).selectExpr(
        "cast(id % 7 as string) key",
        "cast(id as string) value",
        "cast(id % 2 as int) partition",
        "id offset",
        "timestamp_millis(1767225600000 + id * 100 + if(id < 500, 0, 3600000)) timestamp",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) headers",
    )
    rows.repartition(4).write.parquet(path)
    return path


@pytest.mark.slow
def test_a_replay_that_failed_goes_on_behind_the_last_row_written(
    spark: Any, kafka: BrokerProcess, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = kafka.address
    make_topic(servers, "again", partitions=2, **{"retention.ms": "-1"})
    given = {"path": table, "topic": "again", "servers": servers, "keep_timestamps": True, "keep_partitions": True}
    options = parsed(OPTIONS, {**given, "rate": 4000, "tick": 0.05})
    plain, calls = Transacted.write, [0]

    def failing(*args: Any, **keywords: Any) -> int:
        calls[0] += 1
        if calls[0] == 3:
            raise PipelineError("injected")
        return plain(*args, **keywords)

    monkeypatch.setattr(Transacted, "write", failing)
    with pytest.raises(PipelineError, match="injected"):
        run(options, spark)
    seen: list[PipelineProgress] = []
    done = run(options, spark, watch=seen.append).document
    assert (done["before"], done["written"], done["rows"]) == (400, 600, 1000)
    assert seen[-1].lag == 0
    records = everything(servers, "again")
    for index in (0, 1):
        here = [one for one in records if one.partition == index]
        assert [one.value for one in here] == [b"%d" % number for number in range(index, 1000, 2)]
    first = records[0]
    assert (first.key, first.timestamp, list(first.headers)) == (b"0", 1767225600000, [("n", b"0")])
    assert run(options, spark).document["written"] == 0


@pytest.mark.slow
def test_rows_of_any_table_at_their_own_pace(spark: Any, kafka: BrokerProcess, table: str, tmp_path: Path) -> None:
    servers = kafka.address
    make_topic(servers, "paced", partitions=1)
    plain = str(tmp_path / "plain.json")
    spark.read.parquet(table).selectExpr("value as number", "timestamp as at").write.json(plain)
    typed = str(tmp_path / "typed")
    spark.read.schema("number string, at timestamp").json(plain).write.orc(typed)
    base = {"path": typed, "format": "orc", "topic": "paced", "servers": servers}
    with pytest.raises(WrongOptionError, match="--time timestamp: the table has number, at"):
        run(parsed(OPTIONS, {**base, "speed": 100}), spark)
    # A hundred seconds and a pause of an hour, in a second and one of a tick.
    options = {
        **base,
        "speed": 100,
        "max_gap": 0.2,
        "tick": 0.2,
        "time": "at",
        "key": "number",
        "where": "number < 900",
    }
    done = run(parsed(OPTIONS, options), spark).document
    assert done["written"] == 900
    records = everything(servers, "paced")
    assert [one.key for one in records] == [b"%d" % number for number in range(900)]
    assert records[0].value == b'{"number":"0","at":"2026-01-01T00:00:00.000Z"}'


@pytest.mark.slow
def test_a_delta_table_is_replayed_without_jars(spark: Any, kafka: BrokerProcess, table: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="pip install 'headrace[lake]'")
    make_topic(kafka.address, "lake", partitions=1)
    path = str(tmp_path / "delta")
    deltalake.write_deltalake(path, spark.read.parquet(table).select("key", "value", "timestamp").toArrow())
    options = {"path": path, "format": "delta", "topic": "lake", "servers": kafka.address}
    assert run(parsed(OPTIONS, options), spark).document["written"] == 1000
    assert [one.value for one in everything(kafka.address, "lake")] == [b"%d" % number for number in range(1000)]
