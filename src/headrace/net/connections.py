"""Connections to many brokers, without I/O: which calls wait for which, when to connect, what is late, what is idle.

A driver implements `Transport` and reports what happens (`connected`, `received`, `disconnected`); whoever builds on it
says where brokers are (`node`), calls `submit`, and lets the driver call `tick`. All of it runs on one thread.
"""

from __future__ import annotations

import logging
import random
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import HeadraceError, KafkaError, NetworkError, RequestTimedOutError
from headrace.net.authentication import REFUSALS
from headrace.net.closed_by_broker import Doubt, doubt_about, hinted
from headrace.net.connection import SETTING_UP, Call, Connection, ConnectionState, Frame, OnDone, lost
from headrace.net.node import Node
from headrace.net.sasl.exchange import login_is_wanted
from headrace.net.settings import ConnectionSettings
from headrace.net.tls import has_no_tls, refusal
from headrace.protocol.wire import MalformedMessageError
from headrace.records.buffers import SHARED
from headrace.runtime import Clock

log = logging.getLogger("headrace.net")

_FOREVER = float("inf")
_UNENCODABLE = (struct.error, TypeError, ValueError, AttributeError, OverflowError, LookupError)
_TICK_S_MAX = 60.0
_WARN_AGAIN_S = 60.0
_KEPT_BYTES = 32 * 1024 * 1024
"""How much of the shared buffers stays for other clients, and for the next, when one is closed."""


class Transport(Protocol):
    """What the core asks of a driver. None of these may call back into the core before they return."""

    def open_connection(self, connection: Connection) -> None:
        """Begin to connect; report `connected` or `disconnected` later."""
        ...

    def flush_connection(self, connection: Connection) -> None:
        """There is something in `connection.outgoing`."""
        ...

    def close_connection(self, connection: Connection) -> None:
        """Close the socket at once. No report is expected."""
        ...

    def prepare_authentication(self, connection: Connection, prepare: Callable[[], None]) -> None:
        """Call this, which may block; report `prepared` later."""
        ...


@dataclass(slots=True)
class NodeState:
    """What outlives a connection to a node."""

    failures: int = 0
    retry_at: float = 0.0
    connection: Connection | None = None
    waiting: list[Call] = field(default_factory=list)
    last_error: HeadraceError | None = None
    doubt: Doubt | None = None
    """What the next connection finds out first."""


