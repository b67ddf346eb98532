"""When the clients load the compiled kernels: after so many records that it pays, never when a client is made.

Loading numba takes about a second. A script that sends or reads a few records would pay it for nothing; who moves many
has it back soon. They are loaded beside the stream, by a thread that ends when they are there: until then the plain
ones serve, and nothing stands still. `headrace.records.use_fast()` loads them at once, for programs that want to wait.
"""

from __future__ import annotations

import os
import threading

from headrace.records import use_fast

PAYS_FROM_ROWS = 20_000
_LOAD_S_MAX = 60.0

_rows = 0
_is_asked = False
_loader: threading.Thread | None = None


def note_rows(rows: int) -> None:
    """So many more records are worked on in this process."""
    global _rows
    _rows += rows


def is_load_due() -> bool:
    """Whether somebody should call `load_if_due` now."""
    return _rows >= PAYS_FROM_ROWS and not _is_asked


def load_if_due() -> None:
    """Begin to load the kernels if enough records were noted, once."""
    if is_load_due():
        begin_loading()


def begin_loading() -> None:
    """Load the kernels beside the caller, unless somebody has begun already."""
    global _is_asked, _loader
    if _is_asked:
        return
    _is_asked = True
    # A process that forks while another thread imports a module has that module locked for ever in the child.
    os.register_at_fork(before=finish_loading)
    _loader = threading.Thread(target=use_fast, name="headrace-kernels", daemon=True)
    _loader.start()


def finish_loading() -> None:
    """Wait until what was begun is loaded."""
    loader = _loader
    if loader is not None and loader is not threading.current_thread():
        loader.join(_LOAD_S_MAX)


def count_rows(rows: int) -> None:
    """So many records are about to be encoded or decoded: note them, and load the kernels if it pays now."""
    note_rows(rows)
    load_if_due()
