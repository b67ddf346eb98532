"""`headrace pipeline` without Spark: what is refused before it starts, help, status, remove."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.cli.pipeline import help_lines, log_path
from headrace.cli.running import diverted
from headrace.spark.pipelines import PIPELINES, PipelineProgress, load
from headrace.spark.pipelines import state as states
from headrace.testing import EmbeddedBroker

from .conftest import Command


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def test_all_that_is_wrong_is_said_before_spark_starts(
    headrace: Command, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = headrace(
        "pipeline", "run", "audit", "--source", f"{topic},nope", "--against", topic[:-1], "--colour", "red", "--shw=3"
    )
    assert (result.code, result.out) == (2, "")
    colour, *others = result.err.splitlines()
    assert colour.startswith("headrace: there is no option --colour; ")
    assert others == [
        "headrace: there is no option --shw; did you mean --show?",
        "headrace: --source: there is no topic nope; make it with: headrace topic create nope",
        f"headrace: --against: there is no topic {topic[:-1]}; did you mean {topic}?",
    ]


def test_an_option_that_does_not_fit_is_a_usage_error(headrace: Command, topic: str) -> None:
    result = headrace("pipeline", "run", "audit", "--source", topic, "--against", topic)
    assert result.code == 2
    assert "name the same topic" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("replay --path . --topic nope", 2, "--topic: there is no topic nope; make it with: headrace topic create"),
        ("replay --path not-here --topic TOPIC", 2, "--path: there is nothing at not-here"),
        ("redrive --topic TOPIC --everything --to nope", 2, "--to: there is no topic nope; make it with"),
        ("redrive --topic TOPIC --reason faild", 2, "--reason is failed, stalled, poison, damaged, rejected, crashed"),
        ("mirror --topics TOPIC --to 127.0.0.1:1", 1, "no broker can be reached at 127.0.0.1:1 (Connection refused)"),
        ("activity --source TOPIC --window fast", 2, "--window is a duration such as 90 seconds, 1 hour 30 minutes"),
        ("activity --source TOPIC --lateness 3", 2, "--lateness is a duration such as 90 seconds, 1 hour 30 minutes,"),
        ("mirror --topics TOPIC --to nowhere", 2, "--to 'nowhere' is not HOST:PORT"),
        ("audit --source TOPIC --against t --against-servers 127.0.0.1:1", 1, "no broker can be reached at 127."),
    ],
)
def test_what_a_pipeline_would_only_meet_later_is_said_before_spark_starts(
    headrace: Command, topic: str, arguments: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = headrace("pipeline", "run", *arguments.replace("TOPIC", topic).split())
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"headrace: {said}"), result.err
    assert "--bootstrap-server" not in result.err, "it is another option that is wrong"


@pytest.mark.parametrize("name", PIPELINES)
def test_help_without_the_extra_is_help_or_names_it(
    headrace: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.startswith("headrace.spark.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numpy", None)
    result = headrace("pipeline", "run", name, "--help")
    assert (result.code, "Usage: " in result.out) == (0, True) or result.err == (
        "headrace: this needs Spark, and numpy is not installed: pip install 'headrace[spark]'\n"
    )


def test_a_missing_extra_is_named(headrace: Command, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = headrace("pipeline", "run", "audit", "--source", topic)
    assert result.code == 1
    assert "pip install 'headrace[spark]'" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", PIPELINES)
def test_help_lists_every_option_and_fits_a_narrow_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.pipeline.terminal_width", lambda: 60)
    lines = help_lines(name, load(name).OPTIONS)
    text = "\n".join(lines)
    for option in load(name).OPTIONS:
        assert option.flag in text
    for flag in ("-b", "--bootstrap-server", "--command-config", "-X", "--json", "--help"):
        assert flag in text
    assert max(map(len, lines[3:])) <= 60


def noted(name: str, kafka: EmbeddedBroker, **changes: object) -> Path:
    place = states.default_root() / name
    state = states.PipelineState(name, "land", servers=kafka.address, groups=[name], topics=["clicks", "views"])
    states.begin(str(place), state, now_ms=1_700_000_000_000)
    state.take(PipelineProgress("land", rows_in=1000, rows_out=900), now_ms=1_700_000_001_000)
    for key, value in changes.items():
        setattr(state, key, value)
    states.write(str(place), state)
    return place


def test_status_and_remove(headrace: Command, kafka: EmbeddedBroker) -> None:
    assert "No pipeline has run" in headrace("pipeline", "status").err
    assert headrace("pipeline", "remove", "land-1", "--yes").err == "headrace: there is no pipeline land-1\n"
    done = noted("land-1", kafka, phase=states.Phase.DONE)
    running = noted("land-2", kafka)
    log_path("land-1").parent.mkdir(parents=True)
    log_path("land-1").write_text("of Spark")
    shown = headrace("pipeline", "status")
    assert shown.lines[0].split() == ["NAME", "TOPICS", "STATE", "IN", "OUT", "LAG", "RUNS", "LAST", "PROGRESS"]
    row = next(line for line in shown.lines if line.startswith("land-1"))
    assert row.split()[:5] == ["land-1", "clicks,views", "done", "1,000", "900"]
    assert headrace("pipeline", "remove", "land-3", "-y").code == 2
    assert headrace("pipeline", "remove", "land-1").code == 2, "nobody was asked"
    assert done.exists()
    refused = headrace("pipeline", "remove", "land-2", "--yes")
    assert refused.code == 1
    assert "is running" in refused.err
    assert running.exists()
    assert headrace("pipeline", "remove", "land-1", "--yes").out == "land-1 removed\n"
    assert not done.exists()
    assert not log_path("land-1").exists()


def test_what_is_written_meanwhile_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess

    log = tmp_path / "logs" / "spark.log"
    with diverted(log) as screen:
        subprocess.run(["sh", "-c", "echo of Java; echo of Spark >&2"], check=True)
        os.write(1, b"of Python\n")
        screen.write("a bar")
    out, err = capfd.readouterr()
    assert (out, err) == ("", "a bar")
    assert sorted(log.read_text().splitlines()) == ["of Java", "of Python", "of Spark"]
