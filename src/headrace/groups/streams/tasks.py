"""Tasks: the parts of a topology that members run, one for each partition of what a subtopology reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

Numbers = Mapping[str, Collection[int]]
"""Subtopology → numbers of tasks."""

TaskIdsT = TypeVar("TaskIdsT")


class TargetTasks(NamedTuple):
    """What a member is to have, or says that it has."""

    active: Mapping[str, frozenset[int]]
    standby: Mapping[str, frozenset[int]]
    warmup: Mapping[str, frozenset[int]]

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)


NO_TARGET = TargetTasks({}, {}, {})


@dataclass(frozen=True, slots=True)
class MemberTasks:
    """What a member has; of its active tasks also the epoch in which each was assigned."""

    active: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    standby: Mapping[str, frozenset[int]] = field(default_factory=dict)
    warmup: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def is_same_as(self, other: MemberTasks) -> bool:
        """Whether these are the same tasks, whenever they were assigned."""
        return (
            self.standby == other.standby
            and self.warmup == other.warmup
            and self.active.keys() == other.active.keys()
            and all(found.keys() == other.active[name].keys() for name, found in self.active.items())
        )

    def is_owned_as(self, owned: TargetTasks) -> bool:
        """Whether a member owns these tasks, and no others."""
        return self.holds_all(owned) and (
            _within(self.active, owned.active)
            and _within(self.standby, owned.standby)
            and _within(self.warmup, owned.warmup)
        )

    def has_any_of(self, owned: TargetTasks) -> bool:
        """Whether one of these is among those that a member still owns, in the same role."""
        return (
            _overlap(self.active, owned.active)
            or _overlap(self.standby, owned.standby)
            or _overlap(self.warmup, owned.warmup)
        )

    def holds_all(self, owned: TargetTasks) -> bool:
        """Whether all that a member owns is among these."""
        return (
            _within(owned.active, self.active)
            and _within(owned.standby, self.standby)
            and _within(owned.warmup, self.warmup)
        )


def _overlap(one: Numbers, other: Numbers) -> bool:
    return any(number in other.get(name, ()) for name, numbers in one.items() for number in numbers)


def _within(part: Numbers, whole: Numbers) -> bool:
    return all(number in whole.get(name, ()) for name, numbers in part.items() for number in numbers)


def told_tasks(told: Iterable[Any] | None) -> dict[str, frozenset[int]]:
    """Tasks as messages and records have them."""
    return {one.subtopology_id: frozenset(one.partitions) for one in told or () if one.partitions}


def task_ids(tasks: Numbers, make: type[TaskIdsT]) -> list[TaskIdsT]:
    """The same the other way, in messages of that class."""
    return [
        make(subtopology_id=name, partitions=sorted(numbers))  # type: ignore[call-arg]  # all such messages have these
        for name, numbers in sorted(tasks.items())
    ]
