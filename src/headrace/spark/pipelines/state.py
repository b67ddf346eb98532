"""What a pipeline leaves beside its checkpoint for `headrace pipeline status`: what it does and how far it is."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.spark.pipelines.declaring import PipelineProgress, WrongOptionError

FILE = "pipeline.json"
HIDDEN = "…"
"""In place of what must not be written down."""
_SHOWN_MAX = 1000


class Phase(StrEnum):
    """Where a pipeline is in its life."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """It says that it runs, but its process is gone: killed. Starting it again resumes it."""


@dataclass(slots=True)
class PipelineState:
    """The file's content."""

    name: str
    pipeline: str
    phase: Phase = Phase.RUNNING
    servers: str = ""
    groups: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    """What it reads."""
    options: dict[str, Any] = field(default_factory=dict)
    started_ms: int = 0
    updated_ms: int = 0
    runs: int = 0
    rows_in: int = 0
    """Of all runs together, as are `rows_out` and `batches`: what one run did is in its result."""
    rows_out: int = 0
    batches: int = 0
    before: tuple[int, int, int] = (0, 0, 0)
    """Those three, of the runs before this one."""
    rate_per_s: float = 0.0
    lag: int | None = None
    error: str = ""
    pid: int = 0
    host: str = ""

    def take(self, snapshot: PipelineProgress, now_ms: int) -> None:
        """Note how far it is."""
        rows_in, rows_out, batches = self.before
        self.rows_in, self.rows_out = rows_in + snapshot.rows_in, rows_out + snapshot.rows_out
        self.batches = batches + snapshot.batches
        self.rate_per_s, self.lag, self.updated_ms = snapshot.rate_per_s, snapshot.lag, now_ms


def default_root() -> Path:
    """Where checkpoints are that nobody gave a place."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headrace" / "pipelines"


def is_local(checkpoint: str) -> bool:
    """Whether the checkpoint is a directory of this machine; of others only Spark itself knows."""
    return "://" not in checkpoint


def directory_of(checkpoint: str) -> Path:
    return Path(checkpoint).expanduser().absolute()


def begin(checkpoint: str, state: PipelineState, now_ms: int) -> PipelineState:
    """The state of a run that starts now, after those before it."""
    before = read(directory_of(checkpoint)) if is_local(checkpoint) else None
    state.started_ms = state.updated_ms = now_ms
    if before is not None:
        state.runs = before.runs
        state.before = (before.rows_in, before.rows_out, before.batches)
        state.rows_in, state.rows_out, state.batches = state.before
    state.runs += 1
    state.pid, state.host = os.getpid(), socket.gethostname()
    write(checkpoint, state)
    return state


def write(checkpoint: str, state: PipelineState) -> None:
    """Replace the file, whole."""
    if not is_local(checkpoint):
        return
    directory = directory_of(checkpoint)
    directory.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=directory, prefix=".pipeline-")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump(asdict(state), out, indent=1, default=str)
    os.replace(aside, directory / FILE)


def read(directory: Path) -> PipelineState | None:
    """What is noted there; None when there is nothing that can be read."""
    try:
        given = json.loads((directory / FILE).read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    if not isinstance(given, Mapping) or "pipeline" not in given:
        return None
    known = {one.name for one in fields(PipelineState)}
    state = PipelineState(**{name: value for name, value in given.items() if name in known})
    state.phase = Phase(state.phase)
    rows_in, rows_out, batches = state.before
    state.before = (rows_in, rows_out, batches)
    if state.phase is Phase.RUNNING and state.host == socket.gethostname() and not _lives(state.pid):
        state.phase = Phase.LOST
    return state


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove(directory: Path) -> None:
    """Forget a pipeline that does not run: its checkpoint, and what is noted of it."""
    state = read(directory)
    if state is None:
        raise WrongOptionError(f"no pipeline has run with the checkpoint {directory}")
    if state.phase is Phase.RUNNING:
        raise WrongOptionError(f"{state.name} is running (process {state.pid} on {state.host}): stop it first")
    shutil.rmtree(directory)


def find(checkpoints: Iterable[str] = ()) -> list[tuple[Path, PipelineState]]:
    """Pipelines that are known: those given, else all with a default checkpoint; the newest first."""
    given = [directory_of(one) for one in checkpoints]
    root = default_root()
    places = given or (sorted(root.iterdir()) if root.is_dir() else [])
    found = [(place, state) for place in places[:_SHOWN_MAX] if (state := read(place)) is not None]
    return sorted(found, key=lambda one: -one[1].updated_ms)
