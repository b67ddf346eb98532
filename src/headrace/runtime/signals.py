"""Asked to stop by a signal: the second time means "at once", and an echo of the first is not the second."""

from __future__ import annotations

import enum

from headrace.runtime.interface import Clock

ECHO_S = 0.3
"""One Ctrl-C may come twice: from the terminal, and from whoever started the process and passes it on (timeout, make,
npm). No person is as quick."""


class Asked(enum.Enum):
    """What a request to stop is."""

    FIRST = enum.auto()
    ECHO = enum.auto()
    AGAIN = enum.auto()


class StopRequests:
    """Counts requests to stop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first_at: float | None = None

    def heard(self) -> Asked:
        """One more came just now."""
        now = self._clock.monotonic()
        if self._first_at is None:
            self._first_at = now
            return Asked.FIRST
        return Asked.ECHO if now - self._first_at < ECHO_S else Asked.AGAIN
