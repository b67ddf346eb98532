"""What clients did, as they saw it: one line of JSON per event, written before and after every operation.

Every value is an integer that is sent once. An operation that has no end in the history (its client was killed, or was
told that the outcome is not known) may have happened or not; the analysis allows for both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

Place = tuple[str, int]
"""Topic and partition."""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    """It certainly did not happen: an abort that was confirmed."""
    INFO = "info"
    """Nobody knows."""


class Kind(Enum):
    SEND = "send"
    TRANSACTION = "transaction"
    POLL = "poll"
    MOVE = "move"
    """A transaction that consumed records and wrote results: `reads` are its input, `writes` its output."""
    OFFSETS = "offsets"
    """A look at the committed offsets of groups."""
    ERROR = "error"
    """Not an operation: an error that the application had to deal with."""


@dataclass(slots=True)
class Operation:
    """One operation. `writes` are (place, value, offset or -1), `reads` are (place, offset, value), in order."""

    process: str
    kind: Kind
    outcome: Outcome
    began: float
    ended: float = float("inf")
    committing: float = float("inf")
    """When the commit was asked for: nothing of a transaction may be read before."""
    writes: list[tuple[Place, int, int]] = field(default_factory=list)
    reads: list[tuple[Place, int, int]] = field(default_factory=list)
    session: int = 0
    """Polls of one session (an assignment without a rebalance in between) have to go forward."""
    is_assigned: bool = False
    """By assign: a poll may skip nothing."""
    committed: list[tuple[str, Place, int]] = field(default_factory=list)
    """Group, place and the offset that was seen."""
    error: str = ""


class Recorder:
    """Writes a client's history. Each event is on disk (of the operating system) before the client goes on."""

    def __init__(self, path: Path, process: str) -> None:
        self.path = path
        self._file: TextIO = path.open("a", buffering=1)
        self._process = process
        self._next = 0

    def began(self, kind: Kind, **details: Any) -> int:
        self._next += 1
        self._write({"id": self._next, "event": "began", "kind": kind.value, **details})
        return self._next

    def note(self, number: int, event: str, **details: Any) -> None:
        self._write({"id": number, "event": event, **details})

    def ended(self, number: int, outcome: Outcome, **details: Any) -> None:
        self._write({"id": number, "event": "ended", "outcome": outcome.value, **details})

    def close(self) -> None:
        self._file.close()

    def _write(self, event: dict[str, Any]) -> None:
        # The monotonic clock is the machine's: the same for all processes.
        self._file.write(json.dumps({"process": self._process, "at": time.monotonic(), **event}) + "\n")
        self._file.flush()


def read_history(paths: Iterable[Path]) -> list[Operation]:
    """The operations of several clients' files. A last line that a kill cut off is left out."""
    operations: list[Operation] = []
    for path in sorted(paths):
        by_id: dict[int, Operation] = {}
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            _fold(by_id, event)
        operations += by_id.values()
    return operations


def _fold(by_id: dict[int, Operation], event: dict[str, Any]) -> None:
    if event["event"] == "began":
        by_id[event["id"]] = Operation(event["process"], Kind(event["kind"]), Outcome.INFO, event["at"])
    operation = by_id[event["id"]]
    if "writes" in event:
        operation.writes = [((topic, partition), value, offset) for topic, partition, value, offset in event["writes"]]
    if "reads" in event:
        operation.reads = [((topic, partition), offset, value) for topic, partition, offset, value in event["reads"]]
    if "committed" in event:
        operation.committed = [(group, (topic, partition), at) for group, topic, partition, at in event["committed"]]
    operation.error = event.get("error", operation.error)
    operation.session = event.get("session", operation.session)
    operation.is_assigned = event.get("assigned", operation.is_assigned)
    if event["event"] == "committing":
        operation.committing = min(operation.committing, event["at"])
    elif event["event"] == "ended":
        operation.ended = event["at"]
        operation.outcome = Outcome(event["outcome"])
