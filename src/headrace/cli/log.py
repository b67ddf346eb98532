"""`headrace log dump`: look into segments, indexes, snapshots and checkpoints, without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.dumping import Row, kind_of, partition_of, partition_rows, read_rows, segment_rows
from headrace.cli.exits import Exit
from headrace.cli.options import Json
from headrace.cli.output import Column, CommandError, count, moment, note, print_json, size, styled, table
from headrace.words import visible

app = typer.Typer(no_args_is_help=True)

_ROWS_AT_ONCE = 5_000
_SHOWN: dict[str, Column] = {
    "timestamp": Column("timestamp", "TIMESTAMP", moment),
    "max_timestamp": Column("max_timestamp", "NEWEST", moment),
    "first_timestamp": Column("first_timestamp", "OLDEST", moment),
    "last_timestamp": Column("last_timestamp", "LAST TIMESTAMP", moment),
    "size_bytes": Column("size_bytes", "SIZE", size),
    "error": Column("error", "PROBLEM", style="31"),
}
# Not worth a column while every row says the same; JSON has it all.
_USUAL = {"timestamp_type": "CREATE_TIME", "kind": "data", "producer_epoch": 0}
_COUNTS = ("records", "batches", "base_offset", "last_offset", "next_offset", "first_offset", "offset", "position")


@app.callback()
def group() -> None:
    """Look into a data directory, without a broker."""


@app.command()
def dump(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR", exists=True)],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Each record of a log; Kafka's own topics are decoded.")
    ] = False,
    maximum: Annotated[int | None, typer.Option("--max", "-n", min=1, help="At most so many rows of each.")] = None,
    as_json: Json = False,
) -> None:
    """Show what is in log files: batches or records, index entries, producers, epochs, checkpoints.

    A directory shows its segments, or (a log directory) its partitions. Checksums of batches are verified; the exit
    code is 1 when anything is damaged.
    """
    damaged = 0
    documents = []
    for number, path in enumerate(paths):
        if path.is_dir():
            title, rows = _directory(path)
        else:
            kind = kind_of(path, records=records)
            title, rows = kind.title, read_rows(path, kind)
        limited = rows if maximum is None else islice(rows, maximum)
        if as_json:
            found = list(limited)
            documents.append({"path": str(path), "kind": title, "rows": found})
            damaged += sum(1 for row in found if row.get("error"))
            continue
        if number:
            print()
        print(f"{styled(str(path), '1')}  {title}")
        damaged += _print(limited, one_by_one=records and not path.is_dir())
    if as_json:
        print_json(documents)
    if damaged:
        raise CommandError(f"{count(damaged)} of the rows above have a problem", Exit.FAILED)


def _directory(path: Path) -> tuple[str, Iterable[Row]]:
    if any(path.glob("*.log")) or partition_of(path.resolve()) is not None:
        return "segments", segment_rows(path)
    return "partitions", partition_rows(path)


def _print(rows: Iterable[Row], *, one_by_one: bool) -> int:
    """Print rows as tables (records: a line each); gives how many had an error."""
    damaged = 0
    iterator = iter(rows)
    found = False
    while chunk := list(islice(iterator, _ROWS_AT_ONCE)):
        found = True
        damaged += sum(1 for row in chunk if row.get("error"))
        print("\n".join(map(_record_line, chunk) if one_by_one else table(chunk, _columns(chunk))))
    if not found:
        note("(empty)")
    return damaged


def _columns(rows: list[Row]) -> list[Column]:
    """The keys of the rows that say something, in their order."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    said = [key for key in keys if any(row.get(key) not in (None, _USUAL.get(key)) for row in rows)]
    return [_SHOWN.get(key) or _column(key) for key in said]


def _column(key: str) -> Column:
    title = key.upper().replace("_", " ")
    return Column(key, title, count) if key in _COUNTS else Column(key, title)


def _record_line(row: Row) -> str:
    if row.get("error") and "offset" not in row:
        return f"{row['position']:>10}  {styled(row['error'], '31')}"
    rest = {key: value for key, value in row.items() if key not in ("offset", "timestamp")}
    return f"{count(row['offset']):>10}  {moment(row['timestamp'])}  {_compact(rest)}"


def _compact(fields: dict[str, Any]) -> str:
    parts = []
    for key, value in fields.items():
        text = visible(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )
        parts.append(styled(text, "33") if key == "type" else f"{styled(key, '2')}={text}")
    return " ".join(parts)
