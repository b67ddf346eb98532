"""What was mistyped is said by commands that go on: a topic with the nearest name, an address where nobody answers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .hands import Hands

pytestmark = pytest.mark.slow


def test_a_handler_on_a_topic_that_there_is_not(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "app.py").write_text("def bill(record):\n    pass\n")
    with hands.broker() as address:
        assert hands.type("topic", "create", "orders", "-b", address).code == 0
        command = [sys.executable, "-m", "headrace.cli", "parallel", "app:bill", "oders", "-g", "g", "-b", address]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=hands.environment
        ) as process:
            assert process.stderr is not None
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert said == "there is no topic oders yet; did you mean orders?\n"


def test_a_console_of_an_address_where_nobody_is(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    command = [sys.executable, "-m", "headrace.cli", "console", "-b", "127.0.0.1:1", "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=Hands(tmp_path).environment,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "127.0.0.1:1 (read-only); no broker can be reached now: 127.0.0.1:1 (Connection refused)" in said
