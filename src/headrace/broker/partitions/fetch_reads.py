"""One partition's part of a fetch: what was looked at, what is told of it, and what of it is worth waiting for."""

from __future__ import annotations

import logging
from typing import cast

from headrace.broker.partitions.fetch_sessions import SessionPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.purgatory import Watchers
from headrace.errors import ErrorCode
from headrace.log import Log, Slice
from headrace.net.outbox import FilePart
from headrace.protocol.messages.fetch import EpochEndOffset, LeaderIdAndEpoch, PartitionData, SnapshotId
from headrace.records import CorruptBatchError
from headrace.runtime import Buffer, DiskError

logger = logging.getLogger("headrace.broker.fetch")

# How much may wait behind a transaction that is open: nobody has counted.
UNKNOWN_BYTES = 2**62

# What is told where there is nothing to tell. They are never changed, so that all answers can share them.
NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT = EpochEndOffset(), LeaderIdAndEpoch(), SnapshotId()


class Read:
    """What one partition's part of the answer will be: an error, or a place on disk still to be read.

    The log and its offsets are noted before anything else: off the loop they may move meanwhile.
    """

    __slots__ = (
        "data",
        "high_watermark",
        "is_held_back",
        "limit",
        "log",
        "partition",
        "slice",
        "stable_offset",
        "start_offset",
        "wanted",
    )

    def __init__(self, wanted: SessionPartition, data: PartitionData) -> None:
        self.wanted = wanted
        self.data = data
        self.partition: Partition | None = None
        #: Set when there is something to be looked for in it.
        self.log: Log | None = None
        self.slice: Slice | None = None
        #: Whether a follower is given nothing for now, by a throttle.
        self.is_held_back = False
        self.high_watermark = self.stable_offset = self.start_offset = self.limit = -1

    def take(self, found: Slice, data: Buffer) -> None:
        """What was read; CorruptBatchError when it is not what was looked for."""
        if self.log is not None:
            self.log.check_read(found, data)
        self.data.records = data


class Committed:
    """Of the bytes that come while a reader of committed records waits, those that it may read: none before the
    transactions around them have ended, and then also what came before the wait."""

    __slots__ = ("_known",)

    def __init__(self, reads: list[Read]) -> None:
        # Per partition: the stable offset that was seen, and how many bytes wait behind it.
        self._known: dict[Watchers, tuple[Partition, int, int]] = {}
        for read in reads:
            if read.partition is not None:
                stable, end = read.data.last_stable_offset, read.data.high_watermark
                self._known[read.partition.watchers] = (read.partition, stable, UNKNOWN_BYTES if stable < end else 0)

    def __call__(self, watchers: Watchers, nbytes: int) -> int:
        known = self._known.get(watchers)
        if known is None:
            return UNKNOWN_BYTES  # it was not looked at, having had nothing to give
        partition, seen, waiting = known
        log = partition.log
        stable = log.last_stable_offset
        waiting += nbytes
        if stable <= seen:
            self._known[watchers] = (partition, seen, waiting)
            return 0
        self._known[watchers] = (partition, stable, 0 if stable >= log.high_watermark else UNKNOWN_BYTES)
        return waiting


def cannot_be_read(read: Read, error: DiskError | CorruptBatchError) -> None:
    """A partition's part of the answer says that its records cannot be read; the others' are not held up by it."""
    wanted, partition = read.wanted, read.partition
    if partition is not None and not partition.is_offline:
        logger.error(
            "%s-%d cannot be read at offset %d: %s", wanted.topic, wanted.partition, wanted.fetch_offset, error
        )
    code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptBatchError) else ErrorCode.KAFKA_STORAGE_ERROR
    read.slice = None
    read.data = PartitionData(partition_index=wanted.partition, error_code=code, high_watermark=-1, records=b"")


def unread(found: Slice) -> Buffer:
    """Read piece by piece while it is sent; what is not in memory is waited for off the loop then."""
    return cast(Buffer, FilePart(found.file, found.position, found.length))


def has_news(read: Read) -> bool:
    data, told = read.data, read.wanted.kept
    return told is None or bool(
        data.records
        or data.error_code
        or told.told_error
        or data.diverging_epoch.epoch >= 0
        or data.preferred_read_replica >= 0
        or data.high_watermark != told.told_high_watermark
        or data.log_start_offset != told.told_log_start_offset
    )


def remember(read: Read) -> None:
    kept, data = read.wanted.kept, read.data
    if kept is not None:
        kept.told_high_watermark = data.high_watermark
        kept.told_log_start_offset = data.log_start_offset
        kept.told_error = bool(data.error_code)


def is_quiet(read: Read) -> bool:
    """Whether a partition, all of which was told, has nothing to give."""
    data = read.data
    return (
        read.log is not None
        and not data.error_code
        and data.diverging_epoch is NO_DIVERGENCE
        and read.wanted.fetch_offset >= read.limit
        and not read.is_held_back
    )


def turn_of(wanted: SessionPartition) -> int:
    return 0 if wanted.kept is None else wanted.kept.turn
