"""What the operating system knows of another process: from /proc on Linux, else from `ps`, which every Unix has."""

from __future__ import annotations

import calendar
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.runtime.system import PORTABLE

_PS_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process, as it is now."""

    state: str
    """A letter, as `ps` has it: T is stopped, Z has ended and nobody has waited for it."""
    began: int
    """When it began, in the system's own units: another process may get its number later."""
    memory_bytes: int | None
    """What it holds in memory; None where the system does not say."""

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"


def process_info(pid: int) -> ProcessInfo | None:
    """None when there is no such process."""
    if pid <= 0:
        return None
    if not PORTABLE and os.path.exists("/proc/self/stat"):
        return _from_proc(pid)
    return _from_ps(pid)


def _from_proc(pid: int) -> ProcessInfo | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessInfo(fields[0], int(fields[19]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def _from_ps(pid: int) -> ProcessInfo | None:
    command = ["ps", "-o", "state=", "-o", "rss=", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        text = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PS_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return _from_signal(pid)
    fields = text.split()
    if len(fields) < 3:
        return None
    began = calendar.timegm(time.strptime(" ".join(fields[2:]), "%a %b %d %H:%M:%S %Y"))
    return ProcessInfo(fields[0][0], began, int(fields[1]) * 1024)


def _from_signal(pid: int) -> ProcessInfo | None:
    """Without `ps`: alive or not is all that can be asked."""
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return ProcessInfo("R", 0, None)
