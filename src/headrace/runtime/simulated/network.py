"""The simulated network: named hosts, connections that are slow, split, reset, half open or cut by a partition."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl as ssl_module
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass

from headrace.runtime.errors import ConnectFailedError, ListenFailedError
from headrace.runtime.interface import ProtocolT
from headrace.runtime.simulated.loop import SimulatedLoop
from headrace.runtime.simulated.transport import Pipe, Presence, SimulatedTransport

_OWN_NAMES = frozenset({None, "", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost"})
_EPHEMERAL_PORT_FIRST = 32_768
#: After how long a kernel asks again for a connection that nobody answers; then after twice as long, and so on.
_ASK_AGAIN_S = 1.0


@dataclass(slots=True)
class NetworkModel:
    """How the network behaves; change it while a simulation runs to make a good network bad."""

    delay_s_min: float = 0.000_05
    delay_s_max: float = 0.001
    slow_delay_s_max: float = 0.2
    slow_probability: float = 0.01
    split_probability: float = 0.3
    reset_probability: float = 0.0  # for each piece that arrives

    def draw_delay(self, rng: random.Random) -> float:
        longest = self.slow_delay_s_max if rng.random() < self.slow_probability else self.delay_s_max
        return rng.uniform(self.delay_s_min, longest)


class SimulatedListener:
    def __init__(
        self, fabric: Fabric, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], context: Context
    ):
        self._fabric = fabric
        self._host = host
        self._port = port
        self.factory = factory
        self.context = context

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(self._host, self._port)]

    def close(self) -> None:
        if self._fabric.listeners.get((self._host, self._port)) is self:
            del self._fabric.listeners[self._host, self._port]

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Fabric:
    """Everything between the hosts."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, model: NetworkModel | None = None):
        self.loop = loop
        self.trace = loop.trace
        self.rng = rng
        self.model = model or NetworkModel()
        self.context = copy_context()  # what the network itself does belongs to no host
        self.listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._up: set[str] = set()
        self._dark: set[str] = set()  # without power: not even a kernel answers
        self._known: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._connections: dict[SimulatedTransport, Pipe] = {}  # each end, with the pipe out of it
        self.held: dict[Pipe, None] = {}  # pipes that a partition keeps from delivering
        self._ports = itertools.count(_EPHEMERAL_PORT_FIRST)
        self._connection_count = 0

    # What a test does to the network.

    def partition(self, ones: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> None:
        """Nothing gets from `ones` to `others`, nor back unless `one_way`. What is sent waits: TCP would resend it."""
        for one, other in itertools.product(list(ones), list(others)):
            self.trace.record("net-partition", one, other)
            self._cut.add((one, other))
            if not one_way:
                self._cut.add((other, one))

    def heal(self, ones: Iterable[str] | None = None, others: Iterable[str] | None = None) -> None:
        """End all partitions, or those between these hosts, in both directions."""
        self.trace.record("net-heal")
        if ones is None or others is None:
            self._cut.clear()
        else:
            for one, other in itertools.product(list(ones), list(others)):
                self._cut -= {(one, other), (other, one)}
        held, self.held = self.held, {}
        for pipe in held:
            pipe.pump()

    def reset(self, one: str, other: str) -> int:
        """Break every connection between two hosts; both ends learn of it. Returns how many there were."""
        ends = [end for end, pipe in self._connections.items() if {end.host, pipe.receiver.host} == {one, other}]
        self.trace.record("net-reset", one, other, len(ends))
        for end in ends:
            end.lose(ConnectionResetError("the network broke the connection"))
        return len(ends) // 2

    def half_open(self, gone: str, unaware: str) -> int:
        """Connections between two hosts end for `gone`; `unaware` is never told, and what it sends goes nowhere.

        As behind a NAT that dropped its entry. Returns how many connections there were.
        """
        ends = [end for end, pipe in self._connections.items() if (end.host, pipe.receiver.host) == (gone, unaware)]
        self.trace.record("net-half-open", gone, unaware, len(ends))
        for end in ends:
            end.lose(ConnectionResetError("the network broke the connection"))
            end.presence = Presence.BLACK_HOLE
        return len(ends)

    # What hosts and pipes call.

    def add_host(self, host: str) -> None:
        self._known.add(host)
        self._up.add(host)
        self._dark.discard(host)

    def remove_host(self, host: str, *, silent: bool) -> None:
        """The host's processes died. Not `silent`: its kernel lives on and resets their connections."""
        self._up.discard(host)
        if silent:
            self._dark.add(host)
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]
        for end in [end for end in self._connections if end.host == host]:
            pipe = self._connections.pop(end)
            pipe.drop()
            end.presence = Presence.FORGOTTEN
            if not silent:
                pipe.receiver.lose_later(ConnectionResetError("the peer's process died"))

    def is_up(self, host: str) -> bool:
        return host in self._up

    def is_known(self, host: str) -> bool:
        return host in self._known

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def reaches(self, one: str, other: str) -> bool:
        """Whether a request for a connection is answered: packets pass both ways, and there is a kernel to answer."""
        is_dark = one in self._dark or other in self._dark
        return not is_dark and not self.is_cut(one, other) and not self.is_cut(other, one)

    def draw_delay(self) -> float:
        return self.model.draw_delay(self.rng)

    def forget(self, end: SimulatedTransport) -> None:
        # The pipe keeps running for what is still under way (data and end of a graceful close).
        self._connections.pop(end, None)

    def free_port(self) -> int:
        return next(self._ports)

    def wire(
        self, client_host: str, client_context: Context, address: tuple[str, int], server_context: Context
    ) -> tuple[SimulatedTransport, SimulatedTransport]:
        """The two ends of a new connection, client first."""
        self._connection_count += 1
        client_address = (client_host, self.free_port())
        names = f"{client_host}#{self._connection_count}", f"{address[0]}#{self._connection_count}"
        client_extra = {"peername": address, "sockname": client_address}
        server_extra = {"peername": client_address, "sockname": address}
        client = SimulatedTransport(self, client_host, names[0], client_context, client_extra)
        server = SimulatedTransport(self, address[0], names[1], server_context, server_extra)
        for end, other in ((client, server), (server, client)):
            pipe = Pipe(self, end, other)
            end.attach(pipe)
            self._connections[end] = pipe
        return client, server


