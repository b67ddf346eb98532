"""Round-robin: all partitions in order of topic, dealt one by one to the members in a circle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from headrace.assignors._group import AssignmentInput, read_group
from headrace.assignors.base import AssignableTopics, AssignorBase, GroupAssignment, Subscription


class RoundRobinAssignor(AssignorBase):
    """Equal to Kafka's RoundRobinAssignor."""

    name = "roundrobin"

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        circle = group.members_static_first()
        hands: list[list[int] | range] = [range(0)] * len(circle)
        turn = 0
        for seats, start, end in _runs(group, circle):
            turn = _deal(hands, seats, turn, start, end)
        numbers: list[Sequence[int]] = [()] * len(circle)
        for seat, member in enumerate(circle):
            numbers[member] = hands[seat]
        return group.result(numbers)


def _runs(group: AssignmentInput, circle: Sequence[int]) -> list[tuple[list[int], int, int]]:
    """Stretches of partitions with the same subscribers: (their seats in the circle, first number, end)."""
    runs: list[tuple[list[int], int, int]] = []
    seats_before: list[int] = []
    for seats, start, count in zip(group.readers_per_topic(circle), group.layout.starts, group.layout.counts):
        if seats is seats_before or seats == seats_before:
            runs[-1] = (seats, runs[-1][1], start + count)
        else:
            runs.append((seats, start, start + count))
        seats_before = seats
    return runs


def _deal(hands: list[list[int] | range], seats: list[int], turn: int, start: int, end: int) -> int:
    """Give the numbers start…end to the seats, beginning with the one whose turn it is; return whose turn is next."""
    width = len(seats)
    first = bisect_left(seats, turn) % width
    for offset in range(min(width, end - start)):
        seat = seats[(first + offset) % width]
        share = range(start + offset, end, width)
        hand = hands[seat]
        if not hand:
            hands[seat] = share
        elif isinstance(hand, range):
            hands[seat] = [*hand, *share]
        else:
            hand.extend(share)
    return seats[(first + end - start - 1) % width] + 1
