"""`headrace consume`: read records from somewhere to somewhere, or on and on."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from headrace.cli.formats import NAMES, Writer, writer_for
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientConfig,
    Timeout,
    client_config,
)
from headrace.cli.output import CommandError, count, note, usage
from headrace.cli.reading import Range, RangeReader
from headrace.cli.times import duration_ms, is_duration, moment_ms
from headrace.client.admin import Admin, OffsetSpec
from headrace.client.admin.topics import READ_COMMITTED, READ_UNCOMMITTED
from headrace.errors import GroupIdNotFoundError, HeadraceError
from headrace.topics import TopicPartition

_COMMIT_EVERY_S = 5.0
_BEGINNING = ("beginning", "earliest")
_END = ("end", "latest")
_WHERE = "beginning, end, an offset, -N (N before the end), a time (2026-01-31T12:00), 15m (that long ago)"


def command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    start: Annotated[str | None, typer.Option("--from", "-o", metavar="WHERE", help=f"{_WHERE}.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="WHERE", help="Where to stop: the same words.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; several times.")
    ] = None,
    maximum: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after so many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Do not stop at the end: wait for more.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Go on where this group stopped, and commit what was printed.")
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", "-f", help=f"{', '.join(NAMES)}, or a format with %t %p %o %k %s %T %D %h %K %S."),
    ] = "value",
    key_separator: Annotated[str, typer.Option("--key-separator", "-K", help="For key-value.")] = r"\t",
    isolation: Annotated[
        str, typer.Option("--isolation-level", help=f"{READ_UNCOMMITTED} or {READ_COMMITTED}.")
    ] = READ_UNCOMMITTED,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    client_properties: ClientConfig = None,
) -> None:
    """Read records and print them; stops at the end there was when it began, unless --follow.

    Without --from it starts at the beginning, with --group where the group stopped.
    """
    if follow and end is not None:
        raise usage("--follow never stops: it cannot go with --to")
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise usage(f"--isolation-level is {READ_UNCOMMITTED} or {READ_COMMITTED}, not {isolation!r}")
    write = writer_for(form, key_separator)
    config = client_config(bootstrap, timeout, client_properties)
    with Admin(config, default_api_timeout_ms=int(timeout * 1000)) as admin:
        if group is not None:
            _check_free(admin, group)
        ranges = _ranges(admin, topics, partition, start, end, follow, group, isolation)
        reader = RangeReader(config, ranges, read_committed=isolation == READ_COMMITTED, timeout_s=timeout)
        printer = _Printer(admin, write, group, maximum)
        began = time.monotonic()
        try:
            for source, columns in reader:
                printer.print(source, columns)
                if printer.is_full:
                    break
        finally:
            reader.close()
            # Also after Ctrl-C: what was printed has been read.
            printer.commit()
    if not quiet and not follow and sys.stderr.isatty():
        note(f"{count(printer.printed)} records in {time.monotonic() - began:.2f} s")


class _Printer:
    """Prints records, counts them, and commits what it printed when it does so for a group."""

    def __init__(self, admin: Admin, write: Writer, group: str | None, maximum: int | None) -> None:
        self._admin = admin
        self._write = write
        self._group = group
        self._maximum = maximum
        self._positions: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()
        self.printed = 0

    @property
    def is_full(self) -> bool:
        return self._maximum is not None and self.printed >= self._maximum

    def print(self, partition: TopicPartition, columns: Any) -> None:
        if self._maximum is not None and self.printed + len(columns) > self._maximum:
            columns = columns.take(range(self._maximum - self.printed))
        out = sys.stdout.buffer
        out.write(self._write(partition, columns))
        out.flush()
        self.printed += len(columns)
        self._positions[partition] = columns.offsets[len(columns) - 1] + 1
        if self._group is not None and time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self.commit()

    def commit(self) -> None:
        if self._group is None or not self._positions:
            return
        positions, self._positions = self._positions, {}
        self._committed_at = time.monotonic()
        self._admin.alter_group_offsets(self._group, positions).all()


def _check_free(admin: Admin, group: str) -> None:
    """This command is no member of the group: it commits from outside, which a group with members does not allow."""
    described = admin.describe_groups([group])
    error = described.errors.get(group)
    if isinstance(error, GroupIdNotFoundError):
        return
    members = described[group].members
    if members:
        raise CommandError(
            f"group {group} has {len(members)} members that share its partitions; stop them, or read without --group"
        )


# --- from and to ------------------------------------------------------------------------------------------------------


def _ranges(
    admin: Admin,
    topics: list[str],
    partitions: list[int] | None,
    start: str | None,
    end: str | None,
    follow: bool,
    group: str | None,
    isolation: str,
) -> dict[TopicPartition, Range]:
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
    if group is not None and start is None:
        committed = admin.list_partition_offsets(group, wanted)
        starts |= {tp: min(max(found.offset, first[tp]), last[tp]) for tp, found in committed.items()}
    ends = _resolve(admin, end or "end", wanted, first, last, isolation)
    return {tp: Range(starts[tp], None if follow else min(ends[tp], last[tp])) for tp in wanted}


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
