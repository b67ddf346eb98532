"""The broker of a demonstration: `headrace start` in a process of its own, so that it can be killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from headrace.cli.output import CommandError
from headrace.runtime.processes import process_info

_START_TIMEOUT_S = 60.0


class DemoBroker:
    """`headrace start` as a child, on a free port."""

    def __init__(self, directory: Path, overrides: Sequence[str] = ()) -> None:
        self._directory = directory
        self._overrides = overrides
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._log = directory.parent / f"{directory.name}.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it; gives the seconds until it was ready."""
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "headrace.cli",
            "start",
            "--dir",
            str(self._directory),
            "--listen",
            self.address,
        ]
        # A group's first rebalance waits three seconds for more members: not here.
        command += ["--override", "group.initial.rebalance.delay.ms=0", "--override", "offsets.topic.num.partitions=5"]
        for text in self._overrides:
            command += ["--override", text]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        # The banner is the sign that it is ready.
        found: list[str] = []
        reader = threading.Thread(target=_read_banner, args=(self._process.stdout, found), daemon=True)
        reader.start()
        reader.join(_START_TIMEOUT_S)
        match = re.search(r"listening on\s+\S+:(\d+)", "".join(found))
        if match is None:
            self.kill()
            raise CommandError(f"the demo's broker did not start: {self._log.read_text().strip() or 'it said nothing'}")
        self._port = int(match[1])
        return time.monotonic() - began

    def kill(self) -> None:
        """As a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._end()

    def stop(self) -> float:
        """Cleanly; gives the seconds it took."""
        began = time.monotonic()
        if self._process is not None:
            self._process.terminate()
            self._end()
        return time.monotonic() - began

    def _end(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def memory_bytes(self) -> int | None:
        """What it holds in memory now, where the system says it."""
        found = process_info(self.pid)
        return None if found is None else found.memory_bytes


def _read_banner(stream: IO[str] | None, found: list[str]) -> None:
    assert stream is not None
    for line in stream:
        found.append(line)
        if line.strip().startswith("Ctrl-C"):
            return
