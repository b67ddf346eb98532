"""The event loop of `async def` handlers, with timers that end when they are due.

asyncio waits in whole milliseconds on Linux (epoll knows no others), rounded up: a loop that works for many coroutines
ends a wait of 5 ms after 5.5 to 6. Others (kqueue, Windows, a loop policy that the application has set) are left alone.
"""

from __future__ import annotations

import asyncio
import select
import selectors

from headrace.runtime.system import HAS_EPOLL

_COARSE_S = 0.05
"""From here on a millisecond more or less is not worth a second call of the system."""
_SELECT_DESCRIPTORS_MAX = 1024
"""select() knows no higher ones."""


def make_loop() -> asyncio.AbstractEventLoop:
    """A new loop, of the kind that the application uses."""
    loop = asyncio.new_event_loop()
    if not HAS_EPOLL or type(loop) is not asyncio.SelectorEventLoop:
        return loop
    selector = FineSelector()
    if selector.fileno() >= _SELECT_DESCRIPTORS_MAX:
        selector.close()
        return loop
    loop.close()
    return asyncio.SelectorEventLoop(selector)


if HAS_EPOLL:

    class FineSelector(selectors.EpollSelector):
        """Waits for what epoll waits for, but to the microsecond: epoll's own descriptor can be waited for in turn."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is None or not 0 < timeout < _COARSE_S:
                return super().select(timeout)
            if not select.select([self], [], [], timeout)[0]:
                return []
            return super().select(0)
