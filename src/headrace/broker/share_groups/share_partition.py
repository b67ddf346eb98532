"""One partition that a share group reads, while this broker leads it: who has which record, stored before it counts.

The state is read from its coordinator when the group first reads here. What members say of records, and locks that
end, is a change of it. Changes that come while one is being stored go along with the next one. A leader that came
later, or a group that was begun anew, fences this state: then it is dropped, and read again with the next fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.broker.coordinators.share_state_service import ShareStates
from headrace.broker.partitions.leadership import Isolation
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.purgatory import Watchers
from headrace.errors import ErrorCode, KafkaError, OffsetNotAvailableError
from headrace.groups.share.deliveries import (
    AckBatch,
    Acquired,
    Deliveries,
    LogBatch,
    NotAcknowledged,
    StateBatch,
    StateChange,
)
from headrace.groups.share.settings import EARLIEST, LATEST, ShareGroupSettings
from headrace.groups.share.state_records import NO_OFFSET, StateKey
from headrace.protocol.messages import write_share_group_state as writing
from headrace.runtime import Runtime

log = logging.getLogger("headrace.broker.share")

#: Locks that ended and could not be given up are looked at again after this.
LOCKS_RETRY_S: Final = 1.0

_COORDINATOR_AWAY: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NETWORK_EXCEPTION,
)
_FENCED: Final = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)
_SAME_FOR_CLIENTS: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def client_error(error: ErrorCode) -> ErrorCode:
    """What a member is answered when the coordinator of a state answers with this."""
    if error is ErrorCode.NONE or error in _SAME_FOR_CLIENTS:
        return error
    if error in _COORDINATOR_AWAY:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _FENCED else ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass(frozen=True, slots=True)
class ShareSurroundings:
    """What share partitions need of the broker."""

    runtime: Runtime
    states: ShareStates
    #: The settings of a group in effect.
    settings: Callable[[str], ShareGroupSettings]
    #: Runs something in the background as long as the broker runs.
    keep: Callable[[Coroutine[object, object, None]], asyncio.Task[None]]


class SharePartition:
    """In one leader epoch of its partition."""

    def __init__(
        self,
        surroundings: ShareSurroundings,
        key: StateKey,
        partition: Partition,
        on_over: Callable[[SharePartition], None],
    ) -> None:
        """`on_over` is called when it is fenced, or cannot be read."""
        self._surroundings = surroundings
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.watchers = Watchers()
        #: Why it cannot be used; NONE while it is being read, or can.
        self.error = ErrorCode.NONE
        self.is_over = False
        self._on_over = on_over
        self._deliveries: Deliveries | None = None
        self._state_epoch = 0
        self._unstored: list[tuple[StateChange, asyncio.Future[ErrorCode]]] = []
        self._storing: asyncio.Task[None] | None = None
        self._lock_timer: asyncio.TimerHandle | None = None
        surroundings.keep(self._read())

    @property
    def settings(self) -> ShareGroupSettings:
        return self._surroundings.settings(self.key.group_id)

    @property
    def is_read(self) -> bool:
        return self._deliveries is not None

    @property
    def is_led(self) -> bool:
        """Whether this broker still leads the partition, in the epoch of this state."""
        return not self.is_over and self.partition.leads_in(self.leader_epoch)

    @property
    def is_idle(self) -> bool:
        deliveries = self._deliveries
        return deliveries is not None and deliveries.is_idle and self._storing is None

    def end(self) -> None:
        """It is used no more: whoever waits looks again."""
        if self.is_over:
            return
        self.is_over = True
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        self.watchers.wake_all()
        self._on_over(self)

    async def settled(self) -> None:
        """Wait until all changes are stored, or was given up."""
        while self._storing is not None:
            await asyncio.wait((self._storing,))

    # --- where it begins

    async def _read(self) -> None:
        try:
            self.error = await self._read_state()
        except KafkaError as error:
            self.error = ErrorCode(error.code)
        except Exception:
            log.exception("the state of %s could not be read, by a defect: please report it", self.key.name)
            self.error = ErrorCode.UNKNOWN_SERVER_ERROR
        if self.error is not ErrorCode.NONE:
            log.info("the state of %s could not be read: %s", self.key.name, self.error.name)
            self.end()
        self.watchers.wake_all()

    async def _read_state(self) -> ErrorCode:
        answer = await self._surroundings.states.read(self.key, self.leader_epoch)
        if answer.error_code:
            return client_error(ErrorCode(answer.error_code))
        start_offset = answer.start_offset
        if start_offset == NO_OFFSET:
            start_offset = await self._first_offset()
        self._state_epoch = answer.state_epoch
        self._deliveries = Deliveries(
            start_offset,
            (
                StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
                for one in answer.state_batches
            ),
            limits=lambda: self.settings.limits,
        )
        return ErrorCode.NONE

    async def _first_offset(self) -> int:
        """Where a group begins that never read the partition."""
        settings, log = self.settings, self.partition.log
        if settings.reset == EARLIEST:
            return log.start_offset
        if settings.reset == LATEST:
            self.partition.check_settled()
            return self.partition.end_for(Isolation.READ_UNCOMMITTED)
        when_ms = self._surroundings.runtime.clock.now_ms() - settings.reset_age_ms
        found = await self._surroundings.runtime.offload(log.find_by_time, when_ms)
        if found is None or found.offset < 0:
            raise OffsetNotAvailableError(
                f"{self.partition.key}: no record is as young as share.auto.offset.reset says"
            )
        return found.offset

    # --- records go out

    def fetch_offset(self) -> int | None:
        """Where to read; None: nothing can be handed out now."""
        deliveries = self._deliveries
        if deliveries is None or not self.is_led:
            return None
        deliveries.begin_at(self.partition.log.start_offset)
        return deliveries.fetch_offset()

    def acquire(
        self,
        member_id: str,
        read_from: int,
        batches: Sequence[LogBatch],
        *,
        records_max: int,
        batch_records: int,
        is_exact: bool,
    ) -> list[Acquired]:
        """Lock records of what was read from the log, for a member."""
        deliveries = self._deliveries
        if deliveries is None or not self.is_led:
            return []
        found = deliveries.acquire(
            member_id,
            self._now_ms(),
            read_from,
            batches,
            records_max=records_max,
            batch_records=batch_records,
            is_exact=is_exact,
        )
        if found and self._lock_timer is None:
            self._look_at_locks_in(self.settings.limits.lock_ms / 1000)
        return found

    # --- what becomes of them

    def acknowledge(self, member_id: str, batches: Sequence[AckBatch]) -> NotAcknowledged | Awaitable[ErrorCode]:
        """What a member says of records. What it leads to is waited for, until it is stored."""
        if not self.is_led:
            return NotAcknowledged(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        deliveries = self._deliveries
        if deliveries is None:
            return NotAcknowledged(ErrorCode.INVALID_RECORD_STATE)
        change = deliveries.acknowledge(member_id, self._now_ms(), batches)
        return change if isinstance(change, NotAcknowledged) else self._store(change)

    def release(self, member_id: str) -> None:
        """A member is gone: give back what it has."""
        if self._deliveries is not None and self.is_led:
            self._store(self._deliveries.release(member_id))

    def _look_at_locks_in(self, delay_s: float) -> None:
        self._lock_timer = asyncio.get_running_loop().call_later(delay_s, self._locks_end)

    def _locks_end(self) -> None:
        self._lock_timer = None
        deliveries = self._deliveries
        if deliveries is None or not self.is_led:
            return
        now_ms = self._now_ms()
        self._store(deliveries.expire(now_ms))
        next_ms = deliveries.next_lock_end_ms
        if next_ms is not None:
            self._look_at_locks_in(max(0, next_ms - now_ms) / 1000)

    def _now_ms(self) -> int:
        return int(self._surroundings.runtime.clock.monotonic() * 1000)

    # --- storing

    def _store(self, change: StateChange) -> asyncio.Future[ErrorCode]:
        stored: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if not change.batches:
            stored.set_result(ErrorCode.NONE)
            return stored
        self._unstored.append((change, stored))
        if self._storing is None:
            self._storing = self._surroundings.keep(self._store_all())
        return stored

    async def _store_all(self) -> None:
        try:
            await asyncio.sleep(0)  # what this turn of the loop still adds goes along
            while self._unstored:
                taken, self._unstored = self._unstored, []
                await self._store_these(taken)
        finally:
            self._storing = None
            for _, stored in self._unstored:
                stored.cancel()

    async def _store_these(self, taken: list[tuple[StateChange, asyncio.Future[ErrorCode]]]) -> None:
        deliveries = self._deliveries
        assert deliveries is not None
        progress = deliveries.progress()
        data = writing.PartitionData(
            partition=self.key.partition,
            state_epoch=self._state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=progress.start_offset,
            delivery_complete_count=progress.finished_count,
            state_batches=[
                writing.StateBatch(
                    first_offset=one.first,
                    last_offset=one.last,
                    delivery_state=one.state,
                    delivery_count=one.delivery_count,
                )
                for one in sorted(batch for change, _ in taken for batch in change.batches)
            ],
        )
        error = await self._surroundings.states.write(self.key, data) if self.is_led else ErrorCode.FENCED_LEADER_EPOCH
        for change, _ in taken:
            if error is ErrorCode.NONE:
                deliveries.stored(change)
            else:
                deliveries.not_stored(change)
        if error is not ErrorCode.NONE:
            log.info("the state of %s could not be stored: %s", self.key.name, error.name)
            if error not in _COORDINATOR_AWAY:
                # Its epochs are over, or nobody knows of it: with the next fetch it is read again.
                self.end()
            elif self._lock_timer is None:
                self._look_at_locks_in(LOCKS_RETRY_S)
        for _, stored in taken:
            if not stored.done():
                stored.set_result(client_error(error))
        self.watchers.wake_all()
