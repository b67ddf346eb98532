"""The project's own pages: prose within 120 columns, links that lead somewhere, numbers that the specification has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
COLUMNS_MAX = 120
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CITED = re.compile(r"SPEC (\d+\.\d+)")


def prose(page: Path) -> list[tuple[int, str]]:
    """Lines outside code and tables, with their numbers."""
    found, fenced = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "|")):
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_not_wider_than_a_screen(page: Path) -> None:
    wide = [number for number, line in prose(page) if len(line) > COLUMNS_MAX and "](" not in line]
    assert not wide, f"lines over {COLUMNS_MAX} columns: {wide}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = {target for _, line in prose(page) for target in _LINK.findall(line) if "://" not in target}
    missing = [target for target in sorted(targets) if not (page.parent / target).exists()]
    assert not missing


def test_what_is_cited_stands_in_the_specification() -> None:
    numbers = set(re.findall(r"\*\*(\d+\.\d+)\*\*", (ROOT / "docs" / "specification.md").read_text()))
    cited = {
        number
        for folder in ("src", "tests", "docs", "bench", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md") and "reference" not in path.parts
        for number in _CITED.findall(path.read_text())
    }
    assert cited
    assert cited <= numbers
