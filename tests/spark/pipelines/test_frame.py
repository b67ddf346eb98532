"""The frame of pipelines without Spark: options, state beside the checkpoint, the gate, reports."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.pipeline import arguments
from headrace.spark.pipelines import PIPELINES, Option, PipelineProgress, WrongOptionError, activity, load, parsed
from headrace.spark.pipelines import state as states
from headrace.spark.pipelines.auditing import Sums, document_of, headline, report_lines
from headrace.spark.pipelines.declaring import PipelineError, PipelineStoppedError, run_name
from headrace.spark.pipelines.moments import check_duration
from headrace.spark.pipelines.running import Gate, PipelineRun, cause_of

OPTIONS = (
    Option("source", list, required=True),
    Option("max_rows", int, 5),
    Option("continuous", bool, False),
    Option("mode", str, "fast", choices=("fast", "slow")),
)


@pytest.mark.parametrize("text", ["1 minute", "90 seconds", "1 hour 30 minutes", "interval 2 Days", "1.5 seconds"])
def test_durations_are_sparks(text: str) -> None:
    check_duration(text, "--window")


def test_an_error_of_sparks_own_is_the_pipelines_with_the_line_that_counts(tmp_path: Path) -> None:
    errors = pytest.importorskip("pyspark.errors")
    options = parsed(activity.OPTIONS, {"source": "clicks", "checkpoint": str(tmp_path)})
    said = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'wher'.\n\n== SQL ==\nwher\n^^^"
    with (
        pytest.raises(PipelineError, match=r"^\[PARSE_SYNTAX_ERROR\] Syntax error at or near 'wher'\.$"),
        PipelineRun("activity", activity.OPTIONS, options),
    ):
        raise errors.PySparkException(said)
    noted = states.read(tmp_path)
    assert noted is not None
    assert (noted.phase, noted.error) == (states.Phase.FAILED, said.splitlines()[1])


def test_options_are_typed_and_all_that_is_wrong_is_said() -> None:
    assert parsed(OPTIONS, {"source": "a, b", "max-rows": "7"}) == {
        "source": ["a", "b"],
        "max_rows": 7,
        "continuous": False,
        "mode": "fast",
    }
    with pytest.raises(WrongOptionError, match="--source is needed"):
        parsed(OPTIONS, {})
    with pytest.raises(WrongOptionError) as wrong:
        parsed(OPTIONS, {"surce": "a", "max_rows": "many", "mode": "medium"})
    text = str(wrong.value)
    assert "there is no option --surce; did you mean --source?" in text
    assert "--max-rows is a whole number, not 'many'" in text
    assert "--mode is fast, slow, not 'medium'" in text


def test_the_command_line_takes_flags_values_and_names_all_that_is_none() -> None:
    given, problems = arguments(OPTIONS, ["--source", "a", "--source=b", "--continuous", "--json", "--max-rows", "3"])
    assert given == {"source": ["a", "b"], "continuous": True, "json": True, "max_rows": "3"}
    assert arguments(OPTIONS, ["--continuous", "--once"])[0] == {"continuous": False}
    assert arguments(OPTIONS, ["-b", "h:1", "-Xa=b=c", "-X", "d=e", "--command-config=f"])[0] == {
        "servers": "h:1",
        "property": ["a=b=c", "d=e"],
        "client_config": "f",
    }
    assert not problems
    _, problems = arguments(OPTIONS, ["--maxrows", "3", "loose", "--nonsense=1", "--source"])
    assert len(problems) == 4
    for problem, said in zip(problems, ("did you mean --max-rows", "does not belong", "--nonsense", "needs a value")):
        assert said in problem


def test_pipelines_are_loaded_without_spark() -> None:
    there = [name for name in PIPELINES if importlib.util.find_spec(f"headrace.spark.pipelines.{name}")]
    code = f"""
import sys
from headrace.spark.pipelines import load
for name in {there!r}:
    assert load(name).OPTIONS, name
assert "pyspark" not in sys.modules, "pyspark was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(WrongOptionError, match="did you mean audit"):
        load("audt")


def test_a_run_has_the_same_name_when_started_again() -> None:
    values = parsed(OPTIONS, {"source": "a"})
    assert run_name("land", OPTIONS, values) == run_name("land", OPTIONS, values | {"max_rows": 9})
    assert run_name("land", OPTIONS, values) != run_name("land", OPTIONS, values | {"source": ["b"]})


