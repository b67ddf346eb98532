"""One step of a group: a heartbeat, a timer, a target that was computed. What it changes is written in one batch.

A step changes the group at once, so that the next one goes on from there, and answers once it is written. If it cannot
be written, whoever waits is told so; the group stays as it is, ahead of the log, and what was not written is written
with the group's next step, in the same batch. Nobody hears of anything that follows from it before that is done: a
step that is written while an earlier one is not writes that first, and answers then. So the log may know less than the
coordinator, and never anything that contradicts what members were told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.coordination import CoordinatorRecord, Effect, Now, record_bytes
from headrace.errors import ErrorCode
from headrace.groups.epochs.group import EpochGroup, KeyAndValue
from headrace.groups.outcome import Outcome
from headrace.groups.shards import Shards
from headrace.protocol.stored.consumer_offsets import encode_record

VALUE_VERSION = 0  # of all records of these groups
PIECE_BYTES_MAX = 512 * 1024  # half of what a batch may hold by default

GroupT = TypeVar("GroupT", bound=EpochGroup[Any, Any])


def encoded(key: Any, value: Any | None) -> tuple[bytes, bytes | None]:
    return encode_record(key, value, VALUE_VERSION)


class GroupStep(Generic[GroupT]):
    """A step under way. `end` lets its records be written."""

    __slots__ = ("_once", "_records", "_shards", "at", "group", "out")

    def __init__(self, shards: Shards, out: Outcome, group: GroupT, at: Now) -> None:
        self.out = out
        self.group = group
        self.at = at
        self._shards = shards
        self._records: dict[bytes, bytes | None] = {}
        self._once: list[CoordinatorRecord] = []

    def put(self, record: KeyAndValue) -> None:
        """Write this with the step, in the order of the calls."""
        self.put_encoded(*encoded(*record))

    def put_encoded(self, key: bytes, value: bytes | None) -> None:
        self._records.pop(key, None)
        self._records[key] = value

    def put_once(self, record: CoordinatorRecord) -> None:
        """Write this with the step, after the rest. If it fails, whoever gave it writes it anew when it is time."""
        self._once.append(record)

    def end(self) -> None:
        records, self._records = self._records, {}
        once, self._once = self._once, []
        if records or once or self.group.book.unwritten:
            _write(self._shards, self.out, self.group, records, once)

    def note(self, text: str) -> None:
        """For the broker's log."""
        self.out.notes.append(f"group {self.group.group_id}: {text}")


def _write(
    shards: Shards,
    out: Outcome,
    group: EpochGroup[Any, Any],
    records: dict[bytes, bytes | None],
    once: Sequence[CoordinatorRecord] = (),
) -> None:
    book = group.book
    if book.unwritten:
        superseded = {record.key for record in once}
        older = {k: v for k, v in book.unwritten.items() if k not in records and k not in superseded}
        records = older | records
        book.unwritten.clear()
    book.steps += 1
    for key in records:
        book.in_flight[key] = book.steps
    stored = [CoordinatorRecord(group.partition, key, value) for key, value in records.items()]
    for piece in _pieces([*stored, *once]):
        keys = {record.key: record.value for record in piece if record.key in records}
        written = partial(_written, shards, group, book.steps, tuple(keys))
        out.effects.append(Effect(tuple(piece), written, partial(_failed, group, book.steps, keys)))


def _pieces(records: Sequence[CoordinatorRecord]) -> Iterator[list[CoordinatorRecord]]:
    """All of them together, unless that is more than a batch may hold: then in order, piece by piece.

    The epoch of a target comes after the target's parts, so a target of which only some were written is made anew.
    """
    piece: list[CoordinatorRecord] = []
    size = 0
    for record in records:
        size += record_bytes(record)
        if size > PIECE_BYTES_MAX and piece:
            yield piece
            piece, size = [], record_bytes(record)
        piece.append(record)
    yield piece


def _written(
    shards: Shards, group: EpochGroup[Any, Any], step: int, keys: tuple[bytes, ...], out: Outcome, at: Now
) -> None:
    book = group.book
    for key in keys:
        if book.in_flight.get(key) == step:
            del book.in_flight[key]
    if book.unwritten and shards.is_live(group):
        _write(shards, out, group, {})


def _failed(
    group: EpochGroup[Any, Any],
    step: int,
    records: dict[bytes, bytes | None],
    out: Outcome,
    error: ErrorCode,
    at: Now,
) -> None:
    book = group.book
    for key, value in records.items():
        if book.in_flight.get(key) == step:  # else a later step decides what is written
            del book.in_flight[key]
            book.unwritten[key] = value
