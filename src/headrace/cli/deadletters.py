"""`headrace deadletters`: see what parallel consumers could not handle, and put it back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.completing import groups_there, topics_there
from headrace.cli.options import Json, Target, only, targeted
from headrace.cli.output import Column, CommandError, moment, note, print_json, show_rows, usage
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.parallel.deadletters import DeadLetter, DeadLetters
from headrace.words import plural, visible

app = typer.Typer(no_args_is_help=True)


class Why(StrEnum):
    """Why a record is among the dead letters; see `parallel.retries.reason_of`."""

    FAILED = "failed"
    STALLED = "stalled"
    POISON = "poison"
    DAMAGED = "damaged"
    REJECTED = "rejected"
    CRASHED = "crashed"


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.", autocompletion=topics_there)]
Reason = Annotated[Why | None, typer.Option("--reason", help="Only letters that are there for this reason.")]
Error = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Only letters whose error has this text.")]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="Only letters of this group.", autocompletion=groups_there)
]
_TEXT_MAX = 60


@app.command("list")
@targeted
def list_(
    topic: Topic,
    reason: Reason = None,
    error: Error = None,
    group: Group = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were put back already.")] = False,
    maximum: Annotated[int, typer.Option("--max", "-n", min=1, help="At most so many.")] = 1_000,
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """List dead letters: where each came from, and why it is there."""
    with DeadLetters(only(target.config(), CONSUMER_CONFIGS), topic) as letters:
        found = letters.letters(include_redriven=everything, select=_selector(reason, error, group))
        rows = [_row(letter) for letter in itertools.islice(found, maximum + 1)]
    columns = [
        Column("at", "AT"),
        Column("failed", "FAILED"),
        Column("origin", "FROM"),
        Column("reason", "REASON"),
        Column("attempts", "ATTEMPTS"),
        Column("error", "ERROR", show=_short),
        Column("key", "KEY", show=_short),
    ]
    if everything:
        columns.append(Column("redriven", "PUT BACK"))
    show_rows(rows[:maximum], columns, as_json=as_json, empty=f"There are no dead letters in {topic}.")
    if len(rows) > maximum and not as_json:
        note(f"There are more than {maximum}; --max shows more.")


@app.command()
@targeted
def show(
    topic: Topic,
    place: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="As `list` has it under AT.")],
    as_json: Json = False,
    *,
    target: Target,
) -> None:
    """Show one dead letter whole: key, value, headers, error."""
    partition, offset = _place(place)
    with DeadLetters(only(target.config(), CONSUMER_CONFIGS), topic) as letters:
        letter = letters.letter(partition, offset)
    if letter is None:
        raise CommandError(f"{topic} has no record at {place}")
    document = _row(letter) | {
        "error_type": letter.error_type,
        "group": letter.group,
        "value": _text(letter.record.value),
        "headers": {name: _text(value) for name, value in letter.record.headers},
    }
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        if isinstance(value, dict):
            for one, content in value.items():
                print(f"{'header':<12} {visible(str(one))}: {visible(str(content))}")
        else:
            print(f"{name.replace('_', ' '):<12} {'-' if value is None else visible(str(value))}")


@app.command()
@targeted
def redrive(
    topic: Topic,
    places: Annotated[
        list[str] | None, typer.Option("--at", metavar="PARTITION:OFFSET", help="Only this one; several times.")
    ] = None,
    reason: Reason = None,
    error: Error = None,
    group: Group = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not put back yet.")] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Not where they came from, but here.", autocompletion=topics_there),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    *,
    target: Target,
) -> None:
    """Put dead letters back to where they came from, each once. They are handled afresh, with all tries."""
    if not (everything or places or reason or error or group):
        raise usage("say which: --at PARTITION:OFFSET, --reason, --error, --group, or --all")
    wanted = {_place(place) for place in places or ()}
    matches = _selector(reason, error, group)

    def select(letter: DeadLetter) -> bool:
        return matches(letter) and (not wanted or (letter.record.partition, letter.record.offset) in wanted)

    def tell(letter: DeadLetter, target: str) -> None:
        print(f"{_at(letter)} → {target}")

    with DeadLetters(only(target.config(), CONSUMER_CONFIGS), topic) as letters:
        if dry_run:
            count = 0
            for letter in letters.letters(select=select):
                tell(letter, to or letter.origin_topic or "?")
                count += 1
            note(f"{plural(count, 'letter')} would be put back.")
            return
        count = letters.redrive(select, to=to, on_each=tell)
    note(f"{plural(count, 'letter')} put back." if count else "No letter fits (damaged batches cannot be put back).")


# --- rows -------------------------------------------------------------------------------------------------------------


def _row(letter: DeadLetter) -> dict[str, Any]:
    has_origin = letter.origin_topic is not None
    return {
        "at": _at(letter),
        "failed": moment(letter.failed_ms),
        "origin": f"{letter.origin_topic}-{letter.origin_partition}:{letter.origin_offset}" if has_origin else None,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "error": letter.error,
        "key": _text(letter.record.key),
        "redriven": letter.is_redriven,
    }


def _at(letter: DeadLetter) -> str:
    return f"{letter.record.partition}:{letter.record.offset}"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _TEXT_MAX else line[: _TEXT_MAX - 1] + "…"


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        raise usage(f"{text!r} is not PARTITION:OFFSET")
    return int(partition), int(offset)


def _selector(reason: Why | None, error: str | None, group: str | None) -> Callable[[DeadLetter], bool]:
    def select(letter: DeadLetter) -> bool:
        return (
            (reason is None or letter.reason == reason)
            and (error is None or error in (letter.error or ""))
            and (group is None or letter.group == group)
        )

    return select
