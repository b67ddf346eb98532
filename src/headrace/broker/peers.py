"""Requests to other brokers of the cluster, by their id.

A server takes one request of a connection at a time, and a fetch may wait there for half a second: so what must not
wait behind another has a connection of its own (a lane). Where brokers are is asked anew with every connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from headrace.net.backoff import Backoff
from headrace.net.connection import Connection, ConnectionState
from headrace.net.connections import Connections, Transport
from headrace.net.loop import LoopDriver
from headrace.net.node import Node
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

    def node(self, key: int) -> Node | None:
        return self._locate(key // _LANES_MAX)


class Peers(LoopDriver[_PeerConnections]):
    """Connections to other brokers, made when they are needed."""

    def __init__(
        self,
        runtime: Runtime,
        locate: Callable[[int], Node | None],
        *,
        client_id: str,
        request_timeout_ms: int,
    ) -> None:
        settings = ConnectionSettings(
            client_id=client_id,
            # Quicker than a client: there are few of us, and a broker that comes back is waited for.
            reconnect_backoff=Backoff(50, 1000),
            setup_backoff=Backoff(3000, 10_000),
            request_timeout_ms=request_timeout_ms,
            idle_max_ms=600_000,
        )
        super().__init__(
            lambda transport: _PeerConnections(settings, runtime.clock, runtime.rng, transport, locate), runtime
        )

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
