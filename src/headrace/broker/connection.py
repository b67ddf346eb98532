"""One client's connection: bytes in, frames cut out, one request at a time handled, answers out in order.

What arrives is received straight into a buffer of ours (`BufferedProtocol`). Small frames share a chunk and are copied out
of it; a large frame gets a buffer of its own, which grows with what has really arrived, so that a peer cannot make us
allocate more than it sends. While a request is being handled at most one chunk more is read: a flood waits in the
kernel's buffers, and a client that does not read its answers is not served further ones.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.dispatch import NO_RESPONSE, Call, CloseConnection, understand
from headrace.errors import HeadraceError
from headrace.protocol.wire import MalformedMessage

if TYPE_CHECKING:
    from headrace.broker.acceptor import Acceptor

log = logging.getLogger("headrace.broker.connection")

CHUNK_BYTES = 64 * 1024
# How much of a large frame's announced size is set aside before any of it has come.
FRAME_FIRST_ALLOCATION_BYTES = 1024 * 1024
WRITE_BUFFER_HIGH_BYTES = 4 * 1024 * 1024
_LENGTH = struct.Struct(">i")


class Connection(asyncio.BufferedProtocol):
    """Reads frames, hands them to the broker's handlers one by one, writes the answers."""

    def __init__(self, acceptor: Acceptor, listener: str) -> None:
        self.acceptor = acceptor
        self.listener = listener
        self.peer_host = ""
        self.peer_port = 0
        self.last_progress = acceptor.now()
        self.has_been_valid = False
        self.close_reason: str | None = None
        self._transport: asyncio.Transport | None = None
        self._chunk = bytearray(CHUNK_BYTES)
        self._chunk_view = memoryview(self._chunk)
        self._filled = 0
        self._frame: bytearray | None = None  # a large frame under way
        self._frame_view: memoryview | None = None
        self._frame_size = 0
        self._frame_filled = 0
        self._frames: deque[memoryview] = deque()
        self._frames_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._handling = False
        self._reading_paused = False
        self._writing_paused = False
        self._held_bytes = 0

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        refusal = self.acceptor.admit(self)
        if refusal is not None:
            self.close(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._frames.clear()
        self._hold(-self._held_bytes)
        self.acceptor.release(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._chunk_view[self._filled :]
        if self._frame_filled == len(self._frame):
            self._grow_frame()
        assert self._frame_view is not None
        return self._frame_view[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_progress = self.acceptor.now()
        if self._frame is not None:
            self._frame_filled += nbytes
            refusal = self.acceptor.refuse_growth(self, self._frame_filled)
            if refusal is not None:
                self.close(refusal)
                return
            if self._frame_filled == self._frame_size:
                frame = self._frame_view
                assert frame is not None
                self._frame = self._frame_view = None
                self._push(frame)
        else:
            self._filled += nbytes
            self._cut_chunk()
        self._handle_next()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.last_progress = self.acceptor.now()
        self._handle_next()

    # --- cutting frames

    def _cut_chunk(self) -> None:
        """Take every whole frame out of the chunk; what is left is moved to its front, or begins a large frame."""
        start = 0
        while self._filled - start >= 4:
            size = _LENGTH.unpack_from(self._chunk, start)[0]
            refusal = self.acceptor.refuse_size(self, size)
            if refusal is not None:
                self.close(refusal)
                return
            end = start + 4 + size
            if end <= self._filled:
                # A copy, because the chunk is received into again while this frame is still being handled.
                # Writable, because the log patches offsets into batches in place.
                self._push(memoryview(bytearray(self._chunk_view[start + 4 : end])))
                start = end
                continue
            if size > CHUNK_BYTES - 4:
                self._begin_frame(size, start + 4)
                return
            break
        if start:
            rest = self._filled - start
            self._chunk[:rest] = self._chunk[start : self._filled]
            self._filled = rest

    def _begin_frame(self, size: int, start: int) -> None:
        arrived = self._filled - start
        self._frame = bytearray(min(size, FRAME_FIRST_ALLOCATION_BYTES))
        self._frame[:arrived] = self._chunk_view[start : self._filled]
        self._frame_view = memoryview(self._frame)
        self._frame_size, self._frame_filled, self._filled = size, arrived, 0

    def _grow_frame(self) -> None:
        assert self._frame is not None
        assert self._frame_view is not None
        grown = bytearray(min(self._frame_size, 2 * len(self._frame)))
        grown[: self._frame_filled] = self._frame_view[: self._frame_filled]
        self._frame, self._frame_view = grown, memoryview(grown)

    def _push(self, frame: memoryview) -> None:
        self._frames.append(frame)
        self._hold(len(frame))

    def _hold(self, nbytes: int) -> None:
        self._held_bytes += nbytes
        self.acceptor.hold(nbytes)

    # --- handling

    def _handle_next(self) -> None:
        """Handle the frames that are there, until one has to wait, the client stops reading, or none is left."""
        if not self.acceptor.is_open:
            return
        while self._frames and not self._handling and not self._writing_paused and self._transport is not None:
            frame = self._frames.popleft()
            self._handling = True
            try:
                call = understand(self, frame)
                self.has_been_valid = True
                result = call.run(self.acceptor.broker)
            except (MalformedMessage, CloseConnection) as error:
                self.close(str(error))
                return
            except HeadraceError as error:
                self._fail(error)
                return
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost one connection, not the broker
                self._fail(error)
                return
            if hasattr(result, "__await__"):
                self._task = asyncio.get_running_loop().create_task(self._finish_later(call, result, len(frame)))
            else:
                self._answer(call, result, len(frame))
        self._balance_reading()

    async def _finish_later(self, call: Call, result: Awaitable[Any], frame_bytes: int) -> None:
        try:
            response = await result
        except CloseConnection as error:
            self.close(str(error))
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        self._task = None
        self._answer(call, response, frame_bytes)
        self._handle_next()

    def _answer(self, call: Call, response: Any, frame_bytes: int) -> None:
        self._handling = False
        self._hold(-frame_bytes)
        if self._transport is None or response is NO_RESPONSE:
            return
        for part in call.encode(response):
            self._transport.write(part)
        self.last_progress = self.acceptor.now()

    def _fail(self, error: Exception) -> None:
        log.error("request of %s:%s failed; its connection is closed", self.peer_host, self.peer_port, exc_info=error)
        self.close(f"internal error: {error}")

    def _balance_reading(self) -> None:
        """Stop reading while frames wait or the broker holds too much already; go on when both are over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        should_pause = bool(self._frames) or self.acceptor.is_over_budget(self._held_bytes)
        if should_pause and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
            if not self._frames and not self._handling:
                self.acceptor.resume_later(self)
        elif not should_pause and self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def resume_if_possible(self) -> None:
        self._handle_next()

    @property
    def is_mid_frame(self) -> bool:
        return self._frame is not None or self._filled > 0

    @property
    def is_handling(self) -> bool:
        return self._handling

    @property
    def is_backed_up(self) -> bool:
        """Whether answers wait because the client does not read them."""
        return self._writing_paused

    def close(self, reason: str) -> None:
        """End the connection once what was written is sent. The reason is for our own log: Kafka sends none."""
        if self.close_reason is None:
            self.close_reason = reason
            log.debug("closing %s:%s: %s", self.peer_host, self.peer_port, reason)
        self._frames.clear()
        self._filled = 0
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once, unsent answers dropped."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._transport.abort()
