"""What a log is at one moment, for everyone but its writer: immutable, published in one assignment."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.log.leader_epochs import LeaderEpochs
    from headrace.log.producer_state import EndedTransaction
    from headrace.log.segment import Segment

NEVER: Final = 2**63 - 1
"""An offset that no log has: in the place of one that does not exist."""

Mark = tuple[int, int]
"""An offset up to which something is known of a log, and how often the log had been cut when it was said.

A later cut takes back what a mark says beyond it, whatever becomes of the log's end afterwards.
"""


class View(NamedTuple):
    """Its parts belong together: all that is said here was true at once, and stays true of this view.

    The high watermark is not in it, because its owner is another (see `Log`): what depends on both is derived from a
    watermark and a view, as in `stable_at`.
    """

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    size: int
    """Bytes of the last segment. The others have ended: theirs do not change."""
    start_offset: int
    end_offset: int
    undecided: int
    """The first offset of the earliest open transaction; `NEVER` when none is open."""
    ended: tuple[EndedTransaction, ...]
    """Transactions whose end was not known to be committed when this was published."""
    epochs: LeaderEpochs
    cuts: int
    """How often the log's end was cut off since it was opened."""
    cut_to: int
    """The lowest offset it was cut to; `NEVER` without a cut."""

    def place_of(self, offset: int) -> int:
        """The place of the segment that has `offset`, or would have it."""
        return place_of(self.bases, offset)

    def size_of(self, place: int) -> int:
        return self.size if place + 1 == len(self.segments) else self.segments[place].size

    def end_of(self, place: int) -> int:
        """The offset at which the segment at `place` ends for readers of this view."""
        return self.bases[place + 1] if place + 1 < len(self.bases) else self.end_offset

    def valid(self, mark: Mark) -> int:
        """The offset that a mark says, within this view. The mark must have been read before the view was."""
        offset, cuts = mark
        if cuts != self.cuts and offset > self.cut_to:
            offset = self.cut_to
        if offset < self.start_offset:
            return self.start_offset
        return offset if offset < self.end_offset else self.end_offset

    def recovered(self, mark: Mark) -> int:
        """As `valid`, of a recovery point: it may lie before the log's start."""
        offset, cuts = mark
        return min(offset, self.end_offset, self.cut_to if cuts != self.cuts else offset)

    def stable_at(self, high_watermark: int) -> int:
        """The last stable offset, given a high watermark within this view.

        That is the watermark, or the first offset of a transaction that is undecided or may become so. The first
        records of an open transaction may be deleted: then everything from the log's start on is unstable.
        """
        stable = high_watermark if high_watermark < self.undecided else self.undecided
        for first_offset, marker_offset in self.ended:
            if first_offset < stable and marker_offset >= high_watermark:
                stable = first_offset
        return stable if stable > self.start_offset else self.start_offset


def place_of(bases: tuple[int, ...] | list[int], offset: int) -> int:
    return max(bisect_right(bases, offset) - 1, 0)
