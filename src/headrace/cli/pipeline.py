"""`headrace pipeline`: list what is ready-made, run one with a progress bar, show how far they are, forget one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headrace.cli.completing import Offer, of, pipelines_known, topics_of
from headrace.cli.exits import Exit
from headrace.cli.options import (
    BOOTSTRAP_VARIABLE,
    CONFIG_VARIABLE,
    DEFAULT_TIMEOUT_S,
    Json,
    Target,
    Yes,
    admin_for,
    check_reachable,
    target_of,
    targeted,
)
from headrace.cli.output import (
    Column,
    CommandError,
    confirm,
    count,
    moment,
    note,
    print_json,
    show_rows,
    terminal_width,
    usage,
)
from headrace.cli.running import watched
from headrace.errors import HeadraceError
from headrace.spark.extras import MissingExtraError, explained
from headrace.spark.pipelines import PIPELINES, Option, Result, WrongOptionError, load, nearest, parsed
from headrace.spark.pipelines import state as states
from headrace.spark.pipelines.declaring import Pipeline, run_name
from headrace.spark.pipelines.running import kafka_config
from headrace.spark.pipelines.state import PipelineState, find
from headrace.spark.pipelines.topics import missing_topics

app = typer.Typer(no_args_is_help=True)

_ANY_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_HELP = ("-h", "--help")
_CONNECTION = {
    "-b": "servers",
    "--bootstrap-server": "servers",
    "--command-config": "client_config",
    "-X": "property",
    "--property": "property",
}
"""The options by which every command names a cluster, and what pipelines call them."""
_PHASE_STYLES = {"running": "32", "done": "2", "failed": "31", "lost": "31", "stopped": "33"}
_PROBE_S = 3.0


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the pipelines."""
    rows = [{"pipeline": name, "does": text} for name, text in PIPELINES.items()]
    show_rows(
        rows, [Column("pipeline", "PIPELINE", style="1"), Column("does", "WHAT IT DOES", wraps=True)], as_json=as_json
    )
    if not as_json:
        note("`headrace pipeline run NAME --help` lists its options.")


# --- run --------------------------------------------------------------------------------------------------------------


class _RunCommand(TyperCommand):
    """`run` takes the options of the pipeline that it is told, so it completes those."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        name = ctx.params.get("name")
        if name is None:
            return list(super().shell_complete(ctx, incomplete))
        return [Offer(text) for text in _offered(name, ctx.args, incomplete)]


@app.command(cls=_RunCommand, context_settings=_ANY_OPTIONS, add_help_option=False)
def run(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=pipelines_known)] = None,
) -> None:
    """Run a pipeline: NAME --option value …; NAME --help lists its options. Ctrl-C stops it after the batch under way.

    Started again with the same options it goes on where it was.
    """
    if name is None or name in _HELP:
        list_()
        return
    try:
        pipeline = load(name)
    except WrongOptionError as error:
        raise usage(str(error)) from error
    except ModuleNotFoundError as error:
        raise explained(error) from error
    if any(text in _HELP for text in context.args):
        print("\n".join(help_lines(name, pipeline.OPTIONS)))
        return
    given, problems = arguments(pipeline.OPTIONS, context.args)
    as_json = bool(given.pop("json", False))
    values = _checked(pipeline, given, problems)
    result = _run(name, pipeline, values)
    if as_json:
        print_json(result.document)
    else:
        print("\n".join(result.lines))
    if result.has_findings:
        raise typer.Exit(Exit.FAILED)


def _checked(pipeline: Pipeline, given: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Every option with its value. All that is wrong is said at once, and before Spark is started."""
    values: dict[str, Any] = {}
    try:
        target = _target(given)
        given |= {"servers": target.servers, "client_config": dict(target.settings) or None}
        values = parsed(pipeline.OPTIONS, given, problems)
        check_reachable(target.servers, _PROBE_S)
        for option in pipeline.OPTIONS:
            if option.is_cluster and values[option.name]:
                check_reachable(values[option.name], _PROBE_S, option.flag)
        problems += missing_topics(pipeline.OPTIONS, values)
    except WrongOptionError as error:
        problems += str(error).splitlines()
    if problems:
        raise usage("\n".join(problems))
    return values


def _target(given: dict[str, Any]) -> Target:
    file = given.pop("client_config", None) or os.environ.get(CONFIG_VARIABLE)
    servers = given.pop("servers", None) or os.environ.get(BOOTSTRAP_VARIABLE)
    return target_of(servers, DEFAULT_TIMEOUT_S, None if file is None else Path(file), given.pop("property", ()))


