"""Waiters for the watermark."""

from __future__ import annotations

from headrace.broker.replication.acks import AckWaiters


class Waiter:
    def __init__(self) -> None:
        self.given_up = False

    def done(self) -> bool:
        return self.given_up


def test_waiters_are_released_in_the_order_of_their_offsets() -> None:
    acks: AckWaiters[Waiter] = AckWaiters()
    waiters = [Waiter() for _ in range(4)]
    for end_offset, waiter in zip((7, 3, 5, 3), waiters):
        acks.add(end_offset, waiter)
    assert acks.committed(2) == []
    assert acks.committed(5) == [waiters[1], waiters[3], waiters[2]]
    assert acks.drain() == [waiters[0]]
    assert len(acks) == 0


def test_those_who_gave_up_are_not_told_and_do_not_pile_up() -> None:
    acks: AckWaiters[Waiter] = AckWaiters()
    kept = Waiter()
    acks.add(1_000_000, kept)
    for number in range(10_000):
        waiter = Waiter()
        acks.add(number + 1, waiter)
        waiter.given_up = True
        acks.gave_up()
        assert len(acks) < 100
    assert acks.committed(999_999) == []
    assert acks.drain() == [kept]
