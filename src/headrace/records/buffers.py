"""Large buffers that are used again, because fresh memory costs more than what is put into it.

A page that the process touches for the first time takes the kernel longer to give than the page takes to fill, copy and
check together (docs/design/client-speed.md). So frames, encoded batches and decoded columns live in buffers that come
back by themselves: a bytearray of which somebody holds a view cannot be resized, which is how one that is free is told.
"""

from __future__ import annotations

from collections import deque

POOLED_FROM_BYTES = 64 * 1024
"""Smaller ones come from memory that the allocator keeps anyway."""

_GRANULE_BYTES = 64 * 1024


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
            view = memoryview(buffer)[:size] if len(buffer) >= size and _is_free(buffer) else None
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


SHARED = BufferPool(64 * 1024 * 1024, 32)
"""What the clients of this process use."""
