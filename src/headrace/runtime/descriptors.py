"""File descriptors: how many this process may have, and what is done when there is none left.

Files and connections share one limit (`ulimit -n`, often 1,024). To be out of them is no failure of a disk: somebody
who keeps files open only to be quick closes some, and the work is done a moment later.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from headrace.runtime.system import open_descriptor_count

T = TypeVar("T")

NONE_LEFT = (errno.EMFILE, errno.ENFILE)
# What a limit of "none" is taken for. Some systems refuse to be asked for more, and nobody needs more.
UNLIMITED = 1 << 20
# How long a thread waits for others to close something. The event loop never waits: it is who closes connections.
WAIT_S = 5.0
_LOOK_AGAIN_S = 0.02


def raise_limit() -> None:
    """Let this process have as many descriptors as the administrator allows: the soft limit becomes the hard one.

    Only for a process of our own. In somebody else's it could break what they use: select() knows no descriptor beyond
    1,023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for limit in (wanted, 10_240):  # macOS says that there is no limit, and refuses more than OPEN_MAX
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        return


def free_count() -> int:
    """How many more descriptors this process may have than it has now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)
    return max(0, limit - open_descriptor_count())


class DescriptorRoom:
    """Who can close something when there is no descriptor left. Safe from any thread."""

    def __init__(self) -> None:
        self._givers: list[weakref.WeakMethod[Callable[[], bool]]] = []

    def add(self, make_room: Callable[[], bool]) -> None:
        """Ask this method, as long as its object lives; it says whether it has closed something."""
        self._givers = [known for known in self._givers if known() is not None] + [weakref.WeakMethod(make_room)]

    def make(self) -> bool:
        """Have somebody close something; False when nobody could."""
        for known in self._givers:
            make_room = known()
            if make_room is not None and make_room():
                return True
        return False

    def retrying(self, work: Callable[[], T], *, may_wait: bool = True) -> T:
        """Do what needs a descriptor; the last OSError when nobody makes room, also after a wait where that is due."""
        deadline: float | None = None
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in NONE_LEFT:
                    raise
                now = time.monotonic()
                if deadline is None:
                    deadline = now + WAIT_S
                if now >= deadline or not (self.make() or (may_wait and _wait())):
                    raise


def _wait() -> bool:
    """Wait a little, unless on an event loop; whether that was done."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(_LOOK_AGAIN_S)
        return True
    return False
