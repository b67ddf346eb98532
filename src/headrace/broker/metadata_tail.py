"""The last of the metadata log, in the memory of the controller that appends to it: what other brokers fetch.

Only what the store has acknowledged comes here. So whoever serves it after another was elected tells old things, never
wrong ones: they are a part of the log for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from headrace.broker.purgatory import Watchers
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store.batches import batches_within
from headrace.records import split
from headrace.records.batch import assign

#: What is kept for brokers that lag behind. Those that lag more read the store.
RECORDS_MAX: Final = 20_000
BATCH_BYTES_MAX: Final = 256 * 1024


class _Group:
    """Records that were appended together, which are read together or not at all; encoded when they are asked for."""

    __slots__ = ("_encoded", "_records", "base_offset", "end_offset")

    def __init__(self, base_offset: int, records: Sequence[MetadataRecord]) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset + len(records)
        self._records = records
        self._encoded: bytes | None = None

    def encoded(self, epoch: int, now_ms: int) -> bytes:
        if self._encoded is None:
            offset, parts = self.base_offset, []
            for batch in batches_within(self._records, now_ms, BATCH_BYTES_MAX):
                assign(batch, offset, epoch)
                offset = next(split(batch)).header().next_offset
                parts.append(batch)
            self._encoded = b"".join(parts)
            self._records = ()
        return self._encoded


class MetadataTail:
    """What one controller has appended, from `begin_offset` to `end_offset`, and those who wait for more."""

    def __init__(self, epoch: int = -1, offset: int = 0, records_max: int = RECORDS_MAX) -> None:
        """`offset` is where the log ended when the controller of that epoch took over."""
        self._records_max = records_max
        self.epoch = epoch
        self.begin_offset = self.end_offset = offset
        self.watchers = Watchers()
        self._groups: deque[_Group] = deque()

    def appended(self, end_offset: int, records: Sequence[MetadataRecord]) -> None:
        """The store has acknowledged these records, of which the last is before that offset."""
        group = _Group(end_offset - len(records), records)
        if group.base_offset != self.end_offset:
            raise ValueError(f"records were appended at {group.base_offset}, but the log ended at {self.end_offset}")
        self._groups.append(group)
        self.end_offset = end_offset
        while self.end_offset - self.begin_offset > self._records_max:
            self.begin_offset = self._groups.popleft().end_offset
        self.watchers.wake_all()

    def read(self, offset: int, bytes_max: int, now_ms: int) -> bytes | None:
        """Whole groups from the one with this offset on, one at least; None where only the store has it."""
        if not self.begin_offset <= offset <= self.end_offset:
            return None
        parts: list[bytes] = []
        size = 0
        for group in self._groups:
            if group.end_offset <= offset:
                continue
            encoded = group.encoded(self.epoch, now_ms)
            if parts and size + len(encoded) > bytes_max:
                break
            parts.append(encoded)
            size += len(encoded)
        return b"".join(parts)