def _run(name: str, pipeline: Pipeline, values: dict[str, Any]) -> Result:
    log = log_path(run_name(name, pipeline.OPTIONS, values))
    try:
        with watched(name, log) as watch:
            return pipeline.run(values, watch=watch)
    except WrongOptionError as error:
        raise usage(str(error)) from error
    except ModuleNotFoundError as error:
        raise explained(error) from error
    except MissingExtraError:
        raise
    except HeadraceError as error:
        raise CommandError(f"{error}\nSpark's log is in {log}") from error


def log_path(run: str) -> Path:
    """Where Spark's log of a run is."""
    return states.default_root().parent / "logs" / f"{run}.log"


def arguments(declared: Sequence[Option], texts: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What was typed, by name: `--x value`, `--x=value`, `--x/--no-x`, and the short forms that all commands have.

    And what was typed that no option is, a sentence each.
    """
    by_flag = _by_flag(declared)
    given: dict[str, Any] = {}
    problems: list[str] = []
    rest = list(texts)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        if text.startswith("-X") and text != "-X":
            flag, equals, value = "-X", "=", text[2:]
        if flag == "--json":
            given["json"] = True
            continue
        negated = flag == "--once" or (flag.startswith("--no-") and flag not in by_flag)
        flag = "--continuous" if flag == "--once" else "--" + flag[5:] if negated else flag
        option = by_flag.get(flag)
        if option is None or (negated and option.type is not bool):
            problems.append(_unknown(text.partition("=")[0], by_flag))
            if not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)  # most likely its value
            continue
        if option.type is bool:
            given[option.name] = not negated if not equals else value
            continue
        if not equals:
            if not rest or rest[0].partition("=")[0] in by_flag:
                problems.append(f"{flag} needs a value")
                continue
            value = rest.pop(0)
        given[option.name] = [*given.get(option.name, []), value] if option.type is list else value
    return given, problems


def _by_flag(declared: Sequence[Option]) -> dict[str, Option]:
    flags = {option.flag: option for option in declared}
    return flags | {flag: _connecting(name) for flag, name in _CONNECTION.items()}


def _connecting(name: str) -> Option:
    return Option(name, list if name == "property" else str)


def _offered(name: str, typed: Sequence[str], incomplete: str) -> list[str]:
    """What may be typed next behind a pipeline's name: an option of its own, or what the last one takes."""
    try:
        declared = load(name).OPTIONS
    except (WrongOptionError, ModuleNotFoundError):
        return []
    flags = _by_flag(declared)
    option = flags.get(typed[-1]) if typed else None
    if option is None or option.type is bool:
        words = {flag for flag in flags if flag.startswith("--")} | {"--json", "--help"}
        return of(*sorted(words))(incomplete)
    if option.there is None:
        return of(*option.choices)(incomplete)
    given, _ = arguments(declared, typed[:-1])
    servers, config = (given.get(name) for name in option.there)
    file = config or os.environ.get(CONFIG_VARIABLE)
    cluster = {
        "bootstrap": servers or os.environ.get(BOOTSTRAP_VARIABLE),
        "command_config": None if file is None else Path(file),
        "properties": given.get("property"),
    }
    # Several are separated by commas.
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{topic}" for topic in topics_of(cluster, last)]


def _unknown(text: str, flags: dict[str, Option]) -> str:
    if not text.startswith("-"):
        return f"{text!r} does not belong to an option: options are --name value"
    return f"there is no option {text}{nearest(text, [flag for flag in flags if flag.startswith('--')])}"


def help_lines(name: str, declared: Sequence[Option]) -> list[str]:
    """What a pipeline does and takes: every option there is."""
    rows: list[tuple[str, str]] = []
    for option in sorted(declared, key=lambda one: not one.required):
        if option.name == "continuous":
            rows.append(("--once/--continuous", f"{option.help}"))
            continue
        flag = f"{option.flag} {_metavar(option)}"
        if option.type is bool:
            flag = f"{option.flag}/--no-{option.flag[2:]}" if option.default else option.flag
        default = "" if option.default in (None, False, True, "", []) else f" [{_shown(option.default)}]"
        rows.append((flag, option.help + (" (needed)" if option.required else default)))
    rows += [
        ("-b, --bootstrap-server HOST:PORT,…", f"The same as --servers; also {BOOTSTRAP_VARIABLE}."),
        ("--command-config FILE", f"The same as --client-config; also {CONFIG_VARIABLE}."),
        ("-X, --property KEY=VALUE", "A setting of Kafka's clients, over the file's; several times."),
        ("--json", "Print the result for programs."),
        ("-h, --help", "Show this."),
    ]
    says = textwrap.wrap(PIPELINES[name], (terminal_width() or 120) - 2)
    return [
        f"Usage: headrace pipeline run {name} [OPTIONS]",
        "",
        *(f"  {line}" for line in says),
        "",
        *_two_columns(rows),
    ]


def _two_columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Flags on the left and words on the right, which are broken where the terminal ends."""
    room = terminal_width() or 120
    left = min(max(len(flag) for flag, _ in rows), max(20, room // 2 - 4))
    lines: list[str] = []
    for flag, text in rows:
        words = textwrap.wrap(text, max(20, room - left - 4)) or [""]
        first = f"  {flag.ljust(left)}  "
        if len(flag) > left:
            lines.append(f"  {flag}")
            first = " " * (left + 4)
        lines += [first + words[0], *(" " * (left + 4) + word for word in words[1:])]
    return lines


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _metavar(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    return {int: "N", float: "X", list: "A,B…"}.get(option.type, "TEXT")


# --- status and remove ------------------------------------------------------------------------------------------------


@app.command()
@targeted
def status(
    checkpoint: Annotated[
        list[str] | None, typer.Option("--checkpoint", metavar="DIR", help="Of these; else all with a default place.")
    ] = None,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show pipelines: what they read, how far they are in all their runs, and their lag as the brokers have it now."""
    found = find(checkpoint or ())
    missing = [place for place in checkpoint or () if not any(path == Path(place).absolute() for path, _ in found)]
    if missing:
        raise CommandError(f"no pipeline has run with the checkpoint {', '.join(missing)}")
    rows = [_status_row(path, state, target) for path, state in found]
    columns = [
        Column("name", "NAME", style="1"),
        Column("topics", "TOPICS"),
        Column("phase", "STATE", style=lambda phase: _PHASE_STYLES.get(str(phase), "")),
        Column("rows_in", "IN", count),
        Column("rows_out", "OUT", count),
        Column("lag", "LAG", count, lambda lag: "33" if lag else ""),
        Column("runs", "RUNS"),
        Column("updated_ms", "LAST PROGRESS", moment),
    ]
    empty = "No pipeline has run here without --checkpoint. `headrace pipeline list` lists them."
    show_rows(rows, columns, as_json=as_json, empty=empty)
    if not as_json:
        for row in rows:
            if row["phase"] in ("failed", "lost"):
                why = row["error"] or "its process is gone; started again it goes on where it was"
                note(f"{row['name']}: {str(why).partition(chr(10))[0]}")


def _status_row(path: Path, state: PipelineState, target: Target) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(state, name) for name in PipelineState.__slots__ if name != "before"}
    log = log_path(state.name)
    row |= {"checkpoint": str(path), "phase": str(state.phase), "log": str(log) if log.exists() else None}
    lags: dict[str, int | None] = {}
    if state.servers and state.groups:
        try:
            check_reachable(state.servers, min(target.timeout_s, _PROBE_S))
            lags = group_lags(state, target)
        except HeadraceError as error:
            row["unreachable"] = str(error)
    # Several groups of a pipeline read the same topics: it is as far behind as the slowest of them.
    row["lag"] = max((lag for lag in lags.values() if lag is not None), default=state.lag)
    row["groups"] = lags
    return row


