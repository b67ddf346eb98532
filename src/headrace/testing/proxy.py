"""A TCP proxy that misbehaves on request, to put between a client and a broker in tests.

with FaultProxy() as proxy, headrace.testing.broker(overrides=proxy.overrides) as kafka:
    proxy.target = kafka.address
    producer = Producer({"bootstrap.servers": proxy.address})
    ...
    proxy.cut()                                        # every connection, now (reset)
    proxy.cut_after(1000, Direction.TO_CLIENT).wait(5) # at that byte of what the broker answers
    proxy.delay(0.05)                                  # every piece, both ways
    proxy.swallow()                                    # half-open: connections are accepted, nothing is ever answered
    proxy.reorder().wait(5)                            # what later connections send overtakes what these have sent
    proxy.pause(); proxy.refuse(); proxy.resume()

A broker tells clients where to connect, so it has to advertise the proxy: `overrides` says that to it. With `tls` (a
server-side `ssl.SSLContext`) the proxy speaks TLS to clients and plain text to the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
_PIECE_BYTES_MAX = 64 * 1024
_BACKLOG = 1024
_GOODBYE_S = 1.0
_NO_LINGER = struct.pack("ii", 1, 0)


class Direction(Enum):
    TO_BROKER = "to the broker"
    TO_CLIENT = "to the client"


class _Mode(Enum):
    FORWARD = "forward"
    PAUSED = "paused"
    SWALLOW = "swallow"


class _Awaited:
    """What happens when so many bytes more have passed. `wait` says whether it has."""

    def __init__(self, left: int, direction: Direction) -> None:
        self.direction = direction
        self._left = left
        self._happened = threading.Event()

    @property
    def happened(self) -> bool:
        return self._happened.is_set()

    def wait(self, timeout: float) -> bool:
        return self._happened.wait(timeout)


class Cut(_Awaited):
    """A cut that waits for its byte. `wait` says whether it has happened."""

    def __init__(self, left: int, direction: Direction) -> None:
        super().__init__(left, direction)
        self.connection = -1
        """The number of the connection that was cut, counted from 0 in the order they came; -1 before."""


class Reorder(_Awaited):
    """Connections that are held back until later ones have overtaken them. `wait` says whether that has happened."""

    def __init__(self, left: int, direction: Direction, after: int) -> None:
        super().__init__(left, direction)
        self._after = after
        """Connections with a higher number overtake."""
        self._gate = asyncio.Event()


@dataclass(slots=True, eq=False)
class _Connection:
    """A client's connection and the one to the broker that belongs to it."""

    number: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter | None = None
    is_dead: bool = False
    """Bytes of it were swallowed: what came after them would make no sense any more."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    ended: dict[Direction, asyncio.Event] = field(default_factory=lambda: {one: asyncio.Event() for one in Direction})
    """Of each direction: that nothing more comes."""

    def reset(self) -> None:
        """Drop both sides without a goodbye: what was not delivered yet is lost."""
        for writer in (self.client, self.broker):
            if writer is not None:
                _reset(writer)
        for task in self.tasks:
            task.cancel()


class FaultProxy:
    """A proxy on a port of its own, on a thread of its own. Its methods may be called from any thread, not from a
    coroutine on the loop under test: they wait until the change is made."""

    def __init__(self, target: str | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        """host:port of the broker; may be set later and changed, for connections made from then on."""
        self.bytes_passed = {Direction.TO_BROKER: 0, Direction.TO_CLIENT: 0}
        self._tls = tls
        self._mode = _Mode.FORWARD
        self._delays_s = {Direction.TO_BROKER: 0.0, Direction.TO_CLIENT: 0.0}
        self._pending_cuts: list[Cut] = []
        self._reorders: list[Reorder] = []
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._accepted = 0
        self._newest = -1
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        # Keeps the port while nobody listens on it: bound, so that nobody else gets it, but not listening.
        self._holder = _bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-proxy", daemon=True)

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def overrides(self) -> dict[str, str]:
        """What the broker's configuration needs, so that clients are sent to the proxy."""
        return {"advertised.listeners": f"PLAINTEXT://{self.address}"}

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._connections)

    @property
    def accepted(self) -> int:
        """How many connections have been accepted so far."""
        return self._accepted

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self, number: int | None = None) -> int:
        """Reset every connection, or the one of that number. How many were cut."""

        async def run() -> int:
            found = [one for one in self._connections if number is None or one.number == number]
            for connection in found:
                connection.reset()
                self._connections.discard(connection)
            return len(found)

        return self._call(run())

    def cut_one(self) -> int:
        """Reset the oldest connection. Its number, or -1 when there is none."""

        async def run() -> int:
            oldest = min(self._connections, key=lambda one: one.number, default=None)
            if oldest is None:
                return -1
            oldest.reset()
            self._connections.discard(oldest)
            return oldest.number

        return self._call(run())

    def cut_after(self, count: int, direction: Direction = Direction.TO_BROKER) -> Cut:
        """Let that many more bytes pass in a direction (over all connections), then cut the connection they came on:
        the bytes before the cut arrive, not one after it does."""
        if count < 0:
            raise ValueError(f"a cut after {count} bytes: the count cannot be negative")
        cut = Cut(count, direction)

        async def run() -> None:
            self._pending_cuts.append(cut)

        self._call(run())
        return cut

    def reorder(self, count: int = 1, direction: Direction = Direction.TO_BROKER) -> Reorder:
        """Hold back what comes on the connections of now in a direction, until that many bytes of later connections
        have passed in it. Nothing is lost: a client that gave up a request hears no more of it, the broker still
        gets it, after what was sent in its place."""
        if count < 1:
            raise ValueError(f"overtaken by {count} bytes: the count has to be positive")

        async def run() -> Reorder:
            reorder = Reorder(count, direction, self._newest)
            self._reorders.append(reorder)
            return reorder

        return self._call(run())

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Hold every piece (up to 64 KiB) for so long before it goes on; 0 ends that. Without a direction, both."""

        async def run() -> None:
            for one in Direction if direction is None else (direction,):
                self._delays_s[one] = seconds

        self._call(run())

    def swallow(self) -> None:
        """Half-open: new connections are accepted, and what comes on any of them is read and thrown away.

        Connections that were there stay dead after `resume`, as after a lost route: only new ones work again.
        """
        self._call(self._switch(_Mode.SWALLOW))

    def pause(self) -> None:
        """Stop moving bytes: nothing is lost, and after `resume` everything arrives."""
        self._call(self._switch(_Mode.PAUSED))

    def refuse(self) -> None:
        """Refuse new connections (nobody listens); those that are there go on."""
        self._call(self._stop_listening())

    def resume(self) -> None:
        """Behave again: forward, without delay, and accept connections. Cuts that still wait for a byte are dropped,
        connections that are held back go on."""

        async def run() -> None:
            for one in Direction:
                self._delays_s[one] = 0.0
            self._pending_cuts.clear()
            for reorder in self._reorders:
                reorder._gate.set()
            self._reorders.clear()
            await self._switch(_Mode.FORWARD)
            await self._listen()

        self._call(run())

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> FaultProxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def stop(self) -> None:
        """Cut everything and end. Idempotent."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._call(self._shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT_S)
        if self._tls is not None:
            # Stream writers over TLS are in cycles, and warn of an open transport when found after the loop's end.
            gc.collect()
        self._loop.close()
        self._holder.close()

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(CALL_TIMEOUT_S)

    # --- on the proxy's loop ----------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._server is None:
            sock = _bound(self.port)
            self._server = await asyncio.start_server(self._accept, sock=sock, backlog=_BACKLOG, ssl=self._tls)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            for sock in server.sockets:
                asyncio.get_running_loop().remove_reader(sock.fileno())
            # Connections that were just accepted come to us in callbacks of the loop; asyncio loses those that it has
            # not made yet when their server is closed.
            await _turns(3)
            server.close()
            await _turns(1)

    async def _shut_down(self) -> None:
        await self._stop_listening()
        left = list(self._serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # A task that was cancelled before it began has closed nothing.
        for connection in list(self._connections):
            connection.reset()
        # Transports close their sockets in callbacks of the loop, those of TLS one later.
        await _turns(3)

    async def _switch(self, mode: _Mode) -> None:
        self._mode = mode
        if mode is _Mode.SWALLOW:
            for connection in self._connections:
                connection.is_dead = True
        if mode is _Mode.PAUSED:
            self._open.clear()
        else:
            self._open.set()

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        connection = _Connection(next(self._numbers), client, is_dead=self._mode is _Mode.SWALLOW)
        self._accepted += 1
        self._newest = connection.number
        self._connections.add(connection)
        # A task of our own: the streams' own one logs an error when it is cancelled.
        task = asyncio.get_running_loop().create_task(self._serve(connection, reader))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        try:
            with contextlib.suppress(OSError, ssl.SSLError):
                await self._open.wait()
                if connection.is_dead:
                    await _swallow(reader)
                else:
                    await self._bridge(connection, reader)
        finally:
            self._connections.discard(connection)
            connection.reset()

    async def _bridge(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        if self.target is None:
            raise OSError("the proxy has no target")
        host, _, port = self.target.rpartition(":")
        broker_reader, connection.broker = await asyncio.open_connection(host, int(port))
        if connection not in self._connections:
            # Cut while it was being made.
            return
        connection.tasks = [
            asyncio.create_task(self._pump(connection, reader, connection.broker, Direction.TO_BROKER)),
            asyncio.create_task(self._pump(connection, broker_reader, connection.client, Direction.TO_CLIENT)),
        ]
        await asyncio.wait(connection.tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in connection.tasks:
            task.cancel()
        await asyncio.gather(*connection.tasks, return_exceptions=True)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        """Move bytes one way, until one side ends, or a cut comes."""
        while piece := await reader.read(_PIECE_BYTES_MAX):
            if self._delays_s[direction] > 0:
                await asyncio.sleep(self._delays_s[direction])
            await self._open.wait()
            for reorder in [one for one in self._reorders if one.direction is direction]:
                if connection.number <= reorder._after:
                    await reorder._gate.wait()
            if connection.is_dead:
                continue
            cut = self._due_cut(len(piece), direction)
            if cut is not None:
                piece = piece[: cut._left]
            self.bytes_passed[direction] += len(piece)
            writer.write(piece)
            await writer.drain()
            self._overtake(connection, len(piece), direction)
            if cut is not None:
                self._connections.discard(connection)
                connection.is_dead = True
                _reset(connection.client if direction is Direction.TO_BROKER else _other(connection))
                cut.connection = connection.number
                cut._happened.set()
                break
        await self._end(connection, writer, direction)

    async def _end(self, connection: _Connection, writer: asyncio.StreamWriter, direction: Direction) -> None:
        """Say that no more comes, and read on until the peer has closed too: closing before would make the system drop
        what the peer has not received yet."""
        connection.ended[direction].set()
        if not writer.can_write_eof():
            await _finish(writer)
            return
        with contextlib.suppress(OSError):
            writer.write_eof()
        opposite = Direction.TO_CLIENT if direction is Direction.TO_BROKER else Direction.TO_BROKER
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(connection.ended[opposite].wait(), _GOODBYE_S)

    def _overtake(self, connection: _Connection, count: int, direction: Direction) -> None:
        """So many bytes have passed: let those go on who were held back for them."""
        for reorder in list(self._reorders):
            if reorder.direction is direction and connection.number > reorder._after:
                reorder._left -= count
                if reorder._left <= 0:
                    self._reorders.remove(reorder)
                    reorder._gate.set()
                    reorder._happened.set()

    def _due_cut(self, count: int, direction: Direction) -> Cut | None:
        """The cut whose byte is in a piece of that size; others come nearer by it."""
        due: Cut | None = None
        for cut in self._pending_cuts:
            if cut.direction is direction and cut._left < count and (due is None or cut._left < due._left):
                due = cut
        passed = count if due is None else due._left
        if due is not None:
            self._pending_cuts.remove(due)
        for cut in self._pending_cuts:
            if cut.direction is direction:
                cut._left -= passed
        return due


def _other(connection: _Connection) -> asyncio.StreamWriter:
    assert connection.broker is not None
    return connection.broker


async def _turns(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE_BYTES_MAX):
        pass


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Close after what was written is out."""
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    # A transport over TLS that has lost its connection has nothing left to ask for a socket, and says so badly.
    with contextlib.suppress(AttributeError):
        sock = writer.get_extra_info("socket")
        if sock is not None and not writer.transport.is_closing():
            # Closing with no time to linger sends a reset, as a crashed machine or a firewall would.
            _set_no_linger(sock)
    writer.transport.abort()


def _set_no_linger(sock: Any) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock
