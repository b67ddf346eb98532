"""`headrace.aio.ShareConsumer`: the share consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic

from headrace.client.cluster.drivers import AsyncClient
from headrace.client.consumer.errors import WakeupError
from headrace.client.share._base import ShareConsumerBase
from headrace.client.share._core import ShareCore
from headrace.client.share.records import ShareRecord
from headrace.client.typed import K, V
from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.runtime import Runtime, real_runtime
from headrace.topics import TopicPartition

_ITERATION_POLL_S = 1.0
_CLOSE_TIMEOUT_S = 30.0


class ShareConsumer(ShareConsumerBase, Generic[K, V]):
    """Reads records as a member of a share group, on asyncio. For one task at a time.

        async with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "mails"}) as consumer:
            consumer.subscribe(["mails"])
            async for record in consumer:
                await send(record.value)

    The same as `headrace.ShareConsumer`, with `await` where it may take time.
    """

    _identify = staticmethod(asyncio.current_task)
    _kind = "task"

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, *, runtime: Runtime | None = None, **keywords: Any
    ) -> None:
        super().__init__(config, keywords)
        self._own_runtime = runtime is None
        self._runtime = runtime or real_runtime(io_threads=1)
        self._client: AsyncClient | None = None
        self._changed: asyncio.Event | None = None
        self._is_ticking = True

    # --- reading ------------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, *, keep: bool = False) -> list[ShareRecord[K, V]]:
        """Records for this consumer: at once if there are some, else what comes within the time-out; perhaps none.

        `keep` is for whoever hands records on, with explicit acknowledgement: those of earlier polls stay this
        consumer's as long as their locks last.
        """
        with self._exclusive() as core:
            core.begin_poll(keeps=keep)
            # Others on the loop have their turn, however fast records come.
            await asyncio.sleep(0)
            return await self._wait_for(core.take, timeout) or []

    async def __aiter__(self) -> AsyncIterator[ShareRecord[K, V]]:
        """Records one by one, without end (until close)."""
        while not self._closed:
            for record in await self.poll(_ITERATION_POLL_S):
                yield record

    # --- saying what became of records --------------------------------------------------------------------------------

    async def commit_sync(self, timeout: float | None = None) -> dict[TopicPartition, HeadraceError | None]:
        """Say at once what became of records, and wait for the answers: None for each partition where it counts, else
        why not. Then they are delivered again."""
        with self._exclusive() as core:
            core.begin_commit()
            wait_s = self._setup.settings.api_timeout_s if timeout is None else timeout
            if await self._wait_for(lambda: core.is_said, wait_s) is None:
                raise RequestTimedOutError(f"what was said of records was not answered within {wait_s:g} s")
            return core.results()

    def commit_async(self) -> None:
        """Say at once what became of records; the callback hears of the answers."""
        with self._exclusive() as core:
            core.begin_commit()
            self._schedule()

    # --- waking, ending -----------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End a `poll` or `commit_sync` that waits, from any thread: it raises WakeupError."""
        self._wakeup_asked = True
        if self._client is not None:
            self._client.call_from_anywhere(self._notify)

    async def close(self, timeout: float = _CLOSE_TIMEOUT_S) -> None:
        """Say what became of records, give back those that were not finished, and leave the group."""
        if self._closed:
            return
        core, client = self._core, self._client
        try:
            if core is not None and client is not None:
                with self._exclusive():
                    self._wakeup_asked = False
                    self._is_ticking = False
                    deadline = self._runtime.clock.monotonic() + timeout
                    await self._wait_for(lambda: core.is_quiet, timeout)
                    calls = core.begin_close()
                    client.schedule()
                    left_s = max(0.0, deadline - self._runtime.clock.monotonic())
                    await self._wait_for(lambda: all(call.done for call in calls), left_s)
        finally:
            self._closed = True
            if client is not None:
                await client.close()
            if self._own_runtime:
                await self._runtime.close()

    async def __aenter__(self) -> ShareConsumer[K, V]:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        await self.close()

    # --- moving -------------------------------------------------------------------------------------------------------

    def _connected(self) -> ShareCore:
        if self._core is None:
            self._changed = asyncio.Event()
            client = self._client = AsyncClient(self._setup.connection, self._runtime)
            core = self._core = ShareCore(client.core, self._setup.settings, self._setup.deserializers, self._notify)
            core.on_commit = self._on_commit
            client.hooks.append(self._tick)
            client.schedule()
        return self._core

    def _tick(self) -> float:
        """What the client's driver calls whenever something may have changed: heartbeats go on between polls."""
        assert self._core is not None
        return self._core.tick(self._runtime.clock.monotonic()) if self._is_ticking else 60.0

    def _notify(self) -> None:
        assert self._changed is not None
        self._changed.set()
        self._schedule()

    def _schedule(self) -> None:
        assert self._client is not None
        self._client.schedule()

    async def _wait_for(self, look: Callable[[], Any], timeout_s: float) -> Any:
        """What `look` gives once it gives something; None when the time is over."""
        assert self._changed is not None
        deadline = self._runtime.clock.monotonic() + timeout_s
        while True:
            if self._wakeup_asked:
                self._wakeup_asked = False
                raise WakeupError("wakeup() was called")
            self._changed.clear()
            found = look()
            self._schedule()
            if found:
                return found
            left_s = deadline - self._runtime.clock.monotonic()
            if left_s <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
