"""Sending answers made of parts, some of which are still on disk, no faster than the peer takes them.

A part on disk (`FilePart`) goes from the file to the socket within the kernel where that is possible (no TLS between
them). Otherwise, and for what does not fit into the socket at once, it is read piece by piece while the peer reads, so
that a fetch of megabytes needs no memory of that size.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from headrace.runtime import Buffer

PIECE_BYTES = 256 * 1024
# How much the kernel is asked to send at once: enough that the calls do not count, little enough for the loop's others.
KERNEL_BYTES = 1024 * 1024
# What is read when the socket has no room, so that the transport waits for room and tells us when there is some.
WAITING_BYTES = 16 * 1024
# Buffers that no outbox uses at the moment. A new one each time would have to be zeroed for every piece.
SPARE_BUFFERS = 8
_spare: list[bytearray] = []


class SendableFile(Protocol):
    """A file that can be read with and without waiting for the disk."""

    def read(self, position: int, length: int) -> Buffer: ...
    def read_into_nowait(self, position: int, buffer: memoryview) -> int | None: ...
    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None: ...


class FilePart:
    """`length` bytes of a file, to be sent as they are."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: SendableFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length


Part: TypeAlias = Buffer | FilePart
Offload: TypeAlias = Callable[[Callable[[int, int], Buffer], int, int], "asyncio.Future[Buffer]"]


class Outbox:
    """The parts that wait to be sent on one transport. Call `resume` when the transport's own buffer has emptied.

    `offload` reads off the loop what is not in memory. When the last part has gone after such a read, `drained` is
    called, since nobody else would notice. `failed` is told whatever keeps a part from being sent, upon which the
    connection has to be closed, since half an answer cannot be taken back. Nothing is raised: most of the work is done
    in callbacks of the loop, where nobody would hear it.
    """

    __slots__ = (
        "_buffer",
        "_drained",
        "_failed",
        "_finishing",
        "_offload",
        "_parts",
        "_paused",
        "_reading",
        "_socket",
        "_transport",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        offload: Offload,
        drained: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._offload = offload
        self._drained = drained
        self._failed = failed
        self._parts: deque[Part] = deque()
        self._buffer: bytearray | None = None
        self._paused = False
        self._reading = False
        self._finishing = False
        is_plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = transport.get_extra_info("socket") if is_plain else None
        # Any byte that the kernel does not take at once pauses us: what waits stays here, in parts, not in a copy.
        transport.set_write_buffer_limits(high=0)

    @property
    def is_empty(self) -> bool:
        """Whether everything has gone to the kernel."""
        return not self._parts and not self._paused

    @property
    def waits_for_peer(self) -> bool:
        """Whether the peer has to read before more can be sent. Otherwise it is the disk that is waited for, if any."""
        return self._paused

    @property
    def held_bytes(self) -> int:
        """The memory of what waits here and in the transport. What is still on disk takes none."""
        held = sum(len(part) for part in self._parts if not isinstance(part, FilePart))
        own = 0 if self._buffer is None else len(self._buffer)
        return held + own + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Part]) -> None:
        self._parts.extend(parts)
        self._pump()

    def send_one(self, part: Buffer) -> bool:
        """As `send`, of one part that is in memory, while the transport is open; whether nothing waits afterwards."""
        if self._parts or self._paused or self._reading:
            self.send((part,))
        else:
            try:
                self._transport.write(part)
            except Exception as error:  # noqa: BLE001 - as in `_pump`
                self._give_up(error)
        return not self._paused and not self._parts

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()

    def clear(self) -> None:
        self._parts.clear()

    def finish(self) -> None:
        """The transport is about to be closed by its owner: what waits is still sent, if the peer takes it."""
        self._finishing = True

    def _pump(self) -> None:
        try:
            self._send_parts()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of this answer will never come
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._parts.clear()
        self._failed(error)

    def _send_parts(self) -> None:
        parts, transport = self._parts, self._transport
        while parts and not self._paused and not self._reading:
            if transport.is_closing() and not self._finishing:
                parts.clear()  # the peer is gone: nothing is read for it any more
                break
            part = parts[0]
            if not isinstance(part, FilePart):
                parts.popleft()
                transport.write(part)
                continue
            sent = self._send_in_kernel(part)
            if sent:
                self._advance(part, sent)
                continue
            length = min(PIECE_BYTES if sent is None else WAITING_BYTES, part.length)
            # Thousands may read nothing for a while: what waits for one of them is no larger than it needs to be.
            piece = self._take_buffer()[:length] if sent is None else memoryview(bytearray(length))
            count = part.file.read_into_nowait(part.position, piece)
            if count is None:
                self._read_off_the_loop(part)
                return
            self._send_piece(part, piece[:count])
        if not self._paused:
            self._give_back()

    def _send_in_kernel(self, part: FilePart) -> int | None:
        """How much of a part went from the file to the socket: 0 if there is no room, None if it has to be read."""
        if self._socket is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return None
        number = self._socket.fileno()
        if number < 0:
            return None
        return part.file.send_nowait(part.position, min(KERNEL_BYTES, part.length), number)

    def _read_off_the_loop(self, part: FilePart) -> None:
        self._reading = True
        length = min(PIECE_BYTES, part.length)
        self._offload(part.file.read, part.position, length).add_done_callback(self._read)

    def _take_buffer(self) -> memoryview:
        if self._buffer is None:
            try:
                self._buffer = _spare.pop()
            except IndexError:  # none left; asking first would be a race with another broker's thread
                self._buffer = bytearray(PIECE_BYTES)
        return memoryview(self._buffer)

    def _give_back(self) -> None:
        """Let others use the buffer. Not while paused: the transport may hold on to what it could not send of it."""
        if self._buffer is not None:
            if len(_spare) < SPARE_BUFFERS:
                _spare.append(self._buffer)
            self._buffer = None

    def _send_piece(self, part: FilePart, piece: Buffer) -> None:
        if len(piece) == 0:
            self._give_up(EOFError(f"a file ended {part.length} bytes too early"))
            return
        self._advance(part, len(piece))
        self._transport.write(piece)

    def _advance(self, part: FilePart, count: int) -> None:
        part.position += count
        part.length -= count
        if part.length == 0:
            self._parts.popleft()

    def _read(self, done: asyncio.Future[Buffer]) -> None:
        self._reading = False
        if not self._parts:
            return
        error = asyncio.CancelledError("a read was given up") if done.cancelled() else done.exception()
        if error is not None:
            self._give_up(error)
            return
        part = self._parts[0]
        assert isinstance(part, FilePart)
        self._send_piece(part, done.result())
        self._pump()
        if self.is_empty:
            self._drained()
