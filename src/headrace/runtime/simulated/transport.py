"""The two ends of a simulated connection: asyncio transports over a pair of pipes that delay, split and lose."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from headrace.runtime.interface import Buffer
from headrace.runtime.simulated.loop import incarnation
from headrace.runtime.simulated.trace import checksum

if TYPE_CHECKING:
    from headrace.runtime.simulated.network import Fabric

_KERNEL_BUFFER_BYTES = 128 * 1024
_HIGH_WATER_BYTES = 64 * 1024
_PIECES_MAX = 8
#: After how long a kernel sends again what nobody has confirmed; then after twice as long, and so on.
_SEND_AGAIN_S = 0.2
_SEND_AGAIN_S_MAX = 120.0


class Pipe:
    """One direction of a connection: pieces arrive in order, each after a delay, unless the way is cut."""

    def __init__(self, fabric: Fabric, sender: SimulatedTransport, receiver: SimulatedTransport):
        self._fabric = fabric
        self.sender = sender
        self.receiver = receiver
        self._pieces: deque[tuple[float, bytes | None]] = (
            deque()
        )  # when it arrives, what: None is the end of the stream
        self._timer: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self.unread_bytes = 0  # sent, and not yet taken by the receiving protocol

    def send(self, data: bytes | None) -> None:
        if data is not None:
            self.unread_bytes += len(data)
        fabric = self._fabric
        now, model, rng = fabric.loop.time(), fabric.model, fabric.rng
        for piece in [data] if data is None else self._split(data):
            arrival = now + model.draw_delay(rng)
            if arrival > self._last_arrival:
                self._last_arrival = arrival
            self._pieces.append((self._last_arrival, piece))
        if self._timer is None:
            self.pump()

    def pump(self) -> None:
        """Set the timer for the next piece, unless the way is cut (the fabric calls again when it is healed)."""
        if self._timer is not None or not self._pieces:
            return
        if self._fabric.is_cut(self.sender.host, self.receiver.host):
            self._fabric.held[self] = None
        else:
            self._timer = self._fabric.loop.call_at(self._pieces[0][0], self._arrive, context=self._fabric.context)

    def drop(self) -> None:
        """Forget what is under way."""
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _split(self, data: bytes) -> list[bytes]:
        rng = self._fabric.rng
        if len(data) < 2 or rng.random() >= self._fabric.model.split_probability:
            return [data]
        cuts = sorted({rng.randrange(1, len(data)) for _ in range(rng.randint(1, _PIECES_MAX - 1))})
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)])]

    def _arrive(self) -> None:
        self._timer = None
        if self._fabric.is_cut(self.sender.host, self.receiver.host):
            self._fabric.held[self] = None
            return
        _, piece = self._pieces.popleft()
        fabric = self._fabric
        trace = fabric.trace
        if piece is not None and fabric.rng.random() < fabric.model.reset_probability:
            trace.record("net-reset", f"{self.sender.name}>{self.receiver.name}")
            self.sender.lose(ConnectionResetError("the network broke the connection"))
            self.receiver.lose(ConnectionResetError("the network broke the connection"))
            return
        if trace.is_on:
            name = f"{self.sender.name}>{self.receiver.name}"
            trace.record("net", name, "end" if piece is None else checksum(piece))
        self.receiver.arrived(piece)
        if self._pieces:
            self.pump()


class Presence(Enum):
    """What is left of one end of a connection."""

    HERE = "here"
    FORGOTTEN = "forgotten"  # its host died; once it is up again, its kernel answers with a reset
    BLACK_HOLE = "black hole"  # nothing is ever answered


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. Protocol callbacks run in the context that made the end, so they die with its host."""

    def __init__(self, fabric: Fabric, host: str, name: str, context: Context, extra: dict[str, Any]):
        super().__init__(extra)
        self._fabric = fabric
        self.host = host
        self.name = name
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_buffered = False
        self._out: Pipe | None = None
        self._received: deque[bytes | None] = deque()
        self._feeding = False
        self._connected = False  # connection_made has been called
        self._reading = True
        self._closing = False
        self._lost = False  # connection_lost was called or is about to be
        self._end_sent = False
        self.presence = Presence.HERE
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._writing_paused = False

    # How the fabric sets it up and what the pipes tell it.

    def attach(self, out: Pipe) -> None:
        self._out = out

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the end its protocol, in the end's own context."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._connected = True
        self._feed_soon()

    def at_turn_end(self, finish: Callable[[], None]) -> bool:
        """Call `finish` when what comes in this turn of the loop was read."""
        self._fabric.loop.call_soon(finish, context=self._context)
        return True

    def arrived(self, piece: bytes | None) -> None:
        if self.presence is not Presence.HERE:
            if self.presence is Presence.FORGOTTEN:
                self._arrived_again(_SEND_AGAIN_S)
            return
        if self._closing or self._lost:
            if piece is not None:
                self._took(piece)
                self._peer.lose_later(ConnectionResetError("the peer had closed the connection"))
            return
        self._received.append(piece)
        life = self._context.get(incarnation)
        if self._feeding or not self._may_feed() or (life is not None and (not life.alive or life.held is not None)):
            self._feed_soon()
        else:
            # As a loop does that finds a socket readable; a dead host, or one that hangs, is left to ours.
            self._context.run(self._feed)

    def _arrived_again(self, again_s: float) -> None:
        """Something came for a connection that went with its host's power, perhaps not for the first time."""
        peer = self._peer
        if peer._lost or peer.presence is not Presence.HERE:
            return
        if self._fabric.is_up(self.host) and not self._fabric.is_cut(peer.host, self.host):
            # The host is back and knows nothing of this connection: its kernel answers with a reset.
            peer.lose_later(ConnectionResetError("the peer restarted"))
        else:
            next_s = min(2 * again_s, _SEND_AGAIN_S_MAX)
            self._fabric.loop.call_later(again_s, self._arrived_again, next_s, context=self._fabric.context)

    def taken(self) -> None:
        """The peer's protocol took some bytes: there is room to write again."""
        if self._lost:
            return
        if self._writing_paused and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self._call(self._resume_writing)
        if self._closing and self.get_write_buffer_size() == 0:
            self._finish(None)

    def lose(self, error: Exception | None) -> None:
        """End the connection here and now: what was received and not read is gone."""
        self._received.clear()
        if self._out is not None:
            self._out.drop()
        self._closing = True
        self._finish(error)

    def lose_later(self, error: Exception) -> None:
        self._fabric.loop.call_later(self._fabric.draw_delay(), self.lose, error, context=self._fabric.context)

    # asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._feed_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) has to be at least low ({low}), and that at least 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self._pipe_out.unread_bytes - _KERNEL_BUFFER_BYTES)

    def write(self, data: Buffer) -> None:
        if not data or self._closing or self.presence is not Presence.HERE:
            return
        if self._end_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        # Copied: like a kernel, the pipe holds the bytes after the caller has reused its buffer.
        self._pipe_out.send(bytes(data))
        self._pause_if_full()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._end_sent and not self._closing and self.presence is Presence.HERE:
            self._end_sent = True
            self._pipe_out.send(None)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.presence is not Presence.HERE:
            return
        while self._received:
            self._took(self._received.popleft() or b"")
        if not self._end_sent:
            self._end_sent = True
            self._pipe_out.send(None)
        if self.get_write_buffer_size() == 0:
            self._finish(None)

    def abort(self) -> None:
        if not self._lost and self.presence is Presence.HERE:
            self._pipe_out.drop()
            self._closing = True
            self._peer.lose_later(ConnectionResetError("the peer aborted the connection"))
            self._finish(None)

    # Inside.

    @property
    def _pipe_out(self) -> Pipe:
        assert self._out is not None, "the fabric attaches both pipes before anything else"
        return self._out

    @property
    def _peer(self) -> SimulatedTransport:
        return self._pipe_out.receiver

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        self._fabric.loop.call_soon(callback, *args, context=self._context)

    def _feed_soon(self) -> None:
        if not self._feeding and self._received and self._may_feed():
            self._feeding = True
            self._call(self._feed)

    def _may_feed(self) -> bool:
        return self._connected and self._reading and not self._closing

    def _feed(self) -> None:
        """Hand one piece to the protocol, as one recv() would."""
        self._feeding = False
        if self._closing or not self._reading or not self._received:
            return
        piece = self._received.popleft()
        try:
            if piece is None:
                self._feed_end()
            elif self._is_buffered:
                self._feed_buffered(cast(asyncio.BufferedProtocol, self._protocol), piece)
            else:
                self._took(piece)
                assert isinstance(self._protocol, asyncio.Protocol)
                self._protocol.data_received(piece)
        except Exception as error:  # noqa: BLE001 - asyncio's own rule: a protocol that fails loses its connection
            self._fail(error)
        if self._received:
            self._feed_soon()

    def _feed_end(self) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()

    def _feed_buffered(self, protocol: asyncio.BufferedProtocol, piece: bytes) -> None:
        buffer = memoryview(protocol.get_buffer(-1)).cast("B")
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        count = len(piece)
        if count > len(buffer):
            count = len(buffer)
            self._received.appendleft(piece[count:])
            piece = piece[:count]
        buffer[:count] = piece
        buffer.release()
        self._took(piece)
        protocol.buffer_updated(count)

    def _took(self, piece: bytes) -> None:
        peer = self._peer
        peer._pipe_out.unread_bytes -= len(piece)
        if peer._writing_paused or peer._closing:
            peer.taken()

    def _fail(self, error: Exception) -> None:
        self._fabric.loop.call_exception_handler(
            {
                "message": "Fatal error: protocol failed",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._peer.lose_later(ConnectionResetError("the peer failed"))
        self.lose(error)

    def _pause_if_full(self) -> None:
        if self._pipe_out.unread_bytes <= _KERNEL_BUFFER_BYTES:
            return
        if not self._writing_paused and self.get_write_buffer_size() > self._high and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _resume_writing(self) -> None:
        if not self._lost and self._protocol is not None:
            self._protocol.resume_writing()

    def _finish(self, error: Exception | None) -> None:
        if self._lost or self.presence is not Presence.HERE:
            return
        self._lost = True
        self._fabric.forget(self)
        if self._protocol is not None:
            self._call(self._protocol.connection_lost, error)
