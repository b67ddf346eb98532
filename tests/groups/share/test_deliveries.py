"""Records of one partition that a share group reads: handed out, locked, acknowledged."""

from __future__ import annotations

import random

import pytest

from headrace.errors import ErrorCode
from headrace.groups.share.deliveries import (
    AckBatch,
    Acquired,
    Deliveries,
    DeliveryLimits,
    LogBatch,
    RecordState,
    StateBatch,
    StateChange,
)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
MANY = 500


def acquire(
    of: Deliveries, member: str, *batches: tuple[int, int], records_max: int = MANY, now_ms: int = 0
) -> list[Acquired]:
    start = of.fetch_offset()
    if start is None:
        return []
    return of.acquire(
        member, now_ms, start, [LogBatch(*batch) for batch in batches if batch[1] >= start], records_max=records_max
    )


def acknowledge(of: Deliveries, member: str, *batches: tuple[int, int, list[int]]) -> ErrorCode:
    change = of.acknowledge(member, 0, [AckBatch(*batch) for batch in batches])
    if isinstance(change, StateChange):
        of.stored(change)
        return ErrorCode.NONE
    return change.error


def test_what_is_acknowledged_is_finished_and_the_start_moves() -> None:
    of = Deliveries(0)
    assert acquire(of, "a", (0, 4)) == [(0, 4, 1)]
    assert acquire(of, "b", (0, 4)) == []
    assert acknowledge(of, "a", (0, 4, [ACCEPT])) is ErrorCode.NONE
    assert (of.start_offset, of.end_offset, of.fetch_offset()) == (5, 5, 5)


def test_each_record_is_acknowledged_by_itself() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 5))
    assert acknowledge(of, "a", (0, 5, [ACCEPT, RELEASE, REJECT] * 2)) is ErrorCode.NONE
    assert of.fetch_offset() == 1
    assert acquire(of, "b", (0, 5)) == [(1, 1, 2), (4, 4, 2)]


def test_neighbours_that_were_given_back_are_handed_out_as_one() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 4))
    acknowledge(of, "a", (0, 1, [ACCEPT]), (2, 2, [REJECT]), (3, 4, [RELEASE]))
    assert acquire(of, "a", (0, 4)) == [(3, 4, 2)]


def test_after_the_last_delivery_a_record_is_archived() -> None:
    of = Deliveries(0, limits=lambda: DeliveryLimits(deliveries_max=2))
    acquire(of, "a", (0, 1))
    acknowledge(of, "a", (0, 1, [RELEASE]))
    assert acquire(of, "a", (0, 1)) == [(0, 1, 2)]
    acknowledge(of, "a", (0, 1, [RELEASE]))
    assert (of.start_offset, acquire(of, "a", (0, 1))) == (2, [])


def test_a_record_that_comes_back_again_and_again_is_isolated() -> None:
    of = Deliveries(0)
    sizes = []
    for _ in range(5):
        (first, last, _), *_ = acquire(of, "a", (0, 7), records_max=1)
        sizes.append(last - first + 1)
        acknowledge(of, "a", (first, last, [RELEASE]))
    assert sizes == [8, 8, 8, 4, 1]


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([(3, 1, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT]), (1, 3, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT]), (2, 3, [ACCEPT])], ErrorCode.INVALID_RECORD_STATE),
        ([(0, 4, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT, ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(5, 9, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(3, 9, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [ACCEPT]), (2, 3, [7])], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(batches: list[tuple[int, int, list[int]]], error: ErrorCode) -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 4))
    before = of.states()
    assert acknowledge(of, "a", *batches) is error
    assert of.states() == before
    assert acknowledge(of, "a", (0, 4, [ACCEPT])) is ErrorCode.NONE


def test_nobody_acknowledges_what_another_has() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 2))
    acknowledge(of, "a", (0, 2, [RELEASE]))
    acquire(of, "b", (0, 2))
    assert acknowledge(of, "a", (0, 2, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE


def test_what_is_finished_may_be_acknowledged_again() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 4))
    acknowledge(of, "a", (0, 4, [ACCEPT]))
    assert acknowledge(of, "a", (0, 4, [ACCEPT])) is ErrorCode.NONE


def test_a_lock_ends_in_time_and_a_renewed_one_later() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 1), now_ms=0)
    renewed = of.acknowledge("a", 20_000, [AckBatch(1, 1, [RENEW])])
    assert isinstance(renewed, StateChange)
    assert renewed.batches == ()
    assert of.next_lock_end_ms == 30_000
    change = of.expire(30_000)
    of.stored(change)
    assert acquire(of, "b", (0, 1), now_ms=30_000) == [(0, 0, 2)]
    assert acknowledge(of, "a", (1, 1, [ACCEPT])) is ErrorCode.NONE


