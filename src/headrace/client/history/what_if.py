"""What would be: a group's assignment with another strategy, other members, partitions, racks or weights. Pure.

The same assignors as the client's, and those of a coordinator, decide; nothing is asked and nothing changes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.assignors.base import AssignableTopics, Assignor, AssignorError, GroupAssignment, Subscription, settle
from headrace.assignors.registry import resolve
from headrace.assignors.server import (
    GroupSpec,
    MemberSpec,
    ServerAssignor,
    ServerRangeAssignor,
    TopicSpec,
    UniformAssignor,
)
from headrace.errors import HeadraceError
from headrace.topics import TopicPartition

MEMBERS_MAX = 10_000
PARTITIONS_MAX = 200_000
STEPS_MAX = 3
BY_COORDINATOR: dict[str, Callable[[], ServerAssignor]] = {
    "uniform": UniformAssignor,
    "server:range": ServerRangeAssignor,
}
"""Strategies of groups whose coordinator assigns (KIP-848)."""


class WhatIfError(HeadraceError):
    """What is asked cannot be worked out; the message says why."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member as it is, or as it would be."""

    member_id: str
    topics: tuple[str, ...]
    owns: tuple[TopicPartition, ...] = ()
    rack: str | None = None
    weight: float | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What is changed of a group. `members` is how many there shall be: new ones are like the first."""

    strategy: str | None = None
    members: int | None = None
    without: tuple[str, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict)
    racks: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class AssignmentPlan:
    """An assignment, next to the one that is."""

    strategy: str
    assigned: dict[str, list[TopicPartition]]
    moves: list[tuple[TopicPartition, str, str]]
    """Partitions with who has each now and who would; "" is nobody."""
    new_members: list[str]
    lag: dict[str, int]
    unassigned: list[TopicPartition]

    @property
    def balance(self) -> tuple[int, int]:
        """The fewest and the most partitions that a member has."""
        counts = [len(own) for own in self.assigned.values()]
        return (min(counts), max(counts)) if counts else (0, 0)


def what_if(
    members: Iterable[MemberPlan],
    partitions: Mapping[str, int],
    strategy: str,
    change: Change,
    *,
    lag: Mapping[TopicPartition, int] | None = None,
    replica_racks: Mapping[str, list[list[str | None]]] | None = None,
) -> AssignmentPlan:
    """The assignment after a change; `partitions` is how many each topic has now, `strategy` the present one."""
    now = list(members)
    there = _changed_members(now, change)
    counts = {**partitions, **change.partitions}
    _check(there, counts, partitions)
    name = change.strategy or strategy
    lag = dict(lag or {})
    if name in BY_COORDINATOR:
        return _plan(name, now, there, _by_coordinator(name, there, counts), counts, lag)
    try:
        assignor = resolve(name.removeprefix("client:"))
    except AssignorError as error:
        raise WhatIfError(str(error)) from error
    topics = AssignableTopics(counts, replica_racks, lag=lag)
    made: dict[str, list[TopicPartition]] = {}
    for _ in range(STEPS_MAX):
        made = _by_leader(assignor, topics, there)
        plan = _plan(name, now, there, made, counts, lag)
        if not plan.unassigned:
            return plan
        # A cooperative strategy takes away first what it gives to others in the next rebalance.
        there = [replace(one, owns=tuple(made[one.member_id])) for one in there]
    return _plan(name, now, there, made, counts, lag)


def _by_coordinator(name: str, there: list[MemberPlan], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """As the coordinator of a group of the newer protocol assigns. Names stand for the ids of topics."""
    members = {}
    for one in there:
        current: dict[bytes, set[int]] = {}
        for partition in one.owns:
            current.setdefault(partition.topic.encode(), set()).add(partition.partition)
        topics = frozenset(topic.encode() for topic in one.topics if topic in counts)
        members[one.member_id] = MemberSpec(topics, current, one.instance_id, one.rack)
    topics_of = {topic.encode(): TopicSpec(topic, count) for topic, count in counts.items()}
    is_homogeneous = len({member.topics for member in members.values()}) == 1
    group = GroupSpec(members, topics_of, is_homogeneous)
    made = BY_COORDINATOR[name]().assign(group)
    return {
        member: sorted(
            TopicPartition(topic.decode(), index)
            for topic, indexes in made.get(member, {}).items()
            for index in indexes
        )
        for member in members
    }


def _by_leader(
    assignor: Assignor, topics: AssignableTopics, there: list[MemberPlan]
) -> dict[str, list[TopicPartition]]:
    """As the leader of a group of the classic protocol assigns."""
    subscriptions = {
        one.member_id: Subscription(
            one.topics,
            None if one.weight is None else json.dumps({"weight": one.weight}).encode(),
            one.owns,
            1 if one.owns else None,
            one.rack,
            one.instance_id,
        )
        for one in there
    }
    assigned = asyncio.run(_settled(assignor, topics, subscriptions))
    return {
        one.member_id: sorted(TopicPartition(*p) for p in assigned[one.member_id].partitions)
        if one.member_id in assigned
        else []
        for one in there
    }


async def _settled(
    assignor: Assignor, topics: AssignableTopics, subscriptions: Mapping[str, Subscription]
) -> GroupAssignment:
    return await settle(assignor.assign(topics, subscriptions))


def _changed_members(now: list[MemberPlan], change: Change) -> list[MemberPlan]:
    unknown = [one for one in change.without if all(one != member.member_id for member in now)]
    if unknown:
        raise WhatIfError(f"{unknown[0]!r} is no member; members are {', '.join(m.member_id for m in now[:10])}")
    there = [member for member in now if member.member_id not in change.without]
    wanted = len(there) if change.members is None else change.members
    if not 0 < wanted <= MEMBERS_MAX:
        raise WhatIfError(f"a group of {wanted} members cannot be worked out: from 1 to {MEMBERS_MAX}")
    if not there and not now:
        raise WhatIfError("the group has no members, so that nobody knows what they would subscribe to")
    if wanted < len(there):
        there = there[:wanted]
    example = (there or now)[0]
    taken = {member.member_id for member in now}
    number = 1
    while len(there) < wanted:
        name = f"new-{number}"
        number += 1
        if name not in taken:
            there.append(MemberPlan(name, example.topics))
    return [
        MemberPlan(
            one.member_id,
            one.topics,
            one.owns,
            change.racks.get(one.member_id, one.rack),
            change.weights.get(one.member_id, one.weight),
            one.instance_id,
        )
        for one in there
    ]


def _check(there: list[MemberPlan], counts: Mapping[str, int], now: Mapping[str, int]) -> None:
    fewer = [topic for topic, count in counts.items() if count < now.get(topic, 0)]
    if fewer:
        raise WhatIfError(f"topic {fewer[0]} has {now[fewer[0]]} partitions, and partitions are never taken away")
    wanted = {topic for member in there for topic in member.topics}
    if sum(counts.get(topic, 0) for topic in wanted) > PARTITIONS_MAX:
        raise WhatIfError(f"over {PARTITIONS_MAX} partitions cannot be worked out")


def _plan(
    strategy: str,
    now: list[MemberPlan],
    there: list[MemberPlan],
    made: dict[str, list[TopicPartition]],
    counts: Mapping[str, int],
    lag: Mapping[TopicPartition, int],
) -> AssignmentPlan:
    before = {one: member.member_id for member in now for one in member.owns}
    after = {one: member for member, own in made.items() for one in own}
    moves = [
        (one, before.get(one, ""), after.get(one, ""))
        for one in sorted({*before, *after})
        if before.get(one, "") != after.get(one, "")
    ]
    wanted = {topic for member in there for topic in member.topics}
    known = {member.member_id for member in now}
    return AssignmentPlan(
        strategy,
        made,
        moves,
        [member for member in made if member not in known],
        {member: sum(lag.get(one, 0) for one in own) for member, own in made.items()},
        [
            TopicPartition(topic, index)
            for topic in sorted(wanted)
            for index in range(counts.get(topic, 0))
            if TopicPartition(topic, index) not in after
        ],
    )
