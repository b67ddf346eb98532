"""Batches that are written with one call of the disk, and that readers see all at once."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.log.producer_state import EndMarker
from headrace.records import BatchHeader
from headrace.runtime import Buffer


class AppendedBatch(NamedTuple):
    """One batch at the end of a segment's file. The header may still say that it begins at offset 0."""

    header: BatchHeader
    base_offset: int
    size: int
    max_timestamp_ms: int
    leader_epoch: int
    marker: EndMarker | None


class SegmentRoom(NamedTuple):
    """How much more a segment takes."""

    batches: int
    nbytes: int
    last_offset: int
    timestamp_ms: int


NO_ROOM: Final = SegmentRoom(0, 0, 0, 0)


class BatchRun:
    """Batches that follow one another and fit the active segment, each from another producer if it has one."""

    __slots__ = ("_room", "batches", "end_offset", "nbytes", "parts", "places", "producers")

    def __init__(self, end_offset: int, room: SegmentRoom) -> None:
        self._room = room
        self.batches: list[AppendedBatch] = []
        self.parts: list[Buffer] = []
        #: Where, among all that was asked for, each of them stands.
        self.places: list[int] = []
        self.producers: set[int] = set()
        self.nbytes = 0
        self.end_offset = end_offset

    def has_room(self, nbytes: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Whether a batch may be written with these, behind them; where that cannot be told, it may not."""
        batches_max, nbytes_max, offset_max, timestamp_max_ms = self._room
        return (
            len(self.batches) < batches_max
            and self.nbytes + nbytes <= nbytes_max
            and last_offset <= offset_max
            and max_timestamp_ms <= timestamp_max_ms
        )

    def add(self, part: Buffer, written: AppendedBatch, nbytes: int) -> None:
        """`end_offset` is for the caller to say."""
        self.parts.append(part)
        self.batches.append(written)
        self.nbytes += nbytes
