"""Producer ids: handed out from a block that the controller reserved, so that none is ever given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.cluster.brokers import ProducerIdBlock


class ProducerIds:
    """A block of ids; the next one is reserved in the metadata before its first id is given out."""

    def __init__(self, reserve: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._reserve = reserve
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    @property
    def is_empty(self) -> bool:
        return self._next >= self._end

    def take(self) -> int | None:
        """The next id, or None when a new block has to be reserved first (`fill`)."""
        if self.is_empty:
            return None
        self._next += 1
        return self._next - 1

    async def fill(self) -> None:
        """Reserve a block if none is left."""
        async with self._lock:
            if self.is_empty:
                block = await self._reserve()
                self._next, self._end = block.first, block.first + block.size
