"""The real network: one port over all addresses, and errors that say what failed.

The transports are asyncio's own, but for connections that a server accepts (`server_transport.py`, `server_tls.py`),
and for TLS on those that are made (`client_tls.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl as ssl_module
from collections.abc import Callable
from typing import Any

from headrace.runtime.client_tls import Unread, begin_tls
from headrace.runtime.errors import ConnectFailedError, ListenFailedError
from headrace.runtime.interface import ProtocolT
from headrace.runtime.rarely import Rarely
from headrace.runtime.server_tls import TlsServerTransport
from headrace.runtime.server_transport import ReadyConnections, ServerTransport

log = logging.getLogger("headrace.network")

# So many before others on the loop have their turn.
_ACCEPTED_PER_TURN = 64
# How long nothing is accepted when the process or the machine has no room for another connection.
_ACCEPT_PAUSE_S = 0.5
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HAPPY_EYEBALLS_DELAY_S = 0.25
# With port 0 the first address picks a port that another one may not have free; then all try another.
_EPHEMERAL_PORT_TRIES_MAX = 20


class RealListener:
    """Accepts by itself, since asyncio's own loop logs hundreds of lines a second while descriptors are short."""

    def __init__(
        self,
        sockets: list[socket.socket],
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        ssl: Callable[[], ssl_module.SSLContext] | None,
        handshake_timeout_s: float,
    ):
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._addresses = [(sock.getsockname()[0], sock.getsockname()[1]) for sock in sockets]
        self._make = protocol_factory
        self._ssl = ssl
        self._handshake_timeout_s = handshake_timeout_s
        self._beginning: set[asyncio.Task[None]] = set()
        self.ready = ReadyConnections(self._loop)
        self._shortages = Rarely(self._loop.time)
        for sock in sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return list(self._addresses)

    def close(self) -> None:
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    async def wait_closed(self) -> None:
        # Connections that were accepted just now are still made, as their peers think that they are.
        for _ in range(2):
            await asyncio.sleep(0)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                connection, _address = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(sock, error)
                    return
                continue  # that peer is gone again
            connection.setblocking(False)
            try:
                protocol = self._make()
            except BaseException:
                connection.close()
                raise
            if isinstance(protocol, asyncio.BufferedProtocol):
                self._begin_at_once(connection, protocol)
                continue
            task = self._loop.create_task(self._begin(connection, protocol))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _begin_at_once(self, connection: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        if self._ssl is None:
            ServerTransport(self._loop, connection, protocol, self.ready)
            return
        context = self._ssl()
        try:
            TlsServerTransport(self._loop, connection, protocol, self.ready, context, self._handshake_timeout_s)
        except (OSError, ValueError) as error:  # that peer is gone again
            connection.close()
            log.debug("a connection could not be begun: %s", error)

    async def _begin(self, connection: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        context = None if self._ssl is None else self._ssl()
        timeout_s = None if context is None else self._handshake_timeout_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # TLS's own errors are OSErrors too
            connection.close()
            log.debug("a connection could not be begun: %s", error)
        except BaseException:
            connection.close()
            raise

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        """Nobody else can connect for now: those who try wait in the kernel's queue until somebody is gone."""
        count = self._shortages.happened()
        if count:
            log.warning(
                "no connection can be accepted for now: %s (%d times since this was last said). Raise the limit on "
                "open files (ulimit -n), or let fewer clients connect",
                os.strerror(error.errno or 0),
                count,
            )
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(_ACCEPT_PAUSE_S, self._go_on, sock)

    def _go_on(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)


class RealNetwork:
    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        ssl: Callable[[], ssl_module.SSLContext] | None = None,
        backlog: int = 128,
        handshake_timeout_s: float = 10.0,
    ) -> RealListener:
        sockets = await _bound_sockets(host or None, port)
        try:
            for sock in sockets:
                sock.listen(backlog)
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise _listen_failed(host, port, error) from error
        return RealListener(sockets, protocol_factory, ssl, handshake_timeout_s)

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
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                if not isinstance(loop, asyncio.BaseEventLoop):
                    # uvloop's, say, which tries one address after the other, and whose TLS is its own.
                    name = None if ssl is None else server_hostname or host
                    transport, protocol = await loop.create_connection(
                        protocol_factory, host, port, ssl=ssl, server_hostname=name
                    )
                elif ssl is None:
                    transport, protocol = await loop.create_connection(
                        protocol_factory, host, port, happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY_S
                    )
                else:
                    below, _ = await loop.create_connection(
                        Unread, host, port, happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY_S
                    )
                    protocol = protocol_factory()
                    transport = await begin_tls(below, protocol, ssl, server_hostname or host)
        except TimeoutError as error:
            raise ConnectFailedError(f"connecting to {host}:{port} took over {timeout_s} s", host, port) from error
        except OSError as error:
            raise ConnectFailedError(f"connecting to {host}:{port} failed: {_reason(error)}", host, port) from error
        sock = transport.get_extra_info("socket")
        # A peer that vanished without a word is noticed at last even when nothing is sent to it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport, protocol


async def _bound_sockets(host: str | None, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG if host is None else 0
        )
    except OSError as error:
        raise _listen_failed(host, port, error) from error
    # A list without repeats: a host may be named twice in the resolver's files.
    addresses: list[tuple[int, tuple[Any, ...]]] = list(dict.fromkeys((entry[0], entry[4]) for entry in found))
    for attempt in range(_EPHEMERAL_PORT_TRIES_MAX):
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            last = attempt == _EPHEMERAL_PORT_TRIES_MAX - 1
            if port != 0 or last or error.errno != errno.EADDRINUSE:
                raise _listen_failed(host, port, error) from error
    raise AssertionError("unreachable: the last attempt returns or raises")


def _bind_all(addresses: list[tuple[int, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    """A bound socket per address, all on one port; a family this machine does not have is left out."""
    sockets: list[socket.socket] = []
    unavailable: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                unavailable = error
                continue
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted connections inherit both.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                sockets.pop().close()
                unavailable = error
                continue
            if port == 0:
                port = sock.getsockname()[1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise unavailable or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return sockets


def _listen_failed(host: str | None, port: int, error: OSError) -> ListenFailedError:
    where = f"{host or '*'}:{port}"
    return ListenFailedError(f"listening on {where} failed: {_reason(error)}", host, port)


def _reason(error: OSError) -> str:
    # asyncio puts words of its own into strerror ("Connect call failed"), which hide the reason. The number of a TLS
    # error is not one of the operating system's.
    if error.errno is not None and error.errno in errno.errorcode and not isinstance(error, ssl_module.SSLError):
        return os.strerror(error.errno)
    return str(error)
