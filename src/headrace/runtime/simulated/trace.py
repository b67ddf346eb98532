"""The trace of a simulation: every event in order, folded into one hash, with the latest kept for people to read."""

from __future__ import annotations

import hashlib
import zlib
from collections import deque

from headrace.runtime.interface import Buffer

#: So many lines are hashed at once: one by one would take as long as all else that the loop does for a step.
_TOGETHER = 1_000


class Trace:
    """Two runs of one seed have the same `digest()`; where they part, `latest` of both shows the first difference.

    Steps of the loop have no time of their own: `turn` says when all that follow it were taken.

    With `is_on` false nothing is kept, and `digest` says nothing: a tenth of what many short runs would take otherwise.
    """

    def __init__(self, *, kept_max: int = 2_000, is_on: bool = True):
        self.is_on = is_on
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._latest: deque[str] = deque(maxlen=kept_max)
        self._lines: list[str] = []
        #: Adds the name of a step: a line, and nothing else.
        self.step = self._lines.append
        self.now_s = 0.0

    @property
    def count(self) -> int:
        return self._hashed + len(self._lines)

    @property
    def latest(self) -> deque[str]:
        self._fold()
        return self._latest

    def turn(self, now_s: float) -> None:
        """The loop takes its next turn."""
        self.now_s = now_s
        lines = self._lines
        if len(lines) >= _TOGETHER:
            self._fold()
        lines.append(f"{now_s:.9f}")

    def record(self, kind: str, *details: str | int | float) -> None:
        if not self.is_on:
            return
        self._lines.append(f"{self.now_s:.9f} {kind} {' '.join(map(str, details))}")
        if len(self._lines) >= _TOGETHER:
            self._fold()

    def _fold(self) -> None:
        lines = self._lines
        if lines:
            # A name may hold what is not text: file names are bytes.
            self._hash.update("\n".join(lines).encode("utf-8", "surrogateescape"))
            self._hash.update(b"\n")
            self._hashed += len(lines)
            self._latest.extend(lines)
            lines.clear()

    def digest(self) -> str:
        self._fold()
        return self._hash.copy().hexdigest()


def checksum(data: Buffer) -> str:
    """A short stand-in for bytes in the trace."""
    return f"{len(data)}:{zlib.crc32(data):08x}"
