"""What holds of every log, looked at always: before a batch is written, before a view is published, after a read.

A log that contradicts itself is a mistake in the program, or in the machine's memory, and whatever is written next may
make it worse. So it is taken out of service as it is: this partition alone, since nothing is wrong with its disk.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, Final

from headrace.runtime import DiskError

if TYPE_CHECKING:
    from headrace.log.reading import Slice
    from headrace.log.view import Mark, View

_SPAN = struct.Struct(">q15xi")
SPAN_BYTES: Final = _SPAN.size
read_span: Final = _SPAN.unpack_from
"""Of a batch's first bytes: its base offset and the delta of its last one."""


class BrokenInvariantError(DiskError):
    """A log contradicts itself. It is left as it is, and serves nothing before a restart has checked it.

    A DiskError, because it ends a log's service as one does; but it says nothing of the disk, nor of other logs.
    """

    def __init__(self, operation: str, path: str, detail: str) -> None:
        super().__init__(
            operation,
            path,
            None,
            detail=f"{detail}. The partition is offline and left as it is: restart the broker, which checks its log, "
            "and report this",
        )


def view_fault(view: View, watermark: Mark) -> str | None:
    """What is wrong with a view, which nobody may see then; None when nothing is."""
    high_watermark = view.valid(watermark)
    stable = view.stable_at(high_watermark)
    if not 0 <= view.start_offset <= stable <= high_watermark <= view.end_offset:
        return (
            f"start {view.start_offset}, stable {stable}, high watermark {high_watermark}, end {view.end_offset} are "
            "out of order"
        )
    bases = view.bases
    if len(bases) != len(view.segments) or not all(map(lt, bases, bases[1:])):
        return f"its segments begin at {bases}, which does not rise"
    if bases[-1] > view.end_offset:
        return f"its last segment begins at {bases[-1]}, after its end {view.end_offset}"
    entries = view.epochs.entries
    for one, other in pairwise(entries):
        if one.epoch >= other.epoch or one.start_offset > other.start_offset:
            return f"its leader epochs do not rise: {entries}"
    return None


def step_fault(before: View, after: View) -> str | None:
    """What is wrong with a view as the one that follows another."""
    if after.cuts == before.cuts:
        if after.end_offset < before.end_offset or after.start_offset < before.start_offset:
            return (
                f"it was {before.start_offset}..{before.end_offset}, is {after.start_offset}..{after.end_offset}, and "
                "was not cut"
            )
        # One that nothing was written in goes when the log's next leader does not know it.
        gone = [entry for entry in before.epochs.entries if entry.epoch > after.epochs.latest]
        if any(entry.start_offset < after.end_offset for entry in gone):
            return f"its leader epoch went back from {before.epochs.latest} to {after.epochs.latest}"
    if after.segments[-1].size != after.size:
        return f"{after.segments[-1].size} bytes are noted, but readers are told of {after.size}"
    return None


def append_fault(
    view: View, base_offset: int, leader_epoch: int, end_offset: int, active_bytes: int, known_end: int
) -> str | None:
    """What is wrong with batches as those that follow a view, whose active segment has so many bytes, and whose
    producers are known up to `known_end`: where and in which epoch they begin, and where they end. That they follow one
    another is seen to where they are put together."""
    if active_bytes != view.size:
        return f"{active_bytes} bytes are noted, but readers are told of {view.size}"
    if known_end != view.end_offset:
        return f"producers are known up to {known_end}, but readers are told of {view.end_offset}"
    if base_offset < view.end_offset:
        return f"a batch has offset {base_offset}, but the log ends at {view.end_offset}"
    if 0 <= leader_epoch < view.epochs.latest:
        return f"a batch is of leader epoch {leader_epoch}, but the log has {view.epochs.latest} already"
    if end_offset <= base_offset:
        return f"a batch from {base_offset} on ends at {end_offset}"
    return None


def read_fault(found: Slice, base_offset: int, last_offset: int) -> str | None:
    """What is wrong with the offsets of the first batch that was read where another was to be found."""
    offset, view, place = found.base_offset, found.view, found.place
    if last_offset < offset:
        return f"a batch that ends at {last_offset} is where offset {offset} was to be found"
    # It may begin after the offset: compaction has taken some.
    if not view.bases[place] <= base_offset < view.end_of(place):
        return (
            f"a batch at offset {base_offset} is in a segment that has {view.bases[place]} to {view.end_of(place) - 1}"
        )
    return None
