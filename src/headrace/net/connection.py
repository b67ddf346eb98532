"""One connection to one broker, without I/O: versions, authentication, correlation, what is in flight and to be sent.

A driver makes the socket, tells `connected`, moves the bytes of `outgoing` out and those that arrive into `reader`, and
tells `closed`. Everything else is decided here.
"""

from __future__ import annotations

import ssl
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from headrace._version import __version__
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    NetworkError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    error_for,
)
from headrace.net.authentication import Authenticate, Flow, renewal_s
from headrace.net.frames import FrameReader, up_to
from headrace.net.node import Node
from headrace.protocol.api import ApiKey, api
from headrace.protocol.codec import Buffer, decode, decode_response, encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.wire import MalformedMessageError
from headrace.records.buffers import SHARED

RESPONSE_BYTES_MAX = 2_147_483_647
RECEIVE_CHUNK_BYTES = 64 * 1024
_CORRELATION_MAX = 2_147_483_647
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_FOREVER = float("inf")

OnDone = Callable[["Call"], None]
Frame = tuple[int, int, list[Buffer]]
"""A request that is encoded already: its version, the number in its header (see `next_number`), and its bytes."""


class Call:
    """One request and, later, its answer. `done` is set once: then either `response` or `error` is there."""

    __slots__ = (
        "correlation_id",
        "deadline",
        "done",
        "error",
        "expects_response",
        "goes_anywhere",
        "node_id",
        "on_done",
        "open_calls",
        "request",
        "response",
        "sent_at",
        "timeout_ms",
        "version",
        "version_max",
    )

    def __init__(
        self,
        request: Any,
        node_id: int | None,
        deadline: float,
        timeout_ms: float,
        on_done: OnDone | None = None,
        *,
        expects_response: bool = True,
        version_max: int | None = None,
    ) -> None:
        self.request = request
        self.node_id = node_id
        self.goes_anywhere = node_id is None
        """Whether any node will do: until it is sent, it need not wait for the one that it was given to."""
        self.deadline = deadline
        self.timeout_ms = timeout_ms
        self.on_done = on_done
        self.expects_response = expects_response
        self.version_max = version_max
        self.version = -1
        self.correlation_id = -1
        self.sent_at: float | None = None
        self.done = False
        self.response: Any = None
        self.error: HeadraceError | None = None
        # Where it is noted until it is done: no longer, because a request and its answer hold large buffers.
        self.open_calls: dict[Call, None] | None = None

    def __repr__(self) -> str:
        state = "done" if self.done else "in flight" if self.sent_at is not None else "waiting"
        return f"<Call {self.name} to node {self.node_id}: {state}>"

    @property
    def name(self) -> str:
        return str(self.request.SCHEMA.name).removesuffix("Request")

    @property
    def was_sent(self) -> bool:
        """Whether any of it may have reached the broker."""
        return self.sent_at is not None

    def finish(self, response: Any, error: HeadraceError | None) -> None:
        if self.done:
            return
        self.done, self.response, self.error = True, response, error
        if self.open_calls is not None:
            self.open_calls.pop(self, None)
        if self.on_done is not None:
            self.on_done(self)


class ConnectionState(Enum):
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


SETTING_UP = (ConnectionState.CONNECTING, ConnectionState.NEGOTIATING, ConnectionState.AUTHENTICATING)


