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


class Guard:
    """Proof that the coordinator was asked for the transaction that is to begin here; compared by identity."""


@dataclass
class Writer:
    epoch: int = -1
    guard: Guard | None = None
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

    def ask_first(self, producer_id: int, epoch: int) -> Guard | None:
        """A guard to append with once the coordinator has agreed; None when the transaction is open here already.

        An open transaction of an earlier epoch is another one: its end is decided, but has not got here yet.
        """
        writer = self.writers.setdefault(producer_id, Writer())
        if writer.first_offset is not None and writer.epoch == epoch:
            return None
        if writer.guard is None:
            writer.guard = Guard()
        return writer.guard

    def append(self, producer_id: int, epoch: int, value: str, guard: Guard | None, count: int = 1) -> ErrorCode:
        """Data of a transaction; a value that is there already counts as a duplicate."""
        writer = self.writers.setdefault(producer_id, Writer())
        if epoch < writer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if value in writer.values:
            return ErrorCode.NONE
        if writer.first_offset is None or writer.epoch != epoch:
            if guard is None or guard is not writer.guard:
                return ErrorCode.INVALID_TXN_STATE
            assert writer.first_offset is None, "a transaction begins before the one before it has ended"
            writer.first_offset, writer.guard = self.end_offset, None
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
        writer.guard = None
        self.entries.append(Entry(self.end_offset, request.producer_id, epoch, commit=request.commit))
        return ErrorCode.NONE