class SimulatedNetwork:
    """The network as one host sees it. "localhost" and the like are the host itself."""

    def __init__(self, fabric: Fabric, host: str):
        self._fabric = fabric
        self._host = host

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        ssl: Callable[[], ssl_module.SSLContext] | None = None,
        backlog: int = 128,
        handshake_timeout_s: float = 10.0,
    ) -> SimulatedListener:
        _refuse_tls(ssl)
        if host not in _OWN_NAMES and host != self._host:
            raise ListenFailedError(f"listening on {host}:{port} failed: this host is {self._host!r}", host, port)
        port = port or self._fabric.free_port()
        if (self._host, port) in self._fabric.listeners:
            raise ListenFailedError(f"listening on {host or '*'}:{port} failed: Address already in use", host, port)
        listener = SimulatedListener(self._fabric, self._host, port, protocol_factory, copy_context())
        self._fabric.listeners[self._host, port] = listener
        return listener

    async def connect(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str,
        port: int,
        *,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        timeout_s: float,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        _refuse_tls(ssl)
        target = self._host if host in _OWN_NAMES else host
        if not self._fabric.is_known(target):
            raise ConnectFailedError(f"connecting to {host}:{port} failed: Name or service not known", host, port)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._handshake(protocol_factory, target, port)
        except TimeoutError as error:
            raise ConnectFailedError(f"connecting to {host}:{port} took over {timeout_s} s", host, port) from error

    async def _handshake(
        self, protocol_factory: Callable[[], ProtocolT], target: str, port: int
    ) -> tuple[asyncio.Transport, ProtocolT]:
        fabric = self._fabric
        await asyncio.sleep(fabric.draw_delay())
        again_s = _ASK_AGAIN_S
        while not fabric.reaches(self._host, target):
            # No answer at all: the kernel goes on asking until whoever called has lost patience.
            await asyncio.sleep(again_s)
            again_s *= 2
        listener = fabric.listeners.get((target, port))
        if listener is None:
            await asyncio.sleep(fabric.draw_delay())
            raise ConnectFailedError(f"connecting to {target}:{port} failed: Connection refused", target, port)
        client, server = fabric.wire(self._host, copy_context(), (target, port), listener.context)
        fabric.trace.record("net-accept", client.name, server.name)
        fabric.loop.call_soon(_accept, server, listener, context=listener.context)
        try:
            await asyncio.sleep(fabric.draw_delay())
        except asyncio.CancelledError:
            client.abort()
            raise
        if client.is_closing():
            raise ConnectFailedError(f"connecting to {target}:{port} failed: Connection reset by peer", target, port)
        protocol = protocol_factory()
        client.begin(protocol)
        return client, protocol


def _accept(server: SimulatedTransport, listener: SimulatedListener) -> None:
    server.begin(listener.factory())


def _refuse_tls(ssl: object) -> None:
    if ssl is not None:
        raise ValueError("TLS is not simulated (its keys are random): use a plaintext listener in simulations")
