"""The blocking driver: sockets and a selector, on whatever thread calls `poll` or `request`. No thread of its own.

It is one of the two places that open sockets (the other, `loop`, goes through `runtime.network`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from headrace.errors import HeadraceError, RequestTimedOutError
from headrace.late_imports import late_import
from headrace.net.connection import Call, Connection, ConnectionState
from headrace.net.connections import Connections, Transport
from headrace.net.frames import FrameRefusedError
from headrace.runtime.system import HAS_EPOLL, client_selector

_PARTS_MAX = 64
_READS_PER_TURN_MAX = 16
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN)

Address = tuple[socket.AddressFamily, Any]
Events = list[tuple[selectors.SelectorKey, int]]


class _Link:
    """A connection's socket and how far its setup is."""

    __slots__ = ("events", "handshaking", "poller", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.events = selectors.EVENT_WRITE
        self.handshaking = False
        self.poller: Any = None
        """Waits for this socket alone; made when somebody first does."""


class LoneConnection:
    """A connection that one thread waits for by itself (see `BlockingDriver.watch_alone`)."""

    __slots__ = ("connection", "link")

    def __init__(self, connection: Connection, link: _Link) -> None:
        self.connection = connection
        self.link = link

    def wait(self, timeout_s: float) -> bool:
        """Whether something came in that time, or somebody nudged. Touches nothing but the socket."""
        return bool(self.link.poller.poll(timeout_s * 1000))


Core = TypeVar("Core", bound=Connections)


class BlockingDriver(Generic[Core]):
    """`Connections` with sockets. Not for several threads at once, but for `wakeup`."""

    def __init__(
        self,
        make_core: Callable[[Transport], Core],
        *,
        resolve: Callable[[str, int], list[Address]] | None = None,
    ) -> None:
        self.core = make_core(self)
        self._tls = self.core.settings.security.tls
        self._resolve = resolve or resolve_addresses
        self._addresses: dict[tuple[str, int], list[Address]] = {}
        self._selector = client_selector()
        self._is_alone = False
        self._nudge: int | None = None
        self._apart: list[Connection] = []
        self._wake_lock = threading.Lock()
        self._wake_pending = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._reports: list[Callable[[], None]] = []
        self._closed = False
        self._pid = os.getpid()

    # --- calls --------------------------------------------------------------------------------------------------------

    def wait(self, *calls: Call, timeout_ms: float) -> None:
        """Poll until every call is done; `RequestTimedOutError` when the time is over (the calls go on)."""
        deadline = self.core.clock.monotonic() + timeout_ms / 1000
        if not self.poll_until(lambda: all(call.done for call in calls), deadline):
            late = next(call for call in calls if not call.done)
            raise RequestTimedOutError(f"{late.name} was not answered within {timeout_ms:.0f} ms")

    def poll_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Poll until the condition holds (True) or the clock passes the deadline (False)."""
        while not condition():
            left = deadline - self.core.clock.monotonic()
            if left <= 0:
                return False
            self.poll(left)
        return True

    def poll(self, timeout_s: float) -> None:
        """Do what is due and move bytes, for at most that long; returns after the first events."""
        self.serve(self.select(self.prepare(timeout_s)))

    def poll_for_news(self, timeout_s: float) -> None:
        """Like `poll`, but a part of an answer is no event: a large one arrives in many pieces, and nothing is to be
        done before its end."""
        wait_s = self.prepare(timeout_s)
        now = self.core.clock.monotonic
        until = now() + wait_s
        while (events := self.select(wait_s)) and not self._serve_all(events) and not self._reports:
            wait_s = until - now()
            if wait_s <= 0:
                break
        self._run_reports()
        self.core.tick()

    def prepare(self, timeout_s: float) -> float:
        """The first part of `poll`: do what is due. For how many seconds there is nothing to do but to wait."""
        failures = self.core.failures
        self._run_reports()
        due = self.core.tick()
        self._run_reports()
        # Calls that failed just now are news for the caller, and what is due next may have changed with them.
        return 0.0 if self.core.failures != failures else max(0.0, min(timeout_s, due))

    def select(self, wait_s: float) -> Events:
        """The second part: wait. The only one that may run beside another thread's use of this client."""
        return self._selector.select(wait_s)

    def serve(self, events: Events) -> None:
        """The third part: move bytes."""
        self._serve_all(events)
        self._run_reports()
        self.core.tick()

    def _serve_all(self, events: Events) -> bool:
        """Whether there was news among these events."""
        is_news = False
        # Whoever finds this set when there is nobody here knows that reading or writing was interrupted in the middle.
        was_moving, self.core.is_moving = self.core.is_moving, True
        for selected, mask in events:
            connection = selected.data
            if connection is None:
                self._drain_wakeups()
                is_news = True
            elif connection.state is not ConnectionState.CLOSED and self._serve(connection, mask):
                is_news = True
        self.core.is_moving = was_moving
        return is_news

    def wrote(self, events: Events) -> bool:
        """Whether there was nothing but room for bytes that were going out anyway, and some are still left: there is no
        news for anybody."""
        for selected, mask in events:
            connection = selected.data
            if mask != selectors.EVENT_WRITE or connection is None or connection.state is not ConnectionState.READY:
                return False
        for selected, mask in events:
            self._serve(selected.data, mask)
        return bool(events) and not self._reports and all(selected.data.outgoing for selected, _ in events)

    # --- one answer, waited for by another thread than the one in `select` --------------------------------------------

    @property
    def can_be_alone(self) -> bool:
        """Whether a connection can be kept from `select`: not with TLS, nor where the system has no epoll."""
        return self._tls is None and HAS_EPOLL

    def begin_alone(self) -> None:
        """What is sent until `end_alone` is answered on connections that `select` does not hear of until `rejoin`."""
        self._is_alone = True

    def end_alone(self) -> None:
        self._is_alone = False

    def rejoin(self) -> None:
        """Let `select` hear of every connection again."""
        for connection in self._apart:
            link = connection.driver
            if link is not None and link.events == 0:
                self._watch(connection, link, selectors.EVENT_READ)
        self._apart.clear()

    def watch_alone(self, call: Call) -> LoneConnection | None:
        """To wait for the answer to a call that was sent alone; None when it was not, or is not out yet."""
        connection = None if call.node_id is None else self.core.connection(call.node_id)
        if connection is None or connection.driver.events != 0:
            return None
        link: _Link = connection.driver
        if link.poller is None:
            if self._nudge is None:
                self._nudge = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            link.poller = select.poll()
            link.poller.register(link.sock, select.POLLIN)
            link.poller.register(self._nudge, select.POLLIN)
        return LoneConnection(connection, link)

    def nudge(self) -> None:
        """End the wait of a `LoneConnection`. Somebody else may read what it waited for, and it would not notice."""
        if self._nudge is not None:
            os.eventfd_write(self._nudge, 1)

    def end_nudge(self) -> None:
        """The wait has ended: the next one is another."""
        if self._nudge is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._nudge)

    def read_alone(self, watch: LoneConnection) -> None:
        """Read what came."""
        if watch.connection.driver is watch.link:
            self._serve(watch.connection, selectors.EVENT_READ)
            self._run_reports()

    def wakeup(self) -> None:
        """End a `poll` that waits, from any thread."""
        with self._wake_lock:
            if self._wake_pending or self._closed:
                return
            self._wake_pending = True
            with contextlib.suppress(BlockingIOError):
                self._wake_writer.send(b"\0")

    def _drain_wakeups(self) -> None:
        with self._wake_lock:
            self._wake_pending = False
            with contextlib.suppress(BlockingIOError):
                self._wake_reader.recv(64)

    def close(self) -> None:
        """Close every socket. Idempotent."""
        if self._closed:
            return
        if self._pid != os.getpid():
            # What epoll watches is one list for both processes: taking a socket off it here would deafen the parent.
            self.abandon()
            return
        self.core.close()
        self._release()

    def _release(self) -> None:
        with self._wake_lock:
            self._closed = True
            self._selector.close()
            self._wake_reader.close()
            self._wake_writer.close()
            nudge, self._nudge = self._nudge, None
            if nudge is not None:
                os.close(nudge)

    def abandon(self) -> None:
        """In a child after fork: close this process's copies of the sockets, without a word to the brokers."""
        if self._closed:
            return
        for selected in list(self._selector.get_map().values()):
            if selected.data is not None:
                selected.fileobj.close()  # type: ignore[union-attr]  # always a socket: we registered it
        for connection in self._apart:
            if connection.driver is not None:
                connection.driver.sock.close()
        # An epoll descriptor is shared with the parent: closing ours leaves its registrations alone.
        self._wake_lock = threading.Lock()
        self._release()

    # --- what the core asks for ---------------------------------------------------------------------------------------

    def open_connection(self, connection: Connection) -> None:
        try:
            connection.driver = self._connect(connection)
        except OSError as error:
            failed = error
            self._reports.append(lambda: self.core.disconnected(connection, failed))

    def flush_connection(self, connection: Connection) -> None:
        link = connection.driver
        if link is not None and not link.handshaking and connection.state is not ConnectionState.CONNECTING:
            if self._is_alone and link.events == selectors.EVENT_READ:
                # Before a byte goes out: the answer may come before this thread gets to wait for it.
                self._apart.append(connection)
                self._watch(connection, link, 0)
            # Sent right away when the socket takes it: waiting for the selector would cost a turn.
            self._write(connection)

    def close_connection(self, connection: Connection) -> None:
        link = connection.driver
        connection.driver = None
        if link is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(link.sock)
            link.sock.close()

    def prepare_authentication(self, connection: Connection, prepare: Callable[[], None]) -> None:
        self._reports.append(lambda: self._prepare(connection, prepare))

    def _prepare(self, connection: Connection, prepare: Callable[[], None]) -> None:
        failed: HeadraceError | None = None
        try:
            prepare()
        except HeadraceError as error:
            failed = error
        self.core.prepared(connection, failed)

    # --- sockets ------------------------------------------------------------------------------------------------------

    def _connect(self, connection: Connection) -> _Link:
        node = connection.node
        node.check_port()
        key = (node.host, node.port)
        if not self._addresses.get(key):
            self._addresses[key] = self._resolve(*key)
        family, address = self._addresses[key].pop(0)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in (
                (socket.SO_SNDBUF, self.core.settings.send_buffer_bytes),
                (socket.SO_RCVBUF, self.core.settings.receive_buffer_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            code = sock.connect_ex(address)
            if code not in (0, *_IN_PROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            sock.close()
            raise
        link = _Link(sock)
        self._selector.register(sock, selectors.EVENT_WRITE, connection)
        return link

    def _serve(self, connection: Connection, mask: int) -> bool:
        """Whether there is news: not when all that came is a part of an answer."""
        link: _Link = connection.driver
        try:
            if link.handshaking:
                self._handshake(connection, link)
            elif connection.state is ConnectionState.CONNECTING:
                self._finish_connect(connection, link)
            else:
                if mask & selectors.EVENT_WRITE:
                    self._write(connection)
                if mask & selectors.EVENT_READ and connection.driver is link:
                    return self._read(connection, link)
        except (OSError, FrameRefusedError) as error:
            self._fail(connection, error)
        return True

    def _finish_connect(self, connection: Connection, link: _Link) -> None:
        code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # The next connection to this host starts with the address that worked.
        self._addresses.pop((connection.node.host, connection.node.port), None)
        if connection.tls is None:
            self._established(connection, link)
            return
        self._selector.unregister(link.sock)
        link.sock = connection.tls.wrap_socket(
            link.sock, do_handshake_on_connect=False, server_hostname=connection.node.host
        )
        link.handshaking = True
        self._selector.register(link.sock, selectors.EVENT_WRITE, connection)
        self._handshake(connection, link)

    def _handshake(self, connection: Connection, link: _Link) -> None:
        assert isinstance(link.sock, ssl.SSLSocket)
        try:
            link.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(connection, link, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(connection, link, selectors.EVENT_WRITE)
        else:
            link.handshaking = False
            self._established(connection, link)

    def _established(self, connection: Connection, link: _Link) -> None:
        self._watch(connection, link, selectors.EVENT_READ)
        self.core.connected(connection)

    def _write(self, connection: Connection) -> None:
        link: _Link = connection.driver
        outgoing = connection.outgoing
        try:
            while outgoing:
                if connection.tls is None:
                    parts = outgoing if len(outgoing) <= _PARTS_MAX else [outgoing[i] for i in range(_PARTS_MAX)]
                    count = link.sock.sendmsg(parts)
                else:
                    count = link.sock.send(outgoing[0])
                connection.sent(count)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._watch(connection, link, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            # Reported later: the core may be in the middle of handing over this very request.
            failed = error
            self._reports.append(lambda: self._fail(connection, failed))
        else:
            if link.events != 0:
                self._watch(connection, link, selectors.EVENT_READ)

    def _read(self, connection: Connection, link: _Link) -> bool:
        """Whether an answer came whole."""
        reader = connection.reader
        is_news = False
        for _ in range(_READS_PER_TURN_MAX):
            target = reader.buffer()
            try:
                count = link.sock.recv_into(target)
            except (BlockingIOError, ssl.SSLWantReadError):
                return is_news
            except ssl.SSLWantWriteError:
                self._watch(connection, link, selectors.EVENT_READ | selectors.EVENT_WRITE)
                return is_news
            if count == 0:
                raise OSError(errno.ECONNRESET, "the broker closed the connection")
            for frame in reader.received(count):
                is_news = True
                self.core.received(connection, frame)
                if connection.driver is not link:
                    return True
            if count < len(target) and not (isinstance(link.sock, ssl.SSLSocket) and link.sock.pending()):
                return is_news
        return is_news

    def _watch(self, connection: Connection, link: _Link, events: int) -> None:
        if link.events != events:
            link.events = events
            self._selector.modify(link.sock, events, connection)

    def _fail(self, connection: Connection, error: BaseException) -> None:
        if connection.state is not ConnectionState.CLOSED:
            self.close_connection(connection)
            self.core.disconnected(connection, _readable(error))

    def _run_reports(self) -> None:
        if not self._reports:
            return
        was_moving, self.core.is_moving = self.core.is_moving, True
        while self._reports:
            self._reports.pop(0)()
        self.core.is_moving = was_moving


def _readable(error: BaseException) -> BaseException:
    # An error of TLS has numbers of its own, which are not the system's.
    if isinstance(error, ssl.SSLError):
        return error
    if isinstance(error, OSError) and error.errno in errno.errorcode and error.errno is not None:
        return OSError(error.errno, error.strerror or os.strerror(error.errno))
    return error


def resolve_addresses(host: str, port: int) -> list[Address]:
    """Every address of a host, in the system's order (`client.dns.lookup=use_all_dns_ips`)."""
    late_import("encodings.idna")  # by which Python hands names over
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        # What cannot be the name of a host (`a..b`, which a broker may advertise) is one that nobody knows.
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} cannot be the name of a host: {error}") from error
    return list(dict.fromkeys((entry[0], entry[4]) for entry in found))


def canonical_addresses(addresses: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The full name of every address that each host has."""
    names: dict[tuple[str, int], None] = {}
    for host, port in addresses:
        try:
            for _, address in resolve_addresses(host, port):
                names[(socket.getfqdn(address[0]), port)] = None
        except OSError:
            # It may be known to the name server later: connecting to it will say so.
            names[(host, port)] = None
    return tuple(names)
