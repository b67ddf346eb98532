"""A log of the model: a list of records, leader epochs as the real log keeps them, and how much is on disk."""

from __future__ import annotations

from typing import NamedTuple

from headrace.log.leader_epochs import LeaderEpochs


class Record(NamedTuple):
    epoch: int
    value: int


DELETED = Record(-1, -1)


class ModelLog:
    """Offsets are places in `records`; those below `start_offset` are deleted."""

    __slots__ = ("epochs", "high_watermark", "records", "start_offset", "synced")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.start_offset = 0
        self.synced = 0
        self.high_watermark = 0
        self.epochs = LeaderEpochs()

    def __repr__(self) -> str:
        text = " ".join(f"{record.epoch}:{record.value}" for record in self.records[self.start_offset :])
        return f"[{self.start_offset}.. {text} ..{self.end_offset}, hw {self.high_watermark}, synced {self.synced}]"

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def leader_epoch(self) -> int:
        return self.epochs.latest

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(leader_epoch, len(self.records))

    def begin_epoch(self, epoch: int) -> None:
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, len(self.records))

    def append(self, records: list[Record]) -> None:
        for record in records:
            if record.epoch != self.epochs.latest:
                self.epochs.assign(record.epoch, len(self.records))
            self.records.append(record)

    def truncate_to(self, offset: int) -> None:
        self.epochs.truncate_end(min(offset, len(self.records)))
        if offset < len(self.records):
            del self.records[offset:]
            self.synced = min(self.synced, offset)
            self.high_watermark = min(self.high_watermark, offset)
            self.start_offset = min(self.start_offset, offset)

    def start_at(self, offset: int) -> None:
        self.records = [DELETED] * offset
        self.start_offset = self.synced = self.high_watermark = offset
        self.epochs = LeaderEpochs()

    def delete_before(self, offset: int) -> None:
        offset = min(offset, len(self.records))
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_start(offset)
            self.high_watermark = max(self.high_watermark, offset)

    def sync(self) -> None:
        self.synced = len(self.records)

    def lose_unsynced(self) -> None:
        """The machine lost power: what was not synced is gone. The start's checkpoint may be older than the log."""
        self.truncate_to(max(self.synced, self.start_offset))

    def place_of(self, value: int) -> int | None:
        for offset in range(len(self.records) - 1, self.start_offset - 1, -1):
            if self.records[offset].value == value:
                return offset
        return None

    def common_prefix(self, other: list[Record]) -> int:
        """Up to which offset this log has what `other` has; deleted records count as equal."""
        offset = self.start_offset
        end = min(len(self.records), len(other))
        while offset < end and self.records[offset] == other[offset]:
            offset += 1
        # After an unclean election there may be less than this log has deleted.
        return min(offset, len(other))
