"""When which rows of a replay are due. Pure: rows are numbered from 0 in the order they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows from `start` to before `end`, due so many seconds after the first."""

    start: int
    end: int
    due_s: float


def at_rate(total: int, position: int, rate_per_s: float, tick_s: float, rows_max: int) -> Iterator[Portion]:
    """So many rows a second, a tick's worth at once."""
    size = max(1, min(rows_max, int(rate_per_s * tick_s)))
    for start in range(position, total, size):
        yield Portion(start, min(total, start + size), (start - position) / rate_per_s)


def unpaced(total: int, position: int, rows_max: int) -> Iterator[Portion]:
    """As fast as it goes."""
    for start in range(position, total, rows_max):
        yield Portion(start, min(total, start + rows_max), 0.0)


def at_pace(
    windows: Sequence[tuple[int, int]], position: int, tick_s: float, rows_max: int, gap_max_s: float | None
) -> Iterator[Portion]:
    """As the rows' own times say. `windows`: (number of the tick, rows in it), ascending; empty ticks are absent.

    A pause of more than `gap_max_s` is cut to it.
    """
    start, clock = 0, 0.0
    begun: float | None = None
    before: int | None = None
    for number, count in windows:
        if before is not None:
            pause = (number - before) * tick_s
            clock += pause if gap_max_s is None else min(pause, max(gap_max_s, tick_s))
        before = number
        end = start + count
        if end > position:
            # After a restart the clock begins with the first row that is left.
            begun = clock if begun is None else begun
            for part in range(max(start, position), end, rows_max):
                yield Portion(part, min(end, part + rows_max), clock - begun)
        start = end
