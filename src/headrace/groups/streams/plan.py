"""What a target of a streams group is computed from: the group as the assignor is shown it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.assignors.server.sticky_tasks import SubtopologySpec, TaskMember, assign_tasks
from headrace.groups.streams.group import StreamsGroup
from headrace.groups.streams.tasks import NO_TARGET, TargetTasks

STANDBY_REPLICAS = "num.standby.replicas"


@dataclass(frozen=True, slots=True)
class StreamsPlan:
    members: Mapping[str, TaskMember]
    subtopologies: tuple[SubtopologySpec, ...]  # none while the topology cannot run
    standby_replicas: int

    @property
    def size(self) -> int:
        return len(self.members) + sum(one.tasks for one in self.subtopologies) * (1 + self.standby_replicas)

    @property
    def may_block(self) -> bool:
        return False

    def compute(self) -> dict[str, TargetTasks]:
        if not self.subtopologies:
            return dict.fromkeys(self.members, NO_TARGET)
        return {
            member_id: TargetTasks(_frozen(tasks.active), _frozen(tasks.standby), {})
            for member_id, tasks in assign_tasks(self.members, self.subtopologies, self.standby_replicas).items()
        }


def _frozen(tasks: Mapping[str, set[int]]) -> dict[str, frozenset[int]]:
    return {name: frozenset(numbers) for name, numbers in tasks.items()}


def plan_of(group: StreamsGroup) -> StreamsPlan:
    configured = group.configured
    subtopologies: tuple[SubtopologySpec, ...] = ()
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        subtopologies = tuple(
            SubtopologySpec(name, one.tasks, bool(one.changelogs))
            for name, one in sorted(configured.subtopologies.items())
        )
    members: dict[str, TaskMember] = {}
    for member_id, member in group.members.items():
        had = group.targets.get(member_id, NO_TARGET)
        members[member_id] = TaskMember(member.process_id, had.active, had.standby)
    return StreamsPlan(members, subtopologies, int(group.assignment_configs.get(STANDBY_REPLICAS, 0)))
