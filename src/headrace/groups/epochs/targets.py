"""Target assignments: when one is computed, where, and what is written of it.

A group has at most one target per assignment interval, whatever happens in between. A small one is computed within the
heartbeat that finds it due, a large one on another thread, and so is whatever a user's own assignor computes: the
heartbeat waits for it, those of other members go on with the target before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from headrace.coordination import Job, Now
from headrace.errors import ErrorCode
from headrace.groups.epochs.group import EpochGroup, Waiting
from headrace.groups.epochs.steps import GroupStep
from headrace.groups.outcome import Outcome
from headrace.groups.shards import Shards

# Members and partitions together: so many are assigned in a few milliseconds.
INLINE_SIZE_MAX = 2_000

TargetT = TypeVar("TargetT")
GroupT = TypeVar("GroupT", bound=EpochGroup[Any, Any])


class TargetPlan(Protocol):
    """Everything that a target is computed from, in values that nobody changes."""

    @property
    def size(self) -> int:
        """Of how many members and partitions it is."""

    @property
    def may_block(self) -> bool:
        """Whether nobody knows how long it takes."""

    def compute(self) -> Mapping[str, Any]:
        """The target of each member, by member id; whoever is left out gets nothing."""


class Targets(Generic[GroupT]):
    """Keeps the targets of groups of one kind up to date."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def refresh(
        self,
        step: GroupStep[GroupT],
        interval_ms: int,
        plan: Callable[[GroupT], TargetPlan],
        then: Callable[[GroupStep[GroupT]], None],
        refuse: Callable[[Outcome, ErrorCode], None],
    ) -> None:
        """Compute a target if the group's is too old; then go on, and end the step.

        `then` may be called much later, in another step, when the member has given up waiting. Then what it said is
        outdated if it has asked again since (`EpochMember.asked`), and what it is told has to be told again. `refuse`
        answers instead when there will be no target.
        """
        group = step.group
        if not self._is_due(group, interval_ms, step.at):
            then(step)
            step.end()
            return
        planned = plan(group)
        if planned.size <= INLINE_SIZE_MAX and not planned.may_block:
            self._take(step, group.epoch, planned.compute())
            then(step)
            step.end()
            return
        group.waiting = Waiting(group.epoch, refuse)
        what = f"the target assignment of group {group.group_id} in epoch {group.epoch}"
        done = partial(self._computed, group, group.waiting, then)
        step.out.jobs.append(Job(what, planned.compute, done, partial(self._failed, group, group.waiting)))
        step.end()

    @staticmethod
    def _is_due(group: GroupT, interval_ms: int, at: Now) -> bool:
        if group.epoch <= group.assignment_epoch or group.waiting is not None:
            return False
        return group.assigned_at_ms is None or at.monotonic_ms - group.assigned_at_ms >= interval_ms

    def _computed(
        self,
        group: GroupT,
        waiting: Waiting,
        then: Callable[[GroupStep[GroupT]], None],
        out: Outcome,
        targets: Mapping[str, Any],
        at: Now,
    ) -> None:
        if group.waiting is not waiting:
            return  # it was given up meanwhile, and whoever waited was told
        group.waiting = None
        if not self._shards.is_live(group):
            # It is a classic group by now, or deleted.
            waiting.refuse(out, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        step = GroupStep(self._shards, out, group, at)
        found = dict(targets)
        for old_id, new_id in waiting.renamed.items():
            if old_id in found:
                found[new_id] = found.pop(old_id)
        self._take(step, waiting.epoch, found)
        then(step)
        step.end()

    def _failed(self, group: GroupT, waiting: Waiting, out: Outcome, error: Exception, at: Now) -> None:
        if group.waiting is not waiting:
            return
        group.waiting = None
        out.notes.append(f"group {group.group_id}: no target assignment for epoch {waiting.epoch}: {error!r}")
        waiting.refuse(out, ErrorCode.UNKNOWN_SERVER_ERROR)

    @staticmethod
    def _take(step: GroupStep[GroupT], epoch: int, targets: Mapping[str, Any]) -> None:
        """The target of that epoch is this. Members that came or went since count as they are now."""
        group = step.group
        for member_id in group.members:
            target = targets.get(member_id)
            before = group.targets.get(member_id)
            if target is None and before is None and member_id not in targets:
                continue
            if target != before:
                if target is None:
                    del group.targets[member_id]
                else:
                    group.targets[member_id] = target
                step.put(group.target_record(member_id))
        group.assignment_epoch = epoch
        group.assigned_at_ms = step.at.monotonic_ms
        step.put(group.target_epoch_record(step.at.wall_ms))
