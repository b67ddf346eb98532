"""The asyncio producer's sender: the core's turns, as the client's driver calls them on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from headrace.client.cluster.drivers import AsyncClient
from headrace.client.compiled import count_rows
from headrace.client.errors import BufferExhaustedError
from headrace.client.producer._base import ProducerSetup
from headrace.client.producer._batch import ProducerBatch
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._flushes import FlushWait
from headrace.client.producer._sender import NOTHING, Sender, SenderState
from headrace.client.producer.delivery import OWNER, BatchDelivery, Delivery
from headrace.runtime import Runtime

log = logging.getLogger("headrace.client.producer")

_dropped: set[LoopSender] = set()
"""Those whose producer nobody has any more, and that have records to deliver."""

_AFTER_A_FAILURE_S = 60.0


class LoopSender(Sender):
    """See the module. Everything here runs on the loop."""

    __slots__ = ("_clock", "_closing", "_opened", "_room_waiters", "_unplaced", "client", "is_dropped", "on_end")

    core: ProducerCore

    def __init__(self, setup: ProducerSetup, runtime: Runtime) -> None:
        super().__init__(setup.settings, SenderState.OPEN, runtime.clock)
        self.client = AsyncClient(setup.connection, runtime)
        self.core = ProducerCore(self.client.core, setup.settings, setup.partitioner, self)
        self.client.hooks.append(self._turn)
        self.append = self.core.accumulator.pending.append
        self.is_idle = True
        self._clock = runtime.clock
        self._opened = 0.0
        """When the first record was appended that no turn has taken over yet."""
        self._unplaced: list[tuple[Any, asyncio.Future[None]]] = []
        """Deliveries that are waited for and have no batch yet."""
        self._room_waiters: list[asyncio.Future[None]] = []
        self.is_dropped = False
        self.on_end: list[Callable[[], object]] = []
        """Called when this ends: for who waits for something else than records."""

    # --- records ------------------------------------------------------------------------------------------------------

    def make_room(self, size: int) -> None:
        try:
            core = self.open_core()
            if core.transaction is not None:
                core.transaction.check_send()
            used = self.used_bytes(core)
            if used > self.settings.buffer_memory and used > size:
                raise BufferExhaustedError(
                    f"buffer.memory={self.settings.buffer_memory} is full; `await producer.room()` before sending "
                    "more. The record was not sent"
                )
        except BaseException:
            self.taken -= size
            raise
        self._set_limit()

    def _set_limit(self) -> None:
        """As much as there is memory for. In a transaction, whether records are taken may change at any answer."""
        if self.state is SenderState.OPEN and self.core.transaction is None:
            self.limit = self.drained + self.settings.buffer_memory - self.core.accumulator.buffered_bytes
        else:
            self.limit = NOTHING

    def send_now(self, delivery: Delivery) -> None:
        self.wake()

    def wake(self) -> None:
        self.is_idle = False
        self._opened = self._clock.monotonic()
        self.client.schedule()

    def flush(self) -> FlushWait:
        """Begin to send everything."""
        self.drained = self.taken
        wait = self.core.flush()
        self._set_limit()
        return wait

    # --- turns --------------------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """What the driver calls when something may have changed."""
        self.is_idle = True
        # Callbacks may send: they see how much memory there is then.
        self.limit, self.drained = NOTHING, self.taken
        due = _AFTER_A_FAILURE_S
        if self.error is None:
            try:
                if self.core.accumulator.pending:
                    count_rows(len(self.core.accumulator.pending))
                due = self.core.turn(self._opened or None)
                self.core.settle_flushes()
            except BaseException as error:
                log.exception("the producer failed")
                self.error = error
                self.end()
                if not isinstance(error, Exception):
                    raise
        self._set_limit()
        self.tell_waiters()
        if self.is_dropped:
            self._end_when_idle()
        ended, self.core.accumulator.interruption = self.core.accumulator.interruption, None
        if ended is not None:
            # From a callback, and not meant for this producer: it ends the loop, once everybody has been told.
            self.client.loop.call_soon(_raise, ended)
        return due

    def close(self) -> None:
        """Take nothing more."""
        self.advance(SenderState.CLOSING)
        self.limit = NOTHING

    def end(self) -> None:
        """Whatever is left has failed, and nobody waits for it any more."""
        self.close()
        self.advance(SenderState.ENDING)
        self.core.abort(self.why_closed())
        self.drained = self.taken
        self.tell_waiters()
        _dropped.discard(self)
        self.advance(SenderState.CLOSED if self.error is None else SenderState.FAILED)
        for told in list(self.on_end):
            told()

    def end_dropped(self) -> None:
        """See `Worker`."""
        if not self.core.is_idle:
            # The loop may end before it has delivered them, and forget this: then the end of the program says so.
            _dropped.add(self)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it this
            self.client.loop.call_soon_threadsafe(self._end_when_idle)

    def _end_when_idle(self) -> None:
        self.is_dropped = True
        if self.core.is_idle and self.state is SenderState.OPEN:
            self.end()
            self._closing = self.client.loop.create_task(self.client.close())

    def end_at_exit(self, timeout_s: float) -> None:
        """See `Worker`. No loop runs any more that could deliver anything."""
        if self.state is SenderState.OPEN and not self.core.is_idle:
            log.error(
                "the program ends, and a producer on asyncio still had records to deliver, which are lost: close the "
                "producer (`async with`), or flush it, before its loop ends"
            )
        if (error := self.failures.hear_all()) is not None:
            log.error("%s", error)

    # --- waiting ------------------------------------------------------------------------------------------------------

    @property
    def waiting_for_room(self) -> int:
        return len(self._room_waiters)

    def tell_waiters(self) -> None:
        if self._unplaced:
            self._place_waiters()
        if self._room_waiters:
            # Told in vain, they would ask for another turn, and the next one would tell them in vain.
            if self.has_room:
                for future in self._room_waiters:
                    set_done(future)
            self._room_waiters = [future for future in self._room_waiters if not future.done()]
            self.core.memory_is_short = bool(self._room_waiters)

    @property
    def has_room(self) -> bool:
        """Whether a quarter of `buffer.memory` is free."""
        return self.used_bytes(self.core) <= self.settings.buffer_memory * 3 // 4

    def room(self) -> asyncio.Future[None]:
        """Done when there is room again."""
        future: asyncio.Future[None] = self.client.loop.create_future()
        self.core.memory_is_short = True
        self._room_waiters.append(future)
        self.client.schedule()
        return future

    def wait_for(self, delivery: Any, timeout: float | None) -> None:
        raise RuntimeError("result() would block the event loop: await the delivery instead")

    def delivery_future(self, delivery: Any) -> asyncio.Future[None]:
        """Done when the delivery is."""
        future: asyncio.Future[None] = self.client.loop.create_future()
        if not self._place_waiter(delivery, future):
            # Only this one is looked at: thousands may be waited for before the first topic is known.
            self._unplaced.append((delivery, future))
        return future

    def _place_waiters(self) -> None:
        """Have those who wait for deliveries told by the batch of each, once there is one."""
        waiting, self._unplaced = self._unplaced, []
        self._unplaced += [one for one in waiting if not self._place_waiter(*one)]

    def _place_waiter(self, delivery: Any, future: asyncio.Future[None]) -> bool:
        """Whether there is a batch to tell who waits, or nothing to wait for any more."""
        owner = delivery if isinstance(delivery, BatchDelivery) else delivery[OWNER]
        if delivery.done():
            set_done(future)
        elif isinstance(owner, (ProducerBatch, BatchDelivery)):
            owner.waiters.append(lambda: self._delivered(delivery, future))
        else:
            return False
        return True

    def _delivered(self, delivery: Any, future: asyncio.Future[None]) -> None:
        if delivery.done():
            set_done(future)
        else:
            # Its batch was split: it is in another one now.
            self._unplaced.append((delivery, future))
            self.client.schedule()


def _raise(error: BaseException) -> None:
    raise error


def set_done(future: asyncio.Future[None]) -> None:
    """The end of a wait, unless that was given up."""
    if not future.done():
        future.set_result(None)
