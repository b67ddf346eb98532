"""The sparse index from offsets to positions: Kafka's `.index`, kept as two arrays, written when a segment ends."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import islice
from operator import lt

ENTRY_BYTES = 8
RELATIVE_OFFSET_MAX = 2**31 - 1


class DamagedIndexError(ValueError):
    """The bytes are not an index of this segment: it has to be rebuilt from the log."""


class OffsetIndex:
    """(last offset of a batch, that batch's position), both increasing. Readers may look while one thread appends."""

    __slots__ = ("_base", "_offsets", "_positions")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory_bytes(self) -> int:
        return 8 * len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        relative = offset - self._base
        if not 0 <= relative <= RELATIVE_OFFSET_MAX:
            # A batch's offset is not under its checksum. What is too far from the segment's is found by a scan.
            return
        # The position first: a reader that finds the offset must find its position too.
        self._positions.append(position)
        self._offsets.append(relative)

    def lookup(self, offset: int) -> int:
        """A position from which a scan finds `offset`: that of the last entry at or before it, else 0."""
        at = bisect_right(self._offsets, offset - self._base) - 1
        return self._positions[at] if at >= 0 else 0

    def position_before(self, position: int) -> int:
        """Where the last batch begins that is noted here and does not begin after `position`, else 0."""
        at = bisect_right(self._positions, position) - 1
        return self._positions[at] if at >= 0 else 0

    def upper_bound(self, position: int) -> int | None:
        """The offset of the first entry whose position is at or after `position`; None when there is none."""
        at = bisect_right(self._positions, position - 1)
        return self._base + self._offsets[at] if at < len(self._offsets) else None

    def last(self) -> tuple[int, int]:
        """(offset, position) of the last entry; (base offset, 0) when there is none."""
        count = len(self._offsets)
        if not count:
            return self._base, 0
        return self._base + self._offsets[count - 1], self._positions[count - 1]

    def entries(self) -> list[tuple[int, int]]:
        return [(self._base + offset, position) for offset, position in zip(self._offsets, self._positions)]

    def up_to(self, offset: int) -> OffsetIndex:
        """Another index, without the entries of batches that end at or after `offset`; this one may be in use."""
        keep = bisect_right(self._offsets, offset - self._base - 1)
        index = OffsetIndex(self._base)
        index._offsets, index._positions = self._offsets[:keep], self._positions[:keep]
        return index

    def to_bytes(self) -> bytes:
        packed = array("i", bytes(ENTRY_BYTES * len(self._offsets)))
        packed[0::2] = self._offsets
        packed[1::2] = self._positions
        packed.byteswap()
        return packed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, log_bytes: int) -> OffsetIndex:
        """Read a file of this or of Apache Kafka's making; zeros after the last entry (preallocation) are fine."""
        if len(data) % ENTRY_BYTES:
            raise DamagedIndexError(f"{len(data)} bytes are no whole number of {ENTRY_BYTES}-byte entries")
        packed = array("i")
        packed.frombytes(data)
        packed.byteswap()
        index = cls(base_offset)
        offsets, positions = packed[0::2], packed[1::2]
        count = _used(offsets, positions)
        del offsets[count:]
        del positions[count:]
        if count and (positions[-1] >= log_bytes or positions[0] <= 0 or offsets[0] < 0):
            raise DamagedIndexError(f"an entry points at byte {positions[-1]} of a log of {log_bytes} bytes")
        if not _increasing(offsets) or not _increasing(positions):
            raise DamagedIndexError("its entries are not in increasing order")
        index._offsets, index._positions = offsets, positions
        return index


def _increasing(numbers: array[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _used(offsets: array[int], positions: array[int]) -> int:
    count = len(offsets)
    # A position of 0 is never indexed (the first batch has no entry), so zeros are room that was never used.
    while count and positions[count - 1] == 0 and offsets[count - 1] == 0:
        count -= 1
    return count
