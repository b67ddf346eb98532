"""Bytes of a stream into frames: an int32 length, then that many bytes. No I/O: the caller receives into `buffer()`."""

from __future__ import annotations

import struct

from headrace.errors import HeadraceError

Frame = bytes | bytearray

_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = 4
SCRATCH_BYTES = 64 * 1024


class FrameTooLarge(HeadraceError):
    """A peer announced a frame that is larger than allowed, or of negative length: what follows cannot be trusted."""


class FrameReader:
    """Collects frames. Small ones are cut out of a scratch buffer, many per read; a large one gets a buffer of its own.

    The receiver asks for `buffer()`, receives into it, and tells `received(count)`, which returns the frames now whole.
    A large frame's bytes go from the socket straight into the frame that is handed out.
    """

    __slots__ = ("_end", "_filled", "_large", "_large_view", "_limit_bytes", "_scratch", "_start")

    def __init__(self, limit_bytes: int, scratch_bytes: int = SCRATCH_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._scratch = memoryview(bytearray(scratch_bytes))
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_view: memoryview | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go. Never empty."""
        if self._large_view is not None:
            return self._large_view[self._filled :]
        return self._scratch[self._end :]

    def received(self, count: int) -> list[Frame]:
        """Take note that `count` bytes were put into `buffer()`; the frames that are whole with them, in order."""
        frames: list[Frame] = []
        if self._large is not None:
            self._filled += count
            if self._filled < len(self._large):
                return frames
            frames.append(self._large)
            self._large = self._large_view = None
            return frames
        self._end += count
        while self._end - self._start >= _LENGTH_BYTES:
            length: int = _LENGTH.unpack_from(self._scratch, self._start)[0]
            if not 0 <= length <= self._limit_bytes:
                raise FrameTooLarge(f"a frame of {length} bytes was announced; at most {self._limit_bytes} are allowed")
            begin = self._start + _LENGTH_BYTES
            if self._end - begin < length:
                if length > len(self._scratch) - _LENGTH_BYTES:
                    self._begin_large(length, begin)
                break
            frames.append(bytes(self._scratch[begin : begin + length]))
            self._start = begin + length
        self._compact()
        return frames

    def _begin_large(self, length: int, begin: int) -> None:
        self._large = bytearray(length)
        self._large_view = memoryview(self._large)
        self._filled = self._end - begin
        self._large_view[: self._filled] = self._scratch[begin : self._end]
        self._start = self._end = 0

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            # The rest is the beginning of one frame that fits the scratch buffer once it lies at its front.
            left = bytes(self._scratch[self._start : self._end])
            self._scratch[: len(left)] = left
            self._start, self._end = 0, len(left)
