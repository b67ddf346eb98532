"""Evening out: moves partitions one by one from members with many to members with few, and knows when it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.assignors._group import AssignmentInput
from headrace.assignors._java_order import PartitionHashSet, partition_hash
from headrace.topics import java_string_hash

# Each pass over the partitions moves at least one towards balance; no input met so far needs more than a handful.
_PASSES_MAX = 1000


class Movements:
    """Which partition went from whom to whom, so that a topic's partitions do not merely change places."""

    __slots__ = ("_by_topic", "_pair_of")

    def __init__(self) -> None:
        self._pair_of: dict[int, tuple[int, int]] = {}
        self._by_topic: dict[int, dict[tuple[int, int], PartitionHashSet]] = {}

    def record(self, number: int, topic: int, spread_hash: int, giver: int, taker: int) -> None:
        pair = (giver, taker)
        known = self._pair_of.pop(number, None)
        if known is not None:
            pairs = self._by_topic[topic]
            pairs[known].discard(number)
            if not pairs[known]:
                del pairs[known]
            if known[0] == taker:
                return
            pair = (known[0], taker)
        self._pair_of[number] = pair
        self._by_topic.setdefault(topic, {}).setdefault(pair, PartitionHashSet()).add(number, spread_hash)

    def instead_of(self, number: int, topic: int, giver: int, taker: int) -> int:
        """The partition to move: one of the same topic that came the opposite way goes back, if there is one."""
        pairs = self._by_topic.get(topic)
        if not pairs:
            return number
        known = self._pair_of.get(number)
        if known is not None:
            giver = known[0]
        opposite = pairs.get((taker, giver))
        return number if opposite is None else opposite.first()


