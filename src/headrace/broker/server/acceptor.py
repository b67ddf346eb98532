"""Who may connect, and how much they may send: the bounds over all connections of a broker.

Connections (all, and per address, and what the process has descriptors for), bytes held for requests under way and for
answers that nobody reads, over all connections, the size of a frame (a small one until a connection has sent a valid
request), time without progress. Over a bound a peer waits or is turned away; memory never grows instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headrace.broker.memory import MemoryBudget
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.login import is_stranger
from headrace.broker.server.answer_memory import ANSWERS_BYTES_MAX, AnswerMemory
from headrace.broker.server.connection import ServerConnection
from headrace.broker.server.costly_requests import CostlyRequests
from headrace.broker.server.descriptors import DescriptorShares, share_out
from headrace.broker.server.frame_memory import FrameLimits, FrameMemory
from headrace.broker.server.time_used import TimeUsed
from headrace.broker.server.turns import SharedTurns
from headrace.cluster.broker_config import BrokerConfig
from headrace.net.frames import FrameRefusedError, Spares
from headrace.runtime import Runtime
from headrace.runtime.rarely import Rarely

log = logging.getLogger("headrace.broker.server.acceptor")

# How long a quiet connection keeps the buffer of its last large request.
SPARE_KEPT_S = 5.0
#: For how long somebody who has not shown who it is has its place before others who need it; and how many connections,
#: the oldest ones, are looked at for such.
STRANGER_S = 1.0
LOOKED_AT_MAX = 1000
#: How many connections of addresses that connect too often wait for their end.
PAUSED_MAX = 1000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    connections_per_address_overrides: dict[str, int] | None = None
    frame_bytes_max: int = 100 * 1024 * 1024
    # A peer that has not yet spoken Kafka may be anything; the first request of every known client is far smaller.
    first_frame_bytes_max: int = 2 * 1024 * 1024
    frames: FrameLimits = field(default_factory=FrameLimits)
    # What is kept in buffers for the next large request.
    spare_bytes_max: int = 32 * 1024 * 1024
    answers_bytes_max: int = ANSWERS_BYTES_MAX
    idle_s: float = 600.0
    # How long a peer may take to send a frame or to read an answer once begun; a frame gets more time as it comes.
    stalled_s: float = 60.0
    #: How long it may take to say who one is, where that is asked.
    login_s: float = 30.0
    frame_bytes_per_s_min: int = 64 * 1024

    @classmethod
    def of(cls, config: BrokerConfig, memory: MemoryBudget) -> ConnectionLimits:
        return cls(
            connections_max=config.get_int("max.connections"),
            connections_per_address_max=config.get_int("max.connections.per.ip"),
            connections_per_address_overrides=address_overrides(config),
            frame_bytes_max=config.get_int("socket.request.max.bytes"),
            frames=FrameLimits(held_bytes_max=memory.requests),
            spare_bytes_max=memory.spares,
            answers_bytes_max=memory.answers,
            idle_s=config.get_int("connections.max.idle.ms") / 1000,
        )


def address_overrides(config: BrokerConfig) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: address:count, separated by commas."""
    text = str(config["max.connections.per.ip.overrides"] or "")
    pairs = (item.rpartition(":") for item in text.split(",") if item.strip())
    return {address.strip(): int(count) for address, _, count in pairs}


