"""`headrace demo`: it runs, and what it says is true."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_demo_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "demo", "--events", "5000"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = " ".join(done.stdout.split())
    assert "with all 5,000 records" in text
    assert "lag is 0" in text
    assert re.search(r"orders-0 .*quick", text)
    assert "headrace topic create events -p 3" in done.stdout
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"
    assert max(map(len, done.stdout.splitlines())) <= 96
