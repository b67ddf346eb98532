"""A follower's log is changed as its leader's answers say: appended to, cut, or begun anew.

Each change looks again, in the writer's turn, whether the log and the leader epoch are still those that the leader was
asked about; `StaleAnswerError` says that they are not, and then nothing was changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.replication.follower import Answer, Position, watermark
from headrace.log import Appended, Log, as_far_as

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.runtime import Buffer


class StaleAnswerError(Exception):
    """A leader's answer is about a log, or an epoch, that is no longer so."""


class Copied(NamedTuple):
    """What was appended, and not yet told to anybody."""

    partition: Partition
    log: Log
    asked: Position
    answer: Answer
    appended: Appended | None
    nbytes: int

    @property
    def sync_due(self) -> bool:
        """The leader counts on what we say that we have."""
        return self.appended is not None and self.appended.sync_due


async def append(partition: Partition, asked: Position, answer: Answer, records: Buffer) -> Copied:
    """Append what the leader has sent for `asked`, uncopied. Where that is due it is to be synced; then `take_over`."""
    if not partition.is_following:
        raise StaleAnswerError
    log, appended = partition.log, None
    if records:
        appended = await partition.turns.in_turn(_append, partition, log, asked, records)
    return Copied(partition, log, asked, answer, appended, len(records))


async def begin_with(partition: Partition, asked: Position, answer: Answer, records: Buffer) -> Copied:
    """As `append`, where there is no record yet and the leader's log starts in the middle of its first batch."""
    if not partition.is_following:
        raise StaleAnswerError
    log = partition.log
    async with partition.cutting(0):  # as in `start_at`
        appended = await partition.turns.in_turn(_begin_with, partition, log, asked, records)
    partition.was_cut()
    partition.wake_all()
    return Copied(partition, log, asked, answer, appended, len(records))


async def take_over(copied: Copied) -> None:
    """Let what was appended count, and take over the leader's watermark and the start of its log."""
    partition, log, asked, answer, appended, nbytes = copied
    if appended is not None:
        partition.copied(appended, nbytes)
    if partition.leader_epoch != asked.leader_epoch or not partition.is_following or partition.log is not log:
        raise StaleAnswerError
    partition.learn_watermark(watermark(answer, log.end_offset))
    start_offset = min(answer.log_start_offset, log.high_watermark)
    if start_offset > log.start_offset:
        await partition.turns.in_turn(log.delete_records, start_offset)
        partition.wake_all()


async def truncate(partition: Partition, asked: Position, offset: int) -> None:
    """Cut the log to `offset`, or to where the batch begins that has it."""
    if not partition.is_following:
        raise StaleAnswerError
    log = partition.log
    offset = await partition.turns.in_turn(_end_after_cut, partition, log, asked, offset)
    async with partition.cutting(offset):
        await partition.turns.in_turn(_truncate, partition, log, asked, offset)
    partition.was_cut()
    partition.wake_all()


async def start_at(partition: Partition, asked: Position, offset: int) -> None:
    """Drop everything; what comes next has `offset`."""
    if not partition.is_following:
        raise StaleAnswerError
    async with partition.cutting(0):  # half-way nothing of it counts, also what comes after a gap
        await partition.turns.in_turn(_start_at, partition, partition.log, asked, offset)
    partition.was_cut()
    partition.wake_all()


def _append(partition: Partition, log: Log, asked: Position, records: Buffer) -> Appended | None:
    _check(partition, log, asked)
    return as_far_as(log.append(log.copies(records)))


def _begin_with(partition: Partition, log: Log, asked: Position, records: Buffer) -> Appended | None:
    _check(partition, log, asked)
    return as_far_as(log.begin_with(records))


def _end_after_cut(partition: Partition, log: Log, asked: Position, offset: int) -> int:
    _check(partition, log, asked)
    return log.end_after_cut(offset)


def _truncate(partition: Partition, log: Log, asked: Position, offset: int) -> None:
    _check(partition, log, asked)
    log.truncate_to(offset)


def _start_at(partition: Partition, log: Log, asked: Position, offset: int) -> None:
    _check(partition, log, asked)
    log.start_at(offset)


def _check(partition: Partition, log: Log, asked: Position) -> None:
    if partition.log is not log or not partition.is_about(asked):
        raise StaleAnswerError
