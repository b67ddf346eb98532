"""`simple`, the assignor of share groups: several members may have a partition, and every partition has somebody.

Each partition is given to as many members as it takes that all of them have something, and each member to as many
partitions as others. Who has a partition keeps it where that leaves things even.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from headrace.assignors.server.base import Assignments, GroupSpec

SIMPLE_NAME = "simple"

_Partition: TypeAlias = tuple[bytes, int]


def assign_shared(group: GroupSpec, assignable: Mapping[bytes, Collection[int]]) -> Assignments:
    """Who gets which of the assignable partitions of the topics that they are subscribed to."""
    pools: Iterable[tuple[list[_Partition], list[str]]]
    members = list(group.members)
    if group.is_homogeneous:
        # All topics at once, so that members of many small topics have equally much in sum.
        topics = sorted(group.members[members[0]].topics) if members else []
        pools = [(_partitions(topics, assignable), members)]
    else:
        subscribers: dict[bytes, list[str]] = {}
        for member_id, member in group.members.items():
            for topic in member.topics:
                subscribers.setdefault(topic, []).append(member_id)
        pools = [(_partitions((topic,), assignable), found) for topic, found in sorted(subscribers.items())]
    totals = dict.fromkeys(members, 0)
    assigned: dict[str, dict[bytes, list[int]]] = {member_id: {} for member_id in members}
    for partitions, readers in pools:
        given = _share_out(partitions, {reader: group.members[reader].current for reader in readers}, totals)
        for member_id, theirs in given.items():
            totals[member_id] += len(theirs)
            for topic, partition in sorted(theirs):
                assigned[member_id].setdefault(topic, []).append(partition)
    return assigned


def _partitions(topics: Sequence[bytes], assignable: Mapping[bytes, Collection[int]]) -> list[_Partition]:
    return [(topic, partition) for topic in topics for partition in sorted(assignable.get(topic, ()))]


def _share_out(
    partitions: list[_Partition],
    current: Mapping[str, Mapping[bytes, Collection[int]]],
    totals: Mapping[str, int],
) -> dict[str, set[_Partition]]:
    """Partitions to members that may all have all of them. `totals` is what members have of other topics."""
    given: dict[str, set[_Partition]] = {member_id: set() for member_id in current}
    if not partitions or not current:
        return given
    readers_each = -(-len(current) // len(partitions))
    holders: dict[_Partition, list[str]] = {partition: [] for partition in partitions}
    for member_id, topics in current.items():
        for topic, indexes in topics.items():
            for index in indexes:
                if (topic, index) in holders:
                    holders[topic, index].append(member_id)
                    given[member_id].add((topic, index))
    wanted = _wanted(given, readers_each * len(partitions), totals)
    for member_id, own in given.items():
        # Those that others have as well are given up first.
        in_order = sorted(own, key=lambda one: (len(holders[one]) <= readers_each, one))
        for partition in in_order[: max(0, len(own) - wanted[member_id])]:
            own.discard(partition)
            holders[partition].remove(member_id)
    for partition, theirs in holders.items():
        for member_id in theirs[: max(0, len(theirs) - readers_each)]:
            theirs.remove(member_id)
            given[member_id].discard(partition)
    _fill(holders, given, wanted, readers_each)
    return given


def _wanted(given: Mapping[str, set[_Partition]], places: int, totals: Mapping[str, int]) -> dict[str, int]:
    """How many partitions each member is to have: as equally many as it goes, one more for those who have most now."""
    each, more = divmod(places, len(given))
    in_order = sorted(given, key=lambda member_id: (len(given[member_id]) <= each, totals[member_id]))
    return {member_id: each + (place < more) for place, member_id in enumerate(in_order)}


def _fill(
    holders: Mapping[_Partition, list[str]],
    given: Mapping[str, set[_Partition]],
    wanted: Mapping[str, int],
    readers_each: int,
) -> None:
    """Give partitions that have too few readers to members that have too few partitions."""
    needy = {member_id: missing for member_id, own in given.items() if (missing := wanted[member_id] - len(own)) > 0}
    # Those with the fewest readers first: each is to have one before any has two.
    for partition, theirs in sorted(holders.items(), key=lambda entry: len(entry[1])):
        while len(theirs) < readers_each and needy:
            candidates = [member_id for member_id in needy if partition not in given[member_id]]
            if not candidates:
                break  # whoever needs one has this one already
            chosen = max(candidates, key=needy.__getitem__)
            theirs.append(chosen)
            given[chosen].add(partition)
            needy[chosen] -= 1
            if not needy[chosen]:
                del needy[chosen]
