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

_WASTE_MAX = 4
"""A buffer is not given to somebody who needs less than a quarter of it: the next one who needs all of it would have to
take fresh memory."""


UNUSED_S = 10.0
"""A buffer that nobody took for so long is given back to the system, at the latest after twice the time."""

_CLASSES_FIT = 3
"""So many powers of two, from that of the size wanted on, have buffers that are not too large."""


class _Kept:
    """A buffer of a pool, and the period in which it was last taken."""

    __slots__ = ("buffer", "period")

    def __init__(self, buffer: bytearray, period: int) -> None:
        self.buffer = buffer
        self.period = period


class BufferPool:
    """At most so many buffers, of at most so many bytes together. Safe for several threads."""

    def __init__(self, bytes_max: int, buffers_max: int) -> None:
        self.bytes_max = bytes_max
        self.buffers_max = buffers_max
        # By size, to the next power of two; those taken last at the end. They are taken first again: the processor's
        # caches know them best, and what is not needed comes to lie where nobody takes it, until it is given back.
        self._kept: tuple[deque[_Kept], ...] = tuple(deque() for _ in range(bytes_max.bit_length() + _CLASSES_FIT + 1))
        self._period = 0
        self._period_began = 0.0

    @property
    def held_bytes(self) -> int:
        return sum(len(kept.buffer) for same in self._kept for kept in tuple(same))

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
            self._kept[len(buffer).bit_length()].append(_Kept(buffer, self._period))
            self.shrink(self.bytes_max)
        return view

    def reuse(self, size: int) -> memoryview | None:
        """Like `take`, but only from memory that is there already."""
        smallest = size.bit_length()
        for same in self._kept[smallest : smallest + _CLASSES_FIT]:
            view = None
            passed: list[_Kept] = []
            while view is None:
                try:
                    # Taken out while it is looked at: two threads never look at the same one.
                    kept = same.pop()
                except IndexError:
                    break
                if size <= len(kept.buffer) <= size * _WASTE_MAX and _is_free(kept.buffer):
                    view = memoryview(kept.buffer)[:size]
                    kept.period = self._period
                    passed.insert(0, kept)
                else:
                    passed.append(kept)
            same.extend(reversed(passed))
            if view is not None:
                return view
        return None

    def trim(self, now: float) -> None:
        """Give back what was not used for a while, if it is time to look. `now` is a monotonic clock's."""
        if 0 <= now - self._period_began < UNUSED_S:
            return
        self._period_began = now
        self._period += 1
        for same in self._kept:
            for _ in range(len(same)):
                try:
                    kept = same.popleft()
                except IndexError:
                    break
                if not _is_free(kept.buffer):
                    kept.period = self._period
                if kept.period >= self._period - 1:
                    same.append(kept)

    def shrink(self, bytes_max: int) -> None:
        """Keep no more than that, and no more than the pool may: what was not taken lately goes first."""
        while sum(map(len, self._kept)) > self.buffers_max or self.held_bytes > bytes_max:
            oldest = min((same for same in self._kept if same), key=_last_period, default=None)
            if oldest is None:
                return
            try:
                # Only the pool forgets it: whoever has a view of it keeps it alive.
                oldest.popleft()
            except IndexError:
                continue


def _last_period(same: deque[_Kept]) -> int:
    try:
        return same[0].period
    except IndexError:
        # Another thread looks at it.
        return 1 << 62


def _is_free(buffer: bytearray) -> bool:
    try:
        del buffer[-1:]
    except BufferError:
        return False
    # Back to its size; the memory was not given away for one byte.
    buffer.append(0)
    return True


SHARED = BufferPool(64 * 1024 * 1024, 64)
"""What the clients of this process use."""

_ZEROS_KEPT_BYTES_MAX = 4 * 1024 * 1024
_zeros = b""


def zeros(size: int) -> memoryview:
    """So many zero bytes, to be read only: columns that are all zero share them instead of being filled."""
    global _zeros
    kept = _zeros
    if size > len(kept):
        # Rounded up to a power of two, so that a little more next time needs no new ones.
        kept = bytes(1 << (size - 1).bit_length())
        if len(kept) <= _ZEROS_KEPT_BYTES_MAX:
            _zeros = kept
    return memoryview(kept)[:size]
