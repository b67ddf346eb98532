"""The driver for asyncio: connections of `runtime.network`, on the loop that runs when it is first used."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.errors import HeadraceError
from headrace.net.connection import Connection, ConnectionState
from headrace.net.connections import Connections, Transport
from headrace.net.frames import FrameRefusedError
from headrace.runtime import Runtime
from headrace.runtime.errors import TransportError as RuntimeNetworkError

_CLOSE_WAIT_S = 0.25
_FOREVER = float("inf")


class _Protocol(asyncio.BufferedProtocol):
    """Receives straight into the connection's frame reader."""

    def __init__(self, driver: LoopDriver[Any], connection: Connection) -> None:
        self._driver = driver
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._connection.reader.received(nbytes)
        except FrameRefusedError as error:
            self._driver.close_connection(self._connection)
            self._driver.core.disconnected(self._connection, error)
        else:
            for frame in frames:
                self._driver.core.received(self._connection, frame)
        self._driver.was_heard(self._connection)

    def pause_writing(self) -> None:
        self._connection.is_draining = True

    def resume_writing(self) -> None:
        self._connection.is_draining = False
        self._driver.schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection.state is not ConnectionState.CLOSED:
            closed = OSError(errno.ECONNRESET, "the broker closed the connection")
            self._driver.core.disconnected(self._connection, exc or closed)
            self._driver.schedule()


Core = TypeVar("Core", bound=Connections)


class LoopDriver(Generic[Core]):
    """`Connections` on an event loop. It has no task while nothing connects: events and one timer drive it."""

    def __init__(self, make_core: Callable[[Transport], Core], runtime: Runtime) -> None:
        self.core = make_core(self)
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _FOREVER
        self._looks_soon = False
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False
        self.hooks: list[Callable[[], float]] = []
        """Called whenever something may have changed; each says in how many seconds it wants to be called again."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def call_from_anywhere(self, function: Callable[[], None]) -> None:
        """Have something called on the loop, from any thread; not at all while nothing ever ran there, or any more."""
        if self._loop is not None:
            # It may be closed, or be closed right now.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def schedule(self) -> None:
        """Let the core look at the time soon. Cheap when that is arranged already."""
        if not self._looks_soon and not self._closed:
            self._looks_soon = True
            self.loop.call_soon(self._look)

    def schedule_in(self, wait_s: float) -> None:
        """Let the core look at the time in so many seconds, or earlier.

        A timer that is due before stays: most are for answers that come in time, and to move it with every one of them
        would cost more than to look once in vain.
        """
        at = self.loop.time() + wait_s
        if at < self._timer_at and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._time_came)

    def was_heard(self, connection: Connection) -> None:
        """Something came in on a connection. Whoever has hooks may have waited for it."""
        self.schedule()

    def _look(self) -> None:
        self._looks_soon = False
        self._tick()

    def _time_came(self) -> None:
        self._timer, self._timer_at = None, _FOREVER
        self._tick()

    def _tick(self) -> None:
        if self._closed:
            return
        wait_s = min((hook() for hook in list(self.hooks)), default=60.0)
        failures = self.core.failures
        # After the hooks, because they may have submitted something.
        wait_s = min(wait_s, self.core.tick())
        if self.core.failures != failures:
            # Calls that failed just now are news for the hooks.
            self.schedule()
        else:
            self.schedule_in(wait_s)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.core.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting:
            # Those about to succeed are let through and closed by `_connect`: asyncio's race between addresses loses a
            # socket that is cancelled the moment it is connected.
            await asyncio.wait(set(self._connecting), timeout=_CLOSE_WAIT_S)
        for task in list(self._connecting):
            task.cancel()
        if self._connecting:
            await asyncio.gather(*self._connecting, return_exceptions=True)
        # Transports close their sockets in a callback of the loop.
        await asyncio.sleep(0)

    # --- what the core asks for ---------------------------------------------------------------------------------------

    def open_connection(self, connection: Connection) -> None:
        task = self.loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: Connection) -> None:
        node = connection.node
        # The core's own deadline comes first; this one only makes sure that nothing is left behind.
        timeout_s = self.core.settings.setup_backoff.max_ms / 1000 * 2
        try:
            node.check_port()
            transport, _ = await self._runtime.network.connect(
                lambda: _Protocol(self, connection),
                node.host,
                node.port,
                ssl=connection.tls,
                server_hostname=node.host,
                timeout_s=timeout_s,
            )
        except (RuntimeNetworkError, OSError, ValueError) as error:
            # The last one is said of what cannot be the name of a host, as `a..b`, which a broker may advertise.
            if connection.state is not ConnectionState.CLOSED:
                self.core.disconnected(connection, error)
                self.schedule()
            return
        if connection.state is ConnectionState.CLOSED:
            transport.abort()
            return
        connection.driver = transport
        self.core.connected(connection)
        self.schedule()

    def prepare_authentication(self, connection: Connection, prepare: Callable[[], None]) -> None:
        task = self.loop.create_task(self._prepare(connection, prepare))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _prepare(self, connection: Connection, prepare: Callable[[], None]) -> None:
        failed: HeadraceError | None = None
        try:
            await self._runtime.offload(prepare)
        except HeadraceError as error:
            failed = error
        self.core.prepared(connection, failed)
        self.schedule()

    def flush_connection(self, connection: Connection) -> None:
        transport: asyncio.Transport | None = connection.driver
        if transport is not None and connection.outgoing:
            parts = list(connection.outgoing)
            connection.sent(sum(map(len, parts)))
            transport.writelines(parts)
            if connection.unanswered:
                # No answer says that they have gone out: the transport does, when nothing is left in its buffer.
                transport.set_write_buffer_limits(0)

    def close_connection(self, connection: Connection) -> None:
        transport: asyncio.Transport | None = connection.driver
        connection.driver = None
        if transport is not None:
            transport.abort()
