"""The way of every request through the broker, whatever it asks for:

    decode → who → may → limited → run → timed → throttled → answered

Each step is here and nowhere else. `who` says who asks, `may` whether they may, `limited` whether a quota leaves room
for it; where one of them is None, it lets everything through and costs nothing. What comes of a request is counted per
API key, and for quotas: whoever is over one is told with the answer for how long it is not heard.

Requests of the common shapes are answered at once, also where rights are checked and quotas set: `Access` is asked for
the verdicts that it remembers, and the client's meter for room. What is refused, and whoever is over a quota, passes
the steps above.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from headrace.broker.requests.access import Access
from headrace.broker.requests.client import Client
from headrace.broker.requests.dispatch import (
    NO_RESPONSE,
    PUT_OFF,
    Afterwards,
    CloseConnectionError,
    Pending,
    PutOff,
    RequestContext,
    load_handlers,
)
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS, ElementBound
from headrace.broker.requests.handler import AT_ONCE_OWN, HANDLER_OWN, Functions
from headrace.broker.requests.kept_answers import KEPT_BYTES_MAX, REQUEST_BYTES_MAX, KeptAnswers, whole
from headrace.broker.requests.repeated import drop_repeated
from headrace.broker.requests.request_metrics import ApiMetrics
from headrace.broker.requests.route import Route
from headrace.broker.requests.services import Services, bound
from headrace.cluster.image import Image
from headrace.errors import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import REQUEST_HEADER_BYTES, read_request_header, unpack_request_header
from headrace.protocol.wire import HEADER_TAGS_MAX, MalformedMessageError, skip_tags

# None lets a request go on, and so does `Afterwards`. Anything else is the response that refuses it;
# `CloseConnectionError` does so without.
Check: TypeAlias = Callable[[RequestContext, Any], Any]


class RequestPipeline:
    """Takes the requests of all connections of a broker through the same steps."""

    def __init__(self, now: Callable[[], float], image: Image, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        """`now` is the monotonic clock; `image` is always the same one, whose content changes. `kept_bytes_max` is what
        answers may have that are given again."""
        self.who: Check | None = None
        self.may: Check | None = None
        self.limited: Check | None = None
        self.handlers = load_handlers()
        self.metrics: dict[int, ApiMetrics] = {key: ApiMetrics() for key in self.handlers}
        #: Requests that were none: what they ask for is not known, or not served.
        self.malformed = 0
        self._routes: dict[int, Route] = {}
        self._now = now
        self._image = image
        self.access = Access()
        self._elements = ElementBound(image)
        self._kept = KeptAnswers(kept_bytes_max)
        self.functions: dict[int, Functions] = {}

    def serve_with(self, services: Services) -> None:
        """What handlers may name is there now. Raises `UnknownServiceError` where one names something else."""
        for api_key, handler in self.handlers.items():
            function = bound(handler.function, services, HANDLER_OWN)
            at_once = None if handler.at_once is None else bound(handler.at_once, services, AT_ONCE_OWN)
            self.functions[api_key] = function, at_once

    def at_once(
        self, connection: Client, frame: memoryview, *, may_put_off: bool
    ) -> tuple[Route, bytes | PutOff] | None:
        """The whole answer, where it is known already or the request is of a shape that is answered in one go.

        None leaves the request to `begin`, nothing having been done. The frame is not used any more afterwards, unless
        it was put off: then until the turn ends.
        """
        rights = connection.rights
        if rights is None:
            return None
        try:
            kind, correlation_id, name_bytes = unpack_request_header(frame)
            route = self._routes.get(kind)
            if route is None:
                return None
            position = REQUEST_HEADER_BYTES + name_bytes if name_bytes > 0 else REQUEST_HEADER_BYTES
            if self.access.meter_of is not None:
                connection.metered.find(connection, bytes(frame[REQUEST_HEADER_BYTES:position]))
                if not connection.metered.has_room(len(frame) if route.produces else 0):
                    return None
            if route.has_tags:
                if frame[position]:
                    return None
                position += 1
        except (struct.error, IndexError):
            return None
        at_once = route.at_once
        if at_once is not None:
            answer = at_once(frame, position, route, correlation_id, connection, may_put_off)
            if answer is PUT_OFF or type(answer) is bytes:
                return route, answer
            return None if answer is None else (route, route.encode_refusal(answer, correlation_id))
        if route.kept is None or not 0 <= len(frame) - position <= REQUEST_BYTES_MAX:
            return None
        seen_by = (connection.listener, rights.current_key())
        kept = route.kept.find(route, seen_by, bytes(frame[position:]), self._image.offset)
        return None if kept is None else (route, whole(kept, correlation_id))

    def begin(self, connection: Client, frame: memoryview, arrived: float, began: float) -> RequestContext:
        """Take a request as far as it goes without waiting; `context.result` is what came of it. It is `began` now.

        Raises `MalformedMessageError` or `CloseConnectionError` where the connection has to be closed.
        """
        route = None
        try:
            kind, correlation_id, client_id, position = read_request_header(frame)
            # Of who has not shown who it is nothing is decoded, but what it takes to show that.
            is_refused = connection.rights is None and not self._may_ask(connection, codec.split_kind(kind)[0])
            route = self._routes.get(kind) or self._route(kind)
            context = RequestContext(route, correlation_id, client_id, connection, len(frame), began, began - arrived)
            if is_refused:
                return self._refused(context)
            if self.access.meter_of is not None and connection.rights is not None:
                connection.metered.find(connection, (client_id or "").encode())
                context.meter = connection.metered.meter
            if route.has_tags:
                # Nobody sends any; a count of 0 is one byte.
                position = skip_tags(frame, position, HEADER_TAGS_MAX) if frame[position] else position + 1
            if route.kept is not None and len(frame) - position <= REQUEST_BYTES_MAX:
                context.to_keep = bytes(frame[position:])
                route.kept.expect(self._image.offset)
            if route.decode is None:
                request = route.handler.request_class()
            elif len(frame) <= ELEMENTS_ALWAYS:
                request = route.decode(frame, position)[0]
            else:
                request = route.decode(frame, position, self._elements.max_of(route.handler.api_key))[0]
        except (struct.error, IndexError) as error:
            self.malformed += 1
            what = "the header of a request" if route is None else f"{route.handler.api_key.name} v{route.api_version}"
            raise MalformedMessageError(f"{what} ends too early ({error})") from error
        except MalformedMessageError:
            self.malformed += 1
            raise
        try:
            result = None
            if self.access.audit is not None and route.act is not None and not context.is_from_broker:
                # Now, as what is refused is taken out of the request.
                context.act = list(route.act(request))
            if self.who is not None:
                result = self.who(context, request)
            if route.each_once and result is None:
                drop_repeated(request)
            amend = None
            if self.may is not None and result is None:
                result = self.may(context, request)
                if type(result) is Afterwards:
                    amend, result = result.amend, None
            if context.meter is not None and self.limited is not None and result is None:
                result = self.limited(context, request)
                if type(result) is Afterwards:
                    amend, result = result.amend if amend is None else _both(result.amend, amend), None
            if result is None:
                result = route.function(request, context)
                if route.is_async:
                    result = Pending(result)
                if amend is not None:
                    if isinstance(result, Pending):
                        result.amend = amend
                    else:
                        result = amend(result)
        except BaseException:
            self.failed(context)
            raise
        context.result = result
        context.ran = self._now()
        return context

    def _may_ask(self, connection: Client, api_key: int) -> bool:
        if connection.login is None:
            raise CloseConnectionError("a request of somebody who is not known")
        return connection.login.may_ask(api_key)

    def _refused(self, context: RequestContext) -> RequestContext:
        """A request in the middle of a login: an answer that says so where it can, and then the end."""
        response = context.route.handler.response_class()
        if hasattr(response, "error_code"):
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
        context.ends_connection = f"{context.api_key.name} in the middle of a login"
        context.result = response
        context.ran = self._now()
        return context

    def forget_kept(self) -> None:
        """Make all answers anew: who is the controller has changed, which is not in the metadata."""
        self._kept.forget()

    def _route(self, kind: int) -> Route:
        """The way of requests of that API key and version, which is made when the first of them comes."""
        api_key, version = codec.split_kind(kind)
        handler = self.handlers.get(api_key)
        if handler is None:
            raise MalformedMessageError(f"API key {api_key} is not served")
        is_served = handler.low <= version <= handler.high
        if not is_served and api_key != ApiKey.API_VERSIONS:
            raise MalformedMessageError(
                f"{handler.api_key.name} version {version} is not served (only {handler.low}-{handler.high})"
            )
        route = Route(handler, version, self.metrics[api_key], self._kept, self.functions[api_key])
        if is_served:  # others are as many as a client makes up
            self._routes[kind] = route
        return route

    def encode(self, context: RequestContext, response: Any, done: float) -> Sequence[codec.Buffer]:
        """The answer as it is sent; nothing, where none is wanted. `done` is when the response was there."""
        context.done = done
        route = context.route
        metrics = route.metrics
        if type(response) is bytes:
            metrics.response_bytes += len(response)
            return (response,)
        if response is NO_RESPONSE:
            if context.meter is not None:
                context.throttle_s = context.meter.throttle_s(context.request_bytes, 0, 0.0)
            return ()
        if context.meter is not None:
            used_s = context.ran - context.began
            produced = context.request_bytes if route.produces else 0
            shared = _shared_bytes(response) if route.shares else 0
            context.throttle_s = max(context.throttle_s, context.meter.throttle_s(produced, shared, used_s))
        if context.throttle_s > 0:
            metrics.throttled += 1
            if route.tells_throttle:
                response.throttle_time_ms = max(1, int(context.throttle_s * 1000))
        tells_error = route.tells_error(response)
        if tells_error:
            metrics.errors += 1
        if context.act is not None and self.access.audit is not None:
            self.access.audit.changed(context, context.act, is_done=not tells_error)
        parts = route.encode(response, context.correlation_id)
        answer_bytes = sum(map(len, parts))
        metrics.response_bytes += answer_bytes
        if context.meter is not None and route.consumes and not context.throttle_s:
            context.meter.take(0, answer_bytes, 0.0)
        # What was waited for may have been something that the answer does not show: then it is made anew next time.
        if context.to_keep is not None and route.kept is not None and not tells_error and done == context.ran:
            rights = context.connection.rights
            if rights is not None and not context.throttle_s:
                seen_by = (context.connection.listener, rights.current_key())
                route.kept.keep(route, seen_by, context.to_keep, b"".join(parts), self._image.offset)
        return parts

    def sent(self, context: RequestContext, now: float) -> None:
        """The kernel has all of an answer: count the request."""
        metrics = context.route.metrics
        metrics.count += 1
        metrics.request_bytes += context.request_bytes
        ran, done = context.ran, context.done
        metrics.local.add(ran - context.began)
        metrics.send.add(now - done)
        if context.queue_s > 0:
            metrics.queue.add(context.queue_s)
        if done > ran:
            metrics.remote.add(done - ran)

    def failed(self, context: RequestContext) -> None:
        """A request ends without an answer, because its handler wants that or has a defect."""
        metrics = context.route.metrics
        metrics.count += 1
        metrics.errors += 1
        metrics.request_bytes += context.request_bytes


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda response: second(first(response))


def _shared_bytes(response: Any) -> int:
    """The records that a member of a share group is given. They are locked for it: it has them whatever its quota."""
    return sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)
