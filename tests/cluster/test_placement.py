"""Where replicas go: equal to Kafka's own code on every recorded case, and valid on generated ones."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.placement import MissingRackError, PlacementBroker, place
from headrace.errors import InvalidPartitionsError, InvalidReplicationFactorError, KafkaError

VECTORS = Path(__file__).parent.parent / "reference" / "vectors" / "placement.jsonl.gz"
ERRORS: dict[str, type[KafkaError]] = {
    "AdminOperationException": MissingRackError,
    "InvalidPartitionsException": InvalidPartitionsError,
    "InvalidReplicationFactorException": InvalidReplicationFactorError,
    "IndexOutOfBoundsException": KafkaError,
}


def cases() -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def place_case(case: dict[str, Any]) -> dict[int, list[int]]:
    return place(
        [PlacementBroker(broker["id"], broker["rack"]) for broker in case["brokers"]],
        case["nPartitions"],
        case["replicationFactor"],
        random.Random(0),
        start_index=case["fixedStartIndex"],
        first_partition=case["startPartitionId"],
    )


def test_placement_is_kafkas_on_every_recorded_case() -> None:
    seen = 0
    for case in cases():
        if case["error"] is None:
            expected = {int(partition): replicas for partition, replicas in case["assignment"].items()}
            assert place_case(case) == expected, case["id"]
        else:
            with pytest.raises(ERRORS[case["error"]["class"].rsplit(".", 1)[-1]]):
                place_case(case)
        seen += 1
    assert seen == 2000


def test_the_worked_example() -> None:
    """Six brokers, ten partitions, three replicas, start 4, shift 0 (which only a random start can give)."""

    class Fixed(random.Random):
        draws = iter((4, 0))

        def randrange(self, *_: Any) -> int:
            return next(self.draws)

    placed = place([PlacementBroker(i) for i in range(6)], 10, 3, Fixed())
    assert placed[0] == [4, 5, 0]
    assert placed[1] == [5, 0, 1]
    assert placed[6] == [4, 0, 1]


@pytest.mark.parametrize("seed", range(40))
def test_replicas_are_distinct_balanced_and_spread_over_racks(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    rack_count = rng.choice([0, 0, rng.randint(1, count)])
    brokers = [PlacementBroker(i * 3, f"r{i % rack_count}" if rack_count else None) for i in range(count)]
    factor = rng.randint(1, count)
    partitions = count * rng.randint(1, 5)
    placed = place(brokers, partitions, factor, rng, first_partition=rng.randint(0, 9))
    racks = {broker.node_id: broker.rack for broker in brokers}
    for replicas in placed.values():
        assert len(set(replicas)) == factor
        if rack_count:
            assert len({racks[node] for node in replicas}) == min(factor, rack_count)
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert set(leaders.values()) == {partitions // count}


def test_partitions_added_later_continue_the_same_plan() -> None:
    brokers = [PlacementBroker(i) for i in range(5)]
    whole = place(brokers, 12, 3, random.Random(0), start_index=2)
    first = place(brokers, 5, 3, random.Random(0), start_index=2)
    rest = place(brokers, 7, 3, random.Random(0), start_index=2, first_partition=5)
    assert {p: r[0] for p, r in (first | rest).items()} == {p: r[0] for p, r in whole.items()}
