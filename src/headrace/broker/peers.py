"""Requests to other brokers of the cluster, by their id.

A server takes one request of a connection at a time, and a fetch may wait there for half a second: so what must not
wait behind another has a connection of its own (a lane).

A connection is to one life of a broker: it begins by naming it, and whoever is another refuses. When the number is
another life's, or the broker is elsewhere, the connection ends with all that was asked over it (`look_again`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeAlias

from headrace.broker.requests.access import BROKER_CLIENT_ID
from headrace.errors import NetworkError
from headrace.net.backoff import Backoff
from headrace.net.connection import Connection, ConnectionState
from headrace.net.connections import Connections, Transport
from headrace.net.loop import LoopDriver
from headrace.net.node import Node
from headrace.net.security import Security
from headrace.net.settings import ConnectionSettings
from headrace.runtime import Clock, Runtime

_LANES_MAX: Final = 1024


class PeerConnection(IntEnum):
    """Which connection to a broker; those from FETCH on are the fetchers', one each."""

    CONTROL = 0
    MARKERS = 1
    VERIFICATION = 2
    METADATA = 3
    OUTCOMES = 4
    HEARTBEATS = 5
    FETCH = 6


class _PeerConnections(Connections):
    # Brokers know how they speak to each other: one that does not answer is not up yet, or no more.
    finds_out = False

    def __init__(
        self,
        settings: ConnectionSettings,
        clock: Clock,
        rng: random.Random,
        transport: Transport,
        locate: Callable[[int], Node | None],
    ) -> None:
        super().__init__(settings, clock, rng, transport)
        self._locate = locate
        #: Whom all that was submitted is for, by key.
        self._meant: dict[int, Node] = {}

    def node(self, key: int) -> Node | None:
        return self._locate(key // _LANES_MAX)

    def look_again(self) -> None:
        """Brokers may be others, or elsewhere, by now."""
        for key in list(self._meant):
            self.look_at(key)

    def look_at(self, key: int) -> None:
        """End what was for a broker that is another by now, with what was known of how it is reached."""
        node, meant = self.node(key), self._meant.get(key)
        if node == meant:
            return
        if meant is not None:
            error = NetworkError(f"{meant} is gone, or another by now")
            self.disconnect(key, error)
            state = self._nodes.pop(key, None)
            if state is not None:
                self._fail_waiting(state, error)
            del self._meant[key]
        if node is not None:
            self._meant[key] = node


class Peers(LoopDriver[_PeerConnections]):
    """Connections to other brokers, made when they are needed."""

    def __init__(
        self,
        runtime: Runtime,
        locate: Callable[[int], Node | None],
        *,
        client_id: str,
        request_timeout_ms: int,
        security: Security,
    ) -> None:
        settings = ConnectionSettings(
            client_id=client_id,
            # Quicker than a client: there are few of us, and a broker that comes back is waited for.
            reconnect_backoff=Backoff(50, 1000),
            setup_backoff=Backoff(3000, 10_000),
            request_timeout_ms=request_timeout_ms,
            idle_max_ms=600_000,
            security=security,
        )
        super().__init__(
            lambda transport: _PeerConnections(settings, runtime.clock, runtime.rng, transport, locate), runtime
        )

    def look_again(self) -> None:
        """Brokers have come or gone, or another is the controller: end what is under way to who is not meant."""
        self.core.look_again()

    def was_heard(self, connection: Connection) -> None:
        """The core has moved what waited for this broker; no other is concerned by it, and nobody has hooks."""
        if connection.state is ConnectionState.CLOSED:
            self.schedule()
        else:
            self.schedule_in(self.core.due_in(connection.key))

    async def request(
        self,
        node_id: int,
        lane: int,
        message: Any,
        *,
        timeout_ms: float | None = None,
        version_max: int | None = None,
        unless: asyncio.Future[None] | None = None,
    ) -> Any:
        """The answer to a request; raises the call's error, `NetworkError` for a broker that cannot be reached.

        None when `unless` is done before. One that is cancelled, or given up for that, is not sent if it was not yet:
        later it might say what is no longer true.
        """
        future: asyncio.Future[None] = self.loop.create_future()

        def done(_: object) -> None:
            if not future.done():
                future.set_result(None)

        if unless is not None:
            unless.add_done_callback(done)

        key = node_id * _LANES_MAX + lane
        self.core.look_at(key)
        call = self.core.submit(key, message, done, timeout_ms=timeout_ms, version_max=version_max)
        self.schedule_in(self.core.due_in(key))
        if call.done:
            done(call)
        was_answered = False
        try:
            await future
            was_answered = call.done
        finally:
            if not call.done:
                self.core.withdraw(key, call)
        if not was_answered:
            return None
        if call.error is not None:
            raise call.error
        return call.response


#: Connections of one's own to other brokers: named for what they are for, and how many milliseconds an answer may take.
MakePeers: TypeAlias = Callable[[str, int], Peers]


def peers_maker(runtime: Runtime, locate: Callable[[int], Node | None], node_id: int, security: Security) -> MakePeers:
    """Makes connections from this broker to others, for what is named."""

    def make(what: str, request_timeout_ms: int) -> Peers:
        client_id = f"{BROKER_CLIENT_ID}{node_id}-{what}"
        return Peers(runtime, locate, client_id=client_id, request_timeout_ms=request_timeout_ms, security=security)

    return make
