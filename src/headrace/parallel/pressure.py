"""Back-pressure: which partitions are not to be read for now, so that what is held stays within its bounds.

Every partition has its share of a bound, which nobody else can fill: all shares together are half of it. The other half
is for whoever comes first, so that a partition alone among many idle ones is not kept short.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.parallel.options import Limits
from headrace.parallel.tracker import PartitionTracker
from headrace.topics import TopicPartition

_RESUME_PARTS = (7, 10)
"""Reading goes on when this part of a bound is left: pausing and resuming for every record would cost more."""


class Pressure:
    """How much is held, of all partitions together, and whether that is too much."""

    __slots__ = (
        "_held_bytes_share",
        "_is_full",
        "_limits",
        "_most_bytes",
        "_most_records",
        "_share_bytes",
        "_share_records",
        "bytes",
        "is_any_paused",
        "records",
        "resumable",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_full = False
        self.records = 0
        """Unfinished ones, without those that wait in the retry topic until they are due."""
        self.bytes = 0
        """Of those."""
        self.resumable = False
        """Whether a partition that is paused need not be any more: the poller should look at `changes`."""
        self.is_any_paused = False
        self.share_out([])

    def share_out(self, trackers: Collection[PartitionTracker]) -> None:
        """Partitions came or went: each has its share."""
        limits, count = self._limits, max(1, len(trackers))
        self._share_records = max(1, limits.records // (2 * count))
        self._share_bytes = max(1, limits.bytes // (2 * count))
        self._reserve(trackers)
        self._held_bytes_share = limits.bytes // max(1, sum(tracker.is_retry for tracker in trackers))

    def _reserve(self, trackers: Collection[PartitionTracker]) -> None:
        """What may be held in all, before only those are read that have less than their shares: all but what is left of
        those shares."""
        share_records, share_bytes = self._share_records, self._share_bytes
        records = bytes_ = 0
        for tracker in trackers:
            own = tracker.unfinished - tracker.held
            if own < share_records:
                records += share_records - own
            own = tracker.bytes - tracker.held_bytes
            if own < share_bytes:
                bytes_ += share_bytes - own
        self._most_records = max(1, self._limits.records - records)
        self._most_bytes = max(1, self._limits.bytes - bytes_)

    def room(self) -> int:
        """How many records may come with one poll."""
        return max(self._limits.records - self.records, self._share_records)

    def changes(self, trackers: Collection[PartitionTracker]) -> list[tuple[TopicPartition, bool]]:
        """Partitions whose reading is to be paused (True) or to go on (False), where that is not so already."""
        self.resumable = False
        self._reserve(trackers)
        if self._is_full:
            self._is_full = self._stays_full()
        else:
            self._is_full = self.records >= self._most_records or self.bytes >= self._most_bytes
        is_any_paused = False
        changes: list[tuple[TopicPartition, bool]] = []
        for tracker in trackers:
            wanted = self.keeps_paused(tracker) if tracker.paused else self._is_too_much(tracker)
            is_any_paused = is_any_paused or wanted
            if wanted != tracker.paused:
                tracker.paused = wanted
                changes.append((tracker.partition, wanted))
        self.is_any_paused = is_any_paused
        return changes

    def _is_too_much(self, tracker: PartitionTracker) -> bool:
        """Whether a partition is to be paused."""
        limits = self._limits
        return (
            len(tracker.entries) >= limits.ahead
            or tracker.held >= limits.held
            or tracker.held_bytes >= self._held_bytes_share
            or (
                self._is_full
                and (
                    tracker.unfinished - tracker.held >= self._share_records
                    or tracker.bytes - tracker.held_bytes >= self._share_bytes
                )
            )
        )

    def keeps_paused(self, tracker: PartitionTracker) -> bool:
        """Whether a paused partition has to stay so."""
        limits, (part, whole) = self._limits, _RESUME_PARTS
        return (
            len(tracker.entries) > limits.ahead * part // whole
            or tracker.held > limits.held * part // whole
            or tracker.held_bytes > self._held_bytes_share * part // whole
            or (
                self._is_full
                and self._stays_full()
                and (
                    tracker.unfinished - tracker.held > self._share_records * part // whole
                    or tracker.bytes - tracker.held_bytes > self._share_bytes * part // whole
                )
            )
        )

    def _stays_full(self) -> bool:
        part, whole = _RESUME_PARTS
        return self.records > self._most_records * part // whole or self.bytes > self._most_bytes * part // whole
