"""Which segments of a log are to be deleted: before its start, over its size, over its age; always the oldest ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.log.config import LogConfig
from headrace.log.segment import Segment


class Retained(Protocol):
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def config(self) -> LogConfig: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...


def expired(log: Retained, now_ms: int) -> list[Segment]:
    """The log's first segments, as many as may go. All of them is possible: the log is then empty.

    Nothing at or above the high watermark goes, nor the active segment while it is empty.
    """
    segments, config = log.segments, log.config
    count = _leading(
        log, segments, 0, lambda at: at + 1 < len(segments) and segments[at + 1].base_offset <= log.start_offset
    )
    if not config.delete:
        return list(segments[:count])
    if config.retention_bytes >= 0:
        surplus = sum(segment.size for segment in segments[count:]) - config.retention_bytes

        def over_size(at: int) -> bool:
            nonlocal surplus
            if surplus - segments[at].size < 0:
                return False
            surplus -= segments[at].size
            return True

        if surplus > 0:
            count = _leading(log, segments, count, over_size)
    if config.retention_ms >= 0:
        count = _leading(
            log, segments, count, lambda at: now_ms - segments[at].largest_timestamp_ms() > config.retention_ms
        )
    return list(segments[:count])


def _leading(log: Retained, segments: Sequence[Segment], start: int, goes: Callable[[int], bool]) -> int:
    """How many segments go when those before `start` do, and then each one while `goes` holds."""
    for at in range(start, len(segments)):
        last = at + 1 == len(segments)
        end = log.end_offset if last else segments[at + 1].base_offset
        if log.high_watermark < end or (last and segments[at].size == 0) or not goes(at):
            return at
    return len(segments)
