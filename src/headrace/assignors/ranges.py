"""Range: per topic, consecutive partitions to the members in order; near ones first where racks are known (KIP-881)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.assignors._group import AssignmentInput, read_group
from headrace.assignors._racks import racks_help
from headrace.assignors.base import AssignableTopics, AssignorBase, GroupAssignment, Subscription


class RangeAssignor(AssignorBase):
    """Equal to Kafka's RangeAssignor."""

    name = "range"

    def assign(self, cluster: AssignableTopics, subscriptions: Mapping[str, Subscription]) -> GroupAssignment:
        group = read_group(cluster, subscriptions)
        order = group.members_static_first()
        readers = group.readers_per_topic(order)
        # By place in that order.
        numbers: list[list[int]] = [[] for _ in order]
        states = _rack_states(group, order, readers)
        if any(state.needs_racks for state in states):
            _assign_near(states, numbers)
            for state in states:
                state.take_ranges(numbers, None)
            # Numbers sort as (topic, partition) do.
            for own in numbers:
                own.sort()
        else:
            _assign_plain(group, readers, numbers)
        result = numbers[:]
        for place, member in enumerate(order):
            result[member] = numbers[place]
        return group.result(result)


def _assign_plain(group: AssignmentInput, readers: Sequence[list[int]], numbers: list[list[int]]) -> None:
    layout, index = group.layout, group.topic_index()
    # Java walks the topics in the order of its hash table; only the order within a member's list depends on it.
    for topic in map(index.__getitem__, group.hashed_topics):
        start, count = layout.starts[topic], layout.counts[topic]
        each, extra = divmod(count, len(readers[topic]))
        if each == 0:
            for member, number in zip(readers[topic], range(start, start + count)):
                numbers[member].append(number)
            continue
        for position, member in enumerate(readers[topic]):
            end = start + each + (position < extra)
            numbers[member].extend(range(start, end))
            start = end


@dataclass(slots=True)
class _TopicState:
    """What is left to give of one topic, and what its subscribers may still take."""

    start: int
    readers: list[int]
    rack_of: dict[int, str | None]
    # Empty when no subscriber of this topic has a rack.
    partition_racks: list[frozenset[str]]
    needs_racks: bool
    left: dict[int, None]
    taken: dict[int, int]
    each: int
    extra: int

    def near(self, member: int, partition: int) -> bool:
        rack = self.rack_of[member]
        return rack is None or (bool(self.partition_racks) and rack in self.partition_racks[partition])

    def room(self, member: int) -> int:
        return max(0, self.each + (self.extra > 0) - self.taken[member])

    def take(self, member: int, partitions: Sequence[int], numbers: list[list[int]]) -> None:
        numbers[member].extend(self.start + partition for partition in partitions)
        self.taken[member] += len(partitions)
        if self.taken[member] > self.each:
            self.extra -= 1
        for partition in partitions:
            del self.left[partition]

    def take_ranges(self, numbers: list[list[int]], allowed: Callable[[int, int], bool] | None) -> None:
        """Members in order take what is left up to their share, or only the partitions they are allowed."""
        for member in self.readers:
            if not self.left:
                return
            room = self.room(member)
            mine: Iterable[int] = self.left if allowed is None else (p for p in self.left if allowed(member, p))
            chosen = list(islice(mine, room))
            if chosen:
                self.take(member, chosen, numbers)


def _rack_states(group: AssignmentInput, order: Sequence[int], readers: Sequence[list[int]]) -> list[_TopicState]:
    """The topics' states, or nothing when no member or no replica has a rack, so that racks cannot matter."""
    if group.cluster.replica_racks is None or not any(subscription.rack_id for subscription in group.subscriptions):
        return []
    racks = [group.subscriptions[member].rack_id or None for member in order]
    states = []
    for topic, members in enumerate(readers):
        rack_of = {member: racks[member] for member in members}
        member_racks = {rack for rack in rack_of.values() if rack is not None}
        partition_racks = group.partition_racks(topic) if member_racks else []
        count = group.layout.counts[topic]
        each, extra = divmod(count, len(members))
        states.append(
            _TopicState(
                start=group.layout.starts[topic],
                readers=members,
                rack_of=rack_of,
                partition_racks=partition_racks,
                needs_racks=racks_help(member_racks, partition_racks),
                left=dict.fromkeys(range(count)),
                taken=dict.fromkeys(members, 0),
                each=each,
                extra=extra,
            )
        )
    return states


def _assign_near(states: Sequence[_TopicState], numbers: list[list[int]]) -> None:
    """Give partitions to members in a rack of theirs, as far as shares allow; like topics stay co-partitioned."""
    kinds: dict[tuple[tuple[int, ...], int], list[_TopicState]] = {}
    for state in states:
        kinds.setdefault((tuple(state.readers), len(state.partition_racks)), []).append(state)
    for (_, partitions), kind in kinds.items():
        if len(kind) > 1:
            _assign_near_together(partitions, kind, numbers)
        elif kind[0].needs_racks:
            kind[0].take_ranges(numbers, kind[0].near)


def _assign_near_together(partitions: int, kind: Sequence[_TopicState], numbers: list[list[int]]) -> None:
    """Partition p of all these topics goes to one member, the first one that is near to all of them and has room."""
    # These topics have the same subscribers and sizes and are dealt together, so the room left is the same in all.
    first = kind[0]
    remaining = list(first.readers)
    for partition in range(partitions):
        racks = frozenset.intersection(*(state.partition_racks[partition] for state in kind))
        for member in remaining:
            rack = first.rack_of[member]
            if (rack is None or rack in racks) and first.room(member) > 0:
                break
        else:
            continue
        for state in kind:
            state.take(member, (partition,), numbers)
        if first.room(member) == 0:
            remaining.remove(member)
            if not remaining:
                return
