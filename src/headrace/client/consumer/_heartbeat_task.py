"""What works for a consumer on asyncio between its calls: the task that sends heartbeats, and the end of its
connections when the program has dropped the consumer. Neither holds the consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from headrace.client.cluster.core import coordinator_key
from headrace.client.cluster.drivers import AsyncClient
from headrace.client.consumer._heartbeats import GroupIdentity, Heartbeats
from headrace.errors import HeadraceError
from headrace.net.connection import Call
from headrace.runtime import Clock

_WAIT_S_MAX: Final = 60.0
_LEAVE_S: Final = 1.0


class LoopWorker:
    """Implements `Worker`, for a consumer on asyncio."""

    def __init__(self, client: AsyncClient, clock: Clock, on_news: Callable[[], None], name: str) -> None:
        self._client = client
        self._clock = clock
        self._on_news = on_news
        self._name = name
        self._heartbeats: Heartbeats | None = None
        self._changed = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        #: That sends heartbeats, once it was begun.
        self.beating: asyncio.Task[None] | None = None

    def begin(self, heartbeats: Heartbeats) -> None:
        """Send heartbeats from now on."""
        if self.beating is None:
            self._heartbeats = heartbeats
            heartbeats.on_change = self._changed.set
            self.beating = asyncio.get_running_loop().create_task(
                self._beat(heartbeats), name=f"headrace-heartbeat-{self._name}"
            )

    async def _beat(self, heartbeats: Heartbeats) -> None:
        """Send heartbeats when they are due, also while the application is busy with something else."""
        client, changed = self._client, self._changed
        while True:
            due = heartbeats.next_request(self._clock.monotonic())
            if due is not None:
                node, request, identity = due
                client.core.learn_node(node)
                client.submit(coordinator_key(node.id), request, self._on_beat(heartbeats, identity))
            if heartbeats.has_news:
                self._on_news()
            left = max(0.0, heartbeats.due_at() - self._clock.monotonic())
            try:
                async with asyncio.timeout(min(left, _WAIT_S_MAX)):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()

    def _on_beat(self, heartbeats: Heartbeats, identity: GroupIdentity) -> Callable[[Call], None]:
        def done(call: Call) -> None:
            if heartbeats.answered(identity, call.response, call.error, self._clock.monotonic()):
                self._on_news()
            self._changed.set()

        return done

    # --- without a consumer -------------------------------------------------------------------------------------------

    def end_dropped(self) -> None:
        """See `Worker`: the member leaves its group. What it has read and not committed is for others to read again."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it this
            self._client.loop.call_soon_threadsafe(self._begin_ending)

    def _begin_ending(self) -> None:
        self._ending = self._client.loop.create_task(self._end())

    async def _end(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
        found = None if self._heartbeats is None else self._heartbeats.farewell("the consumer was never closed")
        try:
            if found is not None:
                node, request = found
                self._client.core.learn_node(node)
                with contextlib.suppress(HeadraceError):
                    await self._client.request(coordinator_key(node.id), request, timeout_ms=_LEAVE_S * 1000)
        finally:
            await self._client.close()

    def end_at_exit(self, timeout_s: float) -> None:
        """See `Worker`. No loop runs any more: the group waits for the session's end."""
