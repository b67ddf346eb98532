"""Old defects put back, one at a time: the simulation has to find each of them.

    python -m tests.parallel.mutants [SEEDS]

Prints after how many seeds each was found.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.parallel.simulate import run_seeds

from headrace.parallel.core import ParallelCore
from headrace.parallel.failures import Failures
from headrace.parallel.pressure import Pressure
from headrace.parallel.queues import Lanes, Unordered
from headrace.parallel.turns import PartitionTurns

SEEDS_MAX = 300


def _everybody_pauses(self: Any, tracker: Any) -> bool:
    limits = self._limits
    return bool(self._is_full or len(tracker.entries) >= limits.ahead or tracker.held >= limits.held)


def _lane_last(self: Any, entry: Any) -> None:
    entry.lane.queue.appendleft(entry)
    entry.tracker.line.ready.append(entry.lane)
    self._count += 1
    self.turns.enter(entry.tracker.line)


def _entry_last(self: Any, entry: Any) -> None:
    entry.tracker.line.ready.append(entry)
    self._count += 1
    self.turns.enter(entry.tracker.line)


def _hold_with_bytes(original: Callable[..., Any]) -> Callable[..., Any]:
    def hold(self: Any, tracker: Any, made: Any, now: float, now_ms: int) -> Any:
        before = tracker.held_bytes
        due = original(self, tracker, made, now, now_ms)
        self.pressure.bytes += tracker.held_bytes - before
        tracker.held_bytes = before
        return due

    return hold


def _due_with_bytes(original: Callable[..., Any]) -> Callable[..., Any]:
    def due(self: Any, entry: Any) -> None:
        entry.tracker.held_bytes += entry.size
        self.pressure.bytes -= entry.size
        original(self, entry)

    return due


def _covered_without_commit(original: Callable[..., Any]) -> Callable[..., Any]:
    def covered(self: Any, taken: Any, commits: Any) -> Any:
        with_commit = {commit.tracker for commit in commits}
        free = [one for one in taken if one.entry.tracker not in with_commit]
        return free + original(self, [one for one in taken if one.entry.tracker in with_commit], commits)

    return covered


def _without_rest(self: Any, run: Any, rest: Any) -> None:
    """What is behind a record that failed is forgotten."""


def _unbegun_is_lost(original: Callable[..., Any]) -> Callable[..., Any]:
    def complete(self: Any, chunk: Any, now: float) -> None:
        chunk.todo.clear()
        original(self, chunk, now)

    return complete


MUTANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "a full bound pauses every partition": [(Pressure, "_is_too_much", _everybody_pauses)],
    "partitions are served first come, first served": [(PartitionTurns, "served", lambda self, line, records: None)],
    "a due try goes last": [(Lanes, "again", _lane_last), (Unordered, "again", _entry_last)],
    "records that are held count to the bytes of all": [
        (ParallelCore, "_hold", _hold_with_bytes(ParallelCore._hold)),
        (ParallelCore, "due", _due_with_bytes(ParallelCore.due)),
    ],
    "a letter goes without its offset": [(Failures, "_covered", _covered_without_commit(Failures._covered))],
    "a letter that is too large is tried for ever": [(Failures, "_goes_another_way", lambda self, *rest: False)],
    "what is behind a crash is forgotten": [(ParallelCore, "_put_back_part", _without_rest)],
    "what a dead worker had not begun is lost": [(ParallelCore, "complete", _unbegun_is_lost(ParallelCore.complete))],
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """The code with one of the old defects."""
    patches = [mock.patch.object(owner, attribute, changed) for owner, attribute, changed in MUTANTS[name]]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def seeds_until_found(name: str, seeds_max: int = SEEDS_MAX) -> int | None:
    """How many seeds it took; None: it was not found."""
    with put_back(name):
        for seed in range(seeds_max):
            try:
                run_seeds(seed, 1, is_quiet=True)
            except Exception:  # noqa: BLE001 - a promise that was not kept, or whatever the defect leads to
                return seed + 1
    return None


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    most = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS_MAX
    for one in MUTANTS:
        print(f"{one:<55} {seeds_until_found(one, most) or f'NOT FOUND in {most}'}", flush=True)
