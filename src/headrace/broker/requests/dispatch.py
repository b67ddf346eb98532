"""Which function answers which request: the registry of handlers, and what goes between them and the pipeline.

A handler registers itself for an API key and a range of versions, with the rights that its requests need. What is
registered is what ApiVersions advertises, so a version that nobody covers is never offered. An `async def` handler is
waited for; any other gives its response at once, or `Pending` where it has to wait after all.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from headrace.broker.requests.access import BROKER_CLIENT_ID, Meter
from headrace.broker.requests.client import Client
from headrace.broker.requests.handler import AtOnce, Handler, HandlerFunction
from headrace.broker.requests.rights import Operation, Requirement, Resource
from headrace.broker.requests.route import Route
from headrace.protocol.api import ApiKey, api

R = TypeVar("R")
F = TypeVar("F", bound=HandlerFunction)


class PutOff(Enum):
    PUT_OFF = "put off"


#: The connection is told the answer at the end of the turn in which others are read as well.
PUT_OFF: Final = PutOff.PUT_OFF


class NoResponse:
    """What a handler returns when the client asked for no answer (Produce with acks=0)."""


NO_RESPONSE: Final = NoResponse()


class Pending(Generic[R]):
    """A response that has to be waited for."""

    __slots__ = ("amend", "awaitable", "is_done")

    def __init__(self, awaitable: Awaitable[R], *, is_done: bool = False) -> None:
        """`is_done`: what was asked for is done, and its bytes are not used any more; only the answer waits."""
        self.awaitable = awaitable
        self.is_done = is_done
        #: What is done to the response when it is there.
        self.amend: Callable[[Any], Any] | None = None

    def __await__(self) -> Generator[Any, Any, R]:
        if self.amend is None:
            return self.awaitable.__await__()
        return self._amended(self.amend)

    def _amended(self, amend: Callable[[Any], Any]) -> Generator[Any, Any, R]:
        response = yield from self.awaitable.__await__()
        amended: R = amend(response)
        return amended


async def settled(result: R | Pending[R]) -> R:
    """What a handler or a coordinator gave, waited for where it has to be."""
    return await result if isinstance(result, Pending) else result


class Afterwards:
    """What a check of rights gives that lets a request go on: something to be done to the handler's response."""

    __slots__ = ("amend",)

    def __init__(self, amend: Callable[[Any], Any]) -> None:
        self.amend = amend


class CloseConnectionError(Exception):
    """Raised by a handler to answer by closing the connection, as Kafka does where no error can be sent."""


class RequestContext:
    """Who asks, and how: one request on its way through the pipeline."""

    __slots__ = (
        "act",
        "api_version",
        "began",
        "client_id",
        "connection",
        "correlation_id",
        "done",
        "ends_connection",
        "meter",
        "queue_s",
        "ran",
        "request_bytes",
        "result",
        "rights",
        "route",
        "throttle_s",
        "to_keep",
    )

    def __init__(
        self,
        route: Route,
        correlation_id: int,
        client_id: str | None,
        connection: Client,
        request_bytes: int,
        began: float,
        queue_s: float,
    ) -> None:
        self.route = route
        self.api_version = route.api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        #: What who asks may do, as it was when the request came; None: nobody is known yet.
        self.rights = connection.rights
        #: What it changes that others depend on, for the audit log; None: nothing.
        self.act: list[str] | None = None
        #: What quotas count for who asks; None: nothing.
        self.meter: Meter | None = None
        #: Why the connection is closed after the answer; None: it is not.
        self.ends_connection: str | None = None
        #: What the handler gave: a response, `NO_RESPONSE` or `Pending`.
        self.result: Any = None
        #: How long the client is to be quiet after the answer.
        self.throttle_s = 0.0
        #: The request as it came, if its answer is to be kept.
        self.to_keep: bytes | None = None
        self.request_bytes = request_bytes
        self.queue_s = queue_s
        # By the monotonic clock: when it was taken up, when its handler had done what it could without waiting, and
        # when the response was there.
        self.began = self.ran = self.done = began

    @property
    def principal(self) -> str:
        """Who asks ("User:alice"), which is the same for all requests of a connection until it says otherwise."""
        return self.connection.principal

    @property
    def is_from_broker(self) -> bool:
        """Whether another broker of the cluster asks: it says so, and came in where brokers may."""
        return self.says_broker and self.connection.is_brokers

    @property
    def says_broker(self) -> bool:
        """Whether it says that it is another broker, which shows nothing."""
        client_id = self.client_id
        return client_id is not None and client_id.startswith(BROKER_CLIENT_ID)

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether who asks may do this; nobody may who has yet to say who it is."""
        rights = self.rights
        return rights is not None and rights.may(operation, resource, name)

    def is_allowed(self, operation: Operation, resource: Resource, name: str) -> bool:
        """The same of what was asked for: a refusal is written to the audit log."""
        if self.may(operation, resource, name):
            return True
        self.connection.access.refused(self, operation, resource, name)
        return False

    def may_on_cluster(self, operation: Operation) -> bool:
        rights = self.connection.rights
        return rights is not None and rights.may_on_cluster(operation)

    def may_on_any(self, operation: Operation, resource: Resource) -> bool:
        """Whether there can be any resource of that kind that who asks may do this to."""
        rights = self.connection.rights
        return rights is not None and rights.may_on_any(operation, resource)

    @property
    def topics_to_know(self) -> Callable[[str], bool] | None:
        """Of which topics who asks may know; None: of all."""
        if self.connection.access.authorizer is None:
            return None
        return functools.partial(self.may, Operation.DESCRIBE, Resource.TOPIC)

    @property
    def api_key(self) -> ApiKey:
        return self.route.handler.api_key

    @property
    def client_host(self) -> str:
        return self.connection.peer_host

    @property
    def listener(self) -> str:
        """The name of the listener it came through, which decides the addresses it is told."""
        return self.connection.listener


_handlers: dict[int, Handler] = {}


def handles(
    api_key: ApiKey,
    versions: tuple[int, int],
    *,
    requires: tuple[Requirement, ...],
    advertised_from: int | None = None,
    only_waits: bool = False,
    keeps_answers: bool = False,
    each_once: bool = False,
    between_brokers: bool = False,
    at_once: AtOnce | None = None,
    shape: Callable[[int], Any] | None = None,
) -> Callable[[F], F]:
    """Register a function for an API key and an inclusive range of versions."""

    def register(function: F) -> F:
        if api_key in _handlers:
            raise ValueError(f"{api_key.name} has a handler already")
        low, high = versions
        declared = api(api_key)
        _handlers[api_key] = Handler(
            api_key=api_key,
            low=low,
            high=high,
            advertised_low=low if advertised_from is None else advertised_from,
            requires=requires,
            is_async=inspect.iscoroutinefunction(function),
            only_waits=only_waits,
            keeps_answers=keeps_answers,
            each_once=each_once,
            between_brokers=between_brokers,
            function=function,
            at_once=at_once,
            shape=shape,
            request_class=declared.request,
            response_class=declared.response,
        )
        return function

    return register


@functools.cache
def load_handlers() -> dict[int, Handler]:
    """Import every module of `handlers/`, each of which registers itself, and give the whole table, by API key."""
    package = importlib.import_module("headrace.broker.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_handlers.items()))
