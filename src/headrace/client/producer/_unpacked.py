"""Values as the caller gave them, in a list: they are read there when their batch is encoded, and copied only once.

Laid end to end when they are given, they would need as much fresh memory as there is under way; read from the list,
they go straight into the batch, and its memory is used again as soon as the batch is acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload


class Same(Sequence[int]):
    """One number, so many times."""

    __slots__ = ("_count", "_number")

    def __init__(self, number: int, count: int) -> None:
        self._number = number
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        places = range(self._count)[index]
        return self._number if isinstance(places, int) else Same(self._number, len(places))


@dataclass(slots=True)
class Unpacked:
    """Neighbouring rows of a list that is ours: values without keys and headers, all at one time."""

    source: list[bytes]
    lengths: memoryview
    timestamp_ms: int
    start: int = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def timestamps(self) -> Sequence[int]:
        return Same(self.timestamp_ms, len(self))

    def rows(self, start: int, end: int) -> Unpacked:
        """Some of them; nothing is copied."""
        return Unpacked(self.source, self.lengths[start:end], self.timestamp_ms, self.start + start)
