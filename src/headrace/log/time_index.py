"""The sparse index from times to offsets: Kafka's `.timeindex`, kept as two arrays, written when a segment ends."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from operator import le, lt

from headrace.log.offset_index import RELATIVE_OFFSET_MAX, DamagedIndexError

_ENTRY = struct.Struct(">qi")
ENTRY_BYTES = _ENTRY.size
NO_TIMESTAMP = -1


class TimeIndex:
    """(greatest timestamp so far, last offset of the batch that has it); timestamps strictly increase.

    Readers may look while one thread appends.
    """

    __slots__ = ("_base", "_offsets", "_timestamps")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def memory_bytes(self) -> int:
        return ENTRY_BYTES * len(self._timestamps)

    def append(self, timestamp_ms: int, offset: int) -> bool:
        """Add an entry unless its timestamp is not greater than the last one's; whether it was added."""
        if timestamp_ms <= (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            return False
        relative = offset - self._base
        if not 0 <= relative <= RELATIVE_OFFSET_MAX:
            return False  # see the offset index
        # The offset first: a reader that finds the timestamp must find its offset too.
        self._offsets.append(relative)
        self._timestamps.append(timestamp_ms)
        return True

    def lookup(self, timestamp_ms: int) -> int:
        """The offset of the last entry whose timestamp is not greater; the base offset when there is none."""
        at = bisect_right(self._timestamps, timestamp_ms) - 1
        return self._base + self._offsets[at] if at >= 0 else self._base

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        count = len(self._timestamps)
        if not count:
            return NO_TIMESTAMP, self._base
        return self._timestamps[count - 1], self._base + self._offsets[count - 1]

    def entries(self) -> list[tuple[int, int]]:
        return [(timestamp, self._base + offset) for timestamp, offset in zip(self._timestamps, self._offsets)]

    def up_to(self, offset: int) -> TimeIndex:
        """Another index, without the entries that name a batch ending at or after `offset`; this one may be in use."""
        keep = bisect_right(self._offsets, offset - self._base - 1)
        index = TimeIndex(self._base)
        index._timestamps, index._offsets = self._timestamps[:keep], self._offsets[:keep]
        return index

    def to_bytes(self) -> bytes:
        return b"".join(map(_ENTRY.pack, self._timestamps, self._offsets))

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Read a file of this or of Apache Kafka's making; zeros after the last entry (preallocation) are fine."""
        if len(data) % ENTRY_BYTES:
            raise DamagedIndexError(f"{len(data)} bytes are no whole number of {ENTRY_BYTES}-byte entries")
        count = len(data) // ENTRY_BYTES
        zero = bytes(ENTRY_BYTES)
        while count and data[(count - 1) * ENTRY_BYTES : count * ENTRY_BYTES] == zero:
            count -= 1
        index = cls(base_offset)
        for timestamp, offset in _ENTRY.iter_unpack(data[: count * ENTRY_BYTES]):
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
        times, offsets = index._timestamps, index._offsets
        if not all(map(lt, times, times[1:])) or not all(map(le, offsets, offsets[1:])):
            raise DamagedIndexError("its entries are not in increasing order")
        if count and (times[0] < 0 or offsets[0] < 0):
            raise DamagedIndexError("its first entry is negative")
        return index
