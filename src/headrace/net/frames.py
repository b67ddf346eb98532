"""Cutting frames out of a stream of bytes, received straight into buffers of ours.

Small frames share a chunk and are copied out of it, some at a time: as objects they take many times the memory that
they took as bytes. A large frame begins in the chunk and gets a buffer of its own when that is full, which grows with
what has really arrived, so that a peer cannot make us allocate more than it sends; that buffer is used again for the
next one: when its user gives it back (`recycle`), or, with a pool, when nobody looks at it any more. One that grows
past a few megabytes moves once, into a mapping of its whole size: the system gives that its memory page by page, as it
is filled, where a buffer that grew on would be zeroed and copied again and again.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.records.buffers import BufferPool

CHUNK_BYTES = 16 * 1024
# What a large frame is given first, when the chunk is full of it.
FIRST_ALLOCATION_BYTES = 64 * 1024
GROWTH_BYTES_MAX = 8 * 1024 * 1024
SPARE_BYTES_MAX = 4 * 1024 * 1024
# How much is read at a time, so that the others who share the thread have their turn.
READ_BYTES_MAX = 1024 * 1024
_LENGTH = struct.Struct(">i")
LENGTH_BYTES = _LENGTH.size


class FrameRefusedError(HeadraceError):
    """A frame that must not be read: its size is wrong, or too much of it has come. What follows cannot be trusted."""


def up_to(limit_bytes: int) -> Callable[[int], None]:
    """A check of announced sizes: anything from nothing to the limit."""

    def check(size: int) -> None:
        if not 0 <= size <= limit_bytes:
            raise FrameRefusedError(f"a frame of {size} bytes was announced; at most {limit_bytes} are allowed")

    return check


def _any_growth(arrived: int) -> None:
    """For a reader that trusts its peer once the size is announced."""


class Spares:
    """How much memory readers may keep for the next frames, all together."""

    __slots__ = ("bytes_max", "kept_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.kept_bytes = 0

    def change(self, nbytes: int) -> bool:
        """Keep so much more (or, negative, less); False if that is too much."""
        if nbytes > 0 and self.kept_bytes + nbytes > self.bytes_max:
            return False
        self.kept_bytes += nbytes
        return True


class FrameReader:
    """Whoever receives asks for `buffer()`, fills it, tells how much was `received`, and takes the frames.

    `check_size(announced)` and `check_growth(arrived)` raise `FrameRefusedError` where a frame is too large.
    """

    __slots__ = (
        "_check_growth",
        "_check_size",
        "_checked_size",
        "_filled",
        "_frame_filled",
        "_frame_size",
        "_frame_view",
        "_frames_max",
        "_is_mapped",
        "_largest",
        "_pool",
        "_spare",
        "_spares",
        "chunk",
        "chunk_view",
        "is_cut_short",
    )

    def __init__(
        self,
        check_size: Callable[[int], None],
        check_growth: Callable[[int], None] = _any_growth,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        pool: BufferPool | None = None,
        spares: Spares | None = None,
        frames_max: int | None = None,
    ) -> None:
        """With `frames_max` no more are cut at a time: `more()` gives the next ones, before anything else is read."""
        self._check_size = check_size
        self._check_growth = check_growth
        self._checked_size = 0  # of the last frame that was alone: most are followed by others of their size
        self.chunk = bytearray(chunk_bytes)
        self.chunk_view = memoryview(self.chunk)
        self._filled = 0
        self._frame_view: memoryview | None = None  # a large frame under way
        self._frame_size = 0
        self._frame_filled = 0
        self._is_mapped = False
        self._spare: bytearray | None = None
        self._spares = spares or Spares(SPARE_BYTES_MAX)
        self._pool = pool
        self._frames_max = frames_max
        #: Whether there may be more whole frames than were given.
        self.is_cut_short = False
        self._largest = FIRST_ALLOCATION_BYTES  # what a frame may be given at once: as much as one really had

    @property
    def is_mid_frame(self) -> bool:
        return self._frame_view is not None or self._filled > 0

    @property
    def arrived_bytes(self) -> int:
        """How much has come of the frame under way."""
        return self._filled if self._frame_view is None else self._frame_filled

    @property
    def allocated_bytes(self) -> int:
        """What a large frame under way has been given, or is about to be if it is read on; 0 when there is none."""
        view = self._frame_view
        if view is None:
            return 0
        if self._is_mapped:
            return self._frame_filled
        if self._frame_filled < len(view):
            return len(view)
        size = self._grown_bytes(len(view))
        return self._frame_filled if self._is_to_be_mapped(size) else size

    @property
    def frame_bytes(self) -> int:
        """What was announced of a large frame under way; 0 when there is none."""
        return 0 if self._frame_view is None else self._frame_size

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        view = self._frame_view
        if view is None:
            filled = self._filled
            return self.chunk_view[filled:] if filled else self.chunk_view
        if self._frame_filled == len(view):
            view = self._grow(view)
        # A client reads its answers for itself alone.
        return view[self._frame_filled :] if self._pool is not None else view[self._frame_filled :][:READ_BYTES_MAX]

    def received(self, nbytes: int) -> list[memoryview]:
        """Note that so many bytes came; the frames that are whole now, without their lengths."""
        view = self._frame_view
        if view is None:
            self._filled += nbytes
            return self._cut()
        self._frame_filled += nbytes
        self._check_growth(self._frame_filled)
        if self._frame_filled < self._frame_size:
            return []
        self._frame_view = None
        self._largest = max(self._largest, self._frame_size)
        return [view]

    def more(self) -> list[memoryview]:
        """The next frames of those that have come whole; none when all of them have been given."""
        return self._cut() if self.is_cut_short else []

    def is_only_frame(self, nbytes: int) -> bool:
        """Whether these bytes are one frame, which lies at the front of the chunk until the next `buffer()`.

        False when they are anything else, or are refused. Whoever does not take the frame calls `received`.
        """
        if self._filled or self._frame_view is not None or nbytes <= LENGTH_BYTES:
            return False
        size = nbytes - LENGTH_BYTES
        if _LENGTH.unpack_from(self.chunk)[0] != size:
            return False
        if size != self._checked_size:
            try:
                self._check_size(size)
            except FrameRefusedError:
                return False
            self._checked_size = size
        return True

    def recycle(self, frame: memoryview) -> None:
        """The frame has been handled, and nobody keeps a view of it: its buffer may be filled again."""
        base = frame.obj
        if isinstance(base, bytearray) and CHUNK_BYTES < len(base) <= SPARE_BYTES_MAX:
            kept = 0 if self._spare is None else len(self._spare)
            if self._spares.change(len(base) - kept):
                self._spare = base

    def drop_spare(self) -> None:
        """Give back the memory that is kept for the next large frame."""
        self._take_spare()

    def clear(self) -> None:
        """Forget what has come."""
        self._filled = 0
        self._frame_view = None
        self.is_cut_short = False
        self._take_spare()

    def _take_spare(self) -> bytearray | None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._spares.change(-len(spare))
        return spare

    def _cut(self) -> list[memoryview]:
        """Take whole frames out of the chunk; what is left goes to its front, or begins a large frame."""
        frames: list[memoryview] = []
        start = 0
        while self._filled - start >= 4 and len(frames) != self._frames_max:
            size = _LENGTH.unpack_from(self.chunk, start)[0]
            self._check_size(size)
            end = start + 4 + size
            if end <= self._filled:
                # A copy, because the chunk is filled again while the frame is still being handled; a writable one,
                # because the log patches offsets into batches in place.
                frames.append(memoryview(bytearray(self.chunk_view[start + 4 : end])))
                start = end
            elif size > len(self.chunk) - 4:
                self.is_cut_short = False
                self._begin(size, start + 4)
                return frames
            else:
                break
        self.is_cut_short = len(frames) == self._frames_max
        if start:
            rest = self._filled - start
            self.chunk[:rest] = self.chunk[start : self._filled]
            self._filled = rest
        return frames

    def _begin(self, size: int, start: int) -> None:
        """A frame that does not fit the chunk: its bytes go into its own buffer, as soon as the chunk is full of it."""
        spare = self._take_spare()
        arrived = self._filled - start
        if self._pool is not None:
            view = self._pool.reuse(size) or self._pool.take(min(size, self._largest))
        elif spare is not None and len(spare) >= size:
            view = memoryview(spare)[:size]
        else:
            # Never to its end, since the chunk is used again.
            view = self.chunk_view[: size - 1]
        view[:arrived] = self.chunk_view[start : self._filled]
        self._is_mapped = False
        self._frame_view, self._frame_size, self._frame_filled, self._filled = view, size, arrived, 0

    def _grown_bytes(self, size: int) -> int:
        grown = max(size + min(size, GROWTH_BYTES_MAX), FIRST_ALLOCATION_BYTES)
        return min(self._frame_size, grown)

    def _is_to_be_mapped(self, size: int) -> bool:
        return self._pool is None and size > SPARE_BYTES_MAX

    def _grow(self, view: memoryview) -> memoryview:
        size = self._grown_bytes(len(view))
        mapped = self._map() if self._is_to_be_mapped(size) else None
        grown = mapped or self._allocate(size)
        self._is_mapped = mapped is not None
        grown[: self._frame_filled] = view[: self._frame_filled]
        self._frame_view = grown
        return grown

    def _allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size)) if self._pool is None else self._pool.take(size)

    def _map(self) -> memoryview | None:
        """Room for the whole frame under way, none of which is taken before it is written to."""
        try:
            return memoryview(mmap.mmap(-1, self._frame_size))
        except OSError:  # there may be a bound on addresses (ulimit -v): it grows as smaller ones do
            return None
