"""What a producer hands its records to: counts what it has taken, and knows in which state it is.

One works on a thread of its own (`_thread_sender`), one on the event loop (`_loop_sender`). The producers append to
either in the same way, and wait for it in their own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from headrace.client.errors import ClientClosedError
from headrace.client.producer._core import ProducerCore
from headrace.client.producer._failures import UnheardFailures
from headrace.client.producer.config import ProducerSettings
from headrace.client.producer.delivery import BatchDelivery, Delivery
from headrace.runtime import Clock

NOTHING: Final = -1
"""A limit that sends every record the slow way, where the sender's state is looked at."""


class SenderState(IntEnum):
    """A sender only ever goes on to a later state."""

    NEW = 0
    """Nothing was sent yet: there is no thread, and no connection."""
    OPEN = 1
    CLOSING = 2
    """Its user has closed it: it takes nothing more, and leaves what it is at."""
    ENDING = 3
    """Nobody works for it any more: who was about to append a record fails it by themselves."""
    CLOSED = 4
    """Whatever there was has an outcome."""
    FAILED = 5
    """As CLOSED, but by an error that should not have happened (`error`)."""


class Sender(ABC):
    """See the module. What `send` reads for every record is in slots of its own."""

    __slots__ = (
        "__weakref__",
        "append",
        "core",
        "drained",
        "error",
        "failures",
        "is_idle",
        "is_transactional",
        "limit",
        "may_have_extras",
        "may_have_keys",
        "settings",
        "state",
        "taken",
    )

    def __init__(self, settings: ProducerSettings, state: SenderState, clock: Clock) -> None:
        self.settings = settings
        self.state = state
        self.error: BaseException | None = None
        self.core: ProducerCore | None = None
        self.taken = 0
        """Bytes of keys and values that were ever appended; `drained`: of those that the core has taken over."""
        self.drained = 0
        self.limit = NOTHING
        """`send` goes the slow way (`make_room`) when more than this was taken."""
        self.is_idle = False
        """Whether whoever appends has to say so (`send_now`, `wake`)."""
        self.append: Callable[[Any], None] = _not_open
        self.may_have_keys = False
        """Whether any record so far had a key; `may_have_extras`: a partition, timestamp or headers. The drain does not
        look for what was never given. Set before the record is appended, and never taken back."""
        self.may_have_extras = False
        self.failures = UnheardFailures(clock.monotonic)
        self.is_transactional = settings.transactional_id is not None

    @abstractmethod
    def make_room(self, size: int) -> None:
        """The slow way of `send`, for so many bytes that are counted as taken: check the state, and that there is
        memory; takes them off again when it raises."""

    @abstractmethod
    def send_now(self, delivery: Delivery) -> None:
        """A record was appended while this was idle."""

    @abstractmethod
    def wake(self) -> None:
        """Something was appended, or is to be done, while this was idle."""

    @abstractmethod
    def wait_for(self, delivery: Delivery | BatchDelivery, timeout: float | None) -> None:
        """Until it is delivered, or has failed: what `Delivery.result` calls."""

    @abstractmethod
    def delivery_future(self, delivery: Any) -> asyncio.Future[None]:
        """Done when the delivery is: what awaiting it waits for."""

    @property
    @abstractmethod
    def waiting_for_room(self) -> int:
        """How many callers wait for memory."""

    def advance(self, state: SenderState) -> None:
        """Go on to a state, unless it is past that already."""
        self.state = max(self.state, state)

    def used_bytes(self, core: ProducerCore) -> int:
        """How much of `buffer.memory` is in use."""
        return core.accumulator.buffered_bytes + self.taken - self.drained

    def open_core(self) -> ProducerCore:
        """The core, of a sender that still takes something."""
        if self.error is not None:
            raise ClientClosedError(f"the producer failed, and can only be closed: {self.error!r}") from self.error
        if self.core is None or self.state >= SenderState.CLOSING:
            raise ClientClosedError("the producer is closed: make a new one")
        return self.core

    def why_closed(self) -> str:
        """For records that are left when this ends."""
        return "the producer was closed" if self.error is None else f"the producer failed: {self.error!r}"

    def metrics(self) -> dict[str, float]:
        core = self.core
        if core is None:
            return {}
        return {
            **core.metrics.read(),
            "record-error-total": core.metrics.record_errors + core.accumulator.failed_records,
            "requests-in-flight": sum(core.core.in_flight(node) for node in list(core.core.view.nodes)),
            "buffer-total-bytes": self.settings.buffer_memory,
            "buffer-available-bytes": max(0, self.settings.buffer_memory - self.used_bytes(core)),
            "waiting-threads": self.waiting_for_room,
        }


def _not_open(_: Any) -> None:
    raise AssertionError("unreachable: the slow way opens the sender first")
