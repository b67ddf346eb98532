"""Clients that have a thread or sockets of their own hear of it when they find themselves in a forked child."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger("headrace.client")


class Forkable(Protocol):
    def _after_fork(self) -> None:
        """In a child: threads and connections are the parent's."""
        ...


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()
_hook_set = False


def watch_forks(client: Forkable) -> None:
    """Have `_after_fork` called in every child, as long as the client lives."""
    global _hook_set
    _alive.add(client)
    if not _hook_set:
        _hook_set = True
        os.register_at_fork(after_in_child=_forked)


def ignore_forks(client: Forkable) -> None:
    """It is closed: a child has nothing of it to give up."""
    _alive.discard(client)


def _forked() -> None:
    for client in list(_alive):
        try:
            client._after_fork()
        except Exception:
            # Python prints what a hook raises and goes on: the clients behind this one would not hear of the fork.
            log.exception("a client could not let go of what its parent process uses: %r", client)
