"""Errors that only clients have: no broker answers them, so they have no code."""

from __future__ import annotations

from headrace.errors import HeadraceError, RequestTimedOutError


class ClientClosed(HeadraceError):
    """The client was closed before, or while, this was asked of it."""


class SerializationError(HeadraceError):
    """A key or value could not be turned into bytes, or back. Nothing was sent."""


class BufferExhausted(HeadraceError):
    """`buffer.memory` stayed full for `max.block.ms`. Nothing was sent."""


class DeliveryTimeout(RequestTimedOutError):
    """A record was not acknowledged in time (`delivery.timeout.ms`, or `max.block.ms` while its topic was unknown).

    It may or may not have been written when it had been sent before.
    """
