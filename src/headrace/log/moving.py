"""Move a log to another directory of the same broker: copy while it is in use, catch up, then swap."""

from __future__ import annotations

from headrace.errors import OffsetOutOfRangeError
from headrace.log.appended import as_far_as
from headrace.log.log import Log
from headrace.records import valid_bytes
from headrace.runtime import FileMissingError

_STEP_BYTES = 4 * 1024 * 1024


class Move:
    """One move under way. `step` until `caught_up`, then `LogDirectories.finish_move` while nobody appends.

    The log may be cut meanwhile, and have other records there soon: what was copied of it is cut as well.
    """

    __slots__ = ("_cuts", "current", "future")

    def __init__(self, current: Log, future: Log) -> None:
        self.current = current
        self.future = future
        self._cuts = current.cut_count  # of these the copy has heard

    @property
    def caught_up(self) -> bool:
        cuts, end_offset = self._cuts, self.future.end_offset  # before the view, which tells of cuts before it grows
        view = self.current.view
        return cuts == view.cuts and end_offset >= view.end_offset

    def step(self, max_bytes: int = _STEP_BYTES) -> int:
        """Copy about so many bytes more; how many (0 when the copy has caught up). Reads and writes the disk."""
        current, future = self.current, self.future
        view = current.view
        if view.cuts != self._cuts:
            if view.cut_to > view.start_offset and not future.segments[0].base_offset:
                future.truncate_to(min(view.cut_to, future.end_offset))
            else:
                # Nothing is left of what it was; or the cut has changed what there is to know of before the copy.
                self._begin_at(view.start_offset)
            self._cuts = view.cuts
        if future.end_offset < current.start_offset:
            self._begin_at(current.start_offset)
        if self.caught_up:
            return 0
        end_offset, segments = current.end_offset, current.segments
        try:
            found = current.locate(future.end_offset, max_bytes, limit=end_offset, at_least_one=True)
            data = found.file.read(found.position, found.length)
        except (OffsetOutOfRangeError, FileMissingError):
            if current.segments == segments and current.start_offset <= future.end_offset:
                raise
            return 0  # it was cut, deleted or compacted before it could be read: the next step goes on from there
        if current.cut_count == self._cuts:  # else it may be of before, or of after, and is read again
            self._append(data, end_offset)
            self._follow_start()
        return valid_bytes(data)

    def _append(self, data: bytes, end_offset: int) -> None:
        future = self.future
        if not data:
            future.skip_to(end_offset)
            return
        first_offset = int.from_bytes(data[:8], "big")
        if first_offset < future.end_offset == future.start_offset:
            # After DeleteRecords the first batch may begin before the log's start: the copy then begins with it.
            self._begin_at(first_offset)
        as_far_as(future.append(future.copies(data)))

    def _begin_at(self, offset: int) -> None:
        """Copy from there on. What producers did before that is not in what is copied, and has to be known as well: an
        open transaction say, the records of which are deleted."""
        known = list(self.current.producers.producers.values())
        self.future.start_at(offset, [before for entry in known if (before := entry.before(offset)) is not None])

    def _follow_start(self) -> None:
        self.future.update_high_watermark(min(self.current.high_watermark, self.future.end_offset))
        if self.current.start_offset > self.future.start_offset <= self.future.high_watermark:
            self.future.delete_records(min(self.current.start_offset, self.future.high_watermark))

    def check_caught_up(self) -> None:
        if not self.caught_up:
            raise ValueError(
                f"{self.current.partition}: the copy is at offset {self.future.end_offset}, "
                f"the log at {self.current.end_offset}; step the move first"
            )
        self._follow_start()
