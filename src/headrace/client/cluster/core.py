"""The common core of every client, without I/O: how it finds the cluster, and what it knows of it.

`Connections` moves the calls; this adds calls to any node, the bootstrap servers and the cluster's metadata.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from headrace.client.cluster.view import ClusterView
from headrace.client.configs import ConnectionConfig
from headrace.errors import ErrorCode, HeadraceError, NetworkError, RetriableError, error_for
from headrace.net.authentication import REFUSALS
from headrace.net.connection import Call, ConnectionState, OnDone
from headrace.net.connections import Connections, NodeState, Transport
from headrace.net.node import Node
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.runtime import Clock

log = logging.getLogger("headrace.client")

ANY_NODE = None
_FOREVER = float("inf")
_COORDINATOR_KEY_MAX = 2_147_483_647
_COORDINATOR_KEYS_FROM = 1 << 30


def coordinator_key(node_id: int) -> int:
    """The key of a second connection to a node, so that no long fetch stands before a heartbeat."""
    return _COORDINATOR_KEY_MAX - node_id


class ClientCore(Connections):
    """`topics` (None: all of them) says whose metadata is kept; `listeners` hear of every new answer."""

    def __init__(
        self,
        config: ConnectionConfig,
        clock: Clock,
        rng: random.Random,
        transport: Transport,
    ) -> None:
        super().__init__(config, clock, rng, transport)
        self.config = config
        self.view = ClusterView()
        self.topics: set[str] | None = set()
        self.allow_auto_topic_creation = True
        self.listeners: list[Callable[[ClusterView], None]] = []
        self.metadata_error: HeadraceError | None = None
        self.retried: HeadraceError | None = None
        """What a call that waits was answered last, and tries again."""
        """Why the last attempt at metadata failed; None after a success."""
        self.refusal_listeners: list[Callable[[int, HeadraceError], None]] = []
        """Told of the key of a broker that refused this client's credentials, and why, once no call waits for it."""
        self._bootstrap = {-1 - i: Node(-1 - i, host, port) for i, (host, port) in enumerate(config.bootstrap)}
        self._bootstrapped = False
        self._learned: dict[int, Node] = {}
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
        key: int | None,
        request: Any,
        on_done: OnDone | None = None,
        *,
        timeout_ms: float | None = None,
        expects_response: bool = True,
        version_max: int | None = None,
    ) -> Call:
        """`Connections.submit`, or to `ANY_NODE`: such a call tries other nodes before it ends with an error."""
        now = self.clock.monotonic()
        call = self._call(request, key, on_done, timeout_ms, expects_response, version_max, now)
        if self.closed:
            return call
        was_moving, self.is_moving = self.is_moving, True
        if key is ANY_NODE:
            self._unrouted.append(call)
            self._route(now)
        else:
            self._submit(call, key, now)
        self.is_moving = was_moving
        return call

    def node(self, key: int) -> Node | None:
        """Address of a node by its id, or by the key of its second connection (see `coordinator_key`)."""
        if key < 0:
            return self._bootstrap.get(key)
        node_id = _COORDINATOR_KEY_MAX - key if key > _COORDINATOR_KEYS_FROM else key
        return self.view.nodes.get(node_id) or self._learned.get(node_id)

    def learn_node(self, node: Node) -> None:
        """A broker named a node (a coordinator) that the metadata may not have yet."""
        self._learned[node.id] = node

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
            elif connection.state is ConnectionState.READY:
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

    @property
    def trouble(self) -> HeadraceError | None:
        """What keeps this client from the cluster just now; None when nothing is known to.

        For whoever waited in vain: a topic that is not known is one thing, a broker that cannot be reached another.
        """
        reasons: set[str] = set()
        # A copy: a producer's caller asks while its thread goes on.
        for state in list(self._nodes.values()):
            connection = state.connection
            if connection is not None and connection.state is ConnectionState.READY:
                return self.metadata_error
            if isinstance(state.last_error, REFUSALS):
                return state.last_error
            if state.last_error is not None:
                reasons.add(str(state.last_error))
            elif connection is not None:
                reasons.add(f"{connection.node} has not answered yet")
        if not reasons:
            return self.metadata_error
        return NetworkError(f"no broker can be reached: {'; '.join(sorted(reasons))}")

    @property
    def why_late(self) -> str:
        """For the end of a sentence about a call that waited in vain; empty when nothing is known."""
        cause = self.trouble or self.retried
        return "" if cause is None else f" Last: {cause}"

    # --- what happens to connections, and time ------------------------------------------------------------------------

    def _became_ready(self, now: float) -> None:
        if self._unrouted:
            self._route(now)

    def _was_dropped(self, key: int, error: HeadraceError, now: float) -> None:
        if self.closed:
            return
        self._metadata_wanted = True
        if isinstance(error, REFUSALS):
            # Every broker would refuse the same credentials: nobody has to wait for that.
            self._fail_unrouted(error)
            for listener in list(self.refusal_listeners):
                listener(key, error)
        self._route(now)

    def _take_back(self, state: NodeState) -> None:
        anywhere = [call for call in state.waiting if call.goes_anywhere]
        if anywhere:
            state.waiting = [call for call in state.waiting if not call.goes_anywhere]
            self._unrouted = anywhere + self._unrouted

    def _fail_unrouted(self, error: HeadraceError) -> None:
        unrouted, self._unrouted = self._unrouted, []
        for call in unrouted:
            self.failures += 1
            call.finish(None, error)

    def _forget_waiting(self) -> None:
        self._unrouted = []
        self._metadata_call = None
        self._metadata_wanted = True

    def _expire(self, now: float) -> None:
        for call in [call for call in self._unrouted if call.deadline <= now]:
            self._unrouted.remove(call)
            self.failures += 1
            call.finish(None, self._never_sent(call))
        super()._expire(now)
        self._refresh_if_due(now)

    def _move_on(self, now: float) -> float:
        due = super()._move_on(now)
        self._route(now)
        if self._unrouted:
            due = min(due, min(call.deadline for call in self._unrouted))
            due = min(
                due,
                min(
                    (s.retry_at for s in self._nodes.values() if s.connection is None and s.retry_at > now), default=due
                ),
            )
        if self._metadata_call is None:
            due = min(due, self._metadata_due())
        return due

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
        self._note(call)
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
        super().close()
        self._fail_unrouted(NetworkError("the client was closed"))
