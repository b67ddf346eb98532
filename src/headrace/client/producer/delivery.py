"""What `send` gives back: the record itself, which can be asked how its delivery went.

A `Delivery` is the record on its way through the producer and the handle for its user in one object, because a second
object per record is what costs. It is a list underneath (the constants say which place holds what): a slotted class
takes half as long again to make. Nobody outside this package should look at its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from headrace.client.errors import copy_of
from headrace.client.producer._failures import is_silent
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.producer._batch import ProducerBatch
    from headrace.client.producer._failures import Unheard

TOPIC: Final = 0
VALUE: Final = 1
KEY: Final = 2
PLACE: Final = 3
"""The partition asked for (or None); once the record is in a batch, its row there."""
TIMESTAMP: Final = 4
HEADERS: Final = 5
CALLBACK: Final = 6
OWNER: Final = 7
"""What sends it; once the record is in a batch, that batch."""

HeaderList = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """Where a record is: topic, partition, offset (-1 with `acks=0`, or when it failed), timestamp in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int


DeliveryCallback = Callable[[HeadraceError | None, RecordMetadata], Any]
ON_DELIVERY = "on_delivery"
"""What users call it, in errors."""


_LISTS_OWN = frozenset(dir(list))


class Delivery(list[Any]):
    """One record on its way. Ask it for `result()`, `exception()` or `done()`; await it in asyncio."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # a handle, not a value: equal only to itself

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        if not len(self):
            return "<Delivery>"
        if not self.done():
            return f"<Delivery to {self[TOPIC]}: under way>"
        batch = cast("ProducerBatch", self[OWNER])
        error = batch.error_of(self[PLACE])
        if error is not None:
            return f"<Delivery to {self[TOPIC]}: failed, {error}>"
        found = batch.metadata_of(self[PLACE])
        return f"<Delivery to {found.topic}: partition {found.partition}, offset {found.offset}>"

    def __dir__(self) -> list[str]:
        # What it is made of is nobody's business: a list has three dozen methods that are not for users.
        return [name for name in super().__dir__() if name.startswith("__") or name not in _LISTS_OWN]

    def done(self) -> bool:
        """Whether it was acknowledged, or has failed for good."""
        return bool(getattr(self[OWNER], "is_done", False))

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait (seconds; None: as long as it takes) and say where the record is, or raise why it is nowhere.

        `TimeoutError` when the wait is over first: the record is still under way then.
        """
        if not self.done():
            _sender_of(self).wait_for(self, timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """Wait, and return the error instead of raising it; None when the record was acknowledged."""
        if not self.done():
            _sender_of(self).wait_for(self, timeout)
        return self._error()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            yield from _sender_of(self).delivery_future(self).__await__()
        return self._outcome()

    def _outcome(self) -> RecordMetadata:
        error = self._error()
        if error is not None:
            raise copy_of(error)
        return cast("ProducerBatch", self[OWNER]).metadata_of(self[PLACE])

    def _error(self) -> HeadraceError | None:
        """Why it failed; whoever asks has heard of it."""
        batch = cast("ProducerBatch", self[OWNER])
        error = batch.error_of(self[PLACE])
        if batch.unheard is not None and is_silent(self[CALLBACK]):
            self[CALLBACK] = _heard
            batch.unheard.heard(1)
        return error


def _heard(error: HeadraceError | None, metadata: RecordMetadata) -> None:
    """In the place of a callback: somebody has asked for the outcome."""


class Callbacks:
    """What is left of deliveries that nobody but the producer holds: the callback of each, or None."""

    __slots__ = ("functions",)

    def __init__(self, functions: list[DeliveryCallback | None]) -> None:
        self.functions = functions

    def __getitem__(self, rows: slice) -> Callbacks:
        return Callbacks(self.functions[rows])


def _sender_of(delivery: Delivery) -> Any:
    owner = delivery[OWNER]
    return getattr(owner, "sender", owner)


class DeliveredRange(NamedTuple):
    """Records that lie side by side in one partition: the first one's offset, and how many."""

    topic: str
    partition: int
    base_offset: int
    records: int


class BatchDelivery:
    """What `send_batch` and `send_arrow` give back: many records, delivered in several batches."""

    __slots__ = (
        "_left",
        "callback",
        "error",
        "failed_rows",
        "is_done",
        "ranges",
        "sender",
        "topic",
        "unheard",
        "waiters",
    )

    def __init__(self, sender: Any, topic: str, callback: Callable[[Any, Any], Any] | None) -> None:
        self.sender = sender
        self.topic = topic
        self.callback = callback
        self.ranges: list[DeliveredRange] = []
        self.error: HeadraceError | None = None
        self.is_done = False
        self.waiters: list[Callable[[], None]] = []
        self.failed_rows = 0
        self.unheard: Unheard | None = None
        """Set when some have failed, and no callback was called."""
        self._left = 0

    def __repr__(self) -> str:
        return f"<BatchDelivery to {self.topic}: {'done' if self.is_done else f'{self._left} records under way'}>"

    def expect(self, rows: int) -> None:
        self._left += rows

    def finished(self, rows: int, delivered: DeliveredRange | None, error: HeadraceError | None) -> None:
        """Some of the rows are done."""
        self._left -= rows
        if delivered is not None:
            self.ranges.append(delivered)
        if error is not None:
            self.error = self.error or error
            self.failed_rows += rows
        if self._left == 0:
            self.is_done = True

    def done(self) -> bool:
        return self.is_done

    def result(self, timeout: float | None = None) -> list[DeliveredRange]:
        """Wait (seconds) for all of them; where they are, or the first error (`ranges` has what did arrive)."""
        if not self.is_done:
            self.sender.wait_for(self, timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        if not self.is_done:
            self.sender.wait_for(self, timeout)
        return self._error()

    def __await__(self) -> Generator[Any, None, list[DeliveredRange]]:
        if not self.is_done:
            yield from self.sender.delivery_future(self).__await__()
        return self._outcome()

    def _outcome(self) -> list[DeliveredRange]:
        error = self._error()
        if error is not None:
            raise copy_of(error)
        return self.ranges

    def _error(self) -> HeadraceError | None:
        unheard, self.unheard = self.unheard, None
        if unheard is not None:
            unheard.heard(unheard.count)
        return self.error
