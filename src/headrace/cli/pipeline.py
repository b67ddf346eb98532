"""`headrace pipeline`: list the ready-made pipelines, run one with a progress bar, show how far they are."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.exits import Exit
from headrace.cli.options import DEFAULT_TIMEOUT_S, Json, Timeout, check_reachable
from headrace.cli.output import Column, CommandError, count, moment, note, print_json, show_rows, styled, usage
from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.spark.pipelines import PIPELINES, Option, Snapshot, Watch, WrongOption, load, nearest, parsed
from headrace.spark.pipelines.running import kafka_config
from headrace.spark.pipelines.state import State, find

app = typer.Typer(no_args_is_help=True)

_ANY_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_HELP = ("-h", "--help")
_PHASE_STYLES = {"running": "32", "done": "2", "failed": "31", "lost": "31", "stopped": "33"}
_PROBE_S = 3.0


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the pipelines."""
    rows = [{"pipeline": name, "does": text} for name, text in PIPELINES.items()]
    show_rows(rows, [Column("pipeline", "PIPELINE", style="1"), Column("does", "WHAT IT DOES")], as_json=as_json)
    if not as_json:
        note("`headrace pipeline run NAME --help` lists its options.")


# --- run --------------------------------------------------------------------------------------------------------------


@app.command(context_settings=_ANY_OPTIONS, add_help_option=False)
def run(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
) -> None:
    """Run a pipeline: NAME --option value …; NAME --help lists its options. Ctrl-C stops it after the batch under way.

    Started again with the same options it goes on where it was.
    """
    if name is None or name in _HELP:
        list_()
        return
    try:
        pipeline = load(name)
        if any(text in _HELP for text in context.args):
            print("\n".join(help_lines(name, pipeline.OPTIONS)))
            return
        given = arguments(pipeline.OPTIONS, context.args)
        as_json = bool(given.pop("json", False))
        values = parsed(pipeline.OPTIONS, given)
    except WrongOption as error:
        raise usage(str(error)) from error
    if values.get("servers"):
        check_reachable(values["servers"], _PROBE_S)
    try:
        with _bar(name) as watch:
            result = pipeline.run(values, watch=watch)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "numpy", "pandas", "py4j"):
            raise
        raise CommandError(
            f"pipelines run on Spark, and {error.name} is missing: pip install 'headrace[spark]'"
        ) from error
    if as_json:
        print_json(result.document)
    else:
        print("\n".join(result.lines))
    if result.has_findings:
        raise typer.Exit(Exit.FAILED)


def arguments(declared: Sequence[Option], texts: Sequence[str]) -> dict[str, Any]:
    """What was typed, by name: `--x value`, `--x=value`, `--x/--no-x`, and the short forms that all commands have."""
    by_flag = {option.flag: option for option in declared}
    given: dict[str, Any] = {}
    if "servers" in {option.name for option in declared} and os.environ.get("HEADRACE_BOOTSTRAP"):
        given["servers"] = os.environ["HEADRACE_BOOTSTRAP"]
    rest = list(texts)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        if flag == "--json":
            given["json"] = True
            continue
        flag = {"-b": "--servers", "--bootstrap-server": "--servers"}.get(flag, flag)
        negated = flag == "--once" or (flag.startswith("--no-") and flag not in by_flag)
        flag = "--continuous" if flag == "--once" else "--" + flag[5:] if negated else flag
        option = by_flag.get(flag)
        if option is None or (negated and option.type is not bool):
            raise usage(_unknown(text.partition("=")[0], by_flag))
        if option.type is bool:
            given[option.name] = not negated if not equals else value
            continue
        if not equals:
            if not rest or rest[0] in by_flag:
                raise usage(f"{flag} needs a value")
            value = rest.pop(0)
        given[option.name] = [*given.get(option.name, []), value] if option.type is list else value
    return given


def _unknown(text: str, flags: dict[str, Option]) -> str:
    if not text.startswith("-"):
        return f"{text!r} does not belong to an option: options are --name value"
    return f"there is no option {text}{nearest(text, flags)}"


