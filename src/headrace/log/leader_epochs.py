"""Which leader wrote from which offset on: one log's leader epochs, and their checkpoint file's text."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from headrace.log.checkpoints import DamagedCheckpointError, parse_lines, parse_number

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    """Epochs that wrote something, with the offset each began at; both increase.

    Those of a log's view are never changed: a change is made to a `copy`, which the next view has.
    """

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: list[EpochStart] | None = None) -> None:
        self._entries: list[EpochStart] = entries or []
        self._note_latest()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[EpochStart]:
        return list(self._entries)

    def _note_latest(self) -> None:
        # Kept, because every append looks at it, twice.
        self.latest = self._entries[-1].epoch if self._entries else UNDEFINED

    @property
    def earliest(self) -> EpochStart | None:
        return self._entries[0] if self._entries else None

    def copy(self) -> LeaderEpochs:
        return LeaderEpochs(list(self._entries))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` writes from `start_offset` on; entries that contradict it go. Whether anything changed."""
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochStart(epoch, start_offset))
        self._note_latest()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) of the greatest epoch not above the one asked for; (-1, -1) when it is unknown."""
        if epoch == UNDEFINED or not self._entries:
            return UNDEFINED, UNDEFINED
        if epoch == self._entries[-1].epoch:
            return epoch, log_end_offset
        above = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if above == len(self._entries):
            return UNDEFINED, UNDEFINED
        if above == 0:
            # Older than all that is known: what it wrote is gone, so it ended where the first known one begins.
            return epoch, self._entries[0].start_offset
        return self._entries[above - 1].epoch, self._entries[above].start_offset

    def epoch_for(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 when it is older than all that is known."""
        at = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1
        return self._entries[at].epoch if at >= 0 else UNDEFINED

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`; whether there were any."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        self._note_latest()
        return len(self._entries) != before

    def truncate_above(self, epoch: int) -> None:
        """Forget the epochs after this one."""
        while self._entries and self._entries[-1].epoch > epoch:
            self._entries.pop()
        self._note_latest()

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended before `start_offset`; the one that reaches across now begins there."""
        at = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if at == 0:
            return False
        first = EpochStart(self._entries[at - 1].epoch, start_offset)
        changed = at > 1 or self._entries[0] != first
        self._entries[:at] = [first]
        self._note_latest()
        return changed

    def clear(self) -> None:
        self._entries.clear()
        self._note_latest()

    def to_bytes(self) -> bytes:
        lines = [f"{epoch} {start}\n" for epoch, start in self._entries]
        return f"0\n{len(lines)}\n{''.join(lines)}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaderEpochs:
        entries = []
        for line in parse_lines(data):
            epoch, _, start = line.partition(" ")
            if line.startswith("-") or start.startswith("-"):
                raise DamagedCheckpointError(f"not an epoch and an offset: {line[:300]!r}")
            entries.append(EpochStart(parse_number(epoch, 32), parse_number(start)))
        for first, second in pairwise(entries):
            if second.epoch <= first.epoch or second.start_offset < first.start_offset:
                raise DamagedCheckpointError(
                    f"epoch {second.epoch} comes after {first.epoch} but does not lie after it"
                )
        return cls(entries)
