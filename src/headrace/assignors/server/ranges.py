"""`range`: of each topic, every subscriber gets a run of partitions, in the order of their ids; static members first.

Members that are subscribed alike get the same runs of all topics, so that topics of one size are read together.
"""

from __future__ import annotations

from headrace.assignors._java_order import utf16_key
from headrace.assignors.server.base import Assignments, GroupSpec


class ServerRangeAssignor:
    name = "range"

    def assign(self, group: GroupSpec) -> Assignments:
        assigned: dict[str, dict[bytes, range]] = {member_id: {} for member_id in group.members}
        subscribers: dict[bytes, list[str]] = {}
        for member_id in sorted(group.members, key=lambda member_id: _place(group, member_id)):
            for topic in group.members[member_id].topics:
                subscribers.setdefault(topic, []).append(member_id)
        for topic, member_ids in subscribers.items():
            quota, extra = divmod(group.partitions_of(topic), len(member_ids))
            start = 0
            for number, member_id in enumerate(member_ids):
                end = start + quota + (number < extra)
                if start == end:
                    break
                assigned[member_id][topic] = range(start, end)
                start = end
        return assigned


def _place(group: GroupSpec, member_id: str) -> tuple[bool, bytes]:
    instance_id = group.members[member_id].instance_id
    return instance_id is None, utf16_key(member_id if instance_id is None else instance_id)
