"""The way of every request through the broker, whatever it asks for:

    decode → who → may → throttled → run → timed → answered

Each step is here and nowhere else. `who` says who asks, `may` whether they may, `throttled` how long they have to wait
after the answer; where one of them is None, it lets everything through and costs nothing. What comes of a request is
counted per API key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.broker.dispatch import NO_RESPONSE, Handler, Pending, RequestContext, load_handlers
from headrace.broker.request_metrics import ApiMetrics
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.codegen import decoder
from headrace.protocol.error_finder import error_finder
from headrace.protocol.wire import MalformedMessage, skip_tags

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection

# None lets a request go on. Anything else is the response that refuses it; `CloseConnection` refuses it without one.
Check: TypeAlias = Callable[[RequestContext, Any], Any]
# For how many seconds the client is to be quiet after its answer.
Throttle: TypeAlias = Callable[[RequestContext, Any], float]

THROTTLE_FIELD = "throttle_time_ms"


class Route:
    """All that is the same for every request of one API key and version."""

    __slots__ = (
        "api_version",
        "decode",
        "encode",
        "function",
        "handler",
        "has_tags",
        "is_async",
        "metrics",
        "tells_error",
        "tells_throttle",
    )

    def __init__(self, handler: Handler, api_version: int, metrics: ApiMetrics) -> None:
        self.handler = handler
        self.api_version = api_version
        self.metrics = metrics
        self.function = handler.function
        self.is_async = handler.is_async
        self.tells_error = error_finder(handler.response_class)
        self.tells_throttle = THROTTLE_FIELD in handler.response_class.__slots__  # type: ignore[attr-defined]  # made so by `schema`
        is_served = handler.low <= api_version <= handler.high
        # ApiVersions from the future: its body is not read, and the answer is the one that any client can read.
        version = api_version if is_served else 0
        self.decode = decoder(handler.request_class, version) if is_served else None
        self.has_tags = is_served and codec.has_flexible_header(handler.request_class, version)
        self.encode = codec.response_encoder(handler.response_class, version)


class Pipeline:
    """Takes the requests of all connections of a broker through the same steps."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.who: Check | None = None
        self.may: Check | None = None
        self.throttled: Throttle | None = None
        self.handlers = load_handlers()
        self.metrics: dict[int, ApiMetrics] = {key: ApiMetrics() for key in self.handlers}
        #: Requests that were none: what they ask for is not known, or not served.
        self.malformed = 0
        self._routes: dict[int, Route] = {}
        self._now = broker.runtime.clock.monotonic

    def begin(self, connection: Connection, frame: memoryview, arrived: float) -> RequestContext:
        """Take a request as far as it goes without waiting; `context.result` is what came of it.

        Raises `MalformedMessage` or `CloseConnection` where the connection has to be closed.
        """
        began = self._now()
        try:
            context, request = self._decode(connection, frame)
        except MalformedMessage:
            self.malformed += 1
            raise
        context.request_bytes = len(frame)
        context.began = began
        context.queue_s = began - arrived
        route = context.route
        try:
            result = None
            if self.who is not None:
                result = self.who(context, request)
            if self.may is not None and result is None:
                result = self.may(context, request)
            if self.throttled is not None:
                context.throttle_s = self.throttled(context, request)
            if result is None:
                result = route.function(self.broker, context, request)
                if route.is_async:
                    result = Pending(result)
        except BaseException:
            self.failed(context)
            raise
        context.result = result
        context.ran = self._now()
        return context

    def _decode(self, connection: Connection, frame: memoryview) -> tuple[RequestContext, Any]:
        route = None
        try:
            kind, correlation_id, client_id, position = codec.read_request_header(frame)
            route = self._routes.get(kind) or self._route(kind)
            context = RequestContext(route, correlation_id, client_id, connection)
            if route.decode is None:
                return context, route.handler.request_class()
            if route.has_tags:
                # Nobody sends any; a count of 0 is one byte.
                position = skip_tags(frame, position) if frame[position] else position + 1
            return context, route.decode(frame, position)[0]
        except (struct.error, IndexError) as error:
            what = "the header of a request" if route is None else f"{route.handler.api_key.name} v{route.api_version}"
            raise MalformedMessage(f"{what} ends too early ({error})") from error

    def _route(self, kind: int) -> Route:
        """The way of requests of that API key and version, which is made when the first of them comes."""
        api_key, version = codec.split_kind(kind)
        handler = self.handlers.get(api_key)
        if handler is None:
            raise MalformedMessage(f"API key {api_key} is not served")
        is_served = handler.low <= version <= handler.high
        if not is_served and api_key != ApiKey.API_VERSIONS:
            raise MalformedMessage(
                f"{handler.api_key.name} version {version} is not served (only {handler.low}-{handler.high})"
            )
        route = Route(handler, version, self.metrics[api_key])
        if is_served:  # others are as many as a client makes up
            self._routes[kind] = route
        return route

    def encode(self, context: RequestContext, response: Any, done: float) -> list[codec.Buffer]:
        """The answer as it is sent (nothing, where none is wanted), counted. `done` is when the response was there."""
        route = context.route
        metrics = route.metrics
        metrics.count += 1
        metrics.request_bytes += context.request_bytes
        metrics.local.add(context.ran - context.began)
        if context.queue_s > 0:
            metrics.queue.add(context.queue_s)
        if done > context.ran:
            metrics.remote.add(done - context.ran)
        if response is NO_RESPONSE:
            return []
        if context.throttle_s > 0:
            metrics.throttled += 1
            if route.tells_throttle:
                response.throttle_time_ms = max(1, int(context.throttle_s * 1000))
        if route.tells_error(response):
            metrics.errors += 1
        parts = route.encode(response, context.correlation_id)
        for part in parts:
            metrics.response_bytes += len(part)
        return parts

    def sent(self, context: RequestContext, seconds: float) -> None:
        """The kernel has all of an answer, so long after its response was there."""
        context.route.metrics.send.add(seconds)

    def failed(self, context: RequestContext) -> None:
        """A request ends without an answer, because its handler wants that or has a defect."""
        metrics = context.route.metrics
        metrics.count += 1
        metrics.errors += 1
        metrics.request_bytes += context.request_bytes
