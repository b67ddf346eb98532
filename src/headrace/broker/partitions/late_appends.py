"""Appends that cannot be finished at once: the disk is busy, or has to have the records before they are seen.

By the time that one has its turn another broker may lead, or the same one in another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import NotLeaderOrFollowerError
from headrace.log import Appended, Checked, Log, Origin, Verification
from headrace.runtime import Buffer, DiskError

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition


#: A batch that is in the log: what came of it, or something to wait for, if other replicas are to have it.
_InLog: TypeAlias = Appended | Awaitable[Appended]


class LateAppend:
    """One batch that was taken in a leader epoch, on its way into the log and to the other replicas."""

    __slots__ = ("_acks", "_epoch", "_log", "_nbytes", "_partition", "_timeout_ms")

    def __init__(
        self, partition: Partition, log: Log, nbytes: int, acks: int, epoch: int, timeout_ms: int | None
    ) -> None:
        self._partition = partition
        self._log = log
        self._nbytes = nbytes
        self._acks = acks
        self._epoch = epoch
        self._timeout_ms = timeout_ms

    def append(
        self,
        records: Buffer,
        epoch: int,
        origin: Origin,
        now_ms: int | None,
        verification: Verification | None,
        transaction_version: int,
        checked: Checked | None,
    ) -> Appended:
        """What was queued, on the writer's thread: by now another may lead."""
        partition = self._partition
        if not partition.leads_in(epoch):
            raise NotLeaderOrFollowerError(f"{partition.key}: broker {partition.leadership.leader_id} leads it since")
        return self._log.append(records, epoch, origin, now_ms, verification, transaction_version, checked)

    def committed(self, writing: asyncio.Task[_InLog]) -> asyncio.Task[Appended]:
        """The end of the wait for the log (`finish` or `sync`), and then for the other replicas.

        The latter may take long, and nobody who waits until the log is not used has to wait for it.
        """
        waiting = asyncio.get_running_loop().create_task(_committed(writing))
        waiting.add_done_callback(_note_error)
        return waiting

    async def finish(self, submitted: asyncio.Future[Appended]) -> _InLog:
        """Wait for the writer, and go on with what it did."""
        try:
            appended = await submitted
        except DiskError as error:
            raise self._partition.failed(error) from error
        if appended.sync_due or (appended.duplicate and self._log.durable_end <= appended.last_offset):
            return await self.sync(appended)
        return self._now_in_log(appended)

    async def sync(self, appended: Appended) -> _InLog:
        """The topic wants records on the disk before they are acknowledged, or seen (`flush.messages`)."""
        partition = self._partition
        if not appended.duplicate:
            partition.append_watchers.on_append(self._nbytes)  # followers need not wait for our disk
        await partition.turns.sync_log(self._log)
        return self._now_in_log(appended)

    def _now_in_log(self, appended: Appended) -> _InLog:
        partition = self._partition
        if (state := partition.state) is None and len(partition.leadership.replicas) <= 1:
            partition.appended_alone(appended, self._nbytes)
            return appended
        if state is None or state.term.leader_epoch != self._epoch:
            partition.note_durable()
            if self._acks == -1:
                raise NotLeaderOrFollowerError(f"{partition.key}: the leader epoch ended before this was committed")
            return appended
        return partition.replicate(state, appended, self._nbytes, self._acks, self._timeout_ms)


async def _committed(writing: asyncio.Task[_InLog]) -> Appended:
    in_log = await asyncio.shield(writing)  # what was begun is finished
    return in_log if isinstance(in_log, Appended) else await in_log


def _note_error(waiting: asyncio.Task[Appended]) -> None:
    """It is for those who wait, and it is no mistake when nobody does."""
    if not waiting.cancelled():
        waiting.exception()
