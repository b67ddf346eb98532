"""What commands print: tables for people, JSON for programs, one line per error. Colours only on a terminal."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from headrace.cli.exits import Exit
from headrace.client.admin.core import Results
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.words import visible, visible_json

Row = Mapping[str, Any]
_GAP = "  "
_NARROW_GAP = " "
_PROSE_MIN = 30
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


class CommandError(HeadraceError):
    """What a command ends with: a line that says what happened and what to do, and its exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED, errors: Sequence[HeadraceError] = ()) -> None:
        super().__init__(text)
        self.exit_code = code
        self.errors = errors


def usage(text: str) -> CommandError:
    """The command line asks for something impossible."""
    return CommandError(text, Exit.USAGE)


# --- text -------------------------------------------------------------------------------------------------------------


def has_colours(stream: IO[str] | None = None) -> bool:
    """Whether colours make sense: on a terminal, unless NO_COLOR says no."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, style: str, stream: IO[str] | None = None) -> str:
    """Text in an ANSI style ("1" bold, "2" dim, "33" yellow …), plain where there is no terminal."""
    text = visible(text)
    return f"\x1b[{style}m{text}\x1b[0m" if text.strip() and has_colours(stream) else text


def count(number: int) -> str:
    """12,345."""
    return f"{number:,}"


def size(number: int) -> str:
    """1.2 MB."""
    amount = float(number)
    for unit in _UNITS:
        if amount < 1000 or unit == _UNITS[-1]:
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("unreachable: the last unit takes all")


def id_text(raw: bytes) -> str:
    """A topic's id as Kafka writes it."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def moment(timestamp_ms: int) -> str:
    """A timestamp as UTC to the millisecond; a dash for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the row's key, the title, how a value is shown (numbers stand right)."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    style: Callable[[Any], str] | str = ""
    wraps: bool = False
    """Whether it is prose, which may go on in the next line where the terminal is narrow; the last column only."""


def show_rows(rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool, empty: str = "") -> None:
    """Print rows as a table, or all that they hold as JSON. `empty` is said (on stderr) when there are none."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        if empty:
            note(empty)
        return
    print("\n".join(table(rows, columns)))


def terminal_width() -> int | None:
    """How many columns the terminal has that is written to; None: it is none, and lines may be as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(rows: Sequence[Row], columns: Sequence[Column], width: int | None = None) -> list[str]:
    """The lines of a table: a title line, then a line per row, in aligned columns.

    Where that is wider than the terminal (or `width`), columns stand closer; and if that is not enough, every row is
    a block of lines, so that nothing is cut off or broken in the middle.
    """
    cells = [[_cell(row.get(column.key), column) for column in columns] for row in rows]
    is_number = [_is_numeric(row.get(column.key) for row in rows) for column in columns]
    widths = [max(len(column.title), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    room = terminal_width() if width is None else width
    gap = _GAP
    if room is not None and sum(widths) + len(gap) * (len(widths) - 1) > room:
        left = room - sum(widths[:-1]) - len(gap) * (len(widths) - 1)
        if columns[-1].wraps and left >= _PROSE_MIN:
            return _wrapped(rows, cells, columns, widths, left)
        gap = _NARROW_GAP
        if sum(widths) + len(gap) * (len(widths) - 1) > room:
            return _blocks(rows, cells, columns)

    def aligned(texts: Sequence[str], styles: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(texts, widths, is_number)
        ]
        padded[-1] = padded[-1].rstrip()
        return gap.join(styled(text, style) if style else text for text, style in zip(padded, styles))

    lines = [aligned([column.title for column in columns], ["1"] * len(columns))]
    for row, line in zip(rows, cells):
        lines.append(aligned(line, [_style(row.get(column.key), column) for column in columns]))
    return lines


def _wrapped(
    rows: Sequence[Row], cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], left: int
) -> list[str]:
    """A table whose last column is broken at spaces."""
    *titles, last = (column.title for column in columns)
    lines = [_GAP.join([*(styled(title.ljust(width), "1") for title, width in zip(titles, widths)), styled(last, "1")])]
    margin = " " * (sum(widths[:-1]) + len(_GAP) * (len(widths) - 1))
    for row, texts in zip(rows, cells):
        first, *more = textwrap.wrap(texts[-1], left) or [""]
        before = [
            styled(text.ljust(width), style) if (style := _style(row.get(column.key), column)) else text.ljust(width)
            for text, width, column in zip(texts[:-1], widths, columns)
        ]
        lines += [_GAP.join([*before, first]), *(margin + text for text in more)]
    return lines


def _blocks(rows: Sequence[Row], cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    """A line per value instead of one per row."""
    width = max(len(column.title) for column in columns)
    lines: list[str] = []
    for row, texts in zip(rows, cells):
        lines += [""] if lines else []
        for column, text in zip(columns, texts):
            style = _style(row.get(column.key), column)
            lines.append(f"{styled(column.title.ljust(width), '1')}{_GAP}{styled(text, style) if style else text}")
    return lines


def _is_numeric(values: Iterable[Any]) -> bool:
    kinds = {type(value) for value in values if value is not None}
    return bool(kinds) and kinds <= {int, float}


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return "-"
    if column.show is str and isinstance(value, bool):
        return "yes" if value else "no"
    if column.show is str and isinstance(value, (list, tuple)):
        return visible(",".join(map(str, value)))
    return visible(column.show(value))


def _style(value: Any, column: Column) -> str:
    return column.style(value) if callable(column.style) else column.style


def print_json(value: Any) -> None:
    """JSON on standard output, indented, as Unicode."""
    print(visible_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def note(text: str) -> None:
    """A remark for the person, on stderr: it is not part of the output."""
    sys.stderr.write("\n".join(styled(line, "2", sys.stderr) for line in text.split("\n")) + "\n")


# --- progress ---------------------------------------------------------------------------------------------------------

Tick = Callable[[int], None]


@contextlib.contextmanager
def progress(title: str, total: int, *, is_bytes: bool) -> Iterator[Tick]:
    """A bar on stderr, if that is a terminal; gives what to call with each piece that is done."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    done = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (TextColumn("{task.completed:,}/{task.total:,}"),)
    columns = (TextColumn("{task.description}"), BarColumn(), *done, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda number: bar.advance(task, number)


@contextlib.contextmanager
def silent() -> Iterator[Tick]:
    """Instead of `progress`, where none is wanted."""
    yield _ignore


def _ignore(_: int) -> None:
    pass


# --- questions --------------------------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; where there is nobody to ask, only `--yes` will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{question} There is nobody to ask here: add --yes")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")


# --- results ----------------------------------------------------------------------------------------------------------


def report(results: Results[Any, Any], done: Callable[[Any], str]) -> None:
    """Say what was done to each item; errors are a line each on stderr, and the exit code."""
    for item in results.ok:
        print(done(item))
    check_errors(results.errors.values())


def check_errors(errors: Iterable[HeadraceError]) -> None:
    """Raise if there are errors: all of them in one text, a line each."""
    found = list(errors)
    if found:
        raise all_of(found)


def all_of(errors: Sequence[HeadraceError]) -> CommandError:
    code = Exit.TIMEOUT if isinstance(errors[0], RequestTimedOutError) else Exit.FAILED
    return CommandError("\n".join(dict.fromkeys(" ".join(str(error).split()) for error in errors)), code, errors)
