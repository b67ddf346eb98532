"""What is sent to other brokers in batches: a queue per broker, with one request in flight each.

While a request is under way, what comes for the same broker waits, and goes along with the next one. An item waits no
longer than there is a reason to ask that broker: when the metadata says that another one leads now, it is given up at
once, rather than when the request of a broker that is silent has timed out.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS
from headrace.errors import HeadraceError

log = logging.getLogger("headrace.broker.coordinator")

ItemT = TypeVar("ItemT")

#: How many items one request takes along.
BATCH_MAX = 500


class PeerQueues(ABC, Generic[ItemT]):
    """Items for other brokers, each of which is answered, or given up, once."""

    def __init__(self, keep: Callable[[Coroutine[object, object, None]], object]) -> None:
        """`keep` runs something in the background as long as the broker runs."""
        self._keep = keep
        self._queues: dict[int, deque[ItemT]] = {}
        self._in_flight: dict[int, tuple[list[ItemT], asyncio.Future[None]]] = {}

    # --- what the kinds of items say

    @abstractmethod
    async def _ask(self, node_id: int, items: list[ItemT]) -> None:
        """Send one request with these items, and tell each of them what was answered."""

    @abstractmethod
    def _give_up(self, item: ItemT) -> None:
        """Tell an item that nobody knows what became of it, unless it was answered."""

    @abstractmethod
    def _keeps_waiting(self, node_id: int, item: ItemT) -> bool:
        """Whether this broker is still the one to ask; what of the item is not for it is given up here."""

    @abstractmethod
    def _key(self, item: ItemT) -> object:
        """What an answer tells items by: a request has one of each."""

    @abstractmethod
    def _elements(self, item: ItemT) -> int:
        """How many elements of arrays it is in a request: another broker takes only so many (`element_bound`)."""

    # --- queues

    def add(self, node_id: int, item: ItemT) -> None:
        queue = self._queues.get(node_id)
        if queue is not None:
            queue.append(item)
            return
        self._queues[node_id] = deque((item,))
        self._keep(self._work(node_id))

    def retry_now(self) -> None:
        """After a change of the metadata: give up what has to be asked of others now."""
        for node_id, queue in tuple(self._queues.items()):
            waiting = [item for item in queue if self._still_waits(node_id, item)]
            queue.clear()
            queue.extend(waiting)
        for node_id, (items, over) in tuple(self._in_flight.items()):
            # All of them are looked at: parts of an item may have to be asked of others.
            if not [item for item in items if self._still_waits(node_id, item)] and not over.done():
                over.set_result(None)

    async def _work(self, node_id: int) -> None:
        queue = self._queues[node_id]
        # What this turn of the loop still adds goes along.
        await asyncio.sleep(0)
        try:
            while queue:
                await self._one_request(node_id, self._take(node_id, queue))
        finally:
            # Also when the broker stops: what is added to a queue that nobody works on would wait for ever.
            del self._queues[node_id]
            for item in queue:
                self._do_give_up(item)

    def _take(self, node_id: int, queue: deque[ItemT]) -> list[ItemT]:
        taken: dict[object, ItemT] = {}
        later: list[ItemT] = []
        elements = 0
        while queue and len(taken) < BATCH_MAX:
            item = queue.popleft()
            if self._key(item) in taken:
                later.append(item)
            elif self._still_waits(node_id, item):
                elements += self._elements(item)
                if taken and elements > ELEMENTS_ALWAYS:
                    queue.appendleft(item)
                    break
                taken[self._key(item)] = item
        queue.extendleft(reversed(later))
        return list(taken.values())

    def _still_waits(self, node_id: int, item: ItemT) -> bool:
        """As `_keeps_waiting`; an item for which that fails is given up, and those behind it have their turn."""
        try:
            return self._keeps_waiting(node_id, item)
        except Exception:
            log.exception("whether broker %d is to be asked could not be found out: please report it", node_id)
            self._do_give_up(item)
            return False

    def _do_give_up(self, item: ItemT) -> None:
        try:
            self._give_up(item)
        except Exception:
            log.exception("what was for another broker could not be given up: please report it")

    async def _one_request(self, node_id: int, items: list[ItemT]) -> None:
        if not items:
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[node_id] = (items, over)
        asking = asyncio.ensure_future(self._ask(node_id, items))
        try:
            await asyncio.wait((asking, over), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
        except HeadraceError as error:
            log.info("broker %d did not answer, and is asked again if need be: %s", node_id, error)
        except Exception:
            log.exception("what broker %d answered could not be understood: please report it", node_id)
        finally:
            del self._in_flight[node_id]
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            for item in items:
                self._do_give_up(item)
