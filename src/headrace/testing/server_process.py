"""A server as a child process, for tests: started on a port of the loopback interface, killed if asked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.runtime.free_ports import free_ports

START_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port that was free a moment ago on the loopback interface."""
    return free_ports(1)[0]


class ServerProcess(ABC):
    """What any server in a process of its own has. Whoever builds on it says how it is started and when it serves."""

    def __init__(self, port: int | None, output_path: Path) -> None:
        self.port = port or free_port()
        self.output_path = output_path
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

    @abstractmethod
    def start(self) -> Self:
        """Start it and return once it serves."""

    def is_serving(self) -> bool:
        """Whether it takes connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def _start(
        self,
        command: Sequence[str],
        what: str,
        error: type[Exception],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run the command until it serves; raises the given kind of error, with what it printed, when it does not."""
        self.output_path.parent.mkdir(parents=True, exist_ok=True)
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise error(f"{what} ended with {self._process.returncode}:\n{self.output()}")
            if self.is_serving():
                return
            time.sleep(0.01)
        self.kill()
        raise error(f"{what} did not listen within {START_TIMEOUT_S:.0f} s:\n{self.output()}")

    def pause(self) -> None:
        """It stands still, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL and wait: a crash."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()

    def let_go(self) -> subprocess.Popen[bytes]:
        """The process, which from now on is the caller's, who waits for its end."""
        assert self._process is not None
        process, self._process = self._process, None
        return process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
