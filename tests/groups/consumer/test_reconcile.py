"""Each step of a member is the one that Kafka's coordinator makes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.groups.consumer.reconcile import Goal, MemberPosition, UnknownStateError, next_position
from headrace.groups.epochs.member import MemberProgress

VECTORS = Path(__file__).parents[2] / "reference" / "vectors" / "current-assignment.jsonl.gz"


def partitions(told: dict[str, dict[str, int]]) -> dict[bytes, dict[int, int]]:
    return {topic.encode(): {int(index): since for index, since in found.items()} for topic, found in told.items()}


def position(told: dict[str, Any]) -> MemberPosition:
    epochs = told["memberEpoch"], told["previousMemberEpoch"]
    assigned, revoking = partitions(told["assigned"]), partitions(told["pendingRevocation"])
    return MemberPosition(MemberProgress[told["state"]], *epochs, assigned, revoking)


def test_every_step_is_kafkas() -> None:
    steps = 0
    for line in gzip.decompress(VECTORS.read_bytes()).splitlines():
        case = json.loads(line)
        if case["kind"] != "consumer":
            continue
        steps += 1
        others = partitions(case["ownedByOthers"])
        subscribed = {topic.encode() for topic in (case["subscribedTopics"] or []) + (case["regexTopics"] or [])}
        target = {topic.encode(): set(found) for topic, found in case["target"].items()}

        def is_held(topic: bytes, index: int, held: dict[bytes, dict[int, int]] = others) -> bool:
            return index in held.get(topic, ())

        goal = Goal(case["targetEpoch"], target, subscribed, is_held)
        told = case["owned"]
        owned = None if told is None else {topic.encode(): set(found) for topic, found in told.items()}
        now, changed = position(case["member"]), case["subscriptionChanged"]
        if case["next"] is None:
            with pytest.raises(UnknownStateError):
                next_position(now, goal, owned, changed)
        else:
            assert next_position(now, goal, owned, changed) == position(case["next"]), case["id"]
    assert steps == 2000
