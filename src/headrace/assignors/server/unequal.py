"""`uniform` where members are subscribed to different topics: an even share for each, as far as subscriptions allow.

Every partition stays where it was to be, as far as its holder is still subscribed. What is left goes to the least
loaded subscribers, topics with the most partitions for each subscriber first. Then partitions move from the most loaded
subscribers of each topic to the least loaded, until nothing gets better.
"""

from __future__ import annotations

from headrace.assignors.server.base import Assignments, GroupSpec

ROUNDS_MAX = 16
NOBODY = -1


class _Subscribers:
    """The subscribers of one topic by their load, from both ends.

    Those that carry equally little take turns, and so do those that carry equally much; a group of them grows by the
    next ones as its load reaches theirs.
    """

    def __init__(self, members: list[int], loads: list[int]) -> None:
        self._loads = loads
        self._order = sorted(members, key=lambda member: (loads[member], member))
        self.least = loads[self._order[0]] - 1
        self.most = loads[self._order[-1]] + 1
        self._low_end = 0
        self._next_low = 0
        self._high_start = self._high_end = len(self._order)
        self._next_high = len(self._order) - 1

    @property
    def imbalance(self) -> int:
        return self._loads[self._order[-1]] - self._loads[self._order[0]]

    def is_balanced(self) -> bool:
        return self.most - self.least <= 1

    def take_least_loaded(self) -> int:
        order, loads = self._order, self._loads
        if self._next_low >= self._low_end:
            self.least += 1
            while self._low_end < len(order) and loads[order[self._low_end]] == self.least:
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return order[self._next_low - 1]

    def take_most_loaded(self) -> int | None:
        """The next one that may give something up; None when there is none left."""
        order, loads = self._order, self._loads
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # All of the group were left out: go on with the next load that there is.
                self.most = loads[order[self._high_start - 1]]
            else:
                self.most -= 1
            while self._high_start > 0 and loads[order[self._high_start - 1]] == self.most:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return None
        self._next_high -= 1
        return order[self._next_high + 1]

    def leave_out(self) -> None:
        """The one that `take_most_loaded` gave last has nothing to give."""
        order, taken = self._order, self._next_high + 1
        order[taken], order[self._high_end - 1] = order[self._high_end - 1], order[taken]
        self._high_end -= 1


class _Assignment:
    """Members are numbers here, in their order."""

    def __init__(self, group: GroupSpec, member_ids: list[str]) -> None:
        self._group = group
        self._member_ids = member_ids
        self._subscribers: dict[bytes, list[int]] = {}
        for number, member_id in enumerate(member_ids):
            for topic in group.members[member_id].topics:
                self._subscribers.setdefault(topic, []).append(number)
        self._owners = {topic: [NOBODY] * group.partitions_of(topic) for topic in self._subscribers}
        self._loads = [0] * len(member_ids)
        self._topics = sorted(self._subscribers, key=self._rank)

    def _rank(self, topic: bytes) -> tuple[float, int, tuple[int, int]]:
        count = len(self._subscribers[topic])
        high = int.from_bytes(topic[:8], "big", signed=True)
        low = int.from_bytes(topic[8:], "big", signed=True)
        return -(self._group.partitions_of(topic) / count), count, (high, low)

    def make(self) -> Assignments:
        self._keep()
        for topic in self._topics:
            owners = self._owners[topic]
            if NOBODY in owners:
                subscribers = _Subscribers(self._subscribers[topic], self._loads)
                for partition, owner in enumerate(owners):
                    if owner == NOBODY:
                        self._give(owners, partition, subscribers.take_least_loaded())
        self._balance()
        assigned: dict[str, dict[bytes, list[int]]] = {member_id: {} for member_id in self._member_ids}
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                assigned[self._member_ids[owner]].setdefault(topic, []).append(partition)
        return assigned

    def _keep(self) -> None:
        for number, member_id in enumerate(self._member_ids):
            member = self._group.members[member_id]
            for topic, partitions in member.current.items():
                if topic in member.topics:
                    owners = self._owners[topic]
                    for partition in partitions:
                        if partition < len(owners) and owners[partition] == NOBODY:
                            owners[partition] = number
                            self._loads[number] += 1

    def _give(self, owners: list[int], partition: int, member: int) -> None:
        if owners[partition] != NOBODY:
            self._loads[owners[partition]] -= 1
        owners[partition] = member
        self._loads[member] += 1

    def _balance(self) -> None:
        """Go round the topics until all are left as they are since one was changed last."""
        topics = [topic for topic in self._topics if len(self._subscribers[topic]) > 1]
        changed_last: bytes | None = None
        for _ in range(ROUNDS_MAX):
            for topic in topics:
                if topic == changed_last:
                    return
                if self._balance_topic(topic) or changed_last is None:
                    changed_last = topic

    def _balance_topic(self, topic: bytes) -> bool:
        """Whether a partition has moved."""
        subscribers = _Subscribers(self._subscribers[topic], self._loads)
        if subscribers.imbalance <= 1:
            return False
        owners = self._owners[topic]
        # Of each owner the last partition goes first.
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            owned.setdefault(owner, []).append(partition)
        moved = False
        while not subscribers.is_balanced():
            giver = subscribers.take_most_loaded()
            while giver is not None and not owned.get(giver):
                subscribers.leave_out()
                giver = subscribers.take_most_loaded()
            if giver is None:
                break
            partition = owned[giver].pop()
            taker = subscribers.take_least_loaded()
            if subscribers.is_balanced():
                break
            self._give(owners, partition, taker)
            moved = True
        return moved


def assign_unequal(group: GroupSpec, member_ids: list[str]) -> Assignments:
    return _Assignment(group, member_ids).make()
