"""TLS on a connection that this process makes, with flow control that knows of every byte it has not sent yet.

asyncio's TLS hands what it has encrypted to the transport of the socket and counts it as gone, though up to 64 KB of it
may lie there, and are lost when the connection is aborted. Its own `pause_writing` and `resume_writing` cannot tell.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
import sys
from collections.abc import Iterable
from typing import Any


class Unread(asyncio.Protocol):
    """Reads nothing until TLS does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()


class _Early(asyncio.Protocol):
    """Takes what comes together with the end of the handshake, for a protocol that is not told of a connection yet.

    Nor is that one told of the end of a connection which it never had, where the handshake fails.
    """

    def __init__(self) -> None:
        self._data = b""
        self._has_ended = False

    def data_received(self, data: bytes) -> None:
        self._data += data

    def eof_received(self) -> None:
        self._has_ended = True

    def pass_on(self, protocol: Any) -> None:
        data, is_buffered = self._data, isinstance(protocol, asyncio.BufferedProtocol)
        while data and is_buffered:
            room = protocol.get_buffer(len(data))
            taken = min(len(room), len(data))
            room[:taken], data = data[:taken], data[taken:]
            protocol.buffer_updated(taken)
        if data:
            protocol.data_received(data)
        if self._has_ended:
            protocol.eof_received()


class _BelowTls(asyncio.BufferedProtocol):
    """What the socket's transport calls: asyncio's TLS, and whoever writes where the socket has no room, or room again.

    TLS hands on all it has while the transport below has room, so that nothing waits in it when nothing waits there.
    """

    def __init__(self, tls: Any, above: asyncio.BaseProtocol) -> None:
        self._tls = tls
        self._above = above
        self._is_full = False

    def get_buffer(self, sizehint: int) -> Any:
        return self._tls.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._tls.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self._tls.eof_received()
        return keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_full = True
        self._tls.pause_writing()
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._tls.resume_writing()
        # TLS had more, perhaps too much for the socket.
        if not self._is_full:
            self._above.resume_writing()


class TlsTransport(asyncio.Transport):
    """A transport whose limits are those of the socket's transport, below asyncio's TLS."""

    def __init__(self, tls: asyncio.Transport, below: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._tls = tls
        self._below = below
        # It would tell whoever writes what it has itself, and contradict what `_BelowTls` tells.
        tls.set_write_buffer_limits(sys.maxsize)
        below.set_protocol(_BelowTls(below.get_protocol(), protocol))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._tls.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._tls.writelines(list_of_data)

    def close(self) -> None:
        self._tls.close()

    def abort(self) -> None:
        self._tls.abort()

    def is_closing(self) -> bool:
        return self._tls.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._tls.get_write_buffer_size() + self._below.get_write_buffer_size()


async def begin_tls(
    below: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl_module.SSLContext,
    server_hostname: str | None,
) -> asyncio.Transport:
    """Shake hands on a connection that was just made for `Unread`; the transport for this protocol."""
    early = _Early()
    tls = await asyncio.get_running_loop().start_tls(below, early, context, server_hostname=server_hostname)
    assert tls is not None
    tls.set_protocol(protocol)
    transport = TlsTransport(tls, below, protocol)
    protocol.connection_made(transport)
    early.pass_on(protocol)
    return transport
