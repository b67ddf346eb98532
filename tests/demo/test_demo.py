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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_show_is_exactly_once_through_a_kill() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "demo", "--spark", "--events", "100000"],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    assert "exactly once  in 100,000 · out 100,000 · lost 0 · duplicated 0" in done.stdout
    plain = re.search(r"at least once in ([\d,]+) · out ([\d,]+) · lost 0 · duplicated ([\d,]+)", done.stdout)
    assert plain is not None, done.stdout
    of_half, out, again = (int(number.replace(",", "")) for number in plain.groups())
    assert 30_000 < of_half < 70_000
    assert out == of_half + again
    assert again > 0, "the kill came in the middle of a batch, so the plain sink repeats some"
    assert "kill -9" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 96
