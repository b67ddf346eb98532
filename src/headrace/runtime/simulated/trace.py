"""The trace of a simulation: every event in order, folded into one hash, with the latest kept for people to read."""

from __future__ import annotations

import hashlib
import zlib
from collections import deque

from headrace.runtime.interface import Buffer


class Trace:
    """Two runs of one seed have the same `digest()`; where they part, `latest` of both shows the first difference."""

    def __init__(self, *, kept_max: int = 2_000):
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0
        self.latest: deque[str] = deque(maxlen=kept_max)
        self.now_s = 0.0

    def record(self, kind: str, *details: str | int | float) -> None:
        line = f"{self.now_s:.9f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode("utf-8", "surrogateescape"))
        self._hash.update(b"\n")
        self.count += 1
        self.latest.append(line)

    def digest(self) -> str:
        return self._hash.copy().hexdigest()


def checksum(data: Buffer) -> str:
    """A short stand-in for bytes in the trace."""
    return f"{len(data)}:{zlib.crc32(data):08x}"
