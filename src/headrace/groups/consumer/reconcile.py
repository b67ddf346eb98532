"""One step of a member from what it has towards what it should have. Pure: values in, values out.

Partitions are given up before others get them: first the member is told what to give up, and stays in its epoch until
it no longer owns that (UNREVOKED_PARTITIONS); then it reaches the epoch of the target, and waits there for what others
have not given up yet (UNRELEASED_PARTITIONS).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.groups.epochs.member import MemberProgress, UnknownStateError

Partitions = Mapping[bytes, Mapping[int, int]]
"""Topic id → partition → the epoch in which it was assigned. Never changed, only replaced."""
Target = Mapping[bytes, Collection[int]]
"""Topic id → partitions."""


class MemberPosition(NamedTuple):
    """Where a member is: its epochs, and which partitions it has and has to give up."""

    state: MemberProgress
    epoch: int
    previous_epoch: int
    assigned: Partitions
    revoking: Partitions


class Goal(NamedTuple):
    """Where it should be. `is_held` tells whether another member has a partition."""

    epoch: int
    target: Target
    subscribed: Collection[bytes]
    is_held: Callable[[bytes, int], bool]


def next_position(now: MemberPosition, goal: Goal, owned: Target | None, subscription_changed: bool) -> MemberPosition:
    """The member after its heartbeat, in which it said that it owns these partitions (None: it said nothing)."""
    match now.state:
        case MemberProgress.STABLE:
            if now.epoch != goal.epoch:
                return _towards(now, goal, owned, now.epoch)
            return _without_unsubscribed(now, goal, owned) if subscription_changed else now
        case MemberProgress.UNREVOKED_PARTITIONS:
            if _still_owned(now.revoking, owned):
                return _without_unsubscribed(now, goal, owned) if subscription_changed else now
            return _towards(now, goal, owned, now.epoch)
        case MemberProgress.UNRELEASED_PARTITIONS:
            return _towards(now, goal, owned, now.epoch)
        case _:
            if owned is None or any(True for _ in owned):
                raise UnknownStateError
            return _towards(now, goal, owned, goal.epoch)


def _towards(now: MemberPosition, goal: Goal, owned: Target | None, epoch: int) -> MemberPosition:
    assigned: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    added = waits = False
    for topic, had in now.assigned.items():
        wanted = goal.target.get(topic, ()) if topic in goal.subscribed else ()
        kept = {partition: since for partition, since in had.items() if partition in wanted}
        if kept:
            assigned[topic] = kept
        if len(kept) < len(had):
            revoking[topic] = {partition: since for partition, since in had.items() if partition not in kept}
    if revoking and _still_owned(revoking, owned):
        return MemberPosition(MemberProgress.UNREVOKED_PARTITIONS, epoch, now.epoch, assigned, revoking)
    for topic, wanted in goal.target.items():
        if topic not in goal.subscribed:
            continue
        has = assigned.get(topic, {})
        fresh: dict[int, int] = {}
        for partition in wanted:
            if partition in has:
                continue
            if goal.is_held(topic, partition):
                waits = True
            else:
                fresh[partition] = goal.epoch
        if fresh:
            assigned[topic] = {**has, **fresh}
            added = True
    state = MemberProgress.UNRELEASED_PARTITIONS if waits else MemberProgress.STABLE
    if not added and state is now.state and epoch == goal.epoch == now.epoch == now.previous_epoch and not revoking:
        return (
            now if now.assigned == assigned and not now.revoking else MemberPosition(state, epoch, epoch, assigned, {})
        )
    return MemberPosition(state, goal.epoch, now.epoch, assigned, {})


def _without_unsubscribed(now: MemberPosition, goal: Goal, owned: Target | None) -> MemberPosition:
    """Whatever it is no longer subscribed to is given up at once, without waiting for a target."""
    if goal.subscribed and all(topic in goal.subscribed for topic in now.assigned):
        return now
    assigned = {topic: had for topic, had in now.assigned.items() if topic in goal.subscribed}
    revoking = dict(now.revoking)
    for topic, had in now.assigned.items():
        if topic not in goal.subscribed:
            revoking[topic] = {**revoking.get(topic, {}), **had}
    if revoking and _still_owned(revoking, owned):
        return MemberPosition(MemberProgress.UNREVOKED_PARTITIONS, now.epoch, now.epoch, assigned, revoking)
    return now._replace(previous_epoch=now.epoch, assigned=assigned)


def _still_owned(revoking: Partitions, owned: Target | None) -> bool:
    """Whether it may still own some of what it has to give up: who says nothing may own all."""
    if owned is None:
        return True
    return any(partition in owned.get(topic, ()) for topic, gone in revoking.items() for partition in gone)


def with_epoch(partitions: Mapping[bytes, Iterable[int]], epoch: int) -> dict[bytes, dict[int, int]]:
    return {topic: dict.fromkeys(indexes, epoch) for topic, indexes in partitions.items()}


def same_partitions(one: Partitions, other: Partitions) -> bool:
    """Whether these are the same partitions, whenever they were assigned."""
    return one is other or (one.keys() == other.keys() and all(one[t].keys() == other[t].keys() for t in one))