def group_lags(state: PipelineState, target: Target) -> dict[str, int | None]:
    """The lag of each of a pipeline's consumer groups, now; None for one that has committed nothing."""
    from headrace.cli.group import group_documents

    file = state.options.get("client_config")
    config = kafka_config(state.servers, None if file == states.HIDDEN else file) | dict(target.settings)
    with admin_for(config, target.timeout_s) as admin:
        documents, _ = group_documents(admin, list(state.groups))
    found: dict[str, int | None] = dict.fromkeys(state.groups)
    for document in documents:
        if document["offsets"]:
            found[document["group"]] = document["lag"]
    return found


def _names_known(incomplete: str) -> list[str]:
    return of(*(state.name for _, state in find()))(incomplete)


@app.command()
def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="As `status` shows it.", autocompletion=_names_known)
    ],
    yes: Yes = False,
) -> None:
    """Forget pipelines that do not run: their checkpoints. Started again, one begins at the start of its topics."""
    known = {state.name: path for path, state in find()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise usage("\n".join(f"there is no pipeline {name}{nearest(name, known)}" for name in unknown))
    confirm(f"Forget {', '.join(names)}, and what was written before? A new run would write it again.", yes=yes)
    for name in names:
        try:
            states.remove(known[name])
        except WrongOptionError as error:
            raise CommandError(str(error)) from error
        log_path(name).unlink(missing_ok=True)
        print(f"{name} removed")
