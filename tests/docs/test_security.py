"""SECURITY.md names every package that is installed for users, and tests that exist."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
OF_DEVELOPERS = ("dev", "docs", "fuzz")


def test_every_dependency_was_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [one for name, own in project["optional-dependencies"].items() if name not in OF_DEVELOPERS for one in own]
    names = {re.match(r"[\w.-]+", one)[0] for one in [*project["dependencies"], *extras]} - {"headrace"}  # type: ignore[index]
    listed = {line.split("|")[1].strip() for line in PAGE.partition("## Dependencies")[2].splitlines() if "|" in line}
    assert names <= listed, f"look at these, and add them to SECURITY.md with the date: {sorted(names - listed)}"


def test_the_tests_that_it_names_exist() -> None:
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
    recorded = {
        json.loads(line)["id"]
        for line in (ROOT / "tests/reference/behaviour/security.jsonl").read_text("utf-8").splitlines()
    }
    for name in re.findall(r"recording `([\w/-]+)`", PAGE):
        assert name in recorded, name
