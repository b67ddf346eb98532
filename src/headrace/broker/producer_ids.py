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

    async def next(self) -> int:
        async with self._lock:
            if self._next >= self._end:
                block = await self._reserve()
                self._next, self._end = block.first, block.first + block.size
            given = self._next
            self._next += 1
            return given
