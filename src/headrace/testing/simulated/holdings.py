"""What a parallel consumer holds of its group, looked at while it works: it handles only what it was given and nobody
has finished, each record once unless its handler fails, one after the other where there is order, and lets nothing go
that it has not committed.

A record that is handled again after a crash is no mistake; within the time that a member has a partition it is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.parallel.finished import Interval, decode_finished
from headrace.parallel.options import Order
from headrace.runtime import Clock
from headrace.testing.simulated.history import Handled, ParallelCommit, Piece
from headrace.testing.simulated.variants import DRAIN_S, STALL_S, ParallelVariant, RecordKind, kind_of, wait_s
from headrace.topics import TopicPartition

#: Times are sums of floats.
_ROUNDED_S = 1e-6


@dataclass(slots=True)
class HandlerCall:
    """A call of a handler for one record."""

    holding: Holding
    offset: int
    piece: Piece
    lane: str
    begun_s: float


@dataclass(slots=True)
class Holding:
    """A partition for as long as one member has it."""

    partition: TopicPartition
    #: Which of all partitions that came it is.
    number: int = 0
    #: What the group had committed when it came; None: nothing.
    committed: int | None = None
    #: Behind that: what its note says is finished.
    noted: list[Interval] = field(default_factory=list)
    is_told: bool = False
    is_leaving: bool = False
    #: By offset: how often it was begun, and from when on it may be begun again.
    begun: dict[int, int] = field(default_factory=dict)
    waits_s: dict[int, float] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    #: Calls under way, without those that hang.
    running: dict[int, HandlerCall] = field(default_factory=dict)
    #: The last commit that was asked for: offset and what its note says.
    asked: tuple[int, list[Interval]] | None = None


class Holdings:
    """All that one process holds. Whatever is wrong is noted in `handled`."""

    def __init__(self, name: str, variant: ParallelVariant, workers: int, handled: Handled, clock: Clock) -> None:
        self._name = name
        self._variant = variant
        self._records_max = workers * (variant.batch or 1)
        self._handled = handled
        self._clock = clock
        self._held: dict[TopicPartition, Holding] = {}
        self._busy = 0
        #: Where each record was begun (the retry topic may have it twice), each time that its partition came.
        self._places: dict[Piece, set[tuple[int, int]]] = {}
        #: How many letters of each were sent, but for those that did not arrive.
        self._letters: Counter[Piece] = Counter()
        self._comings = 0
        #: Whether it is to end at once, and commits nothing any more.
        self.is_killed = False
        #: Whether nobody knows of its last transaction that it was committed.
        self.is_in_doubt = False

    def _broken(self, text: str) -> None:
        self._handled.broken.append(f"{self._name}: {text}")

    # --- partitions that come and go --------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._comings += 1
            self._held[partition] = Holding(partition, self._comings)

    def told(self, committed: Mapping[TopicPartition, Any]) -> None:
        """What the group has committed, as it was answered; what counts is the first time."""
        for partition, found in committed.items():
            holding = self._held.get(partition)
            if holding is None or holding.is_told:
                continue
            holding.is_told = True
            if found is not None:
                holding.committed = found.offset
                holding.noted = decode_finished(found.offset, found.metadata) or []

    def leaving(self, partitions: Iterable[TopicPartition]) -> float:
        """They are about to be let go; gives when that began."""
        for partition in partitions:
            if partition in self._held:
                self._held[partition].is_leaving = True
        return self._clock.monotonic()

    def revoked(self, partitions: Iterable[TopicPartition], began_s: float) -> None:
        """They are let go: nothing of them runs, unless that took too long, and what is finished was committed."""
        is_late = self._clock.monotonic() - began_s >= DRAIN_S
        for partition in partitions:
            holding = self._held.pop(partition, None)
            if holding is None or self.is_killed:
                continue
            if holding.running and not is_late:
                self._broken(f"{partition} was let go while {min(holding.running)} of it was being handled")
            if not self.is_in_doubt:
                self._check_committed(holding)

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Others have them already."""
        for partition in partitions:
            self._held.pop(partition, None)

    def commits(self, commit: ParallelCommit) -> None:
        holding = self._held.get(commit.partition)
        if holding is not None:
            holding.asked = commit.offset, decode_finished(commit.offset, commit.note) or []

    def _check_committed(self, holding: Holding) -> None:
        offset, noted = holding.asked or (holding.committed or 0, holding.noted)
        left = [one for one in sorted(holding.finished) if one >= offset and not _is_within(one, noted)]
        if left:
            self._broken(f"{holding.partition} was let go with a commit of {offset}, though {left[0]} was finished")

    # --- handlers ---------------------------------------------------------------------------------------------------

    def begin(self, partition: TopicPartition, offset: int, piece: Piece) -> HandlerCall:
        """A handler is called for a record."""
        holding = self._held.get(partition)
        where = f"{partition}: {piece[0]!r} at {offset} was begun"
        if holding is None or holding.is_leaving:
            self._broken(f"{where}, but the partition is not its any more")
            holding = holding or Holding(partition)
        call = HandlerCall(holding, offset, piece, self._lane(offset, piece[0]), self._clock.monotonic())
        self._check_begin(holding, call, where)
        holding.begun[offset] = holding.begun.get(offset, 0) + 1
        self._busy += 1
        if self._busy > self._records_max:
            self._broken(f"{where} as one of {self._busy} at a time, of at most {self._records_max}")
        holding.running[offset] = call
        self._places.setdefault(piece, set()).add((holding.number, offset))
        return call

    def _check_begin(self, holding: Holding, call: HandlerCall, where: str) -> None:
        offset = call.offset
        if not holding.is_told:
            self._broken(f"{where} before it was known what is committed")
        elif (holding.committed is not None and offset < holding.committed) or _is_within(offset, holding.noted):
            self._broken(f"{where}, which was finished when the partition came, with {holding.committed}")
        if offset in holding.finished:
            self._broken(f"{where} once more, when it had been handled")
        if holding.begun.get(offset, 0) >= self._tries(call):
            self._broken(f"{where} after {holding.begun[offset]} tries")
        if call.begun_s < holding.waits_s.get(offset, 0.0) - _ROUNDED_S:
            early_s = holding.waits_s[offset] - call.begun_s
            self._broken(f"{where} {early_s:.3f} s before its next try was due")
        for other in holding.running.values():
            if other.lane == call.lane:
                self._broken(f"{where} while {other.piece[0]!r} at {other.offset} was being handled")

    def _lane(self, offset: int, value: str) -> str:
        if self._variant.order is Order.NONE:
            return str(offset)
        return value.split(":")[2] if self._variant.order is Order.KEY else ""

    def _tries(self, call: HandlerCall) -> int:
        """How often a record may be begun while the partition stays where it is."""
        kind = kind_of(call.piece[0], self._variant)
        hangs = self._variant.tries if self._variant.can_stall else 1
        tries = hangs if kind is RecordKind.REFUSED or _is_put_off(kind, call) else self._variant.tries
        # What failed with others is tried by itself before it is blamed.
        return tries + (self._variant.batch is not None)

    def succeeded(self, call: HandlerCall) -> None:
        """The handler has said that the record is finished."""
        self._ended(call)
        call.holding.finished.add(call.offset)

    def failed(self, call: HandlerCall) -> None:
        self._ended(call)
        number = 1 if self._variant.batch is not None else call.holding.begun[call.offset]
        call.holding.waits_s[call.offset] = self._clock.monotonic() + wait_s(self._variant.retry.backoff_s, number)

    def hangs(self, call: HandlerCall) -> None:
        """It will not come back, and is to be given up, but not at once."""
        self._ended(call)
        call.holding.waits_s[call.offset] = call.begun_s + STALL_S

    # --- letters ----------------------------------------------------------------------------------------------------

    def sends(self, piece: Piece) -> None:
        """A record is sent on, outside of transactions: once, unless that fails."""
        self._letters[piece] += 1
        begun = len(self._places.get(piece, ()))
        if self._letters[piece] > begun:
            self._broken(f"{piece[0]!r} was sent on from round {piece[1]} once more than it was begun ({begun} times)")

    def not_sent(self, piece: Piece) -> None:
        """Its letter did not arrive, as far as is known, and may be sent again."""
        self._letters[piece] -= 1

    def _ended(self, call: HandlerCall) -> None:
        if call.holding.running.pop(call.offset, None) is not None:
            self._busy -= 1


def _is_put_off(kind: RecordKind, call: HandlerCall) -> bool:
    return kind is RecordKind.LATER and call.piece[1] == 0


def _is_within(offset: int, intervals: Iterable[Interval]) -> bool:
    return any(first <= offset < last for first, last in intervals)
