"""Ending tasks that nobody waits for any more."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


async def let_go(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these, and wait until they have ended. For a `finally`, however it was come to."""
    for task in tasks:
        task.cancel()
    if isinstance(sys.exc_info()[1], GeneratorExit):
        return  # whoever asked is being closed, as all of a simulated machine that is killed: it cannot wait
    await asyncio.gather(*tasks, return_exceptions=True)
