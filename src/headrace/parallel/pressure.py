"""Back-pressure: which partitions are not to be read for now, so that what is held stays within its bounds."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.parallel.options import Limits
from headrace.parallel.tracker import PartitionTracker
from headrace.topics import TopicPartition

_RESUME_PARTS = (7, 10)
"""Reading goes on when this part of a bound is left: pausing and resuming for every record would cost more."""


class Pressure:
    """How much is held, of all partitions together, and whether that is too much."""

    __slots__ = ("_is_full", "_limits", "bytes", "records", "resumable")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_full = False
        self.records = 0
        """Unfinished ones, without those that wait in the retry topic until they are due."""
        self.bytes = 0
        self.resumable = False
        """Whether a partition that is paused need not be any more: the poller should look at `changes`."""

    def room(self) -> int:
        """How many records may come now."""
        return max(0, self._limits.records - self.records)

    def changes(self, trackers: Iterable[PartitionTracker]) -> list[tuple[TopicPartition, bool]]:
        """Partitions whose reading is to be paused (True) or to go on (False), where that is not so already."""
        limits = self._limits
        self.resumable = False
        if self._is_full:
            self._is_full = self._stays_full()
        else:
            self._is_full = self.records >= limits.records or self.bytes >= limits.bytes
        changes: list[tuple[TopicPartition, bool]] = []
        for tracker in trackers:
            if tracker.paused:
                wanted = self.keeps_paused(tracker)
            else:
                wanted = self._is_full or len(tracker.entries) >= limits.ahead or tracker.held >= limits.held
            if wanted != tracker.paused:
                tracker.paused = wanted
                changes.append((tracker.partition, wanted))
        return changes

    def keeps_paused(self, tracker: PartitionTracker) -> bool:
        """Whether a paused partition has to stay so."""
        limits, (part, whole) = self._limits, _RESUME_PARTS
        is_full = self._is_full and self._stays_full()
        return (
            is_full or len(tracker.entries) > limits.ahead * part // whole or tracker.held > limits.held * part // whole
        )

    def _stays_full(self) -> bool:
        limits, (part, whole) = self._limits, _RESUME_PARTS
        return self.records > limits.records * part // whole or self.bytes > limits.bytes * part // whole
