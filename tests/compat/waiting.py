"""Waiting for a state with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 20.0


def eventually(look: Callable[[], T], *, what: str = "the state", timeout_s: float = DEADLINE_S) -> T:
    """Look until what is seen is true, and give it."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {timeout_s:.0f} s; last seen: {seen!r}")
        time.sleep(0.01)