def test_state_tells_a_killed_run_from_a_running_one(tmp_path: Path) -> None:
    state = states.begin(str(tmp_path), states.PipelineState("land-1", "land"), now_ms=5)
    state.take(PipelineProgress("land", rows_in=10, lag=3), now_ms=6)
    states.write(str(tmp_path), state)
    found = states.read(tmp_path)
    assert found is not None
    assert (found.phase, found.rows_in, found.lag, found.runs) == (states.Phase.RUNNING, 10, 3, 1)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    states.write(str(tmp_path), replace(state, pid=gone.pid))
    assert [one.phase for _, one in states.find([str(tmp_path)])] == [states.Phase.LOST]
    again = states.begin(str(tmp_path), states.PipelineState("land-1", "land"), now_ms=7)
    assert (again.runs, again.rows_in) == (2, 10), "what earlier runs did counts too"
    again.take(PipelineProgress("land", rows_in=5, rows_out=4), now_ms=8)
    assert (again.rows_in, again.rows_out) == (15, 4)


def test_the_gate_lets_a_batch_end_and_none_begin() -> None:
    gate = Gate()
    inside, leave = threading.Event(), threading.Event()

    def write(rows: Any, batch_id: int) -> int:
        inside.set()
        assert leave.wait(60)
        return 4

    batch = threading.Thread(target=gate.wrap(write), args=(None, 0))
    batch.start()
    assert inside.wait(60)
    closing = threading.Thread(target=gate.close, args=(threading.Event(),))
    closing.start()
    leave.set()
    closing.join(60)
    batch.join(60)
    assert gate.rows_out == 4
    with pytest.raises(PipelineStoppedError):
        gate.wrap(write)(None, 1)  # type: ignore[arg-type]  # no rows are looked at


def test_the_cause_is_found_in_pages_of_stacks() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception
Traceback (most recent call last):
  File "x.py", line 1, in write
headrace.spark.columns.WrongColumnsError: the column value is missing

\tat org.apache.spark.Something(Something.scala:1)"""
    assert cause_of(text) == "the column value is missing (WrongColumnsError)"


def test_the_cause_of_an_error_of_javas_is_javas() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception
Traceback (most recent call last):
  File "x.py", line 1, in write
py4j.protocol.Py4JJavaError: An error occurred while calling o171.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Something(Something.scala:1)
Caused by: java.io.IOException: Mkdirs failed to create file:/proc/x
\tat java.base/java.lang.Thread.run(Thread.java:840)"""
    assert cause_of(text) == "Mkdirs failed to create file:/proc/x (IOException)"


def test_all_that_is_wrong_with_options_is_said_at_once() -> None:
    with pytest.raises(WrongOptionError) as raised:
        parsed(
            activity.OPTIONS, {"source": "t", "window": "5mins", "schema": "id STRNG, b ARRAY<INT>", "lateness": "x"}
        )
    assert [line.split(":")[0].split(" is")[0] for line in str(raised.value).splitlines()] == [
        "--window",
        "--schema",
        "--lateness",
    ]
    assert "STRNG is no type of Spark's, in 'id STRNG'; did you mean STRING?" in str(raised.value)


def test_a_master_that_does_not_answer_is_refused_before_spark_asks_for_a_minute() -> None:
    with pytest.raises(
        WrongOptionError, match=r"--master: no master of Spark's answers at 127.0.0.1:1 \(Connection ref"
    ):
        parsed(activity.OPTIONS, {"source": "t", "master": "spark://127.0.0.1:1"})


def test_an_audit_reads_well() -> None:
    options = {"source": ["a"], "against": ["b"], "match": "json:id"}
    fine = document_of(options, Sums(rows_in=1_000_000, rows_out=1_000_000), {})
    assert headline(fine) == "in 1,000,000 · out 1,000,000 · lost 0 · duplicated 0"
    assert report_lines(fine)[0] == "Audit of a → b: nothing wrong"
    sums = Sums(rows_in=5, rows_out=5, lost=1, duplicated=1, examples={"lost": ["a-0@3"]})
    wrong = document_of(options, sums, {})
    assert wrong["findings"] == [
        "1 record of the input not in the output",
        "1 record in the output more often than in the input",
    ]
    assert "      such as a-0@3" in report_lines(wrong)
