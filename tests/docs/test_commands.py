"""Every `headrace …` on the pages, held against the command line: its commands, their options, and what those take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^ *```(?:\w*)\n(.*?)^ *```$", re.S | re.M)
_INDENTED = re.compile(r"(?:^    (?! )[^\n]*\n)+", re.M)
_INLINE = re.compile(r"`(headrace\s[^`]+)`")
_COMMAND = re.compile(r"(?:^|\| *|&& *|; *)(headrace [^|;&>\n]*)", re.M)
_PLACEHOLDERS = re.compile(r"…|<|~/|\b[A-Z]{2,}\b|\S\|\S")


def lines(page: Path) -> list[str]:
    """The commands of a page: what is optional counts as given, and comments are left out."""
    text = page.read_text("utf-8")
    fenced = [code for code in _FENCED.findall(text) if not code.startswith(("import ", "from "))]
    blocks = [*fenced, *_INDENTED.findall(_FENCED.sub("", text))]
    found = []
    for block in blocks:
        whole = re.sub(r" *\\\n *", " ", block)
        for command in _COMMAND.findall(re.sub(r"^ +", "", whole, flags=re.M)):
            shown = re.sub(r"\s+#.*$", "", command).replace("[", " ").replace("]", " ")
            found.append(shown.strip())
    return [command for command in found if not _PLACEHOLDERS.search(command)]


def named(page: Path) -> list[str]:
    """What is only called by its name, in a sentence: `headrace group list, describe`."""
    return [" ".join(span.split()[1:]) for span in _INLINE.findall(page.read_text("utf-8"))]


COMMANDS = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}: {command[:60]}") for page in PAGES for command in lines(page)
]

NAMED = sorted({(str(page.relative_to(ROOT)), text) for page in PAGES for text in named(page)})


def parse(arguments: list[str]) -> None:
    """As the command line reads them, up to where the command would be run."""
    import typer

    from headrace.cli import start
    from headrace.cli.app import build

    if arguments[0] == "start":
        start.parser().parse_args(arguments[1:])
        return
    command, rest = typer.main.get_command(build(arguments)), list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context(arguments[0], rest)
    if arguments[:2] == ["pipeline", "run"]:
        check_pipeline(*arguments[2:])


def check_pipeline(name: str, *arguments: str) -> None:
    from headrace.cli.pipeline import arguments as read
    from headrace.spark.pipelines import load, parsed

    options = load(name).OPTIONS
    given, problems = read(options, [text for text in arguments if text != "--help"])
    assert not problems
    if "--help" not in arguments:
        for other in ("json", "property"):
            given.pop(other, None)
        parsed(options, given)


def test_there_are_commands_on_the_pages() -> None:
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_page_is_one(command: str) -> None:
    parse(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize(("page", "text"), NAMED)
def test_a_command_that_a_page_names_exists(page: str, text: str) -> None:
    import typer

    from headrace.cli.app import build

    first, *rest = text.split()
    if first.startswith("-") or first.isupper():
        return  # an option of `headrace` itself, or any command
    command = typer.main.get_command(build([first, "--help"])).commands[first]  # type: ignore[attr-defined]  # a group
    if not hasattr(command, "commands") or not rest or not re.fullmatch(r"[a-z-]+,?", rest[0]):
        return
    for position, word in enumerate(rest):
        if position == 0 or rest[position - 1].endswith(","):
            assert word.rstrip(",") in command.commands, f"{page}: headrace {first} has no {word}"


def test_the_page_on_the_command_line_lists_every_command() -> None:
    from headrace.cli.app import COMMANDS as THERE

    listed = {text.split()[0] for page, text in NAMED if page == "docs/command-line.md"}
    assert set(THERE) - listed == set()
