"""Modules that are loaded when they are first needed, and never in the middle of a fork.

A process that forks while one of its threads imports a module has that module locked for ever in the child. So whatever
is imported late, on whichever thread, is imported under one lock, and a fork waits for it.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from importlib import import_module
from typing import Any, Final

#: To be held around an import inside a function.
no_fork: Final = threading.RLock()


@cache
def late_import(name: str) -> Any:
    """That module."""
    with no_fork:
        return import_module(name)


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)
