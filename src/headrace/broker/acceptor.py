"""Who may connect, and how much they may send: the bounds over all connections of a broker.

Connections (all, and per address), bytes held for requests under way over all connections, the size of a frame (a small
one until a connection has sent a valid request), time without progress. Over a bound a peer waits or is turned away;
memory never grows instead.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.connection import Connection
from headrace.net.frames import FrameRefused

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker.acceptor")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    connections_per_address_overrides: dict[str, int] | None = None
    frame_bytes_max: int = 100 * 1024 * 1024
    # A peer that has not yet spoken Kafka may be anything; the first request of every known client is far smaller.
    first_frame_bytes_max: int = 2 * 1024 * 1024
    held_bytes_max: int = 512 * 1024 * 1024
    idle_s: float = 600.0
    # How long a frame may take to arrive, and an answer to be read, once begun.
    stalled_s: float = 60.0


class Acceptor:
    """Makes connections for a broker and keeps the count of them and of what they hold."""

    def __init__(self, broker: Broker, limits: ConnectionLimits) -> None:
        self.broker = broker
        self.limits = limits
        self.connections: set[Connection] = set()
        self.held_bytes = 0
        self.refused = 0
        self.is_open = False
        self._per_address: Counter[str] = Counter()
        self._waiting: set[Connection] = set()

    def connections_of(self, listener: str) -> Callable[[], Connection]:
        """Makes the connections of one listener."""
        return lambda: Connection(self, listener)

    def now(self) -> float:
        return self.broker.runtime.clock.monotonic()

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection in; the reason when it may not stay."""
        self.connections.add(connection)
        address = connection.peer_host
        self._per_address[address] += 1
        limits = self.limits
        allowed = (limits.connections_per_address_overrides or {}).get(address, limits.connections_per_address_max)
        reason = None
        if len(self.connections) > limits.connections_max:
            reason = f"max.connections={limits.connections_max} is reached"
        elif self._per_address[address] > allowed:
            reason = f"{address} has {allowed} connections already (max.connections.per.ip)"
        if reason is not None:
            self.refused += 1
            log.warning("a connection from %s is refused: %s", address, reason)
        return reason

    def release(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._waiting.discard(connection)
        self._per_address[connection.peer_host] -= 1
        if self._per_address[connection.peer_host] <= 0:
            del self._per_address[connection.peer_host]

    def check_size(self, size: int) -> None:
        """Refuse a frame of that announced size, if it is none or too large."""
        if size <= 0:
            raise FrameRefused(f"a frame of {size} bytes is none")
        limit = self.limits.frame_bytes_max
        if size > limit:
            raise FrameRefused(f"a frame of {size} bytes is over the limit of {limit} (socket.request.max.bytes)")

    def check_first_frame(self, arrived: int) -> None:
        """Refuse more of a frame from a peer that has not spoken Kafka yet."""
        limit = self.limits.first_frame_bytes_max
        if arrived >= limit:
            raise FrameRefused(f"a first request of over {limit} bytes, from a client that has not been heard yet")

    def hold(self, nbytes: int) -> None:
        self.held_bytes += nbytes
        if nbytes < 0 and self._waiting and self.held_bytes < self.limits.held_bytes_max:
            waiting, self._waiting = self._waiting, set()
            for connection in waiting:
                connection.resume()

    @property
    def is_over_budget(self) -> bool:
        return self.held_bytes >= self.limits.held_bytes_max

    def resume_later(self, connection: Connection) -> None:
        self._waiting.add(connection)

    def sweep(self) -> None:
        """Close what made no progress: idle connections, frames that never end, answers that nobody reads."""
        now = self.now()
        for connection in list(self.connections):
            still_s = now - connection.last_progress
            stalled = connection.is_backed_up or (connection.is_mid_frame and not connection.is_handling)
            unproven = not connection.has_been_valid
            if still_s > self.limits.idle_s and not connection.is_handling:
                connection.close(f"idle for {still_s:.0f} s (connections.max.idle.ms)")
            elif (
                still_s > self.limits.stalled_s
                and (stalled or unproven)
                and (connection.is_backed_up or not connection.is_handling)
            ):
                connection.abort(f"no progress for {still_s:.0f} s")

    @property
    def is_busy(self) -> bool:
        """Whether any request is under way that is not merely waiting for data."""
        return any(connection.is_handling for connection in self.connections)

    def open(self) -> None:
        """The broker is ready: handle what was received meanwhile."""
        self.is_open = True
        for connection in list(self.connections):
            connection.resume()

    def close_all(self, reason: str) -> None:
        for connection in list(self.connections):
            connection.close(reason)
