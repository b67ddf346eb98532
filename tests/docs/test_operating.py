"""The examples of `docs/operating.md`: settings that brokers know, and a unit whose command line there is."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from headrace.cli.start import parser
from headrace.cluster.broker_config import BrokerConfig
from headrace.config import parse_properties

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text("utf-8")


def _block(first_line: str) -> str:
    """The indented lines that begin with this one."""
    lines = PAGE[PAGE.index(f"    {first_line}") :].splitlines()
    end = next(at for at, line in enumerate(lines) if line and not line.startswith("    "))
    return "\n".join(line.removeprefix("    ") for line in lines[:end])


def test_the_settings_of_a_broker_are_known() -> None:
    config = BrokerConfig.parse(parse_properties(_block("node.id=1")))
    assert config.unknown() == {}
    assert config.get_int("min.insync.replicas") == 2


def test_the_systemd_unit_runs_a_command_that_there_is() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(_block("[Unit]"))
    program, command, *options = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("headrace", "start")
    assert f"`{parser().parse_args(options).config}`" in PAGE
    assert unit["Service"]["KillSignal"] == "SIGTERM"
