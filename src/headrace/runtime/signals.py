"""Asked to stop by a signal: the second time means "at once", and an echo of the first is not the second."""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable

ECHO_S = 0.3
"""One Ctrl-C may come twice: from the terminal, and from whoever started the process and passes it on (timeout, make,
npm). No person is as quick."""


class Asked(enum.Enum):
    """What a request to stop is."""

    FIRST = enum.auto()
    ECHO = enum.auto()
    AGAIN = enum.auto()


class StopRequests:
    """Tells what each request to stop is. `now` is a monotonic clock's."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._first_at: float | None = None

    def classify(self) -> Asked:
        """One more came just now."""
        now = self._now()
        if self._first_at is None:
            self._first_at = now
            return Asked.FIRST
        return Asked.ECHO if now - self._first_at < ECHO_S else Asked.AGAIN


def stop_signals() -> tuple[int, ...]:
    """The signals that ask to stop. SIGHUP says that the terminal is gone, unless whoever started this (nohup) has it
    ignored."""
    found: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return found
    return (*found, hang_up)
