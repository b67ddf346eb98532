"""`uniform`: all members get equally many partitions, as far as they are subscribed, and keep what they have.

Who comes first may keep one partition more, so the order of Java's hash tables counts, as for the assignors of clients:
brokers of both kinds answer the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.assignors._java_order import hash_order, spread, table_size
from headrace.assignors.server.base import Assignments, GroupSpec
from headrace.assignors.server.unequal import assign_unequal


class UniformAssignor:
    name = "uniform"

    def assign(self, group: GroupSpec) -> Assignments:
        if not group.members:
            return {}
        member_ids = hash_order(group.members)
        return assign_equal(group, member_ids) if group.is_homogeneous else assign_unequal(group, member_ids)


def assign_equal(group: GroupSpec, member_ids: list[str]) -> Assignments:
    """All members are subscribed to the same topics."""
    topics = topic_order(group.members[member_ids[0]].topics)
    if not topics:
        return {}
    left: list[tuple[bytes, int]] = []
    total = 0
    for topic in topics:
        count = group.partitions_of(topic)
        held = group.holders.get(topic, {})
        left += ((topic, partition) for partition in range(count) if partition not in held)
        total += count
    quota, extra = divmod(total, len(member_ids))
    assigned: dict[str, dict[bytes, list[int]]] = {}
    unfilled: list[tuple[str, int]] = []
    subscribed = frozenset(topics)
    for number, member_id in enumerate(member_ids):
        room = quota + (number < extra)
        current = group.members[member_id].current
        kept: dict[bytes, list[int]] = {}
        for topic in topic_order(current):
            if topic not in subscribed:
                continue
            partitions = sorted(current[topic])
            count = group.partitions_of(topic)
            if partitions and partitions[-1] >= count:
                partitions = [partition for partition in partitions if partition < count]
            if len(partitions) > room:
                left += ((topic, partition) for partition in partitions[room:])
                del partitions[room:]
            if partitions:
                kept[topic] = partitions
                room -= len(partitions)
        assigned[member_id] = kept
        if room:
            unfilled.append((member_id, room))
    start = 0
    for member_id, room in unfilled:
        for topic, partition in left[start : start + room]:
            assigned[member_id].setdefault(topic, []).append(partition)
        start += room
    return assigned


def topic_order(topics: Iterable[bytes]) -> list[bytes]:
    """Topic ids in the order of a `java.util.HashMap`."""
    found = list(topics)
    if len(found) < 2:
        return found
    spreads = [spread(_hash(topic)) for topic in found]
    mask = table_size(spreads) - 1
    return [topic for _, topic in sorted(zip(spreads, found), key=lambda entry: entry[0] & mask)]


def _hash(topic: bytes) -> int:
    """Java's hash of a uuid."""
    high, low = int.from_bytes(topic[:8], "big"), int.from_bytes(topic[8:], "big")
    mixed = high ^ low
    return (mixed >> 32 ^ mixed) & 0xFFFFFFFF
