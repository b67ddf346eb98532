"""What a terminal shows: narrow tables, completion, pipes that are closed, settings that no client has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.app import COMMANDS, build
from headrace.cli.output import Column, table
from headrace.testing import EmbeddedBroker

from .conftest import Command

COLUMNS = [Column("name", "NAME"), Column("many", "MANY"), Column("place", "PLACE")]
ROWS = [{"name": "a" * 20, "many": 12, "place": "b" * 20}, {"name": "c", "many": None, "place": "d"}]


def test_a_table_that_is_too_wide_stands_closer_and_then_in_blocks() -> None:
    assert [len(line) for line in table(ROWS, COLUMNS, 60)] == [33, 48, 29]
    assert max(map(len, table(ROWS, COLUMNS, 47))) == 46, "with a space less between columns"
    assert table(ROWS, COLUMNS, 40) == [
        "NAME   " + "a" * 20,
        "MANY   12",
        "PLACE  " + "b" * 20,
        "",
        "NAME   c",
        "MANY   -",
        "PLACE  d",
    ]


def completed(*words: str, **environment: str) -> list[str]:
    """What the shell would offer after these words."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli"],
        env={
            **os.environ,
            **environment,
            "_HEADRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["headrace", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_topics_groups_pipelines_and_words_are_completed(kafka: EmbeddedBroker, headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="one\n")
    headrace("consume", topic, "--group", f"{topic}-readers")
    assert completed("topic", "describe", topic[:-2], HEADRACE_BOOTSTRAP=kafka.address) == [topic]
    assert completed("consume", "-b", kafka.address, topic[:-2], HEADRACE_BOOTSTRAP="127.0.0.1:1") == [topic]
    assert completed("group", "describe", topic, HEADRACE_BOOTSTRAP=kafka.address) == [f"{topic}-readers"]
    assert completed("pipeline", "run", "a") == ["activity", "audit"]
    assert completed("pipeline", "run", "land", "--comp") == ["--compact", "--compact-every"]
    assert completed("pipeline", "run", "land", "--text", "--format", "d") == ["delta"]
    assert completed("pipeline", "run", "land", "--topics", topic[:-2], HEADRACE_BOOTSTRAP=kafka.address) == [topic]
    several = ("pipeline", "run", "land", "-b", kafka.address, "--topics", f"other,{topic[:-2]}")
    assert completed(*several, HEADRACE_BOOTSTRAP="127.0.0.1:1") == [f"other,{topic}"]
    assert completed("pipeline", "run", "nonsense", "--") == []
    assert completed("produce", "x", "--compression", "l") == ["lz4"]
    assert completed("consume", "x", "--isolation-level", "read_c") == ["read_committed"]
    assert completed("topic", "describe", "", HEADRACE_BOOTSTRAP="127.0.0.1:1") == [], (
        "nobody is there, nothing is said"
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["config get broker 1 --all", "topic list"])
def test_a_reader_that_goes_away_is_no_error(kafka: EmbeddedBroker, arguments: str) -> None:
    script = f"set -o pipefail; {sys.executable} -m headrace.cli {arguments} -b {kafka.address} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_setting_that_no_client_has_is_refused_with_the_nearest(headrace: Command) -> None:
    result = headrace("topic", "list", "-X", "sasl.pasword=secret", "-X", "queued.min.messages=3")
    assert (result.code, result.out) == (2, "")
    assert "did you mean sasl.password?" in result.err
    assert "fetch.min.bytes" in result.err
    assert "secret" not in result.err
    wrong = headrace("topic", "list", "-X", "sasl.password:secret")
    assert wrong.code == 2
    assert "secret" not in wrong.err


def test_settings_come_from_options_then_the_environment_then_the_file(
    headrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OF-THE-FILE\nacks=all\n")
    assert "OF-THE-FILE" in headrace("topic", "list", "--command-config", str(file)).err
    monkeypatch.setenv("HEADRACE_SASL_MECHANISM", "OF-THE-ENVIRONMENT")
    assert "OF-THE-ENVIRONMENT" in headrace("topic", "list", "--command-config", str(file)).err
    result = headrace("topic", "list", "--client-config", str(file), "-X", "sasl.mechanisms=OF-THE-OPTION")
    assert result.code == 2


def test_consume_takes_settings_of_the_consumer(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="one\n")
    assert headrace("consume", topic, "-X", "fetch.max.bytes=1000", "-X", "isolation.level=read_committed").lines == [
        "one"
    ]
    assert headrace("consume", topic, "-X", "isolation.level=sometimes").code == 2


def test_a_file_names_the_brokers_unless_an_option_does(
    kafka: EmbeddedBroker, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={kafka.address}\n")
    assert command("cluster", "--command-config", str(file)).code == 0
    assert "127.0.0.1:1 " in command("cluster", "--command-config", str(file), "-b", "127.0.0.1:1").err


def test_a_reason_that_there_is_none_of_is_refused(headrace: Command, topic: str) -> None:
    result = headrace("deadletters", "list", topic, "--reason", "flaed")
    assert result.code == 2
    assert "stalled" in result.err


def test_prose_in_the_last_column_is_broken_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("name", "NAME"), Column("does", "WHAT IT DOES", wraps=True)]
    rows = [
        {"name": "land", "does": "Topics to a table, by date, small files joined."},
        {"name": "x", "does": "Short."},
    ]
    assert table(rows, columns, 40) == [
        "NAME  WHAT IT DOES",
        "land  Topics to a table, by date, small",
        "      files joined.",
        "x     Short.",
    ]
    assert table(rows, columns, 30)[0] == "NAME          land", "too narrow for prose beside a name"
    monkeypatch.setattr("headrace.cli.output.has_colours", lambda stream=None: True)
    assert table(rows, columns, 40)[0] == "\x1b[1mNAME\x1b[0m  \x1b[1mWHAT IT DOES\x1b[0m", "as wide as it has to be"


def test_the_list_of_commands_is_whole_on_eighty_columns(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = command("--help")
    assert all(len(line) <= 80 for line in result.lines)
    listed = {line.split()[0]: line for line in result.lines if line.startswith("  ") and line.split()[0] in COMMANDS}
    assert {name: line for name, line in listed.items() if line.endswith("...")} == {}
    assert listed.keys() == COMMANDS.keys()


def test_whatever_takes_a_topic_or_a_group_completes_it() -> None:
    import typer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_HEADRACE_COMPLETE", "all commands")
        root = typer.main.get_command(build([]))
    new = {("topic", "create", "topics")}
    missing = [
        path
        for path, parameter in every_parameter(root)
        if str(parameter.metavar).strip("[]").partition("[")[0] in ("TOPIC", "GROUP")
        and not getattr(parameter, "_custom_shell_complete", None)
    ]
    assert set(missing) == new


def every_parameter(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, under in getattr(command, "commands", {}).items():
        yield from every_parameter(under, (*path, name))
    for parameter in command.params:
        yield (*path, parameter.name), parameter


@pytest.mark.slow
def test_the_name_of_what_has_settings_is_completed_by_its_kind(kafka: EmbeddedBroker, topic: str) -> None:
    assert completed("config", "get", "topic", topic[:-2], HEADRACE_BOOTSTRAP=kafka.address) == [topic]
    assert completed("config", "get", "broker", "", HEADRACE_BOOTSTRAP=kafka.address) == ["1", "default"]


def test_nothing_is_printed_of_a_topic_that_there_is_none_of(headrace: Command) -> None:
    result = headrace("topic", "describe", "nothere")
    assert (result.code, result.out) == (1, "")
