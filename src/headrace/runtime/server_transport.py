"""The server's ends of plain connections, read with one call of the event loop for all of them.

asyncio makes an object and some ten calls of each event of each connection. Here the loop waits for one descriptor,
behind which are all connections of a listener (epoll's own descriptor can be waited for in turn), and what has come is
read straight into the buffers of their protocols. Where there is no epoll, the loop waits for each connection, and they
are read one by one. Everything else is as in asyncio's own transport: what a protocol is told, and when. Only for
`BufferedProtocol`s.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.system import HAS_EPOLL

# So many, or for so long (of the CPU's time: on a busy machine the clock tells of others), before others on the loop
# have their turn.
_READ_PER_TURN = 256
_READ_TURN_S = 0.02
# How often one of them is read in its turn, as long as it fills its buffer: a request is to arrive in one or two turns.
_READS_MAX = 3
# What is shorter has come whole, nearly always: whether it fills the buffer is not looked at. If it does, and there is
# more, the next turn finds it.
_LONG_READ_BYTES = 1024
# From how many on it is looked how long they take, and after how many of them.
_CROWD = 16
_LOOKED_EVERY = 16
# Answers of a turn are sent one after the other, and not each when it is ready: to wake a client that has gone to sleep
# since its last answer costs more than the rest of sending. So many at most, and none waits for longer than that.
_ANSWERED_MAX = 64
_ANSWERED_WAIT_S = 0.002
_HIGH_BYTES = 64 * 1024


class ReadyConnections:
    """Finds out which of a listener's connections can be read, and lets them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._open = 0
        self._reads: dict[int, Callable[[], None]] = {}
        #: Those that were ready in the last turn, and have to be read in this one.
        self._left: list[tuple[int, int]] = []
        self.is_reading = False
        #: While several connections are read one after the other: those that have an answer to send when all were read.
        self.answered: list[ServerTransport] | None = None
        #: What is done before these answers are sent, since it makes more of them.
        self.ends: list[Callable[[], None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection, and nothing that waits for one."""
        return not self._open and not self._reads and self._epoll is None

    def opened(self) -> None:
        self._open += 1
        if HAS_EPOLL and self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self.read_all)

    def closed(self) -> None:
        self._open -= 1
        if not self._open and self._epoll is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def add(self, number: int, read: Callable[[], None]) -> None:
        """Call `read` whenever there is something to be read from this descriptor, an end or an error included."""
        if number in self._reads:
            return
        self._reads[number] = read
        if self._epoll is not None:
            self._epoll.register(number, select.EPOLLIN)
        else:
            self._loop.add_reader(number, self._read_one, read)

    def discard(self, number: int) -> None:
        if self._reads.pop(number, None) is None:
            return
        if self._epoll is not None:
            self._epoll.unregister(number)
        elif not HAS_EPOLL:
            self._loop.remove_reader(number)

    def _read_one(self, read: Callable[[], None]) -> None:
        self.is_reading = True
        try:
            read()
        finally:
            try:
                self._finish(None)
            finally:
                self.is_reading = False

    def read_all(self) -> None:
        """Read those that can be read, in one turn, and then send their answers."""
        assert self._epoll is not None
        reads, ends = self._reads, self.ends
        events = self._left or self._epoll.poll(0, _READ_PER_TURN)
        self._left = []
        answered = self.answered = [] if len(events) > 1 else None
        now = time.monotonic  # the clock of real loops, without a call of theirs
        due = 0.0
        is_crowd = len(events) > _CROWD
        end = time.thread_time() + _READ_TURN_S if is_crowd else 0.0
        self.is_reading = True
        try:
            for place, (number, _) in enumerate(events):
                if is_crowd and not place % _LOOKED_EVERY and time.thread_time() > end:
                    self._left = events[place:]
                    break
                read = reads.get(number)
                if read is not None:  # one before it may have closed it
                    read()
                if answered or ends:
                    if not due:
                        due = now() + _ANSWERED_WAIT_S
                    elif (answered is not None and len(answered) >= _ANSWERED_MAX) or now() > due:
                        self._finish(answered)
                        due = 0.0
        finally:
            try:
                self._finish(answered)
            finally:
                self.answered = None
                self.is_reading = False

    def _finish(self, answered: list[ServerTransport] | None) -> None:
        try:
            while self.ends:
                self.ends.pop()()
        finally:
            if answered:
                for transport in answered:
                    transport.send_answer()
                answered.clear()


class ServerTransport(asyncio.Transport):
    """One connection that was accepted."""

    __slots__ = (
        "_answer",
        "_closing",
        "_eof",
        "_high",
        "_loop",
        "_lost",
        "_low",
        "_number",
        "_paused",
        "_protocol",
        "_protocol_paused",
        "_recv_into",
        "_send",
        "_socket",
        "_unsent",
        "ready",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: asyncio.BufferedProtocol,
        ready: ReadyConnections,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """`known` is what can be asked for by `get_extra_info`, besides the socket and its addresses."""
        extra: dict[str, Any] = {"socket": TransportSocket(sock), **(known or {})}
        for name, ask in (("sockname", sock.getsockname), ("peername", sock.getpeername)):
            try:
                extra[name] = ask()
            except OSError:
                extra[name] = None  # the peer is gone already
        super().__init__(extra)
        self._loop = loop
        self._socket = sock
        self._number = sock.fileno()
        self._recv_into: Callable[[Any], int] = sock.recv_into
        self._send: Callable[[Any], int] = sock.send
        self._protocol = protocol
        self.ready = ready
        self._unsent = bytearray()
        #: What is sent at the end of the turn in which all connections are read.
        self._answer: bytes | None = None
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._protocol_paused = False
        self._paused = False
        self._eof = False
        self._closing = False
        #: The protocol has been told that the connection is lost, or is about to be.
        self._lost = False
        ready.opened()
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        try:
            self._protocol.connection_made(self)
            if not self._closing:
                self._begin_reading()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - nobody would read it, nor close it
            self._fail(error, "connection_made() failed")

    def _begin_reading(self) -> None:
        if not self._paused:
            self.ready.add(self._number, self._read)

    # --- reading

    def _read(self) -> None:
        """Read what has come, again as long as it fills the buffer, so that there may be more."""
        protocol = self._protocol
        reads = 0
        while True:
            try:
                buffer = protocol.get_buffer(-1)
                count = self._recv_into(buffer)
                size = memoryview(buffer).nbytes if count >= _LONG_READ_BYTES or not count else -1
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
            except (BlockingIOError, InterruptedError):
                return
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as in asyncio: whatever it is, it is this connection's end
                self._fail(error, "a connection could not be read")
                return
            if not count:
                self._ended()
                return
            try:
                protocol.buffer_updated(count)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error, "buffer_updated() failed")
            reads += 1
            if count != size or self._paused or self._closing or reads == _READS_MAX:
                return

    def _ended(self) -> None:
        """The peer sends no more."""
        try:
            keeps_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error, "eof_received() failed")
            return
        if keeps_open:
            self.ready.discard(self._number)
        else:
            self.close()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        if not self._closing and not self._paused:
            self._paused = True
            self.ready.discard(self._number)

    def resume_reading(self) -> None:
        if not self._closing and self._paused:
            self._paused = False
            self.ready.add(self._number, self._read)

    # --- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not data:
            return
        if self._answer is not None:
            self.send_answer()
        elif type(data) is bytes and not self._unsent and (answered := self.ready.answered) is not None:
            self._answer = data
            answered.append(self)
            return
        self._send_now(data)

    def at_turn_end(self, finish: Callable[[], None]) -> bool:
        """Call `finish` before the answers of this turn are sent; False when nothing is read just now."""
        if not self.ready.is_reading:
            return False
        self.ready.ends.append(finish)
        return True

    def send_answer(self) -> None:
        """Send what was left for the end of the turn."""
        data, self._answer = self._answer, None
        if data is None or self._lost:
            return
        try:
            count = self._send(data)
        except BaseException as error:  # noqa: BLE001 - as above
            count = self._not_sent(error)
        if count != len(data):
            self._keep(data, count)

    def _send_now(self, data: bytes | bytearray | memoryview) -> None:
        count = 0
        if not self._unsent:
            try:
                count = self._send(data)
            except BaseException as error:  # noqa: BLE001 - as above
                count = self._not_sent(error)
        if count != len(data):
            self._keep(data, count)

    def _not_sent(self, error: BaseException) -> int:
        """Nothing was sent: 0 if that is because there is no room, otherwise it is the connection's end."""
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error
        if not isinstance(error, (BlockingIOError, InterruptedError)):
            self._fail(error, "a connection could not be written to")
        return 0

    def _keep(self, data: bytes | bytearray | memoryview, sent: int) -> None:
        """Send the rest, from there on, when there is room for it."""
        if self._lost:
            return
        if not self._unsent:
            self._loop.add_writer(self._number, self._send_rest)
        self._unsent += memoryview(data)[sent:]
        self._pause_protocol()

    def _send_rest(self) -> None:
        if self._lost:
            return
        try:
            count = self._send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error, "a connection could not be written to")
            return
        del self._unsent[:count]
        if self._protocol_paused and len(self._unsent) <= self._low:
            self._protocol_paused = False
            self._tell(self._protocol.resume_writing)
        if self._unsent:
            return
        self._loop.remove_writer(self._number)
        if self._closing:
            self._lose(None)
        elif self._eof:
            self._socket.shutdown(socket.SHUT_WR)

    def _pause_protocol(self) -> None:
        if len(self._unsent) > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._tell(self._protocol.pause_writing)

    def _tell(self, what: Callable[[], None]) -> None:
        """As in asyncio: whoever writes, or is about to, goes on whatever the protocol makes of it."""
        try:
            what()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._report(error, f"{what.__name__}() failed")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._pause_protocol()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent) + len(self._answer or b"")

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof:
            return
        self.send_answer()
        self._eof = True
        if not self._unsent:
            self._socket.shutdown(socket.SHUT_WR)

    # --- ending

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self.send_answer()
        self._closing = True
        self.ready.discard(self._number)
        if not self._unsent:
            self._lose(None)

    def abort(self) -> None:
        self._force_close(None)

    def _fail(self, error: BaseException, message: str) -> None:
        if not isinstance(error, OSError):
            self._report(error, message)
        self._force_close(error)

    def _report(self, error: BaseException, message: str) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        )

    def _force_close(self, error: BaseException | None) -> None:
        self.send_answer()  # which was written before, and would be with the kernel if it had not been kept
        if self._lost:
            return
        if self._unsent:
            self._unsent.clear()
            self._loop.remove_writer(self._number)
        self._closing = True
        self.ready.discard(self._number)
        self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(error if error is None or isinstance(error, Exception) else None)
        finally:
            self.ready.closed()
            self._socket.close()
