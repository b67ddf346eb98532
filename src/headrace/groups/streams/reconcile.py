"""How a member of a streams group comes to what it is to have, one step at each of its heartbeats.

A step is a pure function. What goes is given up first; an active task comes when nobody holds it any more, and no task
comes to a process that has it in another role.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from headrace.groups.epochs.member import MemberProgress, UnknownStateError
from headrace.groups.streams.tasks import MemberTasks, TargetTasks


class TaskPosition(NamedTuple):
    """Where a member stands: its epochs, what it has, and what it has to give up."""

    state: MemberProgress
    epoch: int
    previous_epoch: int
    assigned: MemberTasks
    revoking: MemberTasks


class TaskGoal(NamedTuple):
    """Where it should be. Whether a task is held: by anybody as an active one, or by the member's own process."""

    epoch: int
    target: TargetTasks
    is_active: Callable[[str, int], bool]
    is_in_process: Callable[[str, int], bool]
    is_passive_in_process: Callable[[str, int], bool]


def next_position(now: TaskPosition, goal: TaskGoal, owned: TargetTasks | None) -> TaskPosition:
    """The member after its heartbeat, in which it said that it owns these tasks (None: it said nothing)."""
    match now.state:
        case MemberProgress.STABLE:
            return now if now.epoch == goal.epoch else _towards(now, goal, owned, now.epoch)
        case MemberProgress.UNREVOKED_PARTITIONS:
            if owned is None or now.revoking.has_any_of(owned):
                return now
            return _towards(now, goal, owned, now.epoch + 1)
        case MemberProgress.UNRELEASED_PARTITIONS:
            return _towards(now, goal, owned, now.epoch)
        case _:
            if owned is None or not owned.is_empty:
                raise UnknownStateError
            return _towards(now, goal, owned, goal.epoch)


class _Difference(NamedTuple):
    kept: dict[str, set[int]]
    gone: dict[str, set[int]]
    coming: dict[str, set[int]]
    waits: bool


def _difference(
    has: Mapping[str, Collection[int]], target: Mapping[str, Collection[int]], is_held: Callable[[str, int], bool]
) -> _Difference:
    kept: dict[str, set[int]] = {}
    gone: dict[str, set[int]] = {}
    coming: dict[str, set[int]] = {}
    waits = False
    for name in {**has, **target}:
        had, wanted = set(has.get(name, ())), set(target.get(name, ()))
        if had & wanted:
            kept[name] = had & wanted
        if had - wanted:
            gone[name] = had - wanted
        for number in wanted - had:
            if is_held(name, number):
                waits = True
            else:
                coming.setdefault(name, set()).add(number)
    return _Difference(kept, gone, coming, waits)


def _towards(now: TaskPosition, goal: TaskGoal, owned: TargetTasks | None, epoch: int) -> TaskPosition:
    has, target = now.assigned, goal.target

    def is_active_held(name: str, number: int) -> bool:
        return goal.is_active(name, number) or goal.is_passive_in_process(name, number)

    active = _difference(has.active, target.active, is_active_held)
    standby = _difference(has.standby, target.standby, goal.is_in_process)
    warmup = _difference(has.warmup, target.warmup, goal.is_in_process)
    revoking = MemberTasks(
        {name: {number: has.active[name][number] for number in numbers} for name, numbers in active.gone.items()},
        _frozen(standby.gone),
        _frozen(warmup.gone),
    )
    kept = {name: {number: has.active[name][number] for number in sorted(n)} for name, n in active.kept.items()}
    if not revoking.is_empty and (owned is None or revoking.has_any_of(owned)):
        assigned = MemberTasks(kept, _frozen(standby.kept), _frozen(warmup.kept))
        return TaskPosition(MemberProgress.UNREVOKED_PARTITIONS, epoch, now.epoch, assigned, revoking)
    for name, numbers in active.coming.items():
        kept[name] = {**kept.get(name, {}), **dict.fromkeys(sorted(numbers), goal.epoch)}
    assigned = MemberTasks(kept, _merged(standby), _merged(warmup))
    waits = active.waits or standby.waits or warmup.waits
    state = MemberProgress.UNRELEASED_PARTITIONS if waits else MemberProgress.STABLE
    return TaskPosition(state, goal.epoch, now.epoch, assigned, MemberTasks())


def _merged(found: _Difference) -> dict[str, frozenset[int]]:
    names = {**found.kept, **found.coming}
    return {name: frozenset(found.kept.get(name, set()) | found.coming.get(name, set())) for name in names}


def _frozen(found: Mapping[str, set[int]]) -> dict[str, frozenset[int]]:
    return {name: frozenset(numbers) for name, numbers in found.items()}
