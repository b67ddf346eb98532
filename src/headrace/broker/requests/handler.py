"""One row of the table of handlers: which requests, what they need, and the function that answers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headrace.broker.requests.rights import Requirement
from headrace.protocol.api import ApiKey

# Given the request, its context and the services that it names (`services.py`), it gives a response, `NO_RESPONSE` or
# `Pending`; an `async def` one gives a coroutine of the first two.
HandlerFunction: TypeAlias = Callable[..., Any]
#: How many parameters of a handler, and of its `at_once`, are not services.
HANDLER_OWN: Final = 2
AT_ONCE_OWN: Final = 6
# For requests of a fixed shape: given the frame, where its body begins, its route, the correlation id, the connection,
# whether it may be PUT_OFF, and the services that it names: the whole answer, or a response that is still to be
# encoded; or None, having done nothing, when the request has another shape, is not allowed, is over a quota or has to
# wait.
AtOnce: TypeAlias = Callable[..., Any]
# What handles requests of an API key, and what is tried before.
Functions: TypeAlias = tuple[HandlerFunction, AtOnce | None]


@dataclass(frozen=True, slots=True)
class Handler:
    api_key: ApiKey
    low: int
    high: int
    advertised_low: int
    requires: tuple[Requirement, ...]
    is_async: bool
    #: It may wait long for what others do, and changes nothing when it is given up.
    only_waits: bool
    #: Unless they tell an error, its answers follow from the request, the listener and the metadata, and nothing else.
    keeps_answers: bool
    #: What its requests name again and again is answered once.
    each_once: bool
    #: Brokers send it to each other; others are not told of it.
    between_brokers: bool
    function: HandlerFunction
    #: Tried first.
    at_once: AtOnce | None
    #: Of a version: what `at_once` reads and writes such requests with, as `Route.shape`.
    shape: Callable[[int], Any] | None
    request_class: type
    response_class: type
