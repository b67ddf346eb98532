"""Which function answers which request: the registry of handlers, and the way from a frame to a response.

A handler registers itself for an API key and a range of versions. What is registered is what ApiVersions advertises,
so a version that nobody covers is never offered.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.protocol import codec
from headrace.protocol.api import ApiKey, api
from headrace.protocol.wire import MalformedMessage

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection

HandlerFunction = Callable[["Broker", "RequestContext", Any], Any]


class NoResponse:
    """What a handler returns when the client asked for no answer (Produce with acks=0)."""


NO_RESPONSE: Final = NoResponse()


class CloseConnection(Exception):
    """Raised by a handler to answer by closing the connection, as Kafka does where no error can be sent."""


@dataclass(slots=True)
class RequestContext:
    """Who asks, and how."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: Connection

    @property
    def client_host(self) -> str:
        return self.connection.peer_host

    @property
    def listener(self) -> str:
        """The name of the listener it came through, which decides the addresses it is told."""
        return self.connection.listener


@dataclass(frozen=True, slots=True)
class Handler:
    api_key: ApiKey
    low: int
    high: int
    advertised_low: int
    function: HandlerFunction
    request_class: type
    response_class: type


_handlers: dict[int, Handler] = {}


def handles(
    api_key: ApiKey, versions: tuple[int, int], *, advertised_from: int | None = None
) -> Callable[[HandlerFunction], HandlerFunction]:
    """Register a function for an API key and an inclusive range of versions."""

    def register(function: HandlerFunction) -> HandlerFunction:
        if api_key in _handlers:
            raise ValueError(f"{api_key.name} has a handler already")
        low, high = versions
        declared = api(api_key)
        _handlers[api_key] = Handler(
            api_key=api_key,
            low=low,
            high=high,
            advertised_low=low if advertised_from is None else advertised_from,
            function=function,
            request_class=declared.request,
            response_class=declared.response,
        )
        return function

    return register


def load_handlers() -> dict[int, Handler]:
    """Import every module of `handlers/`, each of which registers itself, and give the whole table."""
    package = importlib.import_module("headrace.broker.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _handlers


def _is_flexible(api_key: int, version: int) -> bool:
    handler = _handlers.get(api_key)
    return handler is not None and codec.has_flexible_header(handler.request_class, version)


@dataclass(slots=True)
class Call:
    """A request that was understood: what to run, and how to encode what it gives."""

    handler: Handler
    context: RequestContext
    request: Any

    def run(self, broker: Broker) -> Any | Awaitable[Any]:
        return self.handler.function(broker, self.context, self.request)

    def encode(self, response: Any) -> list[codec.Buffer]:
        version = self.context.api_version
        if self.handler.api_key == ApiKey.API_VERSIONS and not self.handler.low <= version <= self.handler.high:
            version = 0  # the one answer that a client from the future can read
        return codec.encode_response(response, version, self.context.correlation_id)


def understand(connection: Connection, frame: codec.Buffer) -> Call:
    """Decode a frame into a call, or raise `MalformedMessage`, upon which the connection is closed.

    ApiVersions of an unknown version is the exception: it is answered in version 0, body unread, so that a newer
    client can find out what is spoken here.
    """
    header = codec.decode_request_header(frame, _is_flexible)
    handler = _handlers.get(header.api_key)
    if handler is None:
        raise MalformedMessage(f"API key {header.api_key} is not served")
    context = RequestContext(header.api_key, header.api_version, header.correlation_id, header.client_id, connection)
    if handler.low <= header.api_version <= handler.high:
        request: Any = codec.decode(handler.request_class, header.api_version, frame, header.body_position)
    elif header.api_key == ApiKey.API_VERSIONS:
        request = handler.request_class()
    else:
        raise MalformedMessage(
            f"{handler.api_key.name} version {header.api_version} is not served (only {handler.low}-{handler.high})"
        )
    return Call(handler, context, request)
