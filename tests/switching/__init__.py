"""Threads that change places far more often than they do by themselves, so that races between them come to light.

`HEADRACE_TEST_SWITCH_INTERVAL=1e-5` sets the interval, in seconds, for a whole run of pytest or of the checker, and for
the processes that it starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "HEADRACE_TEST_SWITCH_INTERVAL"
_START = str(Path(__file__).parent / "start")  # Python imports `sitecustomize` from there when a process starts


def switch_as_told() -> None:
    """Do what the variable says, here and in the processes that this one starts."""
    interval = os.environ.get(VARIABLE)
    if interval:
        sys.setswitchinterval(float(interval))
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if _START not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([_START, *filter(None, paths)])
