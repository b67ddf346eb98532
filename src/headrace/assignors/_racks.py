"""Who is near to what: racks of members and of replicas, as the assignors weigh them (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from headrace.assignors._group import AssignmentInput


def racks_help(member_racks: Set[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Whether looking at racks can make a difference: some rack has both, and not every partition is in every rack."""
    if not member_racks:
        return False
    combinations = set(partition_racks)
    everywhere = frozenset[str]().union(*combinations)
    return not member_racks.isdisjoint(everywhere) and combinations != {everywhere}


@dataclass(slots=True)
class RackTable:
    """Racks for the sticky assignors.

    Without `member_racks` racks play no part, except that partitions with few members `nearby` are dealt first, as in
    Java.
    """

    member_racks: list[str | None] | None
    partition_racks: list[frozenset[str]]
    nearby: list[int] | None

    def is_far(self, member: int, number: int) -> bool:
        """Whether the member has a rack, and the partition has no replica there."""
        if self.member_racks is None:
            return False
        rack = self.member_racks[member]
        return rack is not None and (number >= len(self.partition_racks) or rack not in self.partition_racks[number])


def read_racks(group: AssignmentInput) -> RackTable:
    member_racks = [subscription.rack_id or None for subscription in group.subscriptions]
    members_in = Counter(rack for rack in member_racks if rack is not None)
    if not members_in:
        return RackTable(None, [], None)
    partition_racks = [racks for topic in range(len(group.layout.topics)) for racks in group.partition_racks(topic)]
    members_near = {racks: sum(members_in[rack] for rack in racks) for racks in set(partition_racks)}
    nearby = [members_near[racks] for racks in partition_racks]
    if not racks_help(members_in.keys(), partition_racks):
        return RackTable(None, [], nearby)
    return RackTable(member_racks, partition_racks, nearby)
