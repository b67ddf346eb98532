"""Who works with a producer's core and its connections: one thread at a time, whatever interrupts it.

A signal's handler may raise (Ctrl-C does) right after any call returns: also after the call that acquires a lock, when
the caller has not noted yet that it has it. So whoever tries for the lock releases it afterwards in any case, and the
lock says whether it was theirs: a reentrant lock knows its owner. Nobody enters it twice for all that; see `attempt`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_NO_LIMIT_S = -1.0


class CoreLock:
    """See the module. As a context manager, and with `acquire`, only for threads that no signal interrupts."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_held = False

    def acquire(self) -> None:
        self._lock.acquire()
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def attempt(self, work: Callable[[], T], timeout_s: float = _NO_LIMIT_S) -> T | None:
        """Call it with the lock held, if that can be had within so many seconds (without a limit: at some time).

        None, and not called, when another thread has it for longer, or when this one has it already: then a signal's
        handler, or a delivery callback, has come here in the middle of what the lock is for.
        """
        lock, is_first = self._lock, False
        try:
            if lock.acquire(True, timeout_s) and not self.is_held:
                is_first = self.is_held = True
                return work()
            return None
        finally:
            if is_first:
                self.is_held = False
            try:
                lock.release()
            except RuntimeError:
                # It was not acquired.
                pass
