"""A partition as this broker serves it: its log, its leadership, and who waits for it.

Every change of the log goes through its directory's writer, inline while the disk is quiet; only the high watermark is
moved here, on the loop (`LogState` says who owns what). That of a partition with one replica is its log end; with more,
replication moves it. What was begun on a log is finished whoever waits for it, and
while the log itself is exchanged (`exchange`) everything else waits its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar, TypeVarTuple

from headrace.broker.purgatory import Watchers
from headrace.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from headrace.log import UNVERIFIED, Appended, Log, Origin, Verification
from headrace.runtime import BUSY, Buffer, DirectoryWriter, DiskError, Overloaded
from headrace.topics import TopicPartition

_CLIENT = Origin.CLIENT
NO_LEADER_EPOCH = -1

T = TypeVar("T")
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

    __slots__ = ("_held", "_offline", "_own_id", "_under_way", "_writer", "key", "leadership", "log", "watchers")

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
        # Tasks that use the log or wait for its disk. And, while the log is exchanged, what begins when it is over.
        self._under_way: dict[asyncio.Task[Any], None] = {}
        self._held: deque[Callable[[], None]] | None = None
        self._begin_epoch()
        self._advance(log.end_offset)

    # --- state

    @property
    def writer(self) -> DirectoryWriter:
        return self._writer

    @writer.setter
    def writer(self, writer: DirectoryWriter) -> None:
        """The writer of the directory that the log is in: from now on nobody else changes the log."""
        self._writer = writer
        self.log.writer = writer

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
        # What waits to be synced becomes visible with its own acknowledgement.
        log = self.log
        self._advance(log.end_offset if log.unsynced < log.config.flush_messages else log.recovery_point)
        self.watchers.wake_all()

    def _begin_epoch(self) -> None:
        """What is appended from now on belongs to this leader's epoch; what was asked for before does not."""
        if self.leadership.leader_id != self._own_id:
            return
        if self._held is not None:
            self._held.append(self._begin_epoch)
            return
        log, epoch = self.log, self.leadership.leader_epoch
        if self._writer.try_inline(log.begin_epoch, epoch) is BUSY:
            # Without it (too much waits for the disk) the first append of the epoch begins it.
            with contextlib.suppress(Overloaded, DiskError):
                self._begin(_finished(self._writer.submit(log.begin_epoch, epoch)))

    def go_offline(self, reason: str) -> None:
        """The disk below failed: nothing is served from here any more."""
        self._offline = reason
        self.watchers.wake_all()

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse a client whose idea of the leader differs from ours: it has old metadata, or we have."""
        if self._offline is not None:
            raise KafkaStorageError(f"{self.key}: its log directory is offline ({self._offline})")
        epoch = self.leadership.leader_epoch
        if current_leader_epoch != NO_LEADER_EPOCH:
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
        self,
        records: Buffer,
        *,
        origin: Origin = Origin.CLIENT,
        acks: int = -1,
        verification: Verification | None = None,
        transaction_version: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> Appended | Awaitable[Appended]:
        """Append a client's batch. Gives the result at once, or something to wait for when the disk is busy.

        With a leader epoch it is refused unless that is the present one, also if it has to wait for its turn.
        Raises what is wrong with the batch or with this replica; then nothing was written.
        """
        if self._held is not None:
            return self._hold_back(
                self._held,
                functools.partial(
                    self.append,
                    records,
                    origin=origin,
                    acks=acks,
                    verification=verification,
                    transaction_version=transaction_version,
                    leader_epoch=leader_epoch,
                ),
            )
        self.check_leader(leader_epoch)
        log = self.log
        if acks == -1:
            # Kafka 4 caps the wanted number by the replicas that exist, so one broker serves any setting.
            needed = min(log.config.min_insync_replicas, len(self.leadership.replicas))
            if len(self.leadership.isr) < needed:
                raise NotEnoughReplicasError(
                    f"{self.key}: {len(self.leadership.isr)} in-sync replicas, min.insync.replicas={needed}"
                )
        if verification is None and origin is _CLIENT:
            # Its transaction was open here when we looked, which by the writer's turn it may no longer be.
            verification = UNVERIFIED
        work = (records, self.leadership.leader_epoch, origin, None, verification, transaction_version)
        try:
            appended = self._writer.try_inline(log.append, *work)
        except DiskError as error:
            raise self._failed(error) from error
        if appended is BUSY:
            # Submitted now, not when somebody waits for it: appends keep the order in which they were asked for.
            return self._begin(self._append_later(log, self._writer.submit(log.append, *work), len(records)))
        if appended.sync_due or (appended.duplicate and _is_volatile(log, appended)):
            return self._begin(self._sync_then(log, appended, len(records)))
        self._advance(appended.last_offset + 1)
        self._after(appended, len(records))
        return appended

    async def _append_later(self, log: Log, submitted: asyncio.Future[Appended], nbytes: int) -> Appended:
        try:
            appended = await submitted
        except DiskError as error:
            raise self._failed(error) from error
        if appended.sync_due or (appended.duplicate and _is_volatile(log, appended)):
            return await self._sync_then(log, appended, nbytes)
        self._advance(appended.last_offset + 1)
        self._after(appended, nbytes)
        return appended

    async def _sync_then(self, log: Log, appended: Appended, nbytes: int) -> Appended:
        """The topic wants records on the disk before they are acknowledged, or seen (`flush.messages`)."""
        await self._sync(log)
        self._advance(appended.last_offset + 1)
        self._after(appended, nbytes)
        return appended

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        await self._run(lambda: self._sync(self.log))

    async def _sync(self, log: Log) -> None:
        try:
            await self._writer.sync((log,))
        except DiskError as error:
            raise self._failed(error) from error

    async def change_log(self, change: Callable[[Log, *Ts], object], *args: *Ts) -> None:
        """Run a change of the log (delete records, retention, truncation) in order with the appends."""
        await self._run(lambda: self._change(change, *args))

    async def _change(self, change: Callable[[Log, *Ts], object], *args: *Ts) -> None:
        try:
            await self._writer.submit(change, self.log, *args)
        except DiskError as error:
            raise self._failed(error) from error
        self.watchers.wake_all()

    # --- one after the other

    async def exchange(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something while nobody uses the log, nor can begin to."""
        if self._held is not None:
            raise KafkaStorageError(f"{self.key}: its log is being exchanged already")
        held: deque[Callable[[], None]] = deque()
        self._held = held
        try:
            await self.idle()
            await work()
        finally:
            self._held = None
            while held:
                held.popleft()()

    async def idle(self) -> None:
        """Wait until nothing is under way on the log."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something with the log, for which `exchange` waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._under_way[task]
        if not task.cancelled():
            task.exception()  # is for those who wait, and it is no mistake when nobody does

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Do it now, or when the log may be used again; to its end, also when whoever waits for it gives up."""
        if self._held is None:
            return asyncio.shield(self._begin(work()))
        return self._hold_back(self._held, lambda: self._begin(work()))

    def _hold_back(self, held: deque[Callable[[], None]], begin: Callable[[], T | Awaitable[T]]) -> asyncio.Task[T]:
        turn: asyncio.Future[T | Awaitable[T]] = asyncio.get_running_loop().create_future()
        held.append(functools.partial(_take_turn, turn, begin))
        return asyncio.get_running_loop().create_task(_after_turn(turn))

    def _failed(self, error: DiskError) -> KafkaStorageError:
        if not error.is_shortage or self.log.failure is not None:
            self.go_offline(str(error))
        return KafkaStorageError(f"{self.key}: {error}")

    def _advance(self, end_offset: int) -> None:
        """Everything below is in the log, and as durable as its topic wants; never back, never further than that."""
        if len(self.leadership.replicas) <= 1 and end_offset > self.log.high_watermark:
            self.log.update_high_watermark(end_offset)

    def _after(self, appended: Appended, nbytes: int) -> None:
        if appended.duplicate:
            return
        self.watchers.came(nbytes)
        if appended.rolled:
            # A read ends with its segment: whoever waits for more of the one before would get no more.
            self.watchers.wake_all()
            # In the background: nobody waits for it, but it keeps what a crash makes us check short.
            self._begin(self._sync(self.log))


def _is_volatile(log: Log, appended: Appended) -> bool:
    """Whether a batch that the log had already is not yet as durable as its topic wants."""
    return appended.last_offset >= log.recovery_point and log.unsynced >= log.config.flush_messages


def _take_turn(turn: asyncio.Future[T], begin: Callable[[], T]) -> None:
    if turn.done():
        return  # whoever wanted it has given up
    try:
        turn.set_result(begin())
    except Exception as error:  # noqa: BLE001 - it is for whoever waits, and those behind have their turn too
        turn.set_exception(error)


async def _finished(work: asyncio.Future[None]) -> None:
    await work


async def _after_turn(turn: asyncio.Future[T | Awaitable[T]]) -> T:
    begun = await turn
    if isinstance(begun, asyncio.Future):
        done: T = await begun
        return done
    return begun  # type: ignore[return-value]  # what is no future is the result itself
