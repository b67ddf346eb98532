"""What a target of a share group is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.assignors.server import GroupSpec, MemberSpec
from headrace.assignors.server.simple import assign_shared
from headrace.groups.share.group import ShareGroup, Target
from headrace.groups.topics import TopicLookup


@dataclass(frozen=True, slots=True)
class SharePlan:
    spec: GroupSpec
    assignable: Mapping[bytes, frozenset[int]]

    @property
    def size(self) -> int:
        return len(self.spec.members) + sum(map(len, self.assignable.values()))

    @property
    def may_block(self) -> bool:
        return False

    def compute(self) -> dict[str, Target]:
        assigned = assign_shared(self.spec, self.assignable)
        return {
            member_id: {topic_id: tuple(sorted(found)) for topic_id, found in topics.items() if found}
            for member_id, topics in assigned.items()
        }


def plan_of(group: ShareGroup, topics: TopicLookup) -> SharePlan:
    """Only partitions with a state are given to members: see `ShareGroup`."""
    ids: dict[str, bytes] = {}
    for name in group.topic_counts:
        topic_id = topics.topic_id(name)
        if topic_id is not None:
            ids[name] = topic_id
    members = {
        member_id: MemberSpec(
            frozenset(ids[name] for name in member.topics if name in ids), group.targets.get(member_id, {})
        )
        for member_id, member in group.members.items()
    }
    is_homogeneous = len({member.topics for member in members.values()}) <= 1
    assignable = {
        topic_id: frozenset(group.begun[topic_id].partitions) for topic_id in ids.values() if topic_id in group.begun
    }
    return SharePlan(GroupSpec(members, is_homogeneous=is_homogeneous), assignable)
