"""A live view of parallel consuming for a terminal."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from typing import IO

from headrace.parallel.metrics import PartitionState, Snapshot

_CLEAR = "\x1b[H\x1b[J"
_BAR = 20
_NAME_MAX = 32


def lines(now: Snapshot, before: Snapshot | None, seconds: float, *, width: int = 100, height: int = 40) -> list[str]:
    """The view's lines: totals and rates, then the partitions that are furthest behind."""
    c = now.counters
    rate = 0.0 if before is None or seconds <= 0 else (c.handled - before.counters.handled) / seconds
    shown = _wrapped(
        [
            f"group {now.group}",
            f"handled {c.handled:,} ({rate:,.0f}/s)",
            f"workers busy {now.busy}/{now.workers}",
            f"unfinished {now.incomplete:,} ({now.buffered_bytes / 1e6:.1f} MB)",
            f"oldest {now.oldest_age_s:.1f} s",
        ],
        width,
    )
    shown += _wrapped(
        [
            f"failures {c.failures:,}",
            f"local retries {c.local_retries:,}",
            f"to retry topic {c.retry_topic:,}",
            f"dead letters {c.dead_letters:,}",
            f"stalls {c.stalls:,}",
            f"zombies {c.zombies:,}",
            f"commits {c.commits:,} ({c.commit_failures:,} failed)",
            f"rebalances {c.rebalances:,}",
        ],
        width,
    )
    if not now.partitions:
        return [*shown, "", "no partitions: the group has not shared them out yet, or has more members than partitions"]
    name = min(_NAME_MAX, max(len("PARTITION"), *(len(str(one.partition)) for one in now.partitions)))
    titles = f"{'PARTITION':<{name}} {'START':>11} {'END':>11} {'OPEN':>7} {'RUN':>5} {'HELD':>5} {'OLDEST':>8}  WINDOW"
    shown += ["", titles]
    worst = sorted(now.partitions, key=lambda one: (-one.incomplete, one.partition))
    room = max(1, height - len(shown) - 1)
    most = max(one.incomplete for one in worst)
    shown += [_partition_line(one, most, name) for one in worst[:room]]
    if len(worst) > room:
        shown.append(f"… and {len(worst) - room} more")
    return [line[:width] for line in shown]


def _wrapped(parts: list[str], width: int) -> list[str]:
    """The parts in as many lines as they need."""
    made = [parts[0]]
    for part in parts[1:]:
        if len(made[-1]) + 3 + len(part) <= width:
            made[-1] += f"   {part}"
        else:
            made.append(part)
    return made


def _partition_line(one: PartitionState, most: int, name: int) -> str:
    filled = round(_BAR * one.incomplete / most) if most else 0
    bar = "█" * filled + "·" * (_BAR - filled)
    paused = " paused" if one.paused else ""
    start = "-" if one.start is None else f"{one.start:,}"
    end = "-" if one.end is None else f"{one.end:,}"
    return (
        f"{str(one.partition)[-name:]:<{name}} {start:>11} {end:>11} {one.incomplete:>7,} {one.in_flight:>5,} "
        f"{one.held:>5,} {one.oldest_age_s:>7.1f}s  {bar}{paused}"
    )


class LiveView:
    """Draws the view every second, in a thread of its own, until it is stopped."""

    def __init__(self, snapshot: Callable[[], Snapshot], stream: IO[str] | None = None, every_s: float = 1.0) -> None:
        self._snapshot = snapshot
        self._stream = stream or sys.stdout
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)

    def __enter__(self) -> LiveView:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        before: Snapshot | None = None
        while True:
            now = self._snapshot()
            size = shutil.get_terminal_size()
            text = "\n".join(lines(now, before, self._every_s, width=size.columns, height=size.lines))
            clear = _CLEAR if self._stream.isatty() else ""
            self._stream.write(f"{clear}{text}\n")
            self._stream.flush()
            before = now
            if self._stopped.wait(self._every_s):
                return
