"""What is used of CPython's inside is tried before it is used, and everything works without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.records import cpython

ROOT = Path(__file__).parents[2]
PRODUCER_AND_CONSUMER = [
    "tests/records/test_kernels.py",
    "tests/client/test_rows.py",
    "tests/client/test_producer_core.py",
    "tests/client/test_producer_once.py",
    "tests/client/consumer/test_chunks.py",
]


def run(*arguments: str, setting: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, cpython.ENVIRONMENT: setting}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_switch_is_one_of_two_words() -> None:
    script = "from headrace.records import cpython as c; print(c.COUNTS_REFERENCES, c.READS_LISTS, c.LOADS_LISTS)"
    assert run("-c", script, setting="off").stdout == "False False False\n"
    assert f"{cpython.ENVIRONMENT} must be" in run("-c", script, setting="maybe").stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PRODUCER_AND_CONSUMER)
def test_producer_and_consumer_work_without_any_of_it(path: str) -> None:
    done = run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path, setting="off")
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(not cpython.USE_INTERNALS, reason="switched off")
def test_all_of_it_holds_here() -> None:
    assert (cpython.COUNTS_REFERENCES, cpython.READS_LISTS, cpython.LOADS_LISTS) == (True, True, True)


@pytest.mark.skipif(not cpython.COUNTS_REFERENCES, reason="switched off")
def test_whoever_holds_an_object_is_noticed() -> None:
    rows: list[Any] = [[], [], []]
    assert not cpython.is_held_elsewhere(rows, 1)
    copy = rows[:]
    assert cpython.is_held_elsewhere(rows, 1)
    assert not cpython.is_held_elsewhere(rows, 2)
    kept = copy[1]
    assert cpython.is_held_elsewhere(rows, 2)
    assert kept == []


def test_where_nobody_can_count_everything_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "COUNTS_REFERENCES", False)
    assert cpython.is_held_elsewhere([[]], 1)


def test_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "TYPE_OF_BYTES", id(str))
    assert not cpython._can_read_lists()


def test_other_counts_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, "_HELD_BY_ONE_LIST", cpython._HELD_BY_ONE_LIST + 1)
    assert not cpython._can_count_references()


@pytest.mark.parametrize("code", ["LIST_CODE", "BYTES_CODE", "NONE_CODE"])
def test_another_form_is_noticed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython, code, b"?"[0])
    assert not cpython._can_load_lists()
