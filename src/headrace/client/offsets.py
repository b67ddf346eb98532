"""Offsets as users name them: a committed offset with what was written beside it, and which offset is meant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next record to read, a note of up to 4 KB, and the leader epoch it was read in."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Which offset of a partition is asked for. Use the constructors; `timestamp` is what travels."""

    timestamp: int

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The end: the offset of the next record that will be written (and is committed)."""
        return cls(-1)

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The first record that is still there."""
        return cls(-2)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The record with the latest timestamp."""
        return cls(-3)

    @classmethod
    def earliest_local(cls) -> OffsetSpec:
        """The first record on the broker's own disk."""
        return cls(-4)

    @classmethod
    def latest_tiered(cls) -> OffsetSpec:
        """The last record in remote storage."""
        return cls(-5)

    @classmethod
    def for_timestamp(cls, timestamp_ms: int) -> OffsetSpec:
        """The first record at or after a time (milliseconds since 1970)."""
        if timestamp_ms < 0:
            raise ValueError(f"a time is 0 or more milliseconds since 1970, not {timestamp_ms}")
        return cls(timestamp_ms)
