"""The controller's answers next to those that a real Kafka broker gave to the same requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .harness import Recorded, cases

# Answered by other rooms: logs, producers, telemetry, groups, the network.
ELSEWHERE = {"describe_log_dirs", "alter_replica_log_dirs", "produce", "fetch", "describe_producers"}
ELSEWHERE |= {"get_telemetry_subscriptions", "sasl_authenticate", "api_versions", "find_coordinator", "list_groups"}
NOT_PLAYED = {
    # Auto-creation is the handler's: it asks the controller for the topic after this answer.
    "metadata/auto-create-v1",
    "metadata/auto-create-v9",
    "metadata/auto-create-v13",
    # The recording broker had made its internal topics before.
    "metadata/internal-topic",
    "create_topics/internal-name",
}


def played() -> list[Any]:
    found = []
    for file in ("topics.jsonl", "configs.jsonl", "admin.jsonl", "metadata.jsonl"):
        for case in cases(file):
            asked = {step.get("api", "") for step in case["steps"]}
            if not asked & ELSEWHERE and case["id"] not in NOT_PLAYED and not any("raw" in s for s in case["steps"]):
                found.append(pytest.param(case, id=case["id"]))
    return found


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


@pytest.mark.slow
@pytest.mark.parametrize("case", played())
def test_the_answer_is_kafkas(recorded: Recorded, case: dict[str, Any]) -> None:
    problems = recorded.play(case)
    shown = [
        f"step {n} {path}: want {json.dumps(w)[:300]}, got {json.dumps(g, default=str)[:300]}"
        for n, path, w, g in problems
    ]
    assert not shown, "\n".join(shown)


def test_enough_cases_are_played() -> None:
    assert len(played()) > 140
