"""What became of the records of one partition that a share group reads: who has which, how often, until when.

Pure: no clock, no socket. Records between `start_offset` and `end_offset` are kept as runs of equal neighbours.
All below the start are finished, none from the end on was handed out yet. A change counts for others (it can be
acquired, the start moves) once it is stored: `acknowledge`, `release` and `expire` give what to store, and `stored` or
`not_stored` says what became of that. Until then the records stay with the member that had them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.errors import ErrorCode

# A record that was given back so often is handed out with ever fewer others, so that one that breaks its readers is
# found; at half of the deliveries that it may have, but not before this one.
_SPLIT_AFTER_MIN = 2


class RecordState(IntEnum):
    """By Kafka's numbers. 0, 2 and 4 are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class AckType(IntEnum):
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acquired(NamedTuple):
    """Records that a member may handle now, the last one included."""

    first: int
    last: int
    delivery_count: int


class LogBatch(NamedTuple):
    """A batch of the log, by its first and last offset. One of an aborted transaction is nobody's to read."""

    first: int
    last: int
    is_aborted: bool = False


class AckBatch(NamedTuple):
    """What a member says of records: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """A run of records as it is stored."""

    first: int
    last: int
    state: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The settings of a group that count here."""

    lock_ms: int = 30_000
    deliveries_max: int = 5
    in_flight_max: int = 2_000
    may_renew: bool = True

    @property
    def split_after(self) -> int:
        """From so many deliveries on, a record is handed out with fewer others."""
        return max(_SPLIT_AFTER_MIN, -(-self.deliveries_max // 2))


@dataclass(slots=True)
class _Run:
    """Neighbours that are alike. `becomes` is their next state while that is being stored."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member_id: str = ""
    locked_until_ms: int = 0
    becomes: RecordState | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)

    def is_like(self, other: _Run) -> bool:
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.locked_until_ms == other.locked_until_ms
            and self.becomes is other.becomes
        )


class Progress(NamedTuple):
    """How far a group has got: so many records from the start on are finished, from which its lag follows."""

    start_offset: int
    finished_count: int


@dataclass(frozen=True, slots=True)
class StateChange:
    """What has to be stored before it counts. Nothing has to be where there are no `batches`."""

    batches: tuple[StateBatch, ...]


class NotAcknowledged(NamedTuple):
    """Why nothing of an acknowledgement counts; without words for a request that makes no sense."""

    error: ErrorCode
    words: str | None = None


_MALFORMED = NotAcknowledged(ErrorCode.INVALID_REQUEST)
# Clients are shown these words as Kafka has them.
_FIRST_PAST_END = "Batch record not found. The first offset in request is past acquired records."
_LAST_PAST_END = "Batch record not found. The last offset in request is past acquired records."
_NO_RENEWING = "Renewing acquisition locks is not enabled for the group."
_NOT_ACQUIRED = {
    True: "The batch cannot be acknowledged. The batch is not in the acquired state.",
    False: "The offset cannot be acknowledged. The offset is not acquired.",
}
_NOT_OWNER = {True: "Member is not the owner of batch record", False: "Member is not the owner of offset"}


class Deliveries:
    """One partition of one share group, as its leader knows it."""

    def __init__(
        self,
        start_offset: int,
        batches: Iterable[StateBatch] = (),
        *,
        limits: Callable[[], DeliveryLimits] = DeliveryLimits,
    ) -> None:
        """`batches` are those that were stored, in order. What lies between them was handed out and never finished.

        `limits` gives the settings in effect.
        """
        self._limits = limits
        self.start_offset = self.end_offset = start_offset
        self._runs: list[_Run] = []
        for batch in batches:
            if batch.last < self.end_offset:
                continue
            if batch.first > self.end_offset:
                self._append(_Run(self.end_offset, batch.first - 1, RecordState.AVAILABLE, 0))
            first = max(batch.first, self.end_offset)
            self._append(_Run(first, batch.last, RecordState(batch.state), batch.delivery_count))
        self._advance()

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no record is out, and nothing is being stored."""
        return not any(run.state is RecordState.ACQUIRED for run in self._runs)

    @property
    def next_lock_end_ms(self) -> int | None:
        """When the first lock ends."""
        return min((run.locked_until_ms for run in self._locked()), default=None)

    def fetch_offset(self) -> int | None:
        """Where to read on: at the first record that may be handed out. None: as many are out as may be."""
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                return run.first
        return None if self._is_full() else self.end_offset

    def progress(self) -> Progress:
        """How far the group has got with all changes that there are, stored or not."""
        finished = sum(
            run.last - run.first + 1
            for run in self._runs
            if run.is_finished or run.becomes in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
        )
        return Progress(self.start_offset, finished)

    def held_by(self, member_id: str) -> list[Acquired]:
        return [
            Acquired(run.first, run.last, run.delivery_count)
            for run in self._runs
            if run.state is RecordState.ACQUIRED and run.member_id == member_id
        ]

    def states(self) -> list[StateBatch]:
        """All records from the start to the end, for people and tests."""
        return [StateBatch(run.first, run.last, int(run.state), run.delivery_count) for run in self._runs]

    # --- records go out -----------------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        now_ms: int,
        read_from: int,
        batches: Sequence[LogBatch],
        *,
        records_max: int,
        batch_records: int = 2**31 - 1,
        is_exact: bool = False,
    ) -> list[Acquired]:
        """Lock records of what was read from the log.

        Whole batches, also beyond `records_max` and the most that may be out, unless `is_exact`. What was read as from
        `read_from` on and is not there is gone from the log. `batch_records`: how many are named as one, which its
        reader acknowledges as one.
        """
        if not batches:
            return []
        self._assert_order()
        self._drop(read_from, batches[0].first - 1)
        found: list[_Run] = []
        taken = 0
        for batch in batches:
            if taken >= records_max:
                break
            if batch.is_aborted:
                self._drop(batch.first, batch.last)
            else:
                for run in self._available(batch):
                    if taken < records_max:
                        taken += self._take(found, run, member_id, now_ms, records_max - taken, is_exact)
            if batch.last >= self.end_offset and taken < records_max and not self._is_full():
                taken += self._take_new(found, batch, member_id, now_ms, records_max - taken, is_exact)
        named = _named(found, 0 if is_exact else batch_records, {batch.first for batch in batches})
        self._merge()
        self._advance()
        return named

    def _take_new(
        self, found: list[_Run], batch: LogBatch, member_id: str, now_ms: int, records_max: int, is_exact: bool
    ) -> int:
        """What of a batch nobody has had yet."""
        if batch.first > self.end_offset:
            self._append(_Run(self.end_offset, batch.first - 1, RecordState.ARCHIVED, 0))
        first, last = self.end_offset, batch.last
        if batch.is_aborted:
            self._append(_Run(first, last, RecordState.ARCHIVED, 0))
            return 0
        if is_exact:
            in_flight_left = self._limits().in_flight_max - (first - self.start_offset)
            last = min(last, first + min(records_max, in_flight_left) - 1)
        run = _Run(first, last, RecordState.AVAILABLE, 0)
        self._append(run)
        self._acquire(run, member_id, now_ms)
        found.append(run)
        return last - first + 1

    def _available(self, batch: LogBatch) -> list[_Run]:
        """The runs that may be handed out within a batch."""
        return [run for run in self._exactly(batch.first, batch.last) if run.state is RecordState.AVAILABLE]

    def _take(self, found: list[_Run], run: _Run, member_id: str, now_ms: int, records_max: int, is_exact: bool) -> int:
        limits = self._limits()
        count = run.last - run.first + 1
        if is_exact:
            count = min(count, records_max)
        if run.delivery_count >= limits.split_after:
            is_last_delivery = run.delivery_count >= limits.deliveries_max - 1
            halves = run.delivery_count - limits.split_after + 1
            count = 1 if is_last_delivery else max(1, min(count, (run.last - run.first + 1) >> halves))
        if count < run.last - run.first + 1:
            self._split_at(run.first + count)
        self._acquire(run, member_id, now_ms)
        found.append(run)
        return count

    def _acquire(self, run: _Run, member_id: str, now_ms: int) -> None:
        run.state = RecordState.ACQUIRED
        run.delivery_count += 1
        run.member_id = member_id
        run.locked_until_ms = now_ms + self._limits().lock_ms

    # --- what becomes of them -----------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, now_ms: int, batches: Sequence[AckBatch]) -> StateChange | NotAcknowledged:
        """All of it, or, refused, nothing. What lies below the start passes silently: it is finished."""
        if not _has_sense(batches):
            return _MALFORMED
        asked = [
            (first, last, AckType(kind), len(batch.types) == 1)
            for batch in batches
            for first, last, kind in _single_types(batch)
        ]
        seen_to = self.start_offset - 1
        for first, last, kind, is_batch in asked:
            if last < self.start_offset:
                continue
            first = max(first, self.start_offset)
            if last >= self.end_offset:
                words = _FIRST_PAST_END if first >= self.end_offset else _LAST_PAST_END
                return NotAcknowledged(ErrorCode.INVALID_REQUEST, words)
            is_seen = first <= seen_to
            why = _NOT_ACQUIRED[False] if is_seen else self._why_not(member_id, first, last, kind, is_batch)
            if why is not None:
                return NotAcknowledged(ErrorCode.INVALID_RECORD_STATE, why)
            seen_to = last
        changed: list[_Run] = []
        for first, last, kind, _ in asked:
            first = max(first, self.start_offset)
            if last < first:
                continue
            for run in self._exactly(first, last):
                if kind is AckType.RENEW:
                    run.locked_until_ms = now_ms + self._limits().lock_ms
                    continue
                run.becomes = self._after(kind, run)
                changed.append(run)
        return self._change(changed)

    def release(self, member_id: str) -> StateChange:
        """The member is gone: give back all that it has."""
        return self._give_back([run for run in self._locked() if run.member_id == member_id])

    def expire(self, now_ms: int) -> StateChange:
        """Give back what nobody acknowledged in time."""
        return self._give_back([run for run in self._locked() if run.locked_until_ms <= now_ms])

    def stored(self, change: StateChange) -> None:
        """The change is in the log: it counts."""
        for batch in change.batches:
            for run in self._exactly(batch.first, batch.last):
                if run.becomes is not None:
                    _finish(run, run.becomes)
        self._merge()
        self._advance()
        self._assert_order()

    def not_stored(self, change: StateChange) -> None:
        """The change did not get into the log: the records are still with their member, whose locks go on."""
        for batch in change.batches:
            for run in self._exactly(batch.first, batch.last):
                run.becomes = None
        self._merge()

    def begin_at(self, offset: int) -> None:
        """The log begins there now: what lies below is gone."""
        if offset <= self.start_offset:
            return
        self._split_at(offset)
        self._runs = [run for run in self._runs if run.first >= offset]
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self._advance()

    def _why_not(self, member_id: str, first: int, last: int, kind: AckType, is_batch: bool) -> str | None:
        """Why the member cannot say this of these records, all in one or of each; None if it can."""
        for run in self._overlapping(first, last):
            is_whole = is_batch and (run.first, run.last) == (first, last)
            if run.state is not RecordState.ACQUIRED or run.becomes is not None:
                return _NOT_ACQUIRED[is_whole]
            if run.member_id != member_id:
                return _NOT_OWNER[is_whole]
        return _NO_RENEWING if kind is AckType.RENEW and not self._limits().may_renew else None

    def _after(self, kind: AckType, run: _Run) -> RecordState:
        if kind is AckType.ACCEPT:
            return RecordState.ACKNOWLEDGED
        if kind is AckType.RELEASE:
            return self._given_back(run)
        return RecordState.ARCHIVED

    def _given_back(self, run: _Run) -> RecordState:
        is_over = run.delivery_count >= self._limits().deliveries_max
        return RecordState.ARCHIVED if is_over else RecordState.AVAILABLE

    def _give_back(self, runs: list[_Run]) -> StateChange:
        for run in runs:
            run.becomes = self._given_back(run)
        return self._change(runs)

    def _change(self, runs: list[_Run]) -> StateChange:
        batches: list[StateBatch] = []
        for run in runs:
            assert run.becomes is not None
            batch = StateBatch(run.first, run.last, int(run.becomes), run.delivery_count)
            if batches and batches[-1].last + 1 == batch.first and batches[-1][2:] == batch[2:]:
                batches[-1] = batches[-1]._replace(last=batch.last)
            else:
                batches.append(batch)
        return StateChange(tuple(batches))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return self.end_offset - self.start_offset >= self._limits().in_flight_max

    def _locked(self) -> list[_Run]:
        """What is out, and not about to change."""
        return [run for run in self._runs if run.state is RecordState.ACQUIRED and run.becomes is None]

    def _append(self, run: _Run) -> None:
        assert run.first == self.end_offset, (run, self.end_offset)
        self._runs.append(run)
        self.end_offset = run.last + 1

    def _index(self, offset: int) -> int:
        """The index of the run that has the offset, or of the one that it would come after."""
        return bisect_right(self._runs, offset, key=lambda run: run.first) - 1

    def _overlapping(self, first: int, last: int) -> list[_Run]:
        at = max(self._index(first), 0)
        found = []
        while at < len(self._runs) and self._runs[at].first <= last:
            if self._runs[at].last >= first:
                found.append(self._runs[at])
            at += 1
        return found

    def _exactly(self, first: int, last: int) -> list[_Run]:
        """The runs of these offsets, which are cut where they reach further."""
        self._split_at(first)
        self._split_at(last + 1)
        return self._overlapping(first, last)

    def _split_at(self, offset: int) -> None:
        at = self._index(offset)
        if at < 0:
            return
        run = self._runs[at]
        if run.first < offset <= run.last:
            self._runs.insert(at + 1, replace(run, first=offset))
            run.last = offset - 1

    def _drop(self, first: int, last: int) -> None:
        """Records that may be handed out and are not in the log any more are finished."""
        if first > last:
            return
        for run in self._exactly(first, last):
            if run.state is RecordState.AVAILABLE:
                run.state = RecordState.ARCHIVED

    def _merge(self) -> None:
        merged: list[_Run] = []
        for run in self._runs:
            if merged and merged[-1].is_like(run):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self._runs = merged

    def _advance(self) -> None:
        """Move the start beyond all that is finished."""
        done = 0
        while done < len(self._runs) and self._runs[done].is_finished:
            done += 1
        if done:
            self.start_offset = self._runs[done - 1].last + 1
            del self._runs[:done]

    def _assert_order(self) -> None:
        at = self.start_offset
        for run in self._runs:
            assert run.first == at, (run, at)
            assert run.last >= at, run
            at = run.last + 1
        assert at == self.end_offset, (at, self.end_offset)


_ACK_TYPES = frozenset(AckType)


def _has_sense(batches: Sequence[AckBatch]) -> bool:
    """Whether the batches are in order, with a type that there is for all of their records or for each."""
    previous_last = -1
    for batch in batches:
        count = batch.last - batch.first + 1
        is_in_order = batch.first <= batch.last and batch.first >= previous_last
        if not is_in_order or not batch.types or (len(batch.types) > 1 and len(batch.types) != count):
            return False
        if any(kind not in _ACK_TYPES for kind in batch.types):
            return False
        previous_last = batch.last
    return True


def _finish(run: _Run, state: RecordState) -> None:
    run.state, run.becomes, run.member_id, run.locked_until_ms = state, None, "", 0


def _single_types(batch: AckBatch) -> list[tuple[int, int, int]]:
    """A batch as runs of one type each."""
    if len(batch.types) == 1:
        return [(batch.first, batch.last, batch.types[0])]
    found: list[tuple[int, int, int]] = []
    for offset, kind in enumerate(batch.types, batch.first):
        if found and found[-1][2] == kind:
            found[-1] = (found[-1][0], offset, kind)
        else:
            found.append((offset, offset, kind))
    return found


def _named(runs: Sequence[_Run], batch_records: int, batch_starts: set[int]) -> list[Acquired]:
    """The runs as their reader is told of them: neighbours as one, cut where a batch of the log begins."""
    named: list[Acquired] = []
    for run in runs:
        last = named[-1] if named else None
        if (
            last is None
            or last.last + 1 != run.first
            or last.delivery_count != run.delivery_count
            or (last.last - last.first + 1 >= batch_records and run.first in batch_starts)
        ):
            named.append(Acquired(run.first, run.last, run.delivery_count))
        else:
            named[-1] = last._replace(last=run.last)
    return named
