"""The project's own pages: prose within 120 columns, links that lead somewhere, numbers that the specification has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
COLUMNS_MAX = 120
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CITED = re.compile(r"SPEC ((?:\d+(?:\.\d+)?(?:, |-)?)+)")


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
    wide = [number for number, line in prose(page) if len(line) > COLUMNS_MAX]
    assert not wide, f"lines over {COLUMNS_MAX} columns: {wide}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_not_wider_than_a_screen_either(page: Path) -> None:
    lines = page.read_text().splitlines()
    shown = {number for number, _ in prose(page)}
    wide = [
        number
        for number, line in enumerate(lines, 1)
        if number not in shown and not line.startswith(("|", "    options: ")) and len(line) > COLUMNS_MAX
    ]
    assert not wide, f"lines over {COLUMNS_MAX} columns: {wide}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = {target for _, line in prose(page) for target in _LINK.findall(line) if "://" not in target}
    missing = [target for target in sorted(targets) if not (page.parent / target).exists()]
    assert not missing


#: How often docs and docstrings say what reads badly in long sentences. These may only fall: lower them when they do.
HARD_TO_READ_MAX = {"whoever": 202, "of which": 80, "told": 208, "nobody": 295}


def docstrings(path: Path) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, documented)]
    return [ast.get_docstring(node, clean=False) or "" for node in nodes]


@pytest.mark.parametrize("words", HARD_TO_READ_MAX)
def test_sentences_do_not_become_harder_to_read(words: str) -> None:
    texts = [page.read_text("utf-8") for page in PAGES]
    texts += [text for path in sorted((ROOT / "src").rglob("*.py")) for text in docstrings(path)]
    wanted = re.compile(rf"\b{words.replace(' ', chr(92) + 's+')}\b", re.IGNORECASE)
    count = sum(len(wanted.findall(text)) for text in texts)
    assert count <= HARD_TO_READ_MAX[words], f"{words!r} {count} times: say it in a plainer way"


def test_what_is_cited_stands_in_the_specification() -> None:
    numbers = set(re.findall(r"\*\*(\d+\.\d+)\*\*", (ROOT / "docs" / "specification.md").read_text()))
    cited = {
        number
        for folder in ("src", "tests", "docs", "bench", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md") and "reference" not in path.parts
        for cited in _CITED.findall(path.read_text())
        for number in re.findall(r"\d+(?:\.\d+)?", cited)
    }
    assert "4.6" in cited, "the end of a range is cited, too"
    chapters = {number.partition(".")[0] for number in numbers}
    assert cited <= numbers | chapters


def test_the_architecture_has_every_room_and_only_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "headrace"
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    table = page.partition("| room |")[2].partition("\n\n")[0]
    assert rooms == set(re.findall(r"`(\w+)/`", "\n".join(line.split(" | ")[0] for line in table.splitlines())))
    way = page.partition("## A record's way")[2].partition("\n## ")[0]
    folders = [
        source,
        *(source / name for name in ("client/producer", "client/consumer", "broker", "broker/partitions")),
    ]
    named = re.findall(r"`([\w/]+\.py)`", way)
    assert len(named) > 50
    assert not [name for name in named if not any((folder / name).exists() for folder in folders)]
    anywhere = {path.name for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")}
    assert {Path(name).name for name in re.findall(r"[\w/]+\.py\b", page)} <= anywhere


def test_the_map_of_changes_names_only_what_is_there() -> None:
    named: list[Path] = []
    for line in (ROOT / "CONTRIBUTING.md").read_text().partition("## Where do I change")[2].splitlines():
        if not line.startswith("| ") or line.startswith("| what"):
            continue
        folder = ROOT
        for path in re.findall(r"`([\w./]+(?:/|\.py|\.md|\.yml|\.toml))`", line):
            candidates = [ROOT / path, ROOT / "src" / "headrace" / path, folder / path, folder.parent / path]
            found = next((candidate for candidate in candidates if candidate.exists()), None)
            assert found is not None, f"{path} of: {line}"
            folder = found if found.is_dir() else found.parent
            named.append(found)
    assert len(named) > 50
