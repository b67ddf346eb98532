"""Each step of a member of a streams group is the one that Kafka's coordinator makes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.groups.epochs.member import MemberProgress
from headrace.groups.streams.reconcile import TaskGoal, TaskPosition, UnknownStateError, next_position
from headrace.groups.streams.tasks import MemberTasks, TargetTasks

VECTORS = Path(__file__).parents[2] / "reference" / "vectors" / "current-assignment.jsonl.gz"
STATES = {
    "STABLE": MemberProgress.STABLE,
    "UNREVOKED_TASKS": MemberProgress.UNREVOKED_PARTITIONS,
    "UNRELEASED_TASKS": MemberProgress.UNRELEASED_PARTITIONS,
    "UNKNOWN": MemberProgress.UNKNOWN,
}


def frozen(told: dict[str, list[int]]) -> dict[str, frozenset[int]]:
    return {name: frozenset(numbers) for name, numbers in told.items() if numbers}


def had(told: dict[str, Any]) -> MemberTasks:
    active = {name: {int(number): since for number, since in found.items()} for name, found in told["active"].items()}
    return MemberTasks(active, frozen(told["standby"]), frozen(told["warmup"]))


def target(told: dict[str, Any]) -> TargetTasks:
    return TargetTasks(frozen(told["active"]), frozen(told["standby"]), frozen(told["warmup"]))


def position(told: dict[str, Any]) -> TaskPosition:
    epochs = told["memberEpoch"], told["previousMemberEpoch"]
    return TaskPosition(STATES[told["state"]], *epochs, had(told["assigned"]), had(told["pendingRevocation"]))


def goal(case: dict[str, Any]) -> TaskGoal:
    own = case["processId"]

    def holder(name: str, number: int) -> str | None:
        found: str | None = case["activeProcess"].get(name, {}).get(str(number))
        return found

    def is_passive(name: str, number: int) -> bool:
        roles = (case["standbyProcesses"], case["warmupProcesses"])
        return any(own in role.get(name, {}).get(str(number), ()) for role in roles)

    return TaskGoal(
        case["targetEpoch"],
        target(case["target"]),
        lambda name, number: holder(name, number) is not None,
        lambda name, number: holder(name, number) == own or is_passive(name, number),
        is_passive,
    )


def test_every_step_is_kafkas() -> None:
    steps = 0
    for line in gzip.decompress(VECTORS.read_bytes()).splitlines():
        case = json.loads(line)
        if case["kind"] != "streams":
            continue
        steps += 1
        owned = None if case["owned"] is None else target(case["owned"])
        if case["next"] is None:
            with pytest.raises(UnknownStateError):
                next_position(position(case["member"]), goal(case), owned)
        else:
            assert next_position(position(case["member"]), goal(case), owned) == position(case["next"]), case["id"]
    assert steps == 1200
