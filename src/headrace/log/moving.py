"""Move a log to another directory of the same broker: copy while it is in use, catch up, then swap."""

from __future__ import annotations

from headrace.log.log import Log
from headrace.records import valid_bytes

_STEP_BYTES = 4 * 1024 * 1024


class Move:
    """One move under way. `step` until `caught_up`, then `LogDirectories.finish_move` while nobody appends."""

    __slots__ = ("current", "future")

    def __init__(self, current: Log, future: Log) -> None:
        self.current = current
        self.future = future
        if future.end_offset < current.start_offset:
            future.start_at(current.start_offset)

    @property
    def caught_up(self) -> bool:
        return self.future.end_offset >= self.current.end_offset

    def step(self, max_bytes: int = _STEP_BYTES) -> int:
        """Copy about so many bytes more; how many (0 when the copy has caught up). Reads and writes the disk."""
        current, future = self.current, self.future
        if future.end_offset > current.end_offset:
            future.truncate_to(current.end_offset)
        if future.end_offset < current.start_offset:
            future.start_at(current.start_offset)
        if self.caught_up:
            return 0
        found = current.locate(future.end_offset, max_bytes, limit=current.end_offset, at_least_one=True)
        data = found.file.read(found.position, found.length)
        # After DeleteRecords the first batch may begin before the log's start: the copy then begins with that batch.
        first_offset = int.from_bytes(data[:8], "big")
        if first_offset < future.end_offset and future.end_offset == future.start_offset:
            future.start_at(first_offset)
        future.append_replica(data)
        self._follow_start()
        return valid_bytes(data)

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
