"""Waiting for a state with a deadline, never for a time.

The deadline is for a machine that has much else to do: what is waited for takes milliseconds on an idle one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
_LOOK_S = 0.005


def eventually(look: Callable[[], T], what: str = "the state", timeout_s: float = DEADLINE_S) -> T:
    """Look until what is seen is true, and give it."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s:.0f} s; last seen: {seen!r}"
        time.sleep(_LOOK_S)
    return seen


async def becomes(
    look: Callable[[], T], what: str = "the state", timeout_s: float = DEADLINE_S, every_s: float = _LOOK_S
) -> T:
    """The same on a loop, by the clock of the loop; in every turn of the loop where nothing lies between looks."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while not (seen := look()):
        assert clock() < deadline, f"{what} did not come within {timeout_s:.0f} s; last seen: {seen!r}"
        await asyncio.sleep(every_s)
    return seen
