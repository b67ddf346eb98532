"""Reads the reference cases, and judges assignments."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.assignors import AssignableTopics, Assignor, GroupAssignment, Subscription
from headrace.topics import TopicPartition

VECTORS = Path(__file__).parent.parent / "reference" / "vectors"

Plain = dict[str, list[tuple[str, int]]]


def cases(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                yield json.loads(line)


def from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def partitions(pairs: list[list[Any]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in pairs]


def read_case(case: dict[str, Any]) -> tuple[AssignableTopics, dict[str, Subscription]]:
    subscriptions = {
        member["memberId"]: Subscription(
            topics=member["topics"],
            user_data=from_base64(member["userData"]),
            owned_partitions=partitions(member["ownedPartitions"]),
            generation_id=member["generationId"],
            rack_id=member["rackId"],
            group_instance_id=member["groupInstanceId"],
        )
        for member in case["members"]
    }
    return AssignableTopics(case["partitionsPerTopic"], case["racks"]), subscriptions


def assign(
    assignor: Assignor, counts: Mapping[str, int], subscriptions: Mapping[str, Subscription], **view: Any
) -> Plain:
    """Assign at once, check that the result is valid, and give it as plain lists."""
    cluster = AssignableTopics(counts, **view)
    result = assignor.assign(cluster, subscriptions)
    assert isinstance(result, dict)
    assert not faults(cluster, subscriptions, result)
    return plain(result)


def plain(result: GroupAssignment) -> Plain:
    return {member: [tuple(partition) for partition in own.partitions] for member, own in result.items()}


def faults(
    cluster: AssignableTopics,
    subscriptions: Mapping[str, Subscription],
    result: GroupAssignment,
    withholds: bool = False,
) -> list[str]:
    """What is wrong: everybody is there, every wanted partition is given once, to one who wants it.

    With `withholds`, a partition may be left out if somebody claimed to own it.
    """
    found: list[str] = []
    if set(result) != set(subscriptions):
        found.append("members differ")
    given: Counter[TopicPartition] = Counter()
    for member, own in result.items():
        for partition in own.partitions:
            given[partition] += 1
            if partition.topic not in subscriptions[member].topics:
                found.append(f"{member} did not subscribe to {partition}")
    wanted = {
        TopicPartition(topic, number)
        for subscription in subscriptions.values()
        for topic in subscription.topics
        for number in range(cluster.partitions.get(topic, 0))
    }
    found.extend(f"{partition} was given twice" for partition, count in given.items() if count > 1)
    found.extend(f"there is no {partition}" for partition in given if partition not in wanted)
    claimed = {partition for subscription in subscriptions.values() for partition in subscription.owned_partitions}
    missing = wanted.difference(given)
    found.extend(f"nobody got {partition}" for partition in missing if not (withholds and partition in claimed))
    return found


def balance_score(result: Plain) -> int:
    sizes = sorted(map(len, result.values()))
    return sum(size * (2 * place - len(sizes) + 1) for place, size in enumerate(sizes))
