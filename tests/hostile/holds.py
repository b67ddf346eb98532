"""`headrace start`, noting each step of its event loop that used the CPU for long: for so long nobody else is served.

By the CPU's time and not the clock's, since on a machine that others use the clock measures them. One line for each, in
the file that HOLDS_FILE names: when it ended (monotonic), its CPU seconds, and what it was.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

FILE_VARIABLE = "HOLDS_FILE"
LONG_S = 0.004


def name_of(handle: Any) -> str:
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner)}"
    return str(getattr(callback, "__qualname__", None) or repr(callback)[:200])


def note_holds(path: str) -> None:
    run = asyncio.Handle._run
    file = open(path, "a", buffering=1)  # noqa: SIM115 - as long as the process
    loops_thread = threading.main_thread()

    def noted(self: asyncio.Handle) -> None:
        began = time.thread_time()
        run(self)
        used = time.thread_time() - began
        if used > LONG_S and threading.current_thread() is loops_thread:
            file.write(f"{time.monotonic()} {used} {name_of(self)}\n")

    asyncio.Handle._run = noted  # type: ignore[method-assign]


def read_holds(path: Path, since: float) -> tuple[tuple[float, str], ...]:
    """The longest first, of those that ended after that time."""
    found = [line.split(" ", 2) for line in path.read_text().splitlines()]
    return tuple(sorted(((float(used), what) for ended, used, what in found if float(ended) > since), reverse=True))


if __name__ == "__main__":
    note_holds(os.environ[FILE_VARIABLE])
    from headrace.cli import main

    main()
