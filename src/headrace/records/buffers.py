"""Large buffers that are used again, because fresh memory costs more than what is put into it.

A page that the process touches for the first time takes the kernel longer to give than the page takes to fill, copy and
check together (docs/design/client-speed.md). So frames, encoded batches and decoded columns live in buffers that come
back by themselves: a bytearray of which somebody holds a view cannot be resized, which is how one that is free is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from io import BytesIO

POOLED_FROM_BYTES = 64 * 1024
"""Smaller ones come from memory that the allocator keeps anyway."""

_GRANULE_BYTES = 64 * 1024

_WASTE_MAX = 4
"""A buffer is not given to somebody who needs less than a quarter of it: the next one who needs all of it would have to
take fresh memory."""


class BufferPool:
    """At most so many buffers, of at most so many bytes together. Safe for several threads."""

    def __init__(self, bytes_max: int, buffers_max: int) -> None:
        self.bytes_max = bytes_max
        self.buffers_max = buffers_max
        self._buffers: deque[bytearray] = deque()

    @property
    def held_bytes(self) -> int:
        return sum(map(len, tuple(self._buffers)))

    def take(self, size: int) -> memoryview:
        """A writable view of that many bytes, whatever is in them. Its memory is used again when no view is left."""
        if size < POOLED_FROM_BYTES:
            return memoryview(bytearray(size))
        view = self.reuse(size)
        if view is not None:
            return view
        # Rounded up, so that the next one, of about this size, fits too.
        buffer = bytearray(-(-(size + size // 8) // _GRANULE_BYTES) * _GRANULE_BYTES)
        view = memoryview(buffer)[:size]
        if len(buffer) <= self.bytes_max // 2:
            self._keep(buffer)
        return view

    def reuse(self, size: int) -> memoryview | None:
        """Like `take`, but only from memory that is there already."""
        buffers = self._buffers
        for _ in range(len(buffers)):
            try:
                # Taken out while it is looked at: two threads never look at the same one.
                buffer = buffers.popleft()
            except IndexError:
                return None
            is_fit = size <= len(buffer) <= size * _WASTE_MAX
            view = memoryview(buffer)[:size] if is_fit and _is_free(buffer) else None
            buffers.append(buffer)
            if view is not None:
                return view
        return None

    def _keep(self, buffer: bytearray) -> None:
        self._buffers.append(buffer)
        while len(self._buffers) > self.buffers_max or self.held_bytes > self.bytes_max:
            # Only the pool forgets it: whoever has a view of it keeps it alive.
            self._buffers.popleft()


def _is_free(buffer: bytearray) -> bool:
    try:
        del buffer[-1:]
    except BufferError:
        return False
    # Back to its size; the memory was not given away for one byte.
    buffer.append(0)
    return True


class ScratchPool:
    """Streams to lay byte strings end to end in: what `b"".join` does, into memory that was used before."""

    def __init__(self, bytes_max: int, streams_max: int) -> None:
        self.bytes_max = bytes_max
        self.streams_max = streams_max
        self._streams: deque[BytesIO] = deque()

    def join(self, parts: Iterable[bytes], size: int) -> memoryview:
        """All parts, which have that many bytes together. The stream is used again when no view of it is left."""
        if size > self.bytes_max:
            return memoryview(b"".join(parts))
        for _ in range(len(self._streams)):
            try:
                stream = self._streams.popleft()
            except IndexError:
                break
            try:
                # Nothing is written, but it fails while somebody looks at the stream's bytes.
                stream.truncate()
            except BufferError:
                self._streams.append(stream)
                continue
            return self._fill(stream, parts, size)
        return self._fill(BytesIO(), parts, size)

    def _fill(self, stream: BytesIO, parts: Iterable[bytes], size: int) -> memoryview:
        # The position stays at the end: going back only now, what the last user left is written over.
        stream.seek(0)
        stream.writelines(parts)
        view = stream.getbuffer()[:size]
        stream.seek(0, 2)
        if len(self._streams) < self.streams_max:
            self._streams.append(stream)
        return view


SCRATCH = ScratchPool(8 * 1024 * 1024, 8)
"""Where the clients of this process put the bytes of records together before they encode them."""

SHARED = BufferPool(64 * 1024 * 1024, 64)
"""What the clients of this process use."""
