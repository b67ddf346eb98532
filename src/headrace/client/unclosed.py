"""Clients that are never closed: those that a program drops, and those that it ends with.

What works for a client (a thread, a connection) does not hold the client, so that one that nobody has any more is
collected. Then a `ResourceWarning` says so, and what worked for it ends by itself. When the program ends, what is open
has a few seconds to deliver what is left.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Final, Protocol

EXIT_S: Final = 10.0
"""How long the end of the program waits, for all clients together."""


class Worker(Protocol):
    """What works for a client."""

    def end_dropped(self) -> None:
        """Nobody has the client any more. Called by the garbage collector, in the middle of anything.

        Takes no lock, and waits for nothing.
        """

    def end_at_exit(self, timeout_s: float) -> None:
        """The program ends."""


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_child_pid = 0
"""The process of multiprocessing's that ends as `_end_with_child` says."""


class Watch:
    """Watches over one client until it is closed."""

    __slots__ = ("_finalizer", "_worker")

    def __init__(self, client: object, worker: Worker, name: str) -> None:
        self._worker = worker
        self._finalizer = weakref.finalize(client, _dropped, worker, name, os.getpid())
        self._finalizer.atexit = False
        _workers.add(worker)
        _end_with_child()

    def end(self) -> None:
        """It is closed, or another works for it."""
        self._finalizer.detach()
        _workers.discard(self._worker)


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A method of a client's, for what works for it. Does nothing when nobody has the client any more."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (bound := found()) is not None:
            bound()

    return call


def _dropped(worker: Worker, name: str, pid: int) -> None:
    if pid != os.getpid():
        return
    warnings.warn(f"{name} was never closed: use it in a `with` block, or call close()", ResourceWarning, stacklevel=2)
    worker.end_dropped()


def _end_with_child() -> None:
    """A process that multiprocessing has forked ends without what `atexit` knows, but with finalizers of its own."""
    global _child_pid
    made = sys.modules.get("multiprocessing.process")
    if _child_pid == os.getpid() or made is None or made.parent_process() is None:
        return
    from multiprocessing import util

    _child_pid = os.getpid()
    util.Finalize(None, _end_all, exitpriority=0)


def _forget() -> None:
    """In a child after a fork: what was open is its parent's to end."""
    global _workers
    _workers = weakref.WeakSet()


def _end_all() -> None:
    deadline = time.monotonic() + EXIT_S
    for worker in list(_workers):
        worker.end_at_exit(max(0.0, deadline - time.monotonic()))


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget)
