"""The server's ends of connections with TLS: OpenSSL reads and writes the socket itself.

asyncio puts its TLS between the socket and the protocol, with two buffers and copies of every byte. Here what OpenSSL
decrypts goes straight into the protocol's buffer, and the loop reads these connections together with the others of
their listener (`server_transport.py`). OpenSSL takes one record of TLS from the socket at a time and leaves the rest in
the kernel; what it holds of a record that did not fit is read in the next turn.

A protocol hears of its connection (`connection_made`) before the handshake, so that it counts in all bounds; nothing is
read for it until `tls_established` or `tls_refused`, where it has them, was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from headrace.runtime.server_transport import ReadyConnections, ServerTransport

#: So much is encrypted at a time: what the socket has no room for is encrypted once more when it has.
_ENCRYPTED_BYTES: Final = 64 * 1024


class TlsServerTransport(ServerTransport):
    """One connection that was accepted, with TLS."""

    __slots__ = ("_deadline", "_is_established", "_is_wanted", "_tls")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: asyncio.BufferedProtocol,
        ready: ReadyConnections,
        context: ssl.SSLContext,
        handshake_timeout_s: float,
    ) -> None:
        """Takes the socket over, also if it raises an OSError."""
        tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(loop, tls, protocol, ready, {"sslcontext": context, "ssl_object": tls})
        self._tls = tls
        self._recv_into, self._send = self._decrypt, self._encrypt
        self._is_established = False
        self._is_wanted = False
        self._deadline = loop.call_later(handshake_timeout_s, self._too_slow, handshake_timeout_s)

    # --- handshake

    @property
    def is_established(self) -> bool:
        return self._is_established

    def _begin_reading(self) -> None:
        self.ready.add(self._number, self._shake_hands)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            if not self._is_wanted:
                self._is_wanted = True
                self._loop.add_writer(self._number, self._shake_hands)
            return
        except (ssl.SSLEOFError, ConnectionError):
            self._force_close(None)  # whoever looked whether anybody listens is no client that is refused
            return
        except (OSError, ValueError) as error:  # TLS's own are OSErrors; a ValueError is a socket that is closed
            self._refuse(str(getattr(error, "reason", None) or error))
            return
        self._deadline.cancel()
        self._want_no_writing()
        self._is_established = True
        self.ready.discard(self._number)
        try:
            established: Callable[[], None] | None = getattr(self._protocol, "tls_established", None)
            if established is not None:
                established()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - nobody would read it, nor close it
            self._fail(error, "tls_established() failed")
            return
        if not self._closing and not self._paused:
            self.ready.add(self._number, self._read)

    def _want_no_writing(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self._loop.remove_writer(self._number)

    def _too_slow(self, seconds: float) -> None:
        self._refuse(f"no handshake within {seconds:g} s")

    def _refuse(self, why: str) -> None:
        if self._closing:
            return
        refused: Callable[[str], None] | None = getattr(self._protocol, "tls_refused", None)
        try:
            if refused is not None:
                refused(why)
        finally:
            self._force_close(None)

    # --- bytes

    def _decrypt(self, buffer: Any) -> int:
        """As `recv_into` of a plain socket; it fills the buffer with as many records as have come.

        Also behind a small one: clients make records of all sizes of one large request.
        """
        with memoryview(buffer) as view:
            filled, size = 0, view.nbytes
            while filled < size:
                try:
                    # With a buffer it gives a number, whatever the types say.
                    count = cast(int, self._tls.read(size - filled, view[filled:] if filled else view))
                except ssl.SSLWantReadError:
                    if not filled:
                        raise BlockingIOError from None
                    break
                if not count:
                    break  # the end; it is met once more where something came before it
                filled += count
            return filled

    def _encrypt(self, data: Any) -> int:
        """As `send` of a plain socket. What was not taken has to be given again, as it is with everything behind it."""
        sent = 0
        with memoryview(data) as view:
            while sent < view.nbytes:
                with view[sent : sent + _ENCRYPTED_BYTES] as part:
                    try:
                        sent += self._tls.send(part)
                    except ssl.SSLWantWriteError:
                        break
        return sent

    def _read(self) -> None:
        super()._read()
        self._read_rest_soon()

    def pause_reading(self) -> None:
        if not self._is_established:
            self._paused = True  # the handshake goes on
            return
        super().pause_reading()

    def resume_reading(self) -> None:
        if not self._is_established:
            self._paused = False
            return
        super().resume_reading()
        self._read_rest_soon()

    def _read_rest_soon(self) -> None:
        """What OpenSSL has decrypted already is no news to the kernel."""
        if not self._paused and not self._closing and self._tls.pending():
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        if not self._paused and not self._closing and self._tls.pending():
            self._read()

    # --- ending

    def write_eof(self) -> None:
        raise NotImplementedError("TLS has no half of a connection")

    def can_write_eof(self) -> bool:
        return False

    def _lose(self, error: BaseException | None) -> None:
        self._deadline.cancel()
        self._want_no_writing()
        if not self._lost and error is None and self._is_established and not self._unsent:
            # It says that nothing was cut off; the other end's word for that is not waited for.
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
        super()._lose(error)

    def _tell_lost(self, error: BaseException | None) -> None:
        try:
            super()._tell_lost(error)
        finally:
            # They refer to this transport: without them it goes when the last who knows it does.
            self._recv_into, self._send = self._tls.recv_into, self._tls.send
