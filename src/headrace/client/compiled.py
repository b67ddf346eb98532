"""When the clients load the compiled kernels: after so many records that it pays, never when a client is made.

Loading numba takes about a second. A script that sends or reads a few records would pay it for nothing; who moves many
has it back soon. `headrace.records.use_fast()` loads them at once, for programs that want no pause later.
"""

from __future__ import annotations

import sys
from typing import Any

from headrace.records import use_fast

PAYS_FROM_ROWS = 20_000

_rows = 0
_is_asked = False


def note_rows(rows: int) -> None:
    """So many more records are worked on in this process."""
    global _rows
    _rows += rows


def is_load_due() -> bool:
    """Whether somebody should call `load_if_due` now."""
    return _rows >= PAYS_FROM_ROWS and not _is_asked


def load_if_due() -> None:
    """Load the kernels if enough records were noted, once.

    On a thread that runs an event loop they are loaded beside it, and the loop goes on with the plain ones meanwhile.
    To be called on the application's thread, not on one of ours: a process that forks while another thread imports a
    module has that module locked for ever in the child.
    """
    global _is_asked
    if not is_load_due():
        return
    _is_asked = True
    loop = _running_loop()
    if loop is None:
        use_fast()
    else:
        loop.run_in_executor(None, use_fast)


def count_rows(rows: int) -> None:
    """So many records are about to be encoded or decoded: note them, and load the kernels if it pays now."""
    note_rows(rows)
    load_if_due()


def _running_loop() -> Any:
    # A program that has not imported asyncio has no loop, and need not import it for this.
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
