"""The common core of every client, without I/O: which connections there are, which call goes where and when, metadata.

A driver implements `Transport` and reports what happens (`connected`, `received`, `disconnected`); whoever builds a
client on it calls `submit` and gets `on_done(call)`, and lets the driver call `tick`. All of it runs on one thread.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.client.cluster_view import ClusterView, Node
from headrace.client.configs import ConnectionConfig
from headrace.client.connection_core import Call, Connection, Frame, OnDone, State, lost
from headrace.errors import (
    ErrorCode,
    HeadraceError,
    KafkaError,
    NetworkError,
    RequestTimedOutError,
    RetriableError,
    error_for,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.protocol.wire import MalformedMessage
from headrace.records.buffers import SHARED
from headrace.runtime import Clock

log = logging.getLogger("headrace.client")

ANY_NODE = None
_FOREVER = float("inf")
_KEPT_BYTES = 32 * 1024 * 1024
"""How much of the shared buffers stays for other clients, and for the next, when one is closed."""
_COORDINATOR_KEY_MAX = 2_147_483_647
_COORDINATOR_KEYS_FROM = 1 << 30


def coordinator_key(node_id: int) -> int:
    """The key of a second connection to a node, so that no long fetch stands before a heartbeat."""
    return _COORDINATOR_KEY_MAX - node_id


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


@dataclass(slots=True)
class _NodeState:
    """What outlives a connection to a node."""

    failures: int = 0
    retry_at: float = 0.0
    connection: Connection | None = None
    waiting: list[Call] = field(default_factory=list)
    last_error: HeadraceError | None = None


class ClientCore:
    """`topics` (None: all of them) says whose metadata is kept; `listeners` hear of every new answer."""

    def __init__(self, config: ConnectionConfig, clock: Clock, rng: random.Random, transport: Transport) -> None:
        self.config = config
        self.clock = clock
        self.rng = rng
        self.transport = transport
        self.view = ClusterView()
        self.topics: set[str] | None = set()
        self.allow_auto_topic_creation = True
        self.listeners: list[Callable[[ClusterView], None]] = []
        self.metadata_error: HeadraceError | None = None
        """Why the last attempt at metadata failed; None after a success."""
        self.failures = 0
        """Counts lost connections and calls that ended without an answer: a driver that sees it grow does not wait."""
        self.closed = False
        self._bootstrap = {-1 - i: Node(-1 - i, host, port) for i, (host, port) in enumerate(config.bootstrap)}
        self._bootstrapped = False
        self._learned: dict[int, Node] = {}
        self._nodes: dict[int, _NodeState] = {}
        self._unrouted: list[Call] = []
        self._metadata_call: Call | None = None
        self._metadata_wanted = False
        self._metadata_at = 0.0
        self._metadata_failures = 0
        self._metadata_retry_at = 0.0
        self._unreachable_since: float | None = None

    # --- calls ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        node_id: int | None,
        request: Any,
        on_done: OnDone | None = None,
        *,
        timeout_ms: float | None = None,
        expects_response: bool = True,
        version_max: int | None = None,
    ) -> Call:
        """Send a request to a node, or to `ANY_NODE`, as soon as there is a connection to it.

        `timeout_ms` (default `request.timeout.ms`) runs once until it is sent and once from then to the answer. The
        call ends with an error when the node cannot be reached; a call to any node tries the others first.
        """
        timeout = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        now = self.clock.monotonic()
        call = Call(
            request,
            node_id,
            now + timeout / 1000,
            timeout,
            on_done,
            expects_response=expects_response,
            version_max=version_max,
        )
        if self.closed:
            call.finish(None, NetworkError(f"the client is closed; {call.name} was not sent"))
        elif node_id is ANY_NODE:
            self._unrouted.append(call)
            self._route(now)
        elif self.node(node_id) is None:
            call.finish(
                None, NetworkError(f"node {node_id} is not in the cluster's metadata; {call.name} was not sent")
            )
        else:
            self._state(node_id).waiting.append(call)
            self._pump(node_id, now)
        return call

    def node(self, node_id: int) -> Node | None:
        """Address of a node by its id, or by the key of its second connection (see `coordinator_key`)."""
        if node_id < 0:
            return self._bootstrap.get(node_id)
        if node_id > _COORDINATOR_KEYS_FROM:
            node_id = _COORDINATOR_KEY_MAX - node_id
        return self.view.nodes.get(node_id) or self._learned.get(node_id)

    def learn_node(self, node: Node) -> None:
        """A broker named a node (a coordinator) that the metadata may not have yet."""
        self._learned[node.id] = node

    def connection(self, node_id: int) -> Connection | None:
        """The open connection to a node, if it is ready for requests."""
        state = self._nodes.get(node_id)
        if state is None or state.connection is None or state.connection.state is not State.READY:
            return None
        return state.connection

    def resting_connection(self, node_id: int) -> Connection | None:
        """The open connection to a node, if it has nothing else to do."""
        state = self._nodes.get(node_id)
        connection = None if state is None or state.waiting else state.connection
        if connection is None or connection.state is not State.READY or connection.in_flight or connection.outgoing:
            return None
        return connection if connection.throttled_until <= self.clock.monotonic() else None

    def send_frame(self, connection: Connection, request: Any, frame: Frame, on_done: OnDone, now: float) -> Call:
        """Send a request that is encoded already, at once, on a connection that rests."""
        timeout_ms = self.config.request_timeout_ms
        call = Call(request, connection.key, now + timeout_ms / 1000, timeout_ms, on_done)
        connection.send_frame(call, *frame, now)
        self.transport.flush_connection(connection)
        return call

    def ensure_connected(self, node_id: int) -> bool:
        """Whether requests can be sent to a node now; if not, begin to connect to it (as its backoff allows)."""
        if self.connection(node_id) is not None:
            return True
        now = self.clock.monotonic()
        state = self._state(node_id)
        if state.connection is None and state.retry_at <= now and not self.closed:
            self._connect(node_id, now)
        return False

    def in_flight(self, node_id: int) -> int:
        """Calls that were submitted to a node and have no answer yet."""
        state = self._nodes.get(node_id)
        if state is None:
            return 0
        return len(state.waiting) + (len(state.connection.in_flight) if state.connection is not None else 0)

    def is_sending(self, node_id: int) -> bool:
        """Whether bytes of earlier calls still wait for room in the node's socket."""
        connection = self.connection(node_id)
        return connection is not None and bool(connection.outgoing)

    def is_reachable(self, node_id: int) -> bool:
        """Whether a call to that node would be sent or connected for now, rather than wait out a backoff."""
        state = self._nodes.get(node_id)
        return state is None or state.connection is not None or state.retry_at <= self.clock.monotonic()

    def retry_at(self, node_id: int) -> float:
        """When the backoff of a node that could not be reached ends."""
        state = self._nodes.get(node_id)
        return 0.0 if state is None else state.retry_at

    def connected_nodes(self) -> list[int]:
        """The nodes that there is a connection to, or one being made."""
        return [node_id for node_id, state in self._nodes.items() if state.connection is not None]

    def disconnect(self, node_id: int, error: HeadraceError) -> None:
        """Drop the connection to a node; its calls end with this error."""
        state = self._nodes.get(node_id)
        if state is not None and state.connection is not None:
            self._drop(state.connection, error, self.clock.monotonic())

    def _state(self, node_id: int) -> _NodeState:
        return self._nodes.setdefault(node_id, _NodeState())

    def _pump(self, node_id: int, now: float) -> None:
        """Move what waits for a node as far as it goes: connect, or send."""
        state = self._state(node_id)
        connection = state.connection
        if connection is None:
            if state.waiting and state.retry_at <= now:
                self._connect(node_id, now)
            return
        if connection.state is not State.READY or connection.throttled_until > now:
            return
        flushed = False
        while state.waiting and len(connection.in_flight) < self.config.in_flight_max:
            call = state.waiting.pop(0)
            try:
                connection.send(call, now)
            except HeadraceError as error:
                self.failures += 1
                call.finish(None, error)
                continue
            except Exception as error:  # noqa: BLE001 - it cannot be encoded: this call fails, and no other does
                self.failures += 1
                call.finish(None, KafkaError(f"{call.name} cannot be encoded, and was not sent: {error!r}"))
                continue
            flushed = True
        if flushed:
            self.transport.flush_connection(connection)

    def _connect(self, node_id: int, now: float) -> Connection | None:
        node = self.node(node_id)
        state = self._state(node_id)
        if node is None:
            self._fail_waiting(state, NetworkError(f"node {node_id} has left the cluster"))
            return None
        setup_ms = self.config.setup_backoff.wait_ms(state.failures, self.rng)
        connection = Connection(node, self.config.client_id or None, now, now + setup_ms / 1000, key=node_id)
        state.connection = connection
        self.transport.open_connection(connection)
        return connection

    def _route(self, now: float) -> None:
        """Give calls that go to any node to the least loaded one; connect to one when none is ready."""
        while self._unrouted:
            node_id = self.least_loaded(now)
            if node_id is None:
                return
            if self.connection(node_id) is None:
                if self._state(node_id).connection is None:
                    self._connect(node_id, now)
                return
            call = self._unrouted.pop(0)
            call.node_id = node_id
            self._state(node_id).waiting.append(call)
            self._pump(node_id, now)

    def least_loaded(self, now: float | None = None) -> int | None:
        """The node to ask things that any node can answer: ready before connecting before not connected, fewest calls.

        None when every one is in its backoff (then the client starts over from its bootstrap servers, if it may).
        """
        now = self.clock.monotonic() if now is None else now
        candidates = list(self.view.nodes) if self._bootstrapped and self.view.nodes else list(self._bootstrap)
        self.rng.shuffle(candidates)
        best: tuple[int, int] | None = None
        found: int | None = None
        for node_id in candidates:
            state = self._nodes.get(node_id)
            connection = None if state is None else state.connection
            if connection is None:
                if state is not None and state.retry_at > now:
                    continue
                rank = (2, 0)
            elif connection.state is State.READY:
                if connection.throttled_until > now or len(connection.in_flight) >= self.config.in_flight_max:
                    continue
                rank = (0, self.in_flight(node_id))
            else:
                rank = (1, 0)
            if best is None or rank < best:
                best, found = rank, node_id
        if found is None and self._bootstrapped and self.config.rebootstrap and self._all_unreachable(candidates):
            self.rebootstrap()
        return found

    def _all_unreachable(self, candidates: list[int]) -> bool:
        """Neither connection of any of them is open: who has one to a coordinator can reach that broker."""
        return all(
            (state := self._nodes.get(key)) is None or state.connection is None
            for node_id in candidates
            for key in (node_id, coordinator_key(node_id))
        )

    def rebootstrap(self) -> None:
        """Forget the nodes that were learned and start over from the bootstrap servers (KIP-899, KIP-1102)."""
        log.info("no known broker can be reached: starting over from the bootstrap servers")
        error = NetworkError("the client starts over from its bootstrap servers")
        for node_id, state in list(self._nodes.items()):
            if state.connection is not None:
                self._drop(state.connection, error, self.clock.monotonic())
            if node_id < 0:
                state.failures, state.retry_at = 0, 0.0
        self._bootstrapped = False
        self._unreachable_since = None
        self._metadata_wanted = True

    # --- what the driver reports --------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        now = self.clock.monotonic()
        connection.connected(now, self.config.request_timeout_ms)
        self.transport.flush_connection(connection)

    def received(self, connection: Connection, frame: memoryview) -> None:
        """One whole frame arrived."""
        if connection.state is State.CLOSED:
            return
        now = self.clock.monotonic()
        negotiating = connection.state is State.NEGOTIATING
        try:
            call = connection.received(frame, now)
        except (MalformedMessage, HeadraceError) as error:
            self._drop(connection, error, now)
            return
        if negotiating:
            if connection.state is State.READY:
                state = self._state(connection.key)
                state.failures, state.retry_at, state.last_error = 0, 0.0, None
                self._route(now)
            self.transport.flush_connection(connection)
        elif call is not None:
            call.finish(call.response, None)
        self._pump(connection.key, now)
        self._route(now)

    def disconnected(self, connection: Connection, error: BaseException | None) -> None:
        """The connection could not be made, or is gone."""
        if connection.state is not State.CLOSED:
            self._drop(connection, error, self.clock.monotonic(), close=False)

    def _drop(self, connection: Connection, error: BaseException | None, now: float, *, close: bool = True) -> None:
        self.failures += 1
        never_ready = connection.state in (State.CONNECTING, State.NEGOTIATING)
        calls = connection.closed()
        if close:
            self.transport.close_connection(connection)
        node_id = connection.key
        state = self._state(node_id)
        if state.connection is connection:
            state.connection = None
        state.retry_at = now + self.config.reconnect_backoff.wait_ms(state.failures, self.rng) / 1000
        state.failures += 1
        failure = (
            error
            if isinstance(error, HeadraceError)
            else NetworkError(f"the connection to {connection.node} is gone: {error}")
        )
        state.last_error = failure
        level = logging.WARNING if never_ready and not self.closed else logging.INFO
        log.log(level, "connection to %s %s: %s", connection.node, "failed" if never_ready else "closed", error)
        self._metadata_wanted = self._metadata_wanted or not self.closed
        if never_ready:
            # Calls to any node are still unrouted; those to this one learn that it cannot be reached.
            calls = []
            self._fail_waiting(state, NetworkError(f"{connection.node} cannot be reached: {error}"))
        for call in calls:
            call.finish(None, lost(call, connection.node, error))
        if not self.closed:
            self._route(now)

    def _fail_waiting(self, state: _NodeState, error: HeadraceError) -> None:
        waiting, state.waiting = state.waiting, []
        for call in waiting:
            self.failures += 1
            call.finish(None, error)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """Do what is due; seconds until something is due again (at most a minute, so that a clock may jump)."""
        if self.closed:
            return 60.0
        now = self.clock.monotonic()
        self._expire(now)
        self._refresh_if_due(now)
        SHARED.trim(now)
        due = now + 60.0
        for node_id, state in list(self._nodes.items()):
            self._pump(node_id, now)
            connection = state.connection
            if connection is None:
                if state.waiting:
                    due = min(due, state.retry_at)
            else:
                due = min(due, connection.next_deadline())
                if connection.throttled_until > now and state.waiting:
                    due = min(due, connection.throttled_until)
            due = min(due, min((call.deadline for call in state.waiting), default=_FOREVER))
        self._route(now)
        if self._unrouted:
            due = min(due, min(call.deadline for call in self._unrouted))
            due = min(
                due,
                min(
                    (s.retry_at for s in self._nodes.values() if s.connection is None and s.retry_at > now), default=due
                ),
            )
        if self._metadata_call is None and self._metadata_due() < due:
            due = self._metadata_due()
        return max(0.0, due - now)

    def _expire(self, now: float) -> None:
        for call in [call for call in self._unrouted if call.deadline <= now]:
            self._unrouted.remove(call)
            self.failures += 1
            call.finish(None, self._never_sent(call))
        for state in list(self._nodes.values()):
            for call in [call for call in state.waiting if call.deadline <= now]:
                state.waiting.remove(call)
                self.failures += 1
                call.finish(None, self._never_sent(call))
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
            elif connection.state is State.CONNECTING and connection.setup_deadline <= now:
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

    def _is_idle(self, connection: Connection, now: float) -> bool:
        limit_ms = self.config.idle_max_ms
        return limit_ms >= 0 and not connection.in_flight and connection.last_used + limit_ms / 1000 <= now

    def _never_sent(self, call: Call) -> HeadraceError:
        reasons = {str(state.last_error) for state in self._nodes.values() if state.last_error is not None}
        why = f" Last: {'; '.join(sorted(reasons))}." if reasons else ""
        return RequestTimedOutError(
            f"{call.name} could not be sent within {call.timeout_ms:.0f} ms: no broker could be reached.{why} "
            "Check bootstrap.servers and that the brokers' advertised listeners can be reached from here"
        )

    # --- metadata -----------------------------------------------------------------------------------------------------

    def refresh_metadata(self) -> None:
        """Ask for fresh metadata as soon as the backoff allows; `view.version` grows when it is there."""
        self._metadata_wanted = True

    def add_topic(self, topic: str) -> None:
        """Keep this topic's metadata from now on."""
        if self.topics is not None and topic not in self.topics:
            self.topics.add(topic)
            self._metadata_wanted = True
            self._metadata_retry_at = 0.0

    def _metadata_due(self) -> float:
        if self._metadata_wanted:
            return self._metadata_retry_at
        if not self._metadata_at:
            return _FOREVER
        return max(self._metadata_at + self.config.metadata_max_age_ms / 1000, self._metadata_retry_at)

    def _refresh_if_due(self, now: float) -> None:
        if self._metadata_call is not None or self._metadata_due() > now:
            return
        self._metadata_wanted = False
        asked = None if self.topics is None else sorted(self.topics)
        topics = None if asked is None else [MetadataRequestTopic(name=name) for name in asked]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self.allow_auto_topic_creation)
        if self._unreachable_since is None:
            self._unreachable_since = now
        # The answer decides what is due next, so this is set before a call that may end at once.
        self._metadata_call = call = Call(
            request, ANY_NODE, now + self.config.request_timeout_ms / 1000, self.config.request_timeout_ms
        )
        call.on_done = self._metadata_done
        self._unrouted.insert(0, call)
        self._route(now)

    def _metadata_done(self, call: Call) -> None:
        now = self.clock.monotonic()
        self._metadata_call = None
        error = call.error
        if error is None and call.response.error_code:
            error = error_for(call.response.error_code)
            if call.response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self.config.rebootstrap:
                self.rebootstrap()
        if error is not None:
            self.metadata_error = error
            self._metadata_retry(now)
            since = self._unreachable_since
            trigger = self.config.rebootstrap_trigger_ms / 1000
            if since is not None and self.config.rebootstrap and self._bootstrapped and now - since >= trigger:
                self.rebootstrap()
            return
        self.take_metadata(call.response, asked=call.request.topics)

    def take_metadata(self, response: MetadataResponse, asked: list[MetadataRequestTopic] | None) -> None:
        """Fold an answer in: from the core's own refresh, or from a call that someone else made."""
        now = self.clock.monotonic()
        if not response.brokers:
            # A broker that has not heard of the cluster yet: keep what is known and ask again.
            self._metadata_retry(now)
            return
        keep = None if asked is None or self.topics is None else self.topics
        self.view.update(response, keep=keep)
        self._bootstrapped = True
        self.metadata_error = None
        self._unreachable_since = None
        self._metadata_at = now
        missing = set() if self.topics is None else self.topics - self.view.topics.keys()
        retriable = any(
            topic.error_code and isinstance(error_for(topic.error_code), RetriableError) for topic in response.topics
        )
        leaderless = any(p.leader < 0 for topic in self.view.topics.values() for p in topic.partitions)
        if asked is not None and missing.difference(topic.name for topic in asked if topic.name is not None):
            # Added while the question was under way: nobody was asked for it yet, so there is nothing to back off from.
            self._metadata_wanted, self._metadata_retry_at = True, now
        elif missing or retriable or leaderless:
            self._metadata_retry(now)
        else:
            self._metadata_failures = 0
            self._metadata_retry_at = now + self.config.retry_backoff.first_ms / 1000
        self._forget_nodes()
        for listener in list(self.listeners):
            listener(self.view)

    def _metadata_retry(self, now: float) -> None:
        self._metadata_wanted = True
        wait_ms = self.config.retry_backoff.wait_ms(self._metadata_failures, self.rng)
        self._metadata_failures += 1
        self._metadata_retry_at = now + wait_ms / 1000

    def _forget_nodes(self) -> None:
        """Close connections to bootstrap servers that are now known by id, and to brokers that moved or left."""
        for node_id, state in list(self._nodes.items()):
            if node_id < 0:
                continue
            known = self.node(node_id)
            connection = state.connection
            if connection is not None and (
                known is None or (known.host, known.port) != (connection.node.host, connection.node.port)
            ):
                if known is None and (connection.in_flight or state.waiting):
                    continue
                self._drop(
                    connection, NetworkError(f"{connection.node} moved or left the cluster"), self.clock.monotonic()
                )
            if known is None and state.connection is None and not state.waiting:
                del self._nodes[node_id]

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
        unrouted, self._unrouted = self._unrouted, []
        for call in unrouted:
            call.finish(None, error)
        SHARED.shrink(_KEPT_BYTES)
