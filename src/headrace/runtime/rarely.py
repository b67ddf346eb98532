"""Saying again and again what goes on for long, without filling the log with it."""

from __future__ import annotations

from collections.abc import Callable

DEFAULT_INTERVAL_S = 60.0


class Rarely:
    """Whether something that keeps happening is to be said now: the first time, then once in an interval."""

    __slots__ = ("_count", "_interval_s", "_monotonic", "_said_at")

    def __init__(self, monotonic: Callable[[], float], interval_s: float = DEFAULT_INTERVAL_S) -> None:
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._said_at: float | None = None
        self._count = 0

    def happened(self) -> int:
        """Count it; how often it happened since it was last said, this time included, or 0 when to be silent."""
        self._count += 1
        now = self._monotonic()
        if self._said_at is not None and now - self._said_at < self._interval_s:
            return 0
        self._said_at = now
        count, self._count = self._count, 0
        return count
