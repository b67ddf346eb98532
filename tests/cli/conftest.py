"""Fixtures of the command line's tests: a broker for a module, and a way to run a command in this process."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.keeping import KEEP_RECORDS

from headrace.cli.app import run
from headrace.testing import EmbeddedBroker, broker


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


class _Stdin(io.TextIOWrapper):
    def isatty(self) -> bool:
        return False


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """command("topic", "list", stdin="…") → Result."""

    def call(*arguments: str, stdin: str | bytes = "") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", _Stdin(io.BytesIO(data)))
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Result(int(code), out, err)

    return call


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides=KEEP_RECORDS) as embedded:
        yield embedded


@pytest.fixture
def headrace(kafka: EmbeddedBroker, command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command that talks to the module's broker."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", kafka.address)
    return command


@pytest.fixture
def topic(headrace: Command) -> str:
    """A fresh topic of three partitions."""
    name = f"cli-{uuid.uuid4().hex[:10]}"
    assert headrace("topic", "create", name, "-p", "3").code == 0
    return name
