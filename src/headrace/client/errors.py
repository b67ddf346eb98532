"""Errors that only clients have: no broker answers them, so they have no code."""

from __future__ import annotations

import copy
from typing import TypeVar

from headrace.errors import (
    FatalTransactionError as FatalTransactionError,
)
from headrace.errors import (
    HeadraceError,
    RequestTimedOutError,
)
from headrace.errors import (
    ProducerFencedError as ProducerFencedError,
)
from headrace.errors import (
    TransactionError as TransactionError,
)
from headrace.words import plural

E = TypeVar("E", bound=HeadraceError)


def copy_of(error: E) -> E:
    """A copy to raise: one error stands for all that failed with it, and each raise would add to its traceback."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


class ClientClosedError(HeadraceError):
    """The client was closed before, or while, this was asked of it."""


class SerializationError(HeadraceError):
    """A key or value could not be turned into bytes, or back. Nothing was sent."""


class BufferExhaustedError(HeadraceError):
    """`buffer.memory` stayed full for `max.block.ms`. Nothing was sent."""


class UndeliveredError(HeadraceError):
    """Records could not be delivered, and nobody asked how their delivery went. `count` says how many, `first` why."""

    def __init__(self, count: int, first: HeadraceError) -> None:
        super().__init__(
            f"{plural(count, 'record')} could not be delivered; the first error: {first}. Ask a delivery for its "
            "result(), or give send() an on_delivery, to hear of each"
        )
        self.count = count
        self.first = first


class DeliveryTimeoutError(RequestTimedOutError):
    """A record was not acknowledged in time (`delivery.timeout.ms`, or `max.block.ms` while its topic was unknown).

    It may or may not have been written when it had been sent before.
    """


class TransactionStateError(TransactionError):
    """What was asked does not fit the state of the transaction: nothing was begun, or something is still under way."""


class AbortableTransactionError(TransactionError):
    """The transaction cannot be committed, but the producer is well: `abort_transaction()`, then begin another one."""


class TransactionOutcomeUnknownError(TransactionError):
    """No answer says whether the transaction was committed. Fence its transactional id, and then look."""


class TransactionTimeoutError(RequestTimedOutError, TransactionError):
    """The time was over before the outcome was known. Call the same method again to go on waiting for it."""
