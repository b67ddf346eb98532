"""A partition's log, as far as transactions see it: the rules by which data and markers are let in (Kafka 4.3's)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import ErrorCode
from headrace.transactions import MarkerRequest


class Entry(NamedTuple):
    """Data (with what it says), or a marker (with its outcome)."""

    offset: int
    producer_id: int
    epoch: int
    value: str | None = None
    commit: bool | None = None


@dataclass
class Writer:
    epoch: int = -1
    first_offset: int | None = None  # of its open transaction
    coordinator_epoch: int = -1
    values: set[str] = field(default_factory=set)


@dataclass
class Partition:
    entries: list[Entry] = field(default_factory=list)
    writers: dict[int, Writer] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        opened = [w.first_offset for w in self.writers.values() if w.first_offset is not None]
        return min(opened, default=self.end_offset)

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer's transaction has begun here: then nobody needs to be asked any more."""
        writer = self.writers.get(producer_id)
        return writer is not None and writer.first_offset is not None

    def append(self, producer_id: int, epoch: int, value: str, count: int = 1) -> ErrorCode:
        """Data of a transaction; a value that is there already counts as a duplicate."""
        writer = self.writers.setdefault(producer_id, Writer())
        if epoch < writer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if value in writer.values:
            return ErrorCode.NONE
        if writer.first_offset is None:
            writer.first_offset = self.end_offset
        writer.epoch = epoch
        writer.values.add(value)
        for _ in range(count):
            self.entries.append(Entry(self.end_offset, producer_id, epoch, value))
        return ErrorCode.NONE

    def append_plain(self) -> None:
        self.entries.append(Entry(self.end_offset, -1, -1, ""))

    def mark(self, request: MarkerRequest) -> ErrorCode:
        writer = self.writers.setdefault(request.producer_id, Writer())
        epoch = request.producer_epoch
        if epoch < writer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if request.transaction_version >= 2 and epoch == writer.epoch and writer.first_offset is not None:
            # Under the newer protocol data of this epoch belongs to the next transaction: the marker comes late.
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if request.coordinator_epoch < writer.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        writer.epoch, writer.first_offset, writer.coordinator_epoch = epoch, None, request.coordinator_epoch
        self.entries.append(Entry(self.end_offset, request.producer_id, epoch, commit=request.commit))
        return ErrorCode.NONE