class Connections(ABC):
    """One connection per key: a node's id, or a number that `node` resolves to one for a second connection to it."""

    finds_out = True
    """Whether a client that nobody ever answered asks what is wanted of it, where connections are closed on it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        clock: Clock,
        rng: random.Random,
        transport: Transport,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.rng = rng
        self.transport = transport
        self.failures = 0
        """Counts lost connections and calls that ended without an answer: a driver that sees it grow does not wait."""
        self.closed = False
        self.is_moving = False
        """Whether something is done here right now. Found by who has just come in, it says that the last who was here
        was interrupted (a signal's handler may raise anywhere): nothing is known for certain then, see `start_over`."""
        self._open: dict[Call, None] = {}
        """Calls without an answer, in the order in which they were made."""
        self._nodes: dict[int, NodeState] = {}
        self._was_answered = False
        """Whether any broker ever answered what this client is for."""
        self._warned_at: dict[tuple[str, int], float] = {}
        """When it was last said of an address that it cannot be reached."""

    # --- what whoever builds on it says -------------------------------------------------------------------------------

    @abstractmethod
    def node(self, key: int) -> Node | None:
        """Where the broker of that key is; None when it is not known (any more)."""

    def _became_ready(self, now: float) -> None:  # noqa: B027 - a hook that need not do anything
        """A connection can be used from now on, or has room again."""

    def _was_dropped(self, key: int, error: HeadraceError, now: float) -> None:  # noqa: B027 - a hook that need not do anything
        """The connection of that key could not be made, or is gone."""

    def _take_back(self, state: NodeState) -> None:  # noqa: B027 - a hook that need not do anything
        """A node's connection is gone, or the node: what waits for it and need not may go elsewhere."""

    def _forget_waiting(self) -> None:  # noqa: B027 - a hook that need not do anything
        """Every call is about to end: none may be sent any more."""

    # --- calls --------------------------------------------------------------------------------------------------------

    def submit(
        self,
        key: int,
        request: Any,
        on_done: OnDone | None = None,
        *,
        timeout_ms: float | None = None,
        expects_response: bool = True,
        version_max: int | None = None,
    ) -> Call:
        """Send a request to a node as soon as there is a connection to it.

        `timeout_ms` (default: the request time-out) runs once until it is sent and once from then to the answer. The
        call ends with an error when the node cannot be reached.
        """
        now = self.clock.monotonic()
        call = self._call(request, key, on_done, timeout_ms, expects_response, version_max, now)
        if not self.closed:
            was_moving, self.is_moving = self.is_moving, True
            self._submit(call, key, now)
            self.is_moving = was_moving
        return call

    def _call(
        self,
        request: Any,
        key: int | None,
        on_done: OnDone | None,
        timeout_ms: float | None,
        expects_response: bool,
        version_max: int | None,
        now: float,
    ) -> Call:
        timeout = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        call = Call(
            request,
            key,
            now + timeout / 1000,
            timeout,
            on_done,
            expects_response=expects_response,
            version_max=version_max,
        )
        if self.closed:
            call.finish(None, NetworkError(f"the client is closed; {call.name} was not sent"))
        else:
            self._note(call)
        return call

    def _note(self, call: Call) -> None:
        call.open_calls = self._open
        self._open[call] = None

    def _submit(self, call: Call, key: int, now: float) -> None:
        if self.node(key) is None:
            call.finish(None, NetworkError(f"node {key} is not in the cluster's metadata; {call.name} was not sent"))
        else:
            self._state(key).waiting.append(call)
            self._pump(key, now)

    def withdraw(self, key: int, call: Call) -> None:
        """Nobody waits for a call any more: what was not sent yet never is."""
        state = self._nodes.get(key)
        if state is not None and call in state.waiting:
            state.waiting.remove(call)
            call.finish(None, NetworkError(f"{call.name} was given up before it was sent"))

    def connection(self, key: int) -> Connection | None:
        """The open connection to a node, if it is ready for requests."""
        state = self._nodes.get(key)
        if state is None or state.connection is None or state.connection.state is not ConnectionState.READY:
            return None
        return state.connection

    def resting_connection(self, key: int) -> Connection | None:
        """The open connection to a node, if it has nothing else to do."""
        state = self._nodes.get(key)
        connection = None if state is None or state.waiting else state.connection
        if connection is None or connection.in_flight or connection.is_sending:
            return None
        return connection if connection.may_send(self.clock.monotonic()) else None

    def send_frame(self, connection: Connection, request: Any, frame: Frame, on_done: OnDone, now: float) -> Call:
        """Send a request that is encoded already, at once, on a connection that rests."""
        timeout_ms = self.settings.request_timeout_ms
        call = Call(request, connection.key, now + timeout_ms / 1000, timeout_ms, on_done)
        connection.send_frame(call, *frame, now)
        self.transport.flush_connection(connection)
        return call

    def ensure_connected(self, key: int) -> bool:
        """Whether requests can be sent to a node now; if not, begin to connect to it (as its backoff allows)."""
        if self.connection(key) is not None:
            return True
        now = self.clock.monotonic()
        state = self._state(key)
        if state.connection is None and state.retry_at <= now and not self.closed:
            self._connect(key, now)
        return False

    def in_flight(self, key: int) -> int:
        """Calls that were submitted to a node and have no answer yet."""
        state = self._nodes.get(key)
        if state is None:
            return 0
        return len(state.waiting) + (len(state.connection.in_flight) if state.connection is not None else 0)

    def is_sending(self, key: int) -> bool:
        """Whether bytes of earlier calls still wait for room in the node's socket."""
        connection = self.connection(key)
        return connection is not None and connection.is_sending

    def is_reachable(self, key: int) -> bool:
        """Whether a call to that node would be sent or connected for now, rather than wait out a backoff."""
        state = self._nodes.get(key)
        return state is None or state.connection is not None or state.retry_at <= self.clock.monotonic()

    def retry_at(self, key: int) -> float:
        """When the backoff of a node that could not be reached ends."""
        state = self._nodes.get(key)
        return 0.0 if state is None else state.retry_at

    def throttled_until(self, key: int) -> float:
        """When a node that throttles this client may be sent requests again."""
        connection = self.connection(key)
        return 0.0 if connection is None else connection.throttled_until

    def connected_nodes(self) -> list[int]:
        """The keys that there is a connection for, or one being made."""
        return [key for key, state in self._nodes.items() if state.connection is not None]

    def disconnect(self, key: int, error: HeadraceError) -> None:
        """Drop the connection to a node; its calls end with this error."""
        state = self._nodes.get(key)
        if state is not None and state.connection is not None:
            self._drop(state.connection, error, self.clock.monotonic())

    def _state(self, key: int) -> NodeState:
        state = self._nodes.get(key)
        if state is None:
            state = self._nodes[key] = NodeState()
        return state

    def _pump(self, key: int, now: float) -> None:
        """Move what waits for a node as far as it goes: connect, or send."""
        state = self._state(key)
        connection = state.connection
        if connection is None:
            if state.waiting and state.retry_at <= now:
                self._connect(key, now)
            return
        if not connection.may_send(now):
            if state.waiting and connection.renew_authentication(now):
                self._authenticate(connection, now)
            return
        flushed = False
        while state.waiting and len(connection.in_flight) < self.settings.in_flight_max:
            call = state.waiting.pop(0)
            try:
                connection.send(call, now)
            except HeadraceError as error:
                self.failures += 1
                call.finish(None, error)
                continue
            except _UNENCODABLE as error:
                # This call fails, and no other does. What a signal's handler raises is none of these.
                self.failures += 1
                call.finish(None, KafkaError(f"{call.name} cannot be encoded, and was not sent: {error!r}"))
                continue
            flushed = True
        if flushed:
            self.transport.flush_connection(connection)

    def _authenticate(self, connection: Connection, now: float) -> None:
        prepare = self.settings.security.prepare
        if prepare is not None:
            self.transport.prepare_authentication(connection, prepare)
        else:
            self._begin_flow(connection, now)

    def _begin_flow(self, connection: Connection, now: float) -> None:
        try:
            connection.authenticate(now, self.settings.request_timeout_ms)
        except HeadraceError as error:
            self._drop(connection, error, now)
        else:
            self.transport.flush_connection(connection)

    def _connect(self, key: int, now: float) -> Connection | None:
        node = self.node(key)
        state = self._state(key)
        if node is None:
            self._take_back(state)
            self._fail_waiting(state, NetworkError(f"node {key} has left the cluster"))
            return None
        setup_ms = self.settings.setup_backoff.wait_ms(state.failures, self.rng)
        security = self.settings.security
        authenticate, tls = security.authenticate, security.tls
        doubt = state.doubt
        if doubt is Doubt.LOGIN:
            authenticate = login_is_wanted("SASL_PLAINTEXT" if tls is None else "SASL_SSL")
        connection = Connection(
            node,
            self.settings.client_id or None,
            now,
            now + setup_ms / 1000,
            key=key,
            authenticate=authenticate,
            renewal_spread=self.rng.random() if security.authenticate is not None else 0.0,
            tls=None if doubt is Doubt.TLS else tls,
            is_question=doubt is Doubt.TLS,
        )
        state.connection = connection
        self.transport.open_connection(connection)
        return connection

    # --- what the driver reports --------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        was_moving, self.is_moving = self.is_moving, True
        connection.connected(self.clock.monotonic(), self.settings.request_timeout_ms)
        self.transport.flush_connection(connection)
        self.is_moving = was_moving

    def received(self, connection: Connection, frame: memoryview) -> None:
        """One whole frame arrived."""
        if connection.state is ConnectionState.CLOSED:
            return
        was_moving, self.is_moving = self.is_moving, True
        self._received(connection, frame)
        self.is_moving = was_moving

    def _received(self, connection: Connection, frame: memoryview) -> None:
        now = self.clock.monotonic()
        setting_up = connection.state is not ConnectionState.READY
        negotiating = connection.state is ConnectionState.NEGOTIATING
        try:
            call = connection.received(frame, now)
        except (MalformedMessageError, HeadraceError) as error:
            self._drop(connection, error, now)
            return
        if connection.is_question:
            self._drop(connection, has_no_tls(connection.node), now)
            return
        if setting_up:
            if negotiating and connection.state is ConnectionState.AUTHENTICATING:
                self._authenticate(connection, now)
                return
            if connection.state is ConnectionState.READY:
                state = self._state(connection.key)
                state.failures, state.retry_at, state.last_error, state.doubt = 0, 0.0, None, None
                self._warned_at.pop((connection.node.host, connection.node.port), None)
            self.transport.flush_connection(connection)
        elif call is not None:
            self._was_answered = True
            call.finish(call.response, None)
        self._pump(connection.key, now)
        self._became_ready(now)

    def prepared(self, connection: Connection, error: HeadraceError | None) -> None:
        """What had to be done before an authentication is done, or failed."""
        if connection.state is not ConnectionState.AUTHENTICATING:
            return
        was_moving, self.is_moving = self.is_moving, True
        if error is not None:
            self._drop(connection, error, self.clock.monotonic())
        else:
            self._begin_flow(connection, self.clock.monotonic())
        self.is_moving = was_moving

    def disconnected(self, connection: Connection, error: BaseException | None) -> None:
        """The connection could not be made, or is gone."""
        if connection.state is not ConnectionState.CLOSED:
            was_moving, self.is_moving = self.is_moving, True
            self._drop(connection, error, self.clock.monotonic(), close=False)
            self.is_moving = was_moving

    def _drop(self, connection: Connection, error: BaseException | None, now: float, *, close: bool = True) -> None:
        self.failures += 1
        never_ready = connection.state in SETTING_UP
        if never_ready:
            error = refusal(connection.node, error) or error
        state = self._state(connection.key)
        security, was_answered = self.settings.security, self._was_answered
        if not isinstance(error, REFUSALS):
            # Who was refused for it asks again the next time, for those who did not wait for this answer.
            may_ask = self.finds_out and not was_answered
            state.doubt = doubt_about(connection, error, security) if may_ask else None
        error = hinted(connection, error, security, was_answered=was_answered)
        calls = connection.closed()
        if close:
            self.transport.close_connection(connection)
        if state.connection is connection:
            state.connection = None
        self._take_back(state)
        state.retry_at = now + self.settings.reconnect_backoff.wait_ms(state.failures, self.rng) / 1000
        state.failures += 1
        failure = (
            error
            if isinstance(error, HeadraceError)
            else NetworkError(f"the connection to {connection.node} is gone: {error}")
        )
        state.last_error = failure
        if never_ready and not self.closed:
            self._say_failed(connection.node, error, now)
        else:
            log.info("connection to %s closed: %s", connection.node, error)
        if never_ready:
            # Those that wait for this node learn that it cannot be reached; what was in flight was only the setup.
            calls = []
            self._fail_waiting(state, _unreachable(connection.node, error))
        for call in calls:
            call.finish(None, lost(call, connection.node, error))
        self._was_dropped(connection.key, failure, now)

    def _say_failed(self, node: Node, error: BaseException | None, now: float) -> None:
        """Warn of an address that cannot be reached: once, and then rarely. It is tried many times in a minute."""
        warned_at = self._warned_at.get((node.host, node.port))
        if warned_at is not None and now - warned_at < _WARN_AGAIN_S:
            log.debug("connection to %s failed again: %s", node, error)
            return
        self._warned_at[node.host, node.port] = now
        again = "" if warned_at is None else " still"
        log.warning("connection to %s%s failed: %s", node, again, error)

    def _fail_waiting(self, state: NodeState, error: HeadraceError) -> None:
        waiting, state.waiting = state.waiting, []
        for call in waiting:
            self.failures += 1
            call.finish(None, error)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """Do what is due; seconds until something is due again (at most a minute, so that a clock may jump)."""
        if self.closed:
            return _TICK_S_MAX
        now = self.clock.monotonic()
        if self.is_moving:
            self.start_over()
        self.is_moving = True
        self._expire(now)
        due = self._move_on(now)
        self.is_moving = False
        return max(0.0, due - now)

    def start_over(self) -> None:
        """After an interruption: drop every connection and end every call, so that all of it is asked anew."""
        error = NetworkError("the client was interrupted in the middle of its work, and starts over")
        now = self.clock.monotonic()
        for state in list(self._nodes.values()):
            if state.connection is not None:
                self._drop(state.connection, error, now)
            state.waiting = []
            state.failures, state.retry_at = 0, 0.0
        self._forget_waiting()
        for call in list(self._open):
            self.failures += 1
            call.finish(None, error)
            # When its end was what was interrupted, it is still here.
            self._open.pop(call, None)
        self.is_moving = False

    def _move_on(self, now: float) -> float:
        """Send and connect what may go now; when something is due again."""
        SHARED.trim(now)
        due = now + _TICK_S_MAX
        for key, state in list(self._nodes.items()):
            if state.connection is not None and state.connection.unanswered:
                self._finish_written(state.connection)
            self._pump(key, now)
            due = min(due, _due(state, now))
        return due

    def _finish_written(self, connection: Connection) -> None:
        """End the calls that expect no answer and have gone out."""
        for call in connection.take_written():
            self.failures += 1
            call.finish(None, None)

    def due_in(self, key: int) -> float:
        """Seconds until something is due at a node (infinity: nothing is)."""
        state = self._nodes.get(key)
        if state is None:
            return _FOREVER
        now = self.clock.monotonic()
        return _due(state, now) - now

    def _expire(self, now: float) -> None:
        for state in list(self._nodes.values()):
            if state.waiting:
                self._expire_waiting(state, now)
            connection = state.connection
            if connection is None:
                continue
            late = connection.overdue(now)
            if late is not None:
                self._drop(
                    connection,
                    RequestTimedOutError(
                        f"{connection.node} did not answer {late.name} within {late.timeout_ms:.0f} ms"
                    ),
                    now,
                )
            elif connection.state is ConnectionState.CONNECTING and connection.setup_deadline <= now:
                self._drop(
                    connection,
                    NetworkError(f"connecting to {connection.node} took too long (socket.connection.setup.timeout.ms)"),
                    now,
                )
            elif self._is_idle(connection, now):
                log.debug("closing the idle connection to %s", connection.node)
                connection.closed()
                self.transport.close_connection(connection)
                state.connection = None

    def _expire_waiting(self, state: NodeState, now: float) -> None:
        for call in [call for call in state.waiting if call.deadline <= now]:
            state.waiting.remove(call)
            self.failures += 1
            call.finish(None, _held_back(call, state.connection, now) or self._never_sent(call))

    def _is_idle(self, connection: Connection, now: float) -> bool:
        limit_ms = self.settings.idle_max_ms
        is_used = connection.in_flight or connection.unanswered
        return limit_ms >= 0 and not is_used and connection.last_used + limit_ms / 1000 <= now

    def _never_sent(self, call: Call) -> HeadraceError:
        reasons = {str(state.last_error) for state in self._nodes.values() if state.last_error is not None}
        why = f" Last: {'; '.join(sorted(reasons))}." if reasons else ""
        return RequestTimedOutError(
            f"{call.name} could not be sent within {call.timeout_ms:.0f} ms: no broker could be reached.{why} "
            "Check bootstrap.servers and that the brokers' advertised listeners can be reached from here"
        )

    def close(self) -> None:
        """Close every connection; calls that have no answer end with an error. Idempotent."""
        if self.closed:
            return
        self.closed = True
        error = NetworkError("the client was closed")
        for state in self._nodes.values():
            if state.connection is not None:
                self._drop(state.connection, error, self.clock.monotonic())
            self._fail_waiting(state, error)
        SHARED.shrink(_KEPT_BYTES)


def _due(state: NodeState, now: float) -> float:
    """When something is due at a node that was moved as far as it goes: an answer, an attempt, the end of a wait."""
    due = _FOREVER
    connection = state.connection
    if connection is not None:
        due = connection.next_deadline()
    if state.waiting:
        if connection is None:
            due = min(due, state.retry_at)
        elif connection.throttled_until > now:
            due = min(due, connection.throttled_until)
        due = min(due, min(call.deadline for call in state.waiting))
    return due


def _held_back(call: Call, connection: Connection | None, now: float) -> HeadraceError | None:
    """The error of a call that could not be sent to a broker because that throttles this client, if it does."""
    if connection is None or connection.throttled_until <= now:
        return None
    return RequestTimedOutError(
        f"{call.name} could not be sent within {call.timeout_ms:.0f} ms: {connection.node} throttles this client for "
        f"another {connection.throttled_until - now:.1f} s (a quota)"
    )


def _unreachable(node: Node, error: BaseException | None) -> HeadraceError:
    if isinstance(error, REFUSALS):
        return error
    return NetworkError(f"{node} cannot be reached: {error}")
