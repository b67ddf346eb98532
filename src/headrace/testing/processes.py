"""A real broker in a process of its own, for tests: started on a free port, killed without mercy if asked.

with BrokerProcess(directory) as broker:
    broker.address          # "127.0.0.1:40123"
    broker.kill()           # SIGKILL, as a crash
    broker.start()          # again, on the same port and directory
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.cli.options_of_start import settings_as_options
from headrace.testing.server_process import ServerProcess

STOP_TIMEOUT_S = 60.0


class BrokerDidNotStartError(RuntimeError):
    """The broker's process ended, or did not listen in time. The text has what it printed."""


class BrokerProcess(ServerProcess):
    """`headrace start` as a child process; `prefix` is a command that runs it (nice, taskset, a shell with limits)."""

    def __init__(
        self,
        directory: str | Path,
        overrides: Mapping[str, str] | None = None,
        port: int | None = None,
        *,
        prefix: Sequence[str] = (),
        module: str = "headrace.cli",
    ) -> None:
        """`module` is what is run, with the options of `headrace start`."""
        self.prefix = tuple(prefix)
        self.module = module
        self.directory = Path(directory)
        super().__init__(port, self.directory.parent / f"{self.directory.name}.out")
        self.overrides = dict(overrides or {})

    def start(self) -> Self:
        """Start it and return once it takes connections."""
        command = [
            *self.prefix,
            sys.executable,
            "-m",
            self.module,
            "start",
            "--dir",
            str(self.directory),
            "--listen",
            self.address,
        ]
        command += settings_as_options(self.overrides, self.directory.with_name(f"{self.directory.name}.secrets"))
        self._start(command, "the broker", BrokerDidNotStartError, environment={"NO_COLOR": "1"})
        return self

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()