class Evening:
    """State of the evening-out. Members are ranks in order of name; `numbers` is changed in place."""

    def __init__(
        self,
        group: AssignmentInput,
        class_of_topic: Sequence[int],
        class_members: Sequence[Sequence[int]],
        classes_of: Sequence[Sequence[int]],
        numbers: list[list[int]],
    ) -> None:
        self._layout = group.layout
        self._topic_of = group.number_topics()
        self._class_of_topic = class_of_topic
        self._class_members = class_members
        self._classes_of = classes_of
        self._numbers = numbers
        self._count = list(map(len, numbers))
        self._owner = [-1] * group.layout.total
        self._movements = Movements()
        self._hash_of_topic: dict[int, int] = {}
        self._previous: Mapping[int, int] = {}
        self._has_strangers = False
        self._measure(len(class_members))

    def _measure(self, classes: int) -> None:
        """Count, per class, how many members and how many owners have how many partitions, and find the extremes."""
        count = self._count
        # Partitions of a class that a member holds.
        self._held: list[Counter[int]] = [Counter() for _ in range(classes)]
        class_of = list(map(self._class_of_topic.__getitem__, self._topic_of))
        for rank, own in enumerate(self._numbers):
            for number in own:
                self._owner[number] = rank
            for index, held in Counter(map(class_of.__getitem__, own)).items():
                self._held[index][rank] = held
        self._member_levels = [Counter(map(count.__getitem__, members)) for members in self._class_members]
        self._owner_levels = [Counter(map(count.__getitem__, held)) for held in self._held]
        self._lowest = [min(levels, default=0) for levels in self._member_levels]
        self._highest = [max(levels, default=0) for levels in self._owner_levels]
        # Classes in which a partition could move to a member that would still have fewer than its present owner.
        self._uneven = {index for index in range(classes) if self._highest[index] > self._lowest[index] + 1}

    @property
    def is_even(self) -> bool:
        return not self._uneven

    def remember(self, previous: Mapping[int, int], taking_part: Sequence[bool], strict: bool) -> None:
        """Partitions go back to these members where that helps the balance.

        Java stumbles over a previous owner that takes no part, and gives partitions to one that no longer subscribes to
        them. The first is left out here; the second only when `strict`, because Java may yet end with a valid result.
        """
        self._previous = {}
        for number, rank in previous.items():
            if number >= len(self._topic_of) or not taking_part[rank]:
                continue
            subscribed = self._class_of_topic[self._topic_of[number]] in self._classes_of[rank]
            if subscribed or not strict:
                self._previous[number] = rank
                self._has_strangers |= not subscribed

    def run(self, runs: Sequence[tuple[int, list[int]]]) -> bool:
        """Go over (class, partitions) until nothing moves or all is even; tell whether anything moved."""
        moved_ever = False
        for _ in range(_PASSES_MAX):
            moved = False
            for index, numbers in runs:
                if not self._uneven:
                    break
                if index in self._uneven or self._has_strangers:
                    moved |= self._run_class(index, numbers)
            moved_ever |= moved
            if not moved:
                break
        return moved_ever

    def _run_class(self, index: int, numbers: Sequence[int]) -> bool:
        count, owner, previous = self._count, self._owner, self._previous
        limit = self._lowest[index] + 1
        moved = False
        for number in numbers:
            size = count[owner[number]]
            if number in previous and size > count[previous[number]] + 1:
                self._move(number, previous[number])
            elif size > limit:
                self._move(number, self._lowest_member(index))
            else:
                continue
            moved = True
            limit = self._lowest[index] + 1
            if not self._uneven:
                break
        return moved

    def _lowest_member(self, index: int) -> int:
        lowest, count = self._lowest[index], self._count
        return next(rank for rank in self._class_members[index] if count[rank] == lowest)

    def _move(self, number: int, taker: int) -> None:
        topic = self._topic_of[number]
        number = self._movements.instead_of(number, topic, self._owner[number], taker)
        giver = self._owner[number]
        if topic not in self._hash_of_topic:
            self._hash_of_topic[topic] = java_string_hash(self._layout.topics[topic])
        spread_hash = partition_hash(self._hash_of_topic[topic], number - self._layout.starts[topic])
        self._movements.record(number, topic, spread_hash, giver, taker)
        self._numbers[giver].remove(number)
        self._numbers[taker].append(number)
        self._owner[number] = taker
        self._recount(self._class_of_topic[topic], giver, taker)

    def _recount(self, moved_class: int, giver: int, taker: int) -> None:
        """Keep levels and extremes true after one partition went from giver to taker."""
        for rank, change in ((giver, -1), (taker, 1)):
            old = self._count[rank]
            self._count[rank] = new = old + change
            for index in self._classes_of[rank]:
                _shift(self._member_levels[index], old, new)
                # Counts change by one, so the lowest level moves by at most one.
                if new < self._lowest[index]:
                    self._lowest[index] = new
                elif not self._member_levels[index][self._lowest[index]]:
                    self._lowest[index] += 1
            touched = self._classes_of[rank]
            if moved_class not in touched:
                # A previous owner that no longer subscribes: it owns in a class that it is not a member of.
                touched = [*touched, moved_class]
            for index in touched:
                held = self._held[index]
                owned_before = held[rank] > 0
                if index == moved_class:
                    held[rank] += change
                self._relevel(index, old if owned_before else None, new if held[rank] > 0 else None)

    def _relevel(self, index: int, old: int | None, new: int | None) -> None:
        """An owner in this class went from one level to another; None: it was, or is, no owner."""
        levels = self._owner_levels[index]
        if old is not None:
            levels[old] -= 1
        if new is not None:
            levels[new] += 1
            self._highest[index] = max(self._highest[index], new)
        while self._highest[index] > 0 and not levels[self._highest[index]]:
            self._highest[index] -= 1
        if self._highest[index] > self._lowest[index] + 1:
            self._uneven.add(index)
        else:
            self._uneven.discard(index)


def _shift(levels: Counter[int], old: int, new: int) -> None:
    levels[old] -= 1
    levels[new] += 1