def test_no_change_counts_before_it_is_stored() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 4))
    change = of.acknowledge("a", 0, [AckBatch(0, 4, [ACCEPT])])
    assert isinstance(change, StateChange)
    assert change == StateChange((StateBatch(0, 4, RecordState.ACKNOWLEDGED, 1),))
    assert of.progress() == (0, 5)
    assert of.start_offset == 0
    assert acknowledge(of, "a", (0, 4, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert of.expire(10**9).batches == ()
    of.not_stored(change)
    assert acknowledge(of, "a", (0, 4, [ACCEPT])) is ErrorCode.NONE


def test_only_so_many_are_out_but_batches_are_whole() -> None:
    of = Deliveries(0, limits=lambda: DeliveryLimits(in_flight_max=100))
    batches = [(first, first + 29) for first in range(0, 150, 30)]
    assert acquire(of, "a", *batches, records_max=30) == [(0, 29, 1)]
    assert acquire(of, "a", *batches) == [(30, 119, 1)]
    assert of.fetch_offset() is None
    acknowledge(of, "a", (0, 59, [ACCEPT]))
    assert acquire(of, "a", *batches) == [(120, 149, 1)]


def test_exactly_so_many_where_that_is_asked_for() -> None:
    of = Deliveries(0)
    batches = [LogBatch(0, 4), LogBatch(5, 9)]

    def exactly(count: int) -> list[Acquired]:
        return of.acquire(
            "a", 0, of.fetch_offset() or 0, batches, records_max=count, batch_records=count, is_exact=True
        )

    assert exactly(2) == [(0, 1, 1)]
    assert exactly(4) == [(2, 4, 1), (5, 5, 1)]
    assert exactly(1) == [(6, 6, 1)]


def test_aborted_batches_are_archived_unseen() -> None:
    of = Deliveries(0)
    assert of.acquire("a", 0, 0, [LogBatch(0, 1, is_aborted=True), LogBatch(2, 2)], records_max=MANY) == [(2, 2, 1)]
    assert of.start_offset == 2


def test_records_that_the_log_has_no_more_are_finished() -> None:
    of = Deliveries(0)
    acquire(of, "a", (0, 9))
    acknowledge(of, "a", (0, 9, [RELEASE]))
    assert acquire(of, "a", (4, 9)) == [(4, 9, 2)]
    assert of.start_offset == 4
    of.begin_at(7)
    assert (of.start_offset, of.held_by("a")) == (7, [(7, 9, 2)])


def test_a_state_that_was_stored_comes_back() -> None:
    of = Deliveries(0, [StateBatch(0, 0, 2, 1), StateBatch(2, 2, 4, 1), StateBatch(3, 3, 0, 1)])
    assert (of.start_offset, of.end_offset) == (1, 4)
    assert acquire(of, "a", (0, 4)) == [(1, 1, 1), (3, 3, 2), (4, 4, 1)]


def test_any_order_of_events_loses_and_doubles_nothing() -> None:
    """Random members, locks, failures of storing, and leaders that load what was stored: each record ends up with one
    member that was told that it is acknowledged, and is with no two members at once."""
    for seed in range(150):
        rng = random.Random(seed)
        limits = DeliveryLimits(lock_ms=50, deliveries_max=1000, in_flight_max=40)
        of, store = Deliveries(0, limits=lambda limits=limits: limits), _Store()
        accepted: set[int] = set()
        batches, now = [], 0
        for first in range(0, 120, 6):
            batches.append((first, first + 5))
        for _ in range(4000):
            now += rng.randrange(10)
            member = rng.choice("abc")
            event = rng.random()
            if event < 0.4:
                start = of.fetch_offset()
                if start is not None:
                    read = [LogBatch(*batch) for batch in batches if batch[1] >= start][: rng.randrange(1, 4)]
                    of.acquire(member, now, start, read, records_max=rng.choice((1, 5, 50)))
            elif event < 0.85:
                held = of.held_by(member)
                if held:
                    one = rng.choice(held)
                    kind = rng.choice((ACCEPT, ACCEPT, RELEASE))
                    change = of.acknowledge(member, now, [AckBatch(one.first, one.last, [kind])])
                    if isinstance(change, StateChange) and store.keep(of, change, rng) and kind == ACCEPT:
                        done = set(range(one.first, one.last + 1))
                        assert not done & accepted, seed
                        accepted |= done
            elif event < 0.95:
                store.keep(of, of.expire(now), rng)
            elif event < 0.99:
                store.keep(of, of.release(member), rng)
            else:
                of = Deliveries(store.start, store.batches(), limits=lambda limits=limits: limits)
            if of.start_offset == 120:
                break
        assert accepted == set(range(120)), seed


class _Store:
    """What was stored, by offset."""

    def __init__(self) -> None:
        self.start, self.states = 0, dict[int, tuple[int, int]]()

    def keep(self, of: Deliveries, change: StateChange, rng: random.Random) -> bool:
        if not change.batches:
            return False
        if rng.random() < 0.1:
            of.not_stored(change)
            return False
        self.start = max(self.start, of.start_offset)
        for batch in change.batches:
            for offset in range(batch.first, batch.last + 1):
                self.states[offset] = (batch.state, batch.delivery_count)
        of.stored(change)
        return True

    def batches(self) -> list[StateBatch]:
        return [StateBatch(o, o, *self.states[o]) for o in sorted(self.states) if o >= self.start]