class Connection:
    """Per-connection state. `versions` is what the broker serves (api key → lowest, highest), once it told."""

    def __init__(
        self,
        node: Node,
        client_id: str | None,
        now: float,
        setup_deadline: float,
        *,
        key: int | None = None,
        authenticate: Authenticate | None = None,
        renewal_spread: float = 0.0,
        tls: ssl.SSLContext | None = None,
        is_question: bool = False,
    ) -> None:
        self.node = node
        self.key = node.id if key is None else key
        self.client_id = client_id
        self.state = ConnectionState.CONNECTING
        self.setup_deadline = setup_deadline
        self.last_used = now
        self.throttled_until = 0.0
        self.in_flight: deque[Call] = deque()
        self.outgoing: deque[Buffer] = deque()
        self.unanswered: deque[Call] = deque()
        """Calls that expect no answer, and end when all their bytes have gone out."""
        self.is_draining = False
        """Whether the driver has taken bytes out of `outgoing` that the socket has no room for yet."""
        self.reader = FrameReader(up_to(RESPONSE_BYTES_MAX), chunk_bytes=RECEIVE_CHUNK_BYTES, pool=SHARED)
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self.driver: Any = None
        """Whatever the driver keeps for this connection (its socket or transport)."""
        self._next_correlation_id = 0
        self._authenticate = authenticate
        self._renewal_spread = renewal_spread
        self.tls = tls
        """What the driver speaks through."""
        self.is_question = is_question
        """Whether it only asks if there is a broker that answers without TLS."""
        self._flow: Flow | None = None
        self._authenticate_at = _FOREVER

    @property
    def was_sent_an_alert(self) -> bool:
        """Whether TLS's refusal of what is no TLS came instead of an answer: 21, 3, version, length 2, two bytes."""
        is_answered = self._next_correlation_id > len(self.in_flight)
        is_first = self.state is ConnectionState.NEGOTIATING and not is_answered
        return is_first and self.reader.frame_bytes & 0xFFFF00FF == 0x15030000 and self.reader.arrived_bytes == 3

    def __repr__(self) -> str:
        return f"<Connection to {self.node}: {self.state.value}, {len(self.in_flight)} in flight>"

    def connected(self, now: float, timeout_ms: float) -> None:
        """The socket is up: ask what the broker speaks. A broker that speaks too little answers so, in version 0."""
        self.state = ConnectionState.NEGOTIATING
        self._negotiate(api(ApiKey.API_VERSIONS).max_version, now, timeout_ms)

    def _negotiate(self, version: int, now: float, timeout_ms: float) -> None:
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version=_software_version())
        if self.node.incarnation is not None:
            request.receiver = self.node.incarnation
        call = Call(request, self.node.id, now + timeout_ms / 1000, timeout_ms)
        self._send(call, version, now)

    def pick_version(self, request: Any, version_max: int | None = None) -> int:
        """The highest version that both ends know; an error says which ends do not meet."""
        schema = request.SCHEMA
        low, high = schema.versions.low, schema.versions.high
        if version_max is not None:
            high = min(high, version_max)
        served = self.versions.get(schema.api_key)
        name = schema.name.removesuffix("Request")
        if served is None:
            raise UnsupportedVersionError(
                f"{self.node} does not serve {name} (API key {schema.api_key}); it may be too old for it"
            )
        picked: int = min(high, served[1])
        if picked < max(low, served[0]):
            raise UnsupportedVersionError(
                f"{self.node} serves {name} in versions {served[0]} to {served[1]}, and {low} to {high} would be needed"
            )
        return picked

    def send(self, call: Call, now: float) -> None:
        """Encode and queue a request; raises `UnsupportedVersionError` when the ends do not meet."""
        self._send(call, self.pick_version(call.request, call.version_max), now)

    def next_number(self) -> int:
        """The correlation id of the next request."""
        self._next_correlation_id = self._next_correlation_id % _CORRELATION_MAX + 1
        return self._next_correlation_id

    def _send(self, call: Call, version: int, now: float) -> None:
        number = self.next_number()
        self.send_frame(call, version, number, encode_request(call.request, version, number, self.client_id), now)

    def send_frame(self, call: Call, version: int, number: int, parts: list[Buffer], now: float) -> None:
        """Queue a request that is encoded already, with this `next_number` in its header."""
        call.version, call.correlation_id = version, number
        self.outgoing.extend(parts)
        call.sent_at = self.last_used = now
        call.deadline = now + call.timeout_ms / 1000
        (self.in_flight if call.expects_response else self.unanswered).append(call)

    def sent(self, count: int) -> None:
        """The driver moved that many bytes of `outgoing` out."""
        while count:
            part = self.outgoing[0]
            if count < len(part):
                self.outgoing[0] = memoryview(part)[count:]
                return
            count -= len(part)
            self.outgoing.popleft()

    @property
    def is_sending(self) -> bool:
        """Whether bytes still wait for room in the socket."""
        return bool(self.outgoing) or self.is_draining

    def take_written(self) -> list[Call]:
        """The calls that expect no answer and are written: nothing more will be heard of them."""
        if self.is_sending:
            return []
        written = list(self.unanswered)
        self.unanswered.clear()
        return written

    def may_send(self, now: float) -> bool:
        """Whether requests may go out now: set up, not throttled, and with a session that is not about to end."""
        return self.state is ConnectionState.READY and self.throttled_until <= now < self._authenticate_at

    def received(self, frame: memoryview, now: float) -> Call | None:
        """One whole answer. The finished call to report, or None when it belongs to the connection's setup.

        Raises `MalformedMessageError` for what cannot be an answer to the oldest request: close the connection.
        """
        self.last_used = now
        if not self.in_flight:
            raise MalformedMessageError(f"{self.node} sent {len(frame)} bytes that nobody asked for")
        call = self.in_flight[0]
        if len(frame) < 4 or _INT32.unpack_from(frame)[0] != call.correlation_id:
            raise MalformedMessageError(
                f"{self.node} answered out of order: {call.name} number {call.correlation_id} was expected"
            )
        if self.state is ConnectionState.NEGOTIATING:
            self.in_flight.popleft()
            self._take_versions(call, frame, now)
            return None
        _, call.response = decode_response(api(call.request.SCHEMA.api_key).response, call.version, frame)
        self.in_flight.popleft()
        if self.state is ConnectionState.AUTHENTICATING:
            self._go_on(call.response, now, call.timeout_ms)
            return None
        throttle_ms = getattr(call.response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self.throttled_until = now + throttle_ms / 1000
        return call

    def _take_versions(self, call: Call, frame: memoryview, now: float) -> None:
        # A refusal has a body of version 0, whatever was asked for; only the error code says so.
        refused = len(frame) >= 6 and _INT16.unpack_from(frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION
        response = decode(ApiVersionsResponse, 0 if refused else call.version, frame, 4)
        if refused:
            if call.version == 0:
                raise UnsupportedVersionError(f"{self.node} refuses every version of ApiVersions")
            served = {key.api_key: key.max_version for key in response.api_keys}.get(ApiKey.API_VERSIONS, 0)
            self._negotiate(max(0, min(served, call.version - 1)), now, call.timeout_ms)
            return
        if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
            raise NetworkError(f"another life of {self.node} answers there")
        if response.error_code:
            name = error_for(response.error_code).code.name
            raise error_for(response.error_code, f"{self.node} refused to tell its versions: {name}")
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.state = ConnectionState.READY if self._authenticate is None else ConnectionState.AUTHENTICATING

    def renew_authentication(self, now: float) -> bool:
        """Go back to authenticating when the session is about to end and nothing is in flight; whether that is so."""
        if self.state is not ConnectionState.READY or now < self._authenticate_at or self.in_flight:
            return False
        self.state = ConnectionState.AUTHENTICATING
        return True

    def authenticate(self, now: float, timeout_ms: float) -> None:
        """Begin to prove who this is."""
        assert self._authenticate is not None
        assert self.state is ConnectionState.AUTHENTICATING
        self._flow = self._authenticate(self.node)
        self._go_on(None, now, timeout_ms)

    def _go_on(self, answer: Any, now: float, timeout_ms: float) -> None:
        """Give the flow an answer (None: begin) and send what it asks for next."""
        assert self._flow is not None
        try:
            request = self._flow.send(answer)
        except StopIteration as finished:
            lifetime_ms: int = finished.value
            self._flow = None
            self._authenticate_at = now + renewal_s(lifetime_ms, self._renewal_spread) if lifetime_ms > 0 else _FOREVER
            self.state = ConnectionState.READY
            return
        except UnsupportedSaslMechanismError as error:
            if self._authenticate_at == _FOREVER:
                raise
            # It took the mechanism before. Apache Kafka answers so, of no mechanism at all, who comes again within a
            # second: a token that was about to expire made the session as short. A new connection has to be made.
            raise NetworkError(f"{self.node} does not renew a session that has just begun") from error
        except HeadraceError:
            raise
        except Exception as error:
            # Whatever a mechanism makes of what it was answered: it is this connection's failure, and nobody else's.
            # (What it says may have the password in it.)
            raise SaslAuthenticationFailedError(
                f"the login at {self.node} failed: {type(error).__name__} in what was answered or configured"
            ) from error
        self.send(Call(request, self.node.id, now + timeout_ms / 1000, timeout_ms), now)

    def overdue(self, now: float) -> Call | None:
        """The first call in flight whose time is over, if any."""
        for calls in (self.in_flight, self.unanswered):
            for call in calls:
                if call.deadline <= now:
                    return call
        return None

    def next_deadline(self) -> float:
        """When something here is due (infinity: nothing)."""
        due = self.setup_deadline if self.state is ConnectionState.CONNECTING else _FOREVER
        for call in self.in_flight:
            if call.deadline < due:
                due = call.deadline
        if self.unanswered:
            due = min(due, self.unanswered[0].deadline)
        return due

    def closed(self) -> list[Call]:
        """The socket is gone: the calls that will get no answer."""
        self.state = ConnectionState.CLOSED
        lost = [*self.in_flight, *self.unanswered]
        self.in_flight.clear()
        self.unanswered.clear()
        self.outgoing.clear()
        return lost


def lost(call: Call, node: Node, cause: BaseException | None) -> HeadraceError:
    """The error for a call whose connection went away."""
    if isinstance(cause, KafkaError):
        return cause
    why = f": {cause}" if cause is not None else ""
    what = f"the answer to {call.name} is lost" if call.was_sent else f"{call.name} was not sent"
    return NetworkError(f"the connection to {node} is gone{why}; {what}")


def _software_version() -> str:
    # Brokers refuse names and versions that are not alphanumeric with dots and dashes inside.
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in __version__).strip(".-") or "0"
