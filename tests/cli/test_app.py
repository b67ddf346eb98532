"""The tree of commands: help, wrong usage, errors in one line, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from headrace._version import __version__
from headrace.cli.app import COMMANDS
from headrace.testing import EmbeddedBroker

from .conftest import Command


def test_help_lists_every_command_and_the_exit_codes(command: Command) -> None:
    result = command("--help")
    assert result.code == 0
    for name in COMMANDS:
        assert f"  {name} " in result.out
    assert "130 Ctrl-C" in " ".join(result.out.split())


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "start"])
def test_every_command_has_help(command: Command, name: str) -> None:
    result = command(name, "--help")
    assert result.code == 0
    assert f"headrace {name}" in result.out


def test_help_loads_neither_clients_nor_brokers_nor_rich() -> None:
    program = (
        "import sys\nfrom headrace.cli.app import run\nrun(['--help'])\n"
        "print([m for m in ('rich', 'headrace.client', 'headrace.broker', 'numba', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version(command: Command) -> None:
    assert command("--version").out == f"headrace {__version__}\n"


def test_an_unknown_command_is_a_usage_error_with_the_nearest_name(command: Command) -> None:
    result = command("topci")
    assert result.code == 2
    assert "topic" in result.err


def test_nobody_listening_is_said_at_once_with_what_to_do(command: Command) -> None:
    began = time.monotonic()
    result = command("topic", "list", "-b", "127.0.0.1:1")
    assert result.code == 1
    assert result.err.startswith("headrace: no broker can be reached at 127.0.0.1:1 (Connection refused)")
    assert "headrace start" in result.err
    assert len(result.err.splitlines()) == 1
    assert time.monotonic() - began < 20


def test_an_address_that_is_none_is_a_usage_error(command: Command) -> None:
    result = command("topic", "list", "-b", "nowhere")
    assert (result.code, result.err) == (2, "headrace: --bootstrap-server 'nowhere' is not HOST:PORT\n")


def test_a_broker_that_does_not_answer_is_a_timeout(command: Command) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        result = command("topic", "list", "-b", f"127.0.0.1:{port}", "--timeout", "0.4")
    assert result.code == 3
    assert len(result.err.splitlines()) == 1


def test_wrong_client_properties_are_a_usage_error(headrace: Command, tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "client.properties")
    with open(path, "w") as file:
        file.write("request.timeout.ms=soon\n")
    result = headrace("topic", "list", "--client-config", path)
    assert result.code == 2
    assert "request.timeout.ms" in result.err


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_130(headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="one\n")
    # A process of its own: a signal that comes a moment too late would end the tests.
    following = [sys.executable, "-m", "headrace.cli", "consume", topic, "--follow"]
    with subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(kafka: EmbeddedBroker, headrace: Command, topic: str) -> None:
    headrace("produce", topic, stdin="".join(f"{'x' * 100} {n}\n" for n in range(20_000)))
    script = f"{sys.executable} -m headrace.cli consume {topic} -b {kafka.address} | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("xxx")
    assert done.stderr == ""
    assert done.returncode == 0
