"""`headrace consume`: read records from somewhere to somewhere, or on and on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from headrace.cli.completing import groups_there, of, topics_there
from headrace.cli.exits import ReaderGone
from headrace.cli.formats import NAMES, SCHEMA_FORMATS, Writer, for_terminals, writer_for
from headrace.cli.options import Target, admin_for, only, plain_kernels, targeted
from headrace.cli.output import Tick, note, progress, silent, usage
from headrace.cli.reading import GroupShare, Piece, PrintedRange, read_ranges
from headrace.cli.times import duration_ms, is_duration, moment_ms
from headrace.client.admin import Admin, OffsetSpec
from headrace.client.admin.topics import READ_COMMITTED, READ_UNCOMMITTED
from headrace.client.consumer.blocking import Consumer
from headrace.client.consumer.config import CONSUMER_CONFIGS
from headrace.client.consumer.records import slice_columns
from headrace.client.ranges import RangeReader, without_group
from headrace.errors import HeadraceError
from headrace.records import Columns
from headrace.topics import TopicPartition
from headrace.words import plural

_COMMIT_EVERY_S = 5.0
_COMPILED_FROM_RECORDS = 2_000_000
_BEGINNING = ("beginning", "earliest")
_END = ("end", "latest")
_WHERE = "beginning, end, an offset, -N (N before the end), a time (2026-01-31T12:00), 15m (that long ago)"


@targeted
def command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=topics_there)],
    start: Annotated[str | None, typer.Option("--from", "-o", metavar="WHERE", help=f"{_WHERE}.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHERE", help="Where to stop: the same words.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; several times.")
    ] = None,
    maximum: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after so many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Do not stop at the end: wait for more.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="As a member of this group: go on where it stopped, commit what was printed.",
            autocompletion=groups_there,
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"{', '.join(NAMES)}, {', '.join(SCHEMA_FORMATS)} (values by their schemas, as JSON), or a format "
            "with %t %p %o %k %s %T %D %h %K %S.",
            autocompletion=of(*NAMES, *SCHEMA_FORMATS),
        ),
    ] = "value",
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="The schema registry, for formats with schemas."),
    ] = None,
    key_separator: Annotated[str, typer.Option("--key-separator", "-K", help="For key-value.")] = r"\t",
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation-level",
            help=f"{READ_UNCOMMITTED} (the default) or {READ_COMMITTED}.",
            autocompletion=of(READ_UNCOMMITTED, READ_COMMITTED),
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Bytes as they are, also on a terminal (which may act upon them).")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    *,
    target: Target,
) -> None:
    """Read records and print them; stops at the end there was when it began, unless --follow.

    Without --from it starts at the beginning, with --group where the group stopped.
    """
    if follow and end is not None:
        raise usage("--follow never stops: it cannot go with --to")
    isolation = isolation or target.settings.get("isolation.level") or READ_UNCOMMITTED
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise usage(f"--isolation-level is {READ_UNCOMMITTED} or {READ_COMMITTED}, not {isolation!r}")
    if group is not None:
        _check_group_options(partition, start, end)
    write = _schema_writer(form, registry) if form in SCHEMA_FORMATS else writer_for(form, key_separator)
    if sys.stdout.isatty() and not raw:
        write = for_terminals(write)
    config = only(target.config(), CONSUMER_CONFIGS) | {
        "isolation.level": isolation,
        "allow.auto.create.topics": False,
    }
    with admin_for(config, target.timeout_s) as admin:
        ranges = _ranges(admin, topics, partition, start, end, follow, isolation)
    total = sum(0 if wanted.end is None else wanted.end - wanted.start for wanted in ranges.values())
    began = time.monotonic()
    # While records run over the terminal, a bar would only be in their way.
    is_hidden = quiet or follow or sys.stdout.isatty()
    bar = silent() if is_hidden else progress(", ".join(topics), min(total, maximum or total), is_bytes=False)
    with contextlib.nullcontext() if total > _COMPILED_FROM_RECORDS else plain_kernels(), bar as tick:
        printer = _Printer(write, maximum, tick)
        if group is None:
            with RangeReader(without_group(config)) as reader:
                _print_all(printer, read_ranges(reader, ranges, target.timeout_s))
        else:
            reset = "latest" if start in _END else "earliest"
            own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": reset}
            with Consumer({**config, **own}) as consumer:
                _print_share(printer, consumer, topics, None if follow else ranges, target.timeout_s)
    if not quiet and not follow and sys.stderr.isatty():
        note(f"{plural(printer.printed, 'record')} in {time.monotonic() - began:.2f} s")


def _schema_writer(form: str, url: str | None) -> Writer:
    from headrace.cli.schemas import connected, decoded_writer

    return decoded_writer(form, connected(url))


def _check_group_options(partitions: list[int] | None, start: str | None, end: str | None) -> None:
    if partitions:
        raise usage("a group decides on the partitions: --partition cannot go with --group")
    if end is not None:
        raise usage("--to cannot go with --group; use --max, or stop at the end")
    if start not in (None, *_BEGINNING, *_END):
        raise usage(
            "with --group, --from (beginning or end) says where to start when the group has committed nothing; "
            "`headrace group reset` moves it elsewhere"
        )


def _print_all(printer: _Printer, pieces: Iterator[Piece]) -> None:
    for partition, columns in pieces:
        printer.print(partition, columns)
        if printer.is_full:
            return


def _print_share(
    printer: _Printer,
    consumer: Consumer,
    topics: list[str],
    ranges: Mapping[TopicPartition, PrintedRange] | None,
    timeout_s: float,
) -> None:
    """As a member of a group: what was printed is committed, now and then and at the end, also after Ctrl-C."""
    share = GroupShare(consumer, topics, consumer.commit_sync)
    ends = None if ranges is None else {tp: wanted.end or 0 for tp, wanted in ranges.items()}
    committed_at = time.monotonic()
    try:
        for partition, columns in share.read(ends, printer.room, timeout_s):
            printer.print(partition, columns)
            if printer.is_full:
                break
            if time.monotonic() - committed_at > _COMMIT_EVERY_S:
                consumer.commit_sync()
                committed_at = time.monotonic()
    finally:
        if printer.printed:
            consumer.commit_sync()


class _Printer:
    """Prints records and counts them."""

    def __init__(self, write: Writer, maximum: int | None, tick: Tick) -> None:
        self._write = write
        self._maximum = maximum
        self._tick = tick
        self.printed = 0

    def room(self) -> int:
        """How many more may be printed."""
        return sys.maxsize if self._maximum is None else self._maximum - self.printed

    @property
    def is_full(self) -> bool:
        return self.room() <= 0

    def print(self, partition: TopicPartition, columns: Columns) -> None:
        if len(columns) > self.room():
            columns = slice_columns(columns, 0, self.room())
        out = sys.stdout.buffer
        try:
            out.write(self._write(partition, columns))
            out.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        self.printed += len(columns)
        self._tick(len(columns))


# --- from and to ------------------------------------------------------------------------------------------------------


def _ranges(
    admin: Admin,
    topics: list[str],
    partitions: list[int] | None,
    start: str | None,
    end: str | None,
    follow: bool,
    isolation: str,
) -> dict[TopicPartition, PrintedRange]:
    """Every partition that is read, with its first offset and the one to stop before."""
    described = admin.describe_topics(topics).all()
    wanted = [
        TopicPartition(name, info.partition)
        for name in topics
        for info in described[name].partitions
        if not partitions or info.partition in partitions
    ]
    absent = set(partitions or ()) - {tp.partition for tp in wanted}
    if absent:
        raise usage(f"{', '.join(topics)} has no partition {', '.join(map(str, sorted(absent)))}")
    first = _offsets(admin, wanted, OffsetSpec.earliest(), isolation)
    last = _offsets(admin, wanted, OffsetSpec.latest(), isolation)
    starts = _resolve(admin, start or "beginning", wanted, first, last, isolation)
    ends = _resolve(admin, end or "end", wanted, first, last, isolation)
    return {tp: PrintedRange(starts[tp], None if follow else min(ends[tp], last[tp])) for tp in wanted}


def _offsets(
    admin: Admin, partitions: list[TopicPartition], spec: OffsetSpec, isolation: str
) -> dict[TopicPartition, int]:
    found = admin.list_offsets(dict.fromkeys(partitions, spec), isolation_level=isolation).all()
    return {partition: info.offset for partition, info in found.items()}


def _resolve(
    admin: Admin,
    where: str,
    partitions: list[TopicPartition],
    first: Mapping[TopicPartition, int],
    last: Mapping[TopicPartition, int],
    isolation: str,
) -> dict[TopicPartition, int]:
    """The offset that a word, a number or a time means, in every partition."""
    if where in _BEGINNING:
        return dict(first)
    if where in _END:
        return dict(last)
    number = where.removeprefix("-")
    if number.isascii() and number.isdigit():
        offset = int(where)
        if offset < 0:
            return {tp: max(last[tp] + offset, first[tp]) for tp in partitions}
        return {tp: min(max(offset, first[tp]), last[tp]) for tp in partitions}
    try:
        time_ms = int(time.time() * 1000) - duration_ms(where) if is_duration(where) else moment_ms(where)
    except HeadraceError:
        raise usage(f"{where!r} is none of: {_WHERE}") from None
    found = _offsets(admin, partitions, OffsetSpec.for_timestamp(max(0, time_ms)), isolation)
    return {tp: offset if offset >= 0 else last[tp] for tp, offset in found.items()}
