"""Processor time of this process and all that it started: a JVM, its Python workers, whatever they start and end.

Looked at a few times a second, since a process that has ended can be asked no more; what it used after the last look is
not counted (its parent may not count it either).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOK_S = 0.1


class Family:
    """Adds up the processor time of descendants, those that have ended too. `without`: processes that are not meant."""

    def __init__(self, without: frozenset[int] = frozenset()) -> None:
        self.without = without
        self._seen: dict[tuple[int, float], float] = {}
        self._own_s = 0.0
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """User and system time until now, without what looking costs."""
        with self._lock:
            before = psutil.Process().cpu_times()
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    if process.pid not in self.without:
                        times = process.cpu_times()
                        self._seen[process.pid, process.create_time()] = times.user + times.system
                except psutil.NoSuchProcess:
                    continue
            total = sum(self._seen.values()) - self._own_s
            after = psutil.Process().cpu_times()
            self._own_s += after.user + after.system - before.user - before.system
            return total

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look now and then, until the block is left."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(LOOK_S):
                self.seconds()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