def help_lines(name: str, declared: Sequence[Option]) -> list[str]:
    """What a pipeline does and takes."""
    rows: list[tuple[str, str]] = []
    for option in sorted(declared, key=lambda one: not one.required):
        if option.name == "continuous":
            rows.append(("--once/--continuous", f"{option.help}"))
            continue
        flag = option.flag if option.type is bool else f"{option.flag} {_metavar(option)}"
        default = "" if option.default in (None, False, "", []) else f" [{_shown(option.default)}]"
        rows.append((flag, option.help + (" (needed)" if option.required else default)))
    rows.append(("--json", "Print the result for programs."))
    width = max(len(flag) for flag, _ in rows)
    return [
        f"Usage: headrace pipeline run {name} [OPTIONS]",
        "",
        f"  {PIPELINES[name]}",
        "",
        *(f"  {styled(flag.ljust(width), '1')}  {text}" for flag, text in rows),
    ]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _metavar(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    return {int: "N", float: "X", list: "A,B…"}.get(option.type, "TEXT")


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Watch | None]:
    """A bar on stderr while it runs: rows in and out, rate, lag; nothing where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, said="starting")

        def watch(snapshot: Snapshot) -> None:
            bar.update(task, total=snapshot.total, completed=snapshot.rows_in, said=said(snapshot))

        yield watch


def said(snapshot: Snapshot) -> str:
    """A snapshot in a line."""
    if snapshot.note and not snapshot.rows_in:
        return snapshot.note
    parts = [f"in {count(snapshot.rows_in)}", f"out {count(snapshot.rows_out)}"]
    if snapshot.rate_per_s:
        parts.append(f"{count(round(snapshot.rate_per_s))}/s")
    if snapshot.lag is not None:
        parts.append(f"lag {count(snapshot.lag)}")
    if snapshot.note:
        parts.append(snapshot.note)
    return " · ".join(parts)


# --- status -----------------------------------------------------------------------------------------------------------


@app.command()
def status(
    checkpoint: Annotated[
        list[str] | None, typer.Option("--checkpoint", metavar="DIR", help="Of these; else all with a default place.")
    ] = None,
    as_json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show pipelines: what they are at, their last progress, and their lag as the brokers have it now."""
    found = find(checkpoint or ())
    missing = [place for place in checkpoint or () if not any(path == Path(place).absolute() for path, _ in found)]
    if missing:
        raise CommandError(f"no pipeline has run with the checkpoint {', '.join(missing)}")
    rows = [_status_row(path, state, timeout) for path, state in found]
    columns = [
        Column("name", "PIPELINE", style="1"),
        Column("phase", "STATE", style=lambda phase: _PHASE_STYLES.get(str(phase), "")),
        Column("rows_in", "IN", count),
        Column("rows_out", "OUT", count),
        Column("rate_per_s", "RATE/S", lambda rate: count(round(rate))),
        Column("lag", "LAG", count, lambda lag: "33" if lag else ""),
        Column("runs", "RUNS"),
        Column("updated_ms", "LAST PROGRESS", moment),
        Column("checkpoint", "CHECKPOINT"),
    ]
    show_rows(
        rows,
        columns,
        as_json=as_json,
        empty="No pipeline has run here without --checkpoint. `headrace pipeline list` lists them.",
    )
    if not as_json:
        for row in rows:
            if row["phase"] in ("failed", "lost"):
                why = row["error"] or "its process is gone; started again it goes on where it was"
                note(f"{row['name']}: {why}")


def _status_row(path: Path, state: State, timeout_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(state, name) for name in State.__slots__}
    row |= {"checkpoint": str(path), "phase": str(state.phase), "groups": {}}
    lags: dict[str, int | None] = {}
    if state.servers and state.groups:
        try:
            check_reachable(state.servers, min(timeout_s, _PROBE_S))
            lags = group_lags(state, timeout_s)
        except HeadraceError as error:
            row["unreachable"] = str(error)
    known = [lag for lag in lags.values() if lag is not None]
    if known:
        row["lag"] = sum(known)
    row["groups"] = lags
    return row


def group_lags(state: State, timeout_s: float) -> dict[str, int | None]:
    """The lag of each of a pipeline's consumer groups, now; None for one that has committed nothing."""
    from headrace.cli.group import group_documents
    from headrace.client.admin.drivers import ADMIN_CONFIGS

    config = kafka_config(state.servers, state.options.get("client_config"))
    known = {name: value for name, value in config.items() if name in ADMIN_CONFIGS}
    with Admin(known, default_api_timeout_ms=int(timeout_s * 1000)) as admin:
        documents, _ = group_documents(admin, list(state.groups))
    found: dict[str, int | None] = dict.fromkeys(state.groups)
    for document in documents:
        if document["offsets"]:
            found[document["group"]] = document["lag"]
    return found
