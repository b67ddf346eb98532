"""One client's connection: frames in, one request at a time handled, answers out in order.

While a request is being handled no more than a chunk or a frame is read on: a flood waits in the kernel's buffers. A client
that does not read its answers is not served further ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.dispatch import NO_RESPONSE, Call, CloseConnection, understand
from headrace.net.frames import FrameReader, FrameRefused
from headrace.net.outbox import Outbox, Part
from headrace.protocol.wire import MalformedMessage

if TYPE_CHECKING:
    from headrace.broker.acceptor import Acceptor

log = logging.getLogger("headrace.broker.connection")


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
        self._outbox: Outbox | None = None
        self._reader = FrameReader(acceptor.check_size, self._check_growth)
        self._frames: deque[memoryview] = deque()
        self._task: asyncio.Task[None] | None = None
        self._handling: memoryview | None = None
        self._reading_paused = False
        self._held_bytes = 0

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self._transport, self.acceptor.broker.runtime.offload, self._fail)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        refusal = self.acceptor.admit(self)
        if refusal is not None:
            self.close(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        if self._outbox is not None:
            self._outbox.clear()
        self._frames.clear()
        self._hold(-self._held_bytes)
        self.acceptor.release(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_progress = self.acceptor.now()
        try:
            frames = self._reader.received(nbytes)
        except FrameRefused as refused:
            self.close(str(refused))
            return
        for frame in frames:
            self._frames.append(frame)
            self._hold(len(frame))
        self._handle_next()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._outbox is not None
        self._outbox.pause()

    def resume_writing(self) -> None:
        assert self._outbox is not None
        self.last_progress = self.acceptor.now()
        self._outbox.resume()
        self._handle_next()

    # --- handling

    def _handle_next(self) -> None:
        """Handle the frames that are there, until one has to wait, the client stops reading, or none is left."""
        while self._frames and self._handling is None and self._may_handle():
            frame = self._handling = self._frames.popleft()
            try:
                call = understand(self, frame)
                self.has_been_valid = True
                result = call.run(self.acceptor.broker)
            except (MalformedMessage, CloseConnection) as error:
                self.close(str(error))
                return
            except Exception as error:  # noqa: BLE001 - a defect of ours must cost one connection, not the broker
                self._fail(error)
                return
            if hasattr(result, "__await__"):
                self._task = asyncio.get_running_loop().create_task(self._finish_later(call, result))
            else:
                self._answer(call, result)
        self._balance_reading()

    def _may_handle(self) -> bool:
        return (
            self.acceptor.is_open and self._outbox is not None and self._outbox.is_empty and self._transport is not None
        )

    async def _finish_later(self, call: Call, result: Awaitable[Any]) -> None:
        try:
            response = await result
        except CloseConnection as error:
            self.close(str(error))
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        self._task = None
        self._answer(call, response)
        self._handle_next()

    def _answer(self, call: Call, response: Any) -> None:
        frame, self._handling = self._handling, None
        if frame is not None:
            self._hold(-len(frame))
        if self._outbox is not None and self._transport is not None and response is not NO_RESPONSE:
            parts = call.encode(response)
            self._outbox.send(cast("list[Part]", parts))
        if frame is not None:
            self._reader.recycle(frame)
        self.last_progress = self.acceptor.now()

    def _fail(self, error: BaseException) -> None:
        log.error("a request of %s:%s failed; its connection is closed", self.peer_host, self.peer_port, exc_info=error)
        self.abort(f"internal error: {error}")

    # --- holding back

    def _hold(self, nbytes: int) -> None:
        self._held_bytes += nbytes
        self.acceptor.hold(nbytes)

    def _check_growth(self, arrived: int) -> None:
        if not self.has_been_valid:
            self.acceptor.check_first_frame(arrived)

    def _balance_reading(self) -> None:
        """Stop reading while frames wait or the broker holds too much already; go on when both are over."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        over_budget = self.acceptor.is_over_budget
        should_pause = bool(self._frames) or over_budget
        if should_pause and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        elif not should_pause and self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()
        if over_budget:
            self.acceptor.resume_later(self)

    def resume(self) -> None:
        """Go on after the broker became ready, or has room again."""
        self._handle_next()

    # --- state, for the acceptor's sweep

    @property
    def is_mid_frame(self) -> bool:
        return self._reader.is_mid_frame

    @property
    def is_handling(self) -> bool:
        return self._handling is not None

    @property
    def is_backed_up(self) -> bool:
        """Whether answers wait because the client does not read them."""
        return self._outbox is not None and not self._outbox.is_empty

    # --- ending

    def close(self, reason: str) -> None:
        """End the connection once what was written is sent. The reason is for our own log: Kafka sends none."""
        if self.close_reason is None:
            self.close_reason = reason
            log.debug("closing %s:%s: %s", self.peer_host, self.peer_port, reason)
        self._frames.clear()
        self._reader.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once, unsent answers dropped."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._transport.abort()
