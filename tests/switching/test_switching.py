"""Whether threads really switch as often as a run is told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from . import VARIABLE, switch_as_told


def test_the_interval_is_that_of_this_process_and_of_those_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getswitchinterval()
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv(VARIABLE, "1e-5")
    try:
        switch_as_told()
        switch_as_told()
        assert sys.getswitchinterval() == pytest.approx(1e-5)
        command = [sys.executable, "-c", "import sys; print(sys.getswitchinterval(), sys.path.count('somewhere'))"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert float(found[0]) == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(before)
