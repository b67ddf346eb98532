"""`uniform`: all members get equally many partitions, as far as they are subscribed, and keep what they have.

Who comes first may keep one partition more, so the order of Java's hash tables counts, as for the assignors of clients:
brokers of both kinds answer the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.assignors._java_order import hash_order, spread, table_size
from headrace.assignors.server.base import Assignments, GroupSpec
from headrace.assignors.server.unequal import assign_unequal

_BUCKETS_MIN = 16


class UniformAssignor:
    name = "uniform"

    def assign(self, group: GroupSpec) -> Assignments:
        if not group.members:
            return {}
        member_ids = hash_order(group.members)
        return assign_equal(group, member_ids) if group.is_homogeneous else assign_unequal(group, member_ids)


def assign_equal(group: GroupSpec, member_ids: list[str]) -> Assignments:
    """All members are subscribed to the same topics.

    Each keeps what it has up to its share. Where shares differ by one, the larger ones are kept by who comes first; if
    not all of them are, those that come last get one more.
    """
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
    share, larger = divmod(total, len(member_ids))
    assigned: dict[str, dict[bytes, list[int]]] = {}
    unfilled: list[tuple[str, int]] = []
    subscribed = frozenset(topics)
    for member_id in member_ids:
        may_be_larger = larger > 0
        room = share + may_be_larger
        current = group.members[member_id].current
        kept: dict[bytes, list[int]] = {}
        for topic in topic_order(current):
            if topic not in subscribed:
                continue
            count = group.partitions_of(topic)
            partitions = [partition for partition in partition_order(current[topic]) if partition < count]
            left += ((topic, partition) for partition in partitions[room:])
            del partitions[room:]
            if partitions:
                kept[topic] = partitions
                room -= len(partitions)
        assigned[member_id] = kept
        if room:
            unfilled.append((member_id, room - may_be_larger))
        elif may_be_larger:
            larger -= 1
    start = 0
    for number, (member_id, room) in enumerate(unfilled):
        end = start + room + (len(unfilled) - number <= larger)
        for topic, partition in left[start:end]:
            assigned[member_id].setdefault(topic, []).append(partition)
        start = end
    return assigned


def partition_order(partitions: Collection[int]) -> list[int]:
    """Partitions in the order of a `java.util.HashSet` of so many numbers."""
    buckets = _BUCKETS_MIN
    while len(partitions) * 4 > buckets * 3:
        buckets *= 2
    found = sorted(partitions)
    if found and found[-1] >= buckets:
        found.sort(key=lambda partition: partition & buckets - 1)
    return found


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
