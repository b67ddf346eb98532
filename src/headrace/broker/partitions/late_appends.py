"""Appends that cannot be finished at once: the disk is busy, or has to have the records before they are seen.

By the time that one has its turn another broker may lead, or the same one in another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import NotLeaderOrFollowerError
from headrace.log import Appended, Checked, Log, Outcome
from headrace.runtime import DiskError

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition


#: What became of batches whose turn at the disk is over; or something to wait for, if other replicas are to have them.
_Written: TypeAlias = "list[Outcome] | Awaitable[list[Outcome]]"


class LateAppend:
    """Batches that were taken in a leader epoch, on their way into the log and to the other replicas."""

    __slots__ = ("_acks", "_batches", "_epoch", "_log", "_partition", "_timeout_ms")

    def __init__(
        self,
        partition: Partition,
        log: Log,
        batches: Sequence[Checked],
        acks: int,
        epoch: int,
        timeout_ms: int | None,
    ) -> None:
        self._partition = partition
        self._log = log
        self._batches = batches
        self._acks = acks
        self._epoch = epoch
        self._timeout_ms = timeout_ms

    def append(self) -> list[Outcome]:
        """What was queued, on the writer's thread: by now another may lead."""
        partition = self._partition
        if not partition.leads_in(self._epoch):
            raise NotLeaderOrFollowerError(f"{partition.key}: broker {partition.leadership.leader_id} leads it since")
        return self._log.append(self._batches, self._epoch)

    def committed(self, writing: asyncio.Task[_Written]) -> asyncio.Task[list[Outcome]]:
        """The end of the wait for the log (`finish` or `sync`), and then for the other replicas.

        The latter may take long, and nobody who waits until the log is not used has to wait for it.
        """
        waiting = asyncio.get_running_loop().create_task(_committed(writing))
        waiting.add_done_callback(_note_error)
        return waiting

    async def finish(self, submitted: asyncio.Future[list[Outcome]]) -> _Written:
        """Wait for the writer, and go on with what it did."""
        try:
            outcomes = await submitted
        except DiskError as error:
            raise self._partition.failed(error) from error
        if is_sync_due(outcomes, self._log):
            return await self.sync(outcomes)
        return self._now_in_log(outcomes)

    async def sync(self, outcomes: list[Outcome]) -> _Written:
        """The topic wants records on the disk before they are acknowledged, or seen (`flush.messages`)."""
        partition = self._partition
        sizes = [len(batch.view) for batch, one in zip(self._batches, outcomes) if is_new(one)]
        if sizes:
            partition.append_watchers.on_append(sum(sizes))  # followers need not wait for our disk
        await partition.turns.sync_log(self._log)
        return self._now_in_log(outcomes)

    def _now_in_log(self, outcomes: list[Outcome]) -> _Written:
        partition = self._partition
        state = partition.state
        if state is not None:
            is_over = state.term.leader_epoch != self._epoch
        else:
            # Who leads alone has all records, also in a later epoch; another leader may not.
            is_over = len(partition.leadership.replicas) > 1 or not partition.leads_in(partition.leader_epoch)
        if is_over:
            partition.note_durable()
            if self._acks == -1:
                raise NotLeaderOrFollowerError(f"{partition.key}: the leader epoch ended before this was committed")
            return outcomes
        return partition.in_log(self._batches, outcomes, self._acks, self._timeout_ms)


def is_new(outcome: Outcome) -> bool:
    return isinstance(outcome, Appended) and not outcome.duplicate


def is_sync_due(outcomes: Sequence[Outcome], log: Log) -> bool:
    """Whether the disk has to have them before they are acknowledged; of a duplicate, it may not have it yet."""
    return any(
        isinstance(one, Appended) and (one.sync_due or (one.duplicate and log.durable_end <= one.last_offset))
        for one in outcomes
    )


async def _committed(writing: asyncio.Task[_Written]) -> list[Outcome]:
    written = await asyncio.shield(writing)  # what was begun is finished
    return written if isinstance(written, list) else await written


def _note_error(waiting: asyncio.Task[list[Outcome]]) -> None:
    """It is for those who wait, and it is no mistake when nobody does."""
    if not waiting.cancelled():
        waiting.exception()
