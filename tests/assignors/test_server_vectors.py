"""The broker's own assignors give what Kafka's do."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from headrace.assignors.server import BUILT_IN, GroupSpec, MemberSpec, ServerAssignorError, TopicSpec

VECTORS = Path(__file__).parents[1] / "reference" / "vectors"
Named = dict[str, dict[str, list[int]]]


def cases(name: str) -> Iterator[dict[str, Any]]:
    for line in gzip.decompress((VECTORS / f"{name}.jsonl.gz").read_bytes()).splitlines():
        yield json.loads(line)


def spec_of(case: dict[str, Any]) -> GroupSpec:
    ids = {topic: base64.urlsafe_b64decode(found + "==") for topic, found in case["topicIds"].items()}
    members = {
        member["memberId"]: MemberSpec(
            frozenset(ids[topic] for topic in member["topics"]),
            {ids[topic]: found for topic, found in member["current"].items()},
            member["instanceId"],
            member["rackId"],
        )
        for member in case["members"]
    }
    topics = {ids[topic]: TopicSpec(topic, count) for topic, count in case["partitionsPerTopic"].items()}
    return GroupSpec(members, topics, case["subscriptionType"] == "HOMOGENEOUS")


def assigned(case: dict[str, Any]) -> Named:
    spec = spec_of(case)
    found = BUILT_IN[case["assignor"]].assign(spec)
    return {
        member: {spec.topics[topic].name: sorted(parts) for topic, parts in topics.items() if parts}
        for member, topics in found.items()
    }


def without_empty(assignment: Named) -> Named:
    return {member: topics for member, topics in assignment.items() if topics}


def pairs(assignment: Named) -> dict[tuple[str, int], str]:
    return {
        (topic, index): member for member, topics in assignment.items() for topic in topics for index in topics[topic]
    }


def check_as_good(case: dict[str, Any], found: Named) -> None:
    """Where the order of Java's tables decides: everything is assigned once, as evenly, with as few moves."""
    wanted = {member["memberId"]: set(member["topics"]) for member in case["members"]}
    owners = pairs(found)
    assert owners.keys() == pairs(case["assignment"]).keys()
    assert sum(len(parts) for topics in found.values() for parts in topics.values()) == len(owners)
    assert all(topic in wanted[member] for (topic, _), member in owners.items())
    counts = [sum(map(len, found.get(member, {}).values())) for member in wanted]
    assert sum(abs(one - other) for one, other in combinations(counts, 2)) <= case["balance_score"]
    before = pairs({member["memberId"]: member["current"] for member in case["members"]})
    kept = [place for place, member in before.items() if place in owners and place[0] in wanted[member]]
    assert sum(owners[place] != before[place] for place in kept) <= case["moves"]


@pytest.mark.parametrize(
    ("name", "equal_min"), [("range-server", 1200), ("uniform-server", 1475), ("uniform-racks", 990)]
)
def test_assignments_are_kafkas(name: str, equal_min: int) -> None:
    equal = 0
    for case in cases(name):
        if case["error"] is not None:
            with pytest.raises(ServerAssignorError):
                assigned(case)
            equal += 1
            continue
        found, want = without_empty(assigned(case)), without_empty(case["assignment"])
        if found == want:
            equal += 1
        else:
            assert case["order_sensitive"], case["id"]
            check_as_good(case, found)
    assert equal >= equal_min
