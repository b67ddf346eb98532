"""The README, pasted: every line of a section, in order, into a shell and a Python, next to a fresh broker."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
ADDRESS = "127.0.0.1:9092"
_BLOCK = re.compile(r"^```python\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.S | re.M)
_NOT_PASTED = ("make ", "pip install", "headrace start")
"""What needs the network, or is done by the fixture."""
_UNTIL_CTRL_C = re.compile(r"^run\(", re.M)

pytestmark = pytest.mark.slow


def sections(page: str = README) -> dict[str, str]:
    """A page by its headings; what is before the first of them is under the page's own title."""
    parts = re.split(r"^## (.*)$", page, flags=re.M)
    return {parts[0].split("\n")[0]: parts[0], **dict(zip(parts[1::2], parts[2::2]))}


@dataclass
class Desk:
    """A terminal and a Python beside a broker."""

    address: str
    environment: dict[str, str]
    directory: Path

    def paste(self, section: str, page: str = README) -> list[str]:
        """Everything in a section; what each piece printed."""
        # What an earlier run left under /tmp belongs to another broker.
        found = _BLOCK.findall(sections(page)[section].replace("/tmp/", f"{self.directory}/"))
        assert found, f"{section} has nothing to paste"
        return [self.python(code) if code else self.shell(lines) for code, lines in found]

    def shell(self, lines: str) -> str:
        kept = [line[4:] for line in lines.splitlines() if not line.strip().startswith(_NOT_PASTED)]
        return self._ended(["bash", "-euo", "pipefail", "-c", "\n".join(kept)]) if kept else ""

    def python(self, code: str) -> str:
        code = code.replace(ADDRESS, self.address)
        if _UNTIL_CTRL_C.search(code):
            return self._interrupted([sys.executable, "-u", "-c", code])
        return self._ended([sys.executable, "-W", "error", "-c", code])

    def _ended(self, command: list[str]) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=self.environment, cwd=self.directory
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _interrupted(self, command: list[str]) -> str:
        """What never ends by itself: Ctrl-C after it has printed something."""
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.directory,
        ) as process:
            # Nothing is printed where nothing comes: then it is ended all the same, and what is missing is seen.
            watchdog = threading.Timer(60, process.send_signal, [signal.SIGINT])
            watchdog.start()
            assert process.stdout is not None
            first = process.stdout.readline()
            watchdog.cancel()
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return first + rest


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """`headrace start`, in a home directory of its own."""
    home = tmp_path / "home"
    programs = tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    program = programs / "headrace"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m headrace.cli "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HEADRACE_"))}
    environment |= {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    command = [str(program), "start", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = next(line.split("=")[1].strip() for line in process.stdout if "bootstrap.servers=" in line)
            yield Desk(address, environment | {"HEADRACE_BOOTSTRAP": address}, tmp_path)
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_the_broker_the_command_line_and_the_clients(desk: Desk) -> None:
    (_, embedded) = desk.paste("A broker")
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", embedded)
    (commands,) = desk.paste("The command line")
    lines = commands.splitlines()
    assert lines[0] == "events created: 3 partitions, 1 replica"
    numbers = [line for line in lines if line.isdigit()]
    assert len(numbers) == 400
    assert any(re.match(r"me +Empty, 0 members, lag 600", line) for line in lines)
    assert "retention.ms=3600000" in commands
    assert "00000000000000000000.log" in commands
    (clients,) = desk.paste("Clients")
    lines = clients.splitlines()
    assert lines[0].startswith("RecordMetadata(topic='events'")
    assert len([line for line in lines if line.startswith("events ")]) >= 1, "the group's first poll brought records"
    assert "'events': TopicListing" in lines[-1]


def test_several_brokers(desk: Desk) -> None:
    port = three_ports()
    (text,) = (lines for _, lines in _BLOCK.findall(sections()["Several brokers"]))
    environment = desk.environment | {"HEADRACE_BOOTSTRAP": f"127.0.0.1:{port}"}
    there = Desk(desk.address, environment, desk.directory)
    try:
        printed = there.shell(text.replace("--port 9092", f"--port {port}"))
    except AssertionError:
        there.shell("headrace cluster stop || true")
        raise
    lines = printed.splitlines()
    assert lines[0].startswith("3 brokers up after ")
    assert "payments created: 6 partitions, 3 replicas" in lines
    assert any(re.match(r" +2 .* dead ", line) for line in lines), printed
    assert any(line.startswith("broker 2 is up after ") for line in lines)
    assert lines[-1].startswith("stopped after ")


def three_ports() -> int:
    """The first of three ports in a row that are free, and that no connection of others' is given meanwhile."""
    while True:
        first = random.randrange(15_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def test_consuming_in_parallel(desk: Desk) -> None:
    *_, printed = [text for text in desk.paste("Consuming in parallel") if text]
    assert printed
    dead = desk.shell("    headrace deadletters list orders.dead\n")
    assert dead == ""
