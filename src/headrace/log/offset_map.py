"""The newest offset of each key in a log's uncompacted part, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

ENTRY_BYTES = 192
"""What one entry takes at most: a key of up to 32 bytes, an offset, and its share of a table that has just grown."""

_DIGEST_BYTES = 32


class OffsetMap:
    """Keys shorter than 32 bytes stand for themselves, longer ones for a 32-byte digest that nobody can forge.

    So a key is never taken for another one, and nothing is dropped for a newer value that is not there.
    """

    __slots__ = ("_capacity", "_offsets", "latest")

    def __init__(self, memory_bytes: int, load_factor: float = 1.0) -> None:
        self._capacity = max(1, int(memory_bytes * load_factor) // ENTRY_BYTES)
        self._offsets: dict[bytes | None, int] = {}
        self.latest = -1
        """Everything up to this offset is in the map; -1 before the first batch."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def utilization(self) -> float:
        return len(self._offsets) / self._capacity

    def put(self, keys: Sequence[bytes | None], offsets: Sequence[int], *, force: bool = False) -> bool:
        """Take in records, in the order of their offsets; False (and nothing is changed) when there is no room.

        `force` is for the very first batch, so that each compaction gets a step further. Null keys are passed over.
        """
        names = names_of(keys)
        known = self._offsets
        if not force and len(known) + len(names) > self._capacity:
            added = sum(name not in known for name in set(names))
            if len(known) + added > self._capacity:
                return False
        known.update(zip(names, offsets))
        known.pop(None, None)
        return True

    def rows_to_keep(self, keys: Sequence[bytes | None], offsets: Sequence[int]) -> list[bool]:
        """For each record, whether it is the newest of its key as far as is known; False where the key is null."""
        newest = self._offsets.get
        return [name is not None and offset >= newest(name, -1) for name, offset in zip(names_of(keys), offsets)]


def names_of(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """What stands for each key."""
    if max(map(_length, keys), default=0) < _DIGEST_BYTES:
        return keys
    return [
        key if key is None or len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        for key in keys
    ]


def _length(key: bytes | None) -> int:
    return 0 if key is None else len(key)
