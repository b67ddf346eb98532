"""The state of a partition that a share group reads, as `__share_group_state` keeps it: snapshots and what followed."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace import coordination
from headrace.coordination import CoordinatorRecord, StoredRecord
from headrace.groups.share.deliveries import StateBatch
from headrace.protocol.stored.coordinator import Unknown
from headrace.protocol.stored.share_groups import (
    STATE_RECORDS,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StoredStateBatch,
)
from headrace.protocol.wire import MalformedMessageError

NO_OFFSET = -1
NO_COUNT = -1


class StateKey(NamedTuple):
    """One partition of one share group."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def name(self) -> str:
        """What FindCoordinator calls it; the partition of the topic follows from it."""
        topic_id = base64.urlsafe_b64encode(self.topic_id).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"


@dataclass(frozen=True, slots=True)
class StoredState:
    """All that is stored of one. The epochs fence former group coordinators and former leaders of the partition."""

    state_epoch: int
    start_offset: int
    leader_epoch: int = 0
    finished_count: int = NO_COUNT
    batches: tuple[StateBatch, ...] = ()
    snapshot_epoch: int = 0
    updates: int = 0  # records that followed the snapshot
    snapshot_ms: int = 0
    created_ms: int = 0

    def updated(
        self, leader_epoch: int, start_offset: int, finished_count: int, batches: Iterable[StateBatch]
    ) -> StoredState:
        """With what a write, or the record of one, adds. A start of -1 leaves it where it is."""
        start = self.start_offset if start_offset == NO_OFFSET else start_offset
        return replace(
            self,
            leader_epoch=leader_epoch,
            start_offset=start,
            finished_count=finished_count,
            batches=laid_over(self.batches, batches, start),
            updates=self.updates + 1,
        )


def laid_over(old: Iterable[StateBatch], new: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Batches from the start on, in order: what is new counts, and neighbours that are alike are one."""
    batches = list(old)
    for batch in new:
        cut: list[StateBatch] = []
        for other in batches:
            if other.last < batch.first or other.first > batch.last:
                cut.append(other)
                continue
            if other.first < batch.first:
                cut.append(other._replace(last=batch.first - 1))
            if other.last > batch.last:
                cut.append(other._replace(first=batch.last + 1))
        batches = [*cut, batch]
    merged: list[StateBatch] = []
    for batch in sorted(batches):
        if batch.last < start_offset:
            continue
        batch = batch._replace(first=max(batch.first, start_offset))
        if merged and merged[-1].last + 1 == batch.first and merged[-1][2:] == batch[2:]:
            merged[-1] = merged[-1]._replace(last=batch.last)
        else:
            merged.append(batch)
    return tuple(merged)


def snapshot_record(partition: int, key: StateKey, state: StoredState, now_ms: int) -> CoordinatorRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.finished_count,
        create_timestamp=state.created_ms,
        write_timestamp=now_ms,
        state_batches=_stored(state.batches),
    )
    return CoordinatorRecord(partition, *STATE_RECORDS.encode(ShareSnapshotKey(**key._asdict()), value, 0))


def update_record(
    partition: int, key: StateKey, state: StoredState, start_offset: int, batches: Iterable[StateBatch]
) -> CoordinatorRecord:
    value = ShareUpdateValue(
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=state.finished_count,
        state_batches=_stored(batches),
    )
    return CoordinatorRecord(partition, *STATE_RECORDS.encode(ShareUpdateKey(**key._asdict()), value, 0))


def tombstone(partition: int, key: StateKey) -> CoordinatorRecord:
    return CoordinatorRecord(partition, *STATE_RECORDS.encode(ShareSnapshotKey(**key._asdict()), None, 0))


def snapshot_key_of(key: bytes) -> StateKey | None:
    """The state that a record with this key is a snapshot of, or the end; None for any other record."""
    try:
        found = STATE_RECORDS.decode(key, None)
    except MalformedMessageError:
        return None
    if isinstance(found, Unknown) or not isinstance(found.key, ShareSnapshotKey):
        return None
    return StateKey(found.key.group_id, found.key.topic_id, found.key.partition)


def _stored(batches: Iterable[StateBatch]) -> list[StoredStateBatch]:
    return [
        StoredStateBatch(
            first_offset=batch.first,
            last_offset=batch.last,
            delivery_state=batch.state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    ]


@dataclass(slots=True)
class LoadReport(coordination.LoadReport):
    states: int = 0


class Loader:
    """Takes the records of one partition in their order: a snapshot replaces all before it, an update adds to it."""

    def __init__(self) -> None:
        self.report = LoadReport()
        self._states: dict[StateKey, StoredState] = {}

    def add(self, record: StoredRecord) -> None:
        if record.committed is not None:
            return  # nobody writes to this topic in a transaction
        self.report.records += 1
        try:
            found = STATE_RECORDS.decode(record.key, record.value)
        except MalformedMessageError as error:
            self.report.note_unreadable(self.report.records, error)
            return
        if isinstance(found, Unknown):
            self.report.skipped += 1
            return
        key = StateKey(found.key.group_id, found.key.topic_id, found.key.partition)
        value = found.value
        if value is None:
            self._states.pop(key, None)
        elif isinstance(value, ShareSnapshotValue):
            self._states[key] = StoredState(
                value.state_epoch,
                value.start_offset,
                value.leader_epoch,
                value.delivery_complete_count,
                tuple(_read(value.state_batches)),
                value.snapshot_epoch,
                snapshot_ms=value.write_timestamp,
                created_ms=value.create_timestamp,
            )
        else:
            state = self._states.get(key)
            # Without its snapshot, or of an earlier one, an update says nothing.
            if state is None or value.snapshot_epoch < state.snapshot_epoch:
                self.report.skipped += 1
                return
            self._states[key] = state.updated(
                value.leader_epoch, value.start_offset, value.delivery_complete_count, _read(value.state_batches)
            )

    def states(self) -> Iterator[tuple[StateKey, StoredState]]:
        for key, state in self._states.items():
            self.report.states += 1
            yield key, state


def _read(batches: Iterable[StoredStateBatch]) -> Iterator[StateBatch]:
    for batch in batches:
        yield StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
