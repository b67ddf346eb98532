"""A partition as this broker serves it: its log, its leadership, and who waits for it.

Writes go through the log directory's writer, inline while its disk is quiet. The high watermark of a partition with one
replica is its log end; with more, replication moves it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVarTuple

from headrace.broker.purgatory import Watchers
from headrace.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from headrace.log import Appended, Log, Origin
from headrace.runtime import BUSY, Buffer, DirectoryWriter, DiskError
from headrace.topics import TopicPartition

Ts = TypeVarTuple("Ts")


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(slots=True)
class Leadership:
    """What the cluster's metadata says about a partition, as far as serving it needs."""

    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]


class Partition:
    """Appends to and reads from one partition whose replica is here."""

    __slots__ = ("_offline", "_own_id", "key", "leadership", "log", "watchers", "writer")

    def __init__(
        self, own_id: int, key: TopicPartition, log: Log, writer: DirectoryWriter, leadership: Leadership
    ) -> None:
        self._own_id = own_id
        self.key = key
        self.log = log
        self.writer = writer
        self.leadership = leadership
        self.watchers = Watchers()
        self._offline: str | None = None
        self._begin_epoch()
        self._advance()

    # --- state

    @property
    def is_leader(self) -> bool:
        return self.leadership.leader_id == self._own_id and self._offline is None

    @property
    def leader_epoch(self) -> int:
        return self.leadership.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_offline(self) -> bool:
        return self._offline is not None

    def lead(self, leadership: Leadership) -> None:
        """Take over what the metadata says; whoever waits here looks again."""
        self.leadership = leadership
        self._begin_epoch()
        self._advance()
        self.watchers.wake_all()

    def _begin_epoch(self) -> None:
        if self.leadership.leader_id == self._own_id:
            self.log.begin_epoch(self.leadership.leader_epoch)

    def go_offline(self, reason: str) -> None:
        """The disk below failed: nothing is served from here any more."""
        self._offline = reason
        self.watchers.wake_all()

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Refuse a client whose idea of the leader differs from ours: it has old metadata, or we have."""
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key}: its log directory is offline ({self._offline})")
        epoch = self.leadership.leader_epoch
        if current_leader_epoch >= 0:
            if current_leader_epoch < epoch:
                raise FencedLeaderEpochError(f"{self.key}: leader epoch {current_leader_epoch} is over; it is {epoch}")
            if current_leader_epoch > epoch:
                raise UnknownLeaderEpochError(
                    f"{self.key}: leader epoch {current_leader_epoch} is not known here yet ({epoch})"
                )
        if self.leadership.leader_id != self._own_id:
            raise NotLeaderOrFollowerError(f"{self.key}: broker {self.leadership.leader_id} leads it")

    def end_for(self, isolation: Isolation) -> int:
        """Where a reader of that isolation must stop."""
        return self.log.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.log.high_watermark

    # --- writing

    def append(
        self, records: Buffer, *, origin: Origin = Origin.CLIENT, acks: int = -1
    ) -> Appended | Awaitable[Appended]:
        """Append a client's batch. Gives the result at once, or something to wait for when the disk is busy.

        Raises what is wrong with the batch or with this replica; then nothing was written.
        """
        self.check_leader()
        log = self.log
        if acks == -1:
            # Kafka 4 caps the wanted number by the replicas that exist, so one broker serves any setting.
            needed = min(log.config.min_insync_replicas, len(self.leadership.replicas))
            if len(self.leadership.isr) < needed:
                raise NotEnoughReplicasError(
                    f"{self.key}: {len(self.leadership.isr)} in-sync replicas, min.insync.replicas={needed}"
                )
        work = functools.partial(log.append, records, leader_epoch=self.leadership.leader_epoch, origin=origin)
        try:
            appended = self.writer.try_inline(work)
        except DiskError as error:
            raise self._failed(error) from error
        if appended is BUSY:
            return self._append_later(work, len(records))
        if appended.sync_due:
            return self._sync_then(appended, len(records))
        self._advance()
        self._after(appended, len(records))
        return appended

    async def _append_later(self, work: functools.partial[Appended], nbytes: int) -> Appended:
        try:
            appended = await self.writer.submit(work)
        except DiskError as error:
            raise self._failed(error) from error
        if appended.sync_due:
            return await self._sync_then(appended, nbytes)
        self._advance()
        self._after(appended, nbytes)
        return appended

    async def _sync_then(self, appended: Appended, nbytes: int) -> Appended:
        """The topic wants records on the disk before they are acknowledged, or seen (`flush.messages`)."""
        await self.sync()
        if len(self.leadership.replicas) <= 1:
            self.log.update_high_watermark(appended.last_offset + 1)
        self._after(appended, nbytes)
        return appended

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        try:
            await self.writer.sync((self.log,))
        except DiskError as error:
            raise self._failed(error) from error

    async def change_log(self, change: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run a change of the log (delete records, retention, truncation) in order with the appends."""
        try:
            await self.writer.submit(change, *args)
        except DiskError as error:
            raise self._failed(error) from error
        self.watchers.wake_all()

    def _failed(self, error: DiskError) -> KafkaStorageError:
        self.go_offline(str(error))
        return KafkaStorageError(f"{self.key}: {error}")

    def _advance(self) -> None:
        if len(self.leadership.replicas) <= 1:
            self.log.update_high_watermark(self.log.end_offset)

    def _after(self, appended: Appended, nbytes: int) -> None:
        if appended.duplicate:
            return
        self.watchers.came(nbytes)
        if appended.rolled:
            # In the background: nobody waits for it, but it keeps what a crash makes us check short.
            self.writer.sync((self.log,)).add_done_callback(self._rolled)

    def _rolled(self, synced: asyncio.Future[None]) -> None:
        error = None if synced.cancelled() else synced.exception()
        if isinstance(error, DiskError):
            self._failed(error)
        elif error is not None:
            raise error