class Acceptor:
    """Makes connections for a broker and keeps the count of them and of what they hold."""

    def __init__(
        self,
        runtime: Runtime,
        pipeline: RequestPipeline,
        limits: ConnectionLimits,
        shares: DescriptorShares | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.now = runtime.clock.monotonic
        self.offload = runtime.offload
        self.limits = limits
        self.shares = shares or share_out(None)
        #: Told how many files may be kept open, as connections come and go.
        self.on_files_max: Callable[[int], None] | None = None
        #: Called with each connection that is over.
        self.on_connection_lost: Callable[[ServerConnection], None] | None = None
        self._refusals = Rarely(self.now)
        self.connections: dict[ServerConnection, None] = {}  # in order: a set's would differ from run to run
        self.memory = FrameMemory(limits.frames, self.now)
        self.spares = Spares(limits.spare_bytes_max)
        self.answers = AnswerMemory(limits.answers_bytes_max)
        self.used = TimeUsed(self.now)
        self.turns = SharedTurns(self.now)
        self.costly = CostlyRequests(self.used, runtime.cpu)
        self.refused = 0
        self.is_open = False
        #: What listeners ask of those who connect, by name.
        self.security: dict[str, ListenerSecurity] = {}
        #: For how long a new connection of an address has to wait before it is ended; 0: it may stay.
        self.connection_pause_s: Callable[[str], float] | None = None
        self._per_address: Counter[str] = Counter()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._paused = 0

    def connections_of(self, listener: str) -> Callable[[], ServerConnection]:
        """Makes the connections of one listener."""
        return lambda: ServerConnection(self, listener, self.security.get(listener))

    def admit(self, connection: ServerConnection) -> str | None:
        """Count a new connection in; the reason when it may not stay."""
        self.connections[connection] = None
        address = connection.peer_host
        self._per_address[address] += 1
        self._share_out()
        limits = self.limits
        allowed = (limits.connections_per_address_overrides or {}).get(address, limits.connections_per_address_max)
        reason = None
        if len(self.connections) > min(limits.connections_max, self.shares.connections_max):
            self._make_room()
        if len(self.connections) > limits.connections_max:
            reason = f"max.connections={limits.connections_max} is reached"
        elif len(self.connections) > self.shares.connections_max:
            reason = (
                f"{self.shares.connections_max} connections are all that the limit on open files (ulimit -n) leaves "
                "room for beside the logs; raise it, or let fewer clients connect"
            )
        elif self._per_address[address] > allowed:
            reason = f"{address} has {allowed} connections already (max.connections.per.ip)"
        else:
            reason = self._connects_too_often(connection)
        if reason is not None:
            self.refused += 1
            count = self._refusals.happened()
            if count:
                log.warning("%d connections were refused since this was last said, now %s: %s", count, address, reason)
        return reason

    def _make_room(self) -> None:
        """Who has been here for a while and has not shown who it is goes, for somebody who may: the first of an address
        that has the most connections. So a flood of such keeps nobody out for long."""
        now = self.now()
        strangers = [
            one
            for one in islice(self.connections, LOOKED_AT_MAX)
            if now - one.began > STRANGER_S and (is_stranger(one) or not one.has_been_valid)
        ]
        if strangers:
            chosen = max(strangers, key=lambda one: self._per_address[one.peer_host])
            chosen.abort("it has not shown who it is, and others need the room")
            self.release(chosen)

    def _connects_too_often(self, connection: ServerConnection) -> str | None:
        """A connection over its address's quota is not heard, and ended after a while.

        Where too many such wait already it is ended now: the reason.
        """
        pause_s = 0.0 if self.connection_pause_s is None else self.connection_pause_s(connection.peer_host)
        if pause_s <= 0:
            return None
        why = f"{connection.peer_host} connects too often (connection_creation_rate)"
        if self._paused >= PAUSED_MAX:
            return why
        self._paused += 1
        asyncio.get_running_loop().call_later(pause_s, self._end_pause)
        connection.rest(pause_s, ends=why)
        return None

    def _end_pause(self) -> None:
        self._paused -= 1

    def _share_out(self) -> None:
        if self.on_files_max is not None:
            self.on_files_max(self.shares.files_beside(len(self.connections)))

    def release(self, connection: ServerConnection) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._share_out()
        self.memory.has_arrived(connection)
        self.costly.forget(connection)
        self.used.forget(connection)
        self.answers.hold(connection, 0)
        self.turns.forget(connection)
        self._per_address[connection.peer_host] -= 1
        if self._per_address[connection.peer_host] <= 0:
            del self._per_address[connection.peer_host]
        if self.on_connection_lost is not None:
            self.on_connection_lost(connection)

    def check_size(self, size: int) -> None:
        """Refuse a frame of that announced size, if it is none or too large."""
        if size <= 0:
            raise FrameRefusedError(f"a frame of {size} bytes is none")
        limit = self.limits.frame_bytes_max
        if size > limit:
            raise FrameRefusedError(f"a frame of {size} bytes is over the limit of {limit} (socket.request.max.bytes)")

    def check_first_frame(self, arrived: int) -> None:
        """Refuse more of a frame from a peer that has not spoken Kafka yet."""
        limit = self.limits.first_frame_bytes_max
        if arrived >= limit:
            raise FrameRefusedError(f"a first request of over {limit} bytes, from a client that has not been heard yet")

    @property
    def held_bytes(self) -> int:
        """The memory of all requests that have arrived, or are about to."""
        return self.memory.held_bytes

    # --- time

    def sweep(self) -> None:
        """Close what made no progress: idle connections, frames that never end, answers that nobody reads."""
        now = self.now()
        limits = self.limits
        for connection in list(self.connections):
            still_s = now - connection.last_progress
            if is_stranger(connection) and self.is_open and now - connection.began > limits.login_s:
                connection.abort(f"no login within {limits.login_s:.0f} s")
                continue
            if connection.is_backed_up:
                if now - connection.last_written > limits.stalled_s:
                    connection.abort(f"an answer was not read for {now - connection.last_written:.0f} s")
            elif connection.is_mid_frame and not connection.is_reading_paused:
                allowed_s = limits.stalled_s + connection.arrived_bytes / limits.frame_bytes_per_s_min
                if now - connection.frame_began > allowed_s:
                    connection.abort(f"a request did not arrive within {allowed_s:.0f} s")
            elif connection.is_handling:
                continue
            elif still_s > limits.idle_s:
                connection.close(f"idle for {still_s:.0f} s (connections.max.idle.ms)")
            elif still_s > limits.stalled_s and not connection.has_been_valid and self.is_open:
                connection.abort(f"no request within {still_s:.0f} s")
            if still_s > SPARE_KEPT_S:
                connection.drop_spare()

    # --- requests under way

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Remember a request under way, which goes on also without its connection."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_busy(self) -> bool:
        """Whether any request is under way that is not merely waiting for what others do."""
        waiting = sum(connection.is_only_waiting for connection in self.connections)
        return len(self._tasks) > waiting

    def open(self) -> None:
        """The broker is ready: handle what was received meanwhile."""
        self.is_open = True
        for connection in list(self.connections):
            connection.resume()

    def close_all(self, reason: str) -> None:
        for connection in list(self.connections):
            connection.close(reason)

    def abort_all(self, reason: str) -> None:
        """End also those whose clients do not read what was written to them."""
        for connection in list(self.connections):
            connection.abort(reason)
