"""A topic's name that was mistyped is said, with the nearest one, where brokers would make a topic of it in silence."""

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
