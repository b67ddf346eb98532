"""What a target of a consumer group is computed from: the group as an assignor is shown it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.assignors.server import BUILT_IN, GroupSpec, MemberSpec, ServerAssignor, TopicSpec
from headrace.assignors.server.base import ServerAssignorError
from headrace.groups.consumer.group import ConsumerGroup, ConsumerMember, Target
from headrace.groups.topics import TopicLookup


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    spec: GroupSpec
    assignor: ServerAssignor
    instances: Mapping[str, str]  # member id → instance id

    @property
    def size(self) -> int:
        return len(self.spec.members) + sum(topic.partitions for topic in self.spec.topics.values())

    @property
    def may_block(self) -> bool:
        return BUILT_IN.get(self.assignor.name) is not self.assignor

    def compute(self) -> dict[str, Target]:
        assigned = self.assignor.assign(self.spec)
        if self.may_block:
            self._check(assigned)
        targets: dict[str, Target] = {member_id: {} for member_id in self.spec.members}
        for member_id, topics in assigned.items():
            targets[member_id] = {topic: tuple(sorted(found)) for topic, found in topics.items() if found}
        return targets

    def _check(self, assigned: Mapping[str, Mapping[bytes, Iterable[int]]]) -> None:
        """Refuse what a user's assignor must not give: partitions that are not there, or twice, or to nobody."""
        seen: set[tuple[bytes, int]] = set()
        for member_id, topics in assigned.items():
            if member_id not in self.spec.members:
                raise ServerAssignorError(f"{self.assignor.name}: {member_id!r} is no member of the group")
            for topic, partitions in topics.items():
                known = self.spec.topics.get(topic)
                for partition in partitions:
                    if known is None or not 0 <= partition < known.partitions:
                        name = "an unknown topic" if known is None else known.name
                        raise ServerAssignorError(f"{self.assignor.name}: {name} has no partition {partition!r}")
                    if (topic, partition) in seen:
                        raise ServerAssignorError(f"{self.assignor.name}: {known.name}-{partition} is given twice")
                    seen.add((topic, partition))


def plan_of(group: ConsumerGroup, assignor: ServerAssignor, topics: TopicLookup) -> ConsumerPlan:
    ids: dict[str, bytes] = {}
    specs: dict[bytes, TopicSpec] = {}
    for name in group.topic_counts:
        topic_id, count = topics.topic_id(name), topics.partition_count(name)
        if topic_id is not None and count is not None:
            ids[name] = topic_id
            racks = tuple(tuple(racks) for racks in topics.partition_racks(name))
            specs[topic_id] = TopicSpec(name, count, racks)
    # Members that are subscribed alike share one set.
    shared: dict[frozenset[str], frozenset[bytes]] = {}
    members: dict[str, MemberSpec] = {}
    for member_id, member in group.members.items():
        names = group.wanted_topics(member)
        subscribed = shared.get(names)
        if subscribed is None:
            subscribed = shared[names] = frozenset(ids[name] for name in names if name in ids)
        current = group.targets.get(member_id, {})
        members[member_id] = MemberSpec(subscribed, current, member.instance_id, member.rack_id)
    instances = {member_id: m.instance_id for member_id, m in group.members.items() if m.instance_id is not None}
    return ConsumerPlan(GroupSpec(members, specs, len(set(shared.values())) <= 1), assignor, instances)


def subscribed_ids(group: ConsumerGroup, member: ConsumerMember, topics: TopicLookup) -> set[bytes]:
    found = (topics.topic_id(name) for name in group.wanted_topics(member))
    return {topic_id for topic_id in found if topic_id is not None}
