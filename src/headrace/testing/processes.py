"""A real broker in a process of its own, for tests: started on a free port, killed without mercy if asked.

with BrokerProcess(directory) as broker:
    broker.address          # "127.0.0.1:40123"
    broker.kill()           # SIGKILL, as a crash
    broker.start()          # again, on the same port and directory
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class BrokerDidNotStartError(RuntimeError):
    """The broker's process ended, or did not listen in time. The text has what it printed."""


def free_port() -> int:
    """A port that was free a moment ago on the loopback interface."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class BrokerProcess:
    """`headrace start` as a child process; `prefix` is a command that runs it (nice, taskset, a shell with limits)."""

    def __init__(
        self,
        directory: str | Path,
        overrides: Mapping[str, str] | None = None,
        port: int | None = None,
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        self.prefix = tuple(prefix)
        self.directory = Path(directory)
        self.overrides = dict(overrides or {})
        self.port = port or free_port()
        self.output_path = self.directory.parent / f"{self.directory.name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Started, and not ended by anybody: a paused one runs."""
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        return self.output_path.read_text(errors="replace") if self.output_path.exists() else ""

    def start(self) -> BrokerProcess:
        """Start it and return once it answers connections."""
        command = [
            *self.prefix,
            sys.executable,
            "-m",
            "headrace.cli",
            "start",
            "--dir",
            str(self.directory),
            "--listen",
            self.address,
        ]
        for key, value in self.overrides.items():
            command += ["--override", f"{key}={value}"]
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NO_COLOR": "1"},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerDidNotStartError(f"the broker ended with {self._process.returncode}:\n{self.output()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            time.sleep(0.01)
        self.kill()
        raise BrokerDidNotStartError(f"the broker did not listen within {START_TIMEOUT_S:.0f} s:\n{self.output()}")

    def stop(self) -> int:
        """SIGTERM and wait: a clean shutdown. Gives the exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL and wait: a crash."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()
