"""Commands as a person types them: each a process of its own, without a terminal, in a home directory of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Typed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Hands:
    """`directory` is where commands are typed, and the home of whoever types them."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        usual = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HEADRACE_"))}
        return usual | {"HOME": str(self.directory), "NO_COLOR": "1"}

    def type(self, *arguments: str, stdin: str = "", timeout_s: float = 120) -> Typed:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.directory,
            env=self.environment,
        )
        return Typed(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def broker(self, *arguments: str) -> Iterator[str]:
        """`headrace start` on a free port; gives its address. What it logs is in `broker.log`."""
        command = [sys.executable, "-m", "headrace.cli", "start", "--listen", "127.0.0.1:0", *arguments]
        with (
            (self.directory / "broker.log").open("w") as log,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.directory, env=self.environment
            ) as process,
        ):
            try:
                assert process.stdout is not None
                said = (line for line in process.stdout if "bootstrap.servers=" in line)
                address = next(said, None)
                assert address is not None, self.log
                yield address.split("=")[1].strip()
            finally:
                process.terminate()
                process.communicate(timeout=60)

    @property
    def log(self) -> str:
        return (self.directory / "broker.log").read_text("utf-8")
