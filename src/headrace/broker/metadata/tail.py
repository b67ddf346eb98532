"""The last of the metadata log, in the memory of the controller that appends to it: what other brokers fetch.

Only what the store has acknowledged comes here. So whoever serves it after another was elected tells old things, never
wrong ones: they are a part of the log for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.broker.partitions.purgatory import Watchers
from headrace.cluster.records import MetadataRecord
from headrace.cluster.store.batches import RecordGroup, batches_within
from headrace.records import split
from headrace.records.batch import assign

#: What is kept for brokers that lag behind. Those that lag more read the store.
RECORDS_MAX: Final = 20_000
BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024


class _Group:
    """Records that were appended together, which are read together or not at all; made batches of when asked for."""

    __slots__ = ("_batches", "_records", "base_offset", "end_offset", "size")

    def __init__(self, base_offset: int, records: RecordGroup) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset + len(records)
        self.size = sum(map(len, records.values))
        self._records: RecordGroup | None = records
        self._batches = b""

    def batches(self, epoch: int, now_ms: int) -> bytes:
        if self._records is not None:
            offset, parts = self.base_offset, []
            for batch in batches_within(self._records, now_ms, BATCH_BYTES_MAX):
                assign(batch, offset, epoch)
                offset = next(split(batch)).header().next_offset
                parts.append(batch)
            self._batches = b"".join(parts)
            self._records = None
        return self._batches


class MetadataTail:
    """What one controller has appended, from `begin_offset` to `end_offset`, and those who wait for more."""

    def __init__(
        self, epoch: int = -1, offset: int = 0, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        """`offset` is where the log ended when the controller of that epoch took over. Without `records_max` nothing is
        kept."""
        self._records_max = records_max
        self._bytes_max = bytes_max
        self.epoch = epoch
        self.begin_offset = self.end_offset = offset
        self.watchers = Watchers()
        self._groups: deque[_Group] = deque()
        self._bytes = 0

    def appended(self, end_offset: int, records: Sequence[MetadataRecord]) -> None:
        """The store has acknowledged these records, of which the last is before that offset."""
        base_offset = end_offset - len(records)
        if base_offset != self.end_offset:
            raise ValueError(f"records were appended at {base_offset}, but the log ended at {self.end_offset}")
        self.end_offset = end_offset
        if self._records_max == 0:
            self.begin_offset = end_offset
            return
        group = _Group(base_offset, records if isinstance(records, RecordGroup) else RecordGroup(records))
        self._groups.append(group)
        self._bytes += group.size
        while self.end_offset - self.begin_offset > self._records_max or self._bytes > self._bytes_max:
            oldest = self._groups.popleft()
            self.begin_offset = oldest.end_offset
            self._bytes -= oldest.size
        self.watchers.wake_all()

    def read(self, offset: int, bytes_max: int, now_ms: int) -> bytes | None:
        """Whole groups from the one with this offset on, one at least; None where only the store has it."""
        if not self.begin_offset <= offset <= self.end_offset:
            return None
        parts: list[bytes] = []
        size = 0
        for group in self._from(offset):
            batches = group.batches(self.epoch, now_ms)
            if parts and size + len(batches) > bytes_max:
                break
            parts.append(batches)
            size += len(batches)
        return b"".join(parts)

    def _from(self, offset: int) -> Iterator[_Group]:
        """The groups from the one with this offset on: mostly the last, so it is looked for from there."""
        wanted: list[_Group] = []
        for group in reversed(self._groups):
            if group.end_offset <= offset:
                break
            wanted.append(group)
        return reversed(wanted)
