"""Keeping the garbage collector away from what stays: it would look through all of it, with everyone waiting.

A broker with 10,000 partitions has millions of objects that live as long as their topics. Each full collection looks at
every one of them, for a good part of a second, and what changes when a broker fails sets one off.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 5.0
#: From how many on more or fewer of them are worth a collection.
CHANGED_MIN: Final = 500


def freeze() -> None:
    """Let the collector take what is there now as something that stays."""
    gc.unfreeze()  # what was frozen before and is of no use any more is collected too
    gc.collect()
    gc.freeze()


async def keep_frozen(count: Callable[[], int], look_s: float = LOOK_S) -> None:
    """Freeze what is there now, and again whenever `count`, of what memory goes with, has changed by much and rests."""
    gc.freeze()
    frozen = seen = count()
    while True:
        await asyncio.sleep(look_s)
        now = count()
        if now == seen and abs(now - frozen) > max(CHANGED_MIN, frozen // 4):
            freeze()
            frozen = now
        seen = now
