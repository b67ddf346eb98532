"""What one real Kafka broker answered (tests/reference/behaviour), asked of one of three brokers of ours.

Whatever the recordings make is led by the broker that they ask, and copied by the two others: each record that is
acknowledged with acks=all, each commit and each transaction waits for followers, and nothing of that may be seen.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker import test_recordings as alone
from tests.waiting import eventually

from headrace import Admin
from headrace.cluster import placement, topics
from headrace.testing import EmbeddedBroker, broker

ASKED, OTHERS = 1, (2, 3)
SETTINGS = {
    **alone.SETTINGS,
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
# What one broker says of itself alone.
COPIES = "replication_factor"
WHO_IS_THERE = ("brokers", "replica_nodes", "isr_nodes")
_ONE_COPY = "names one replica for the new partition of a topic that has three"
_NO_TIME = "no time to wait for followers: REQUEST_TIMED_OUT, as a cluster answers"
# Cases that make sense for one broker only.
ALONE = {
    "create_topics/factor-too-large": "two copies are too many for one broker only",
    "create_topics/several-some-bad": "five copies are too many, with another text for three brokers",
    "create_partitions/assignment-good": _ONE_COPY,
    "fields/create_partitions-v3/validate_only-true": _ONE_COPY,
    "fields/delete_records-v2/timeout-least": _NO_TIME,
    "produce/timeout-zero": _NO_TIME,
    "odd/produce/timeout-negative-v3": _NO_TIME,
    "odd/delete_records/no-time-v0": _NO_TIME,
    "odd/delete_records/negative-time-v0": _NO_TIME,
    "odd/more2/describe-producers-after-abort": "reads a marker that followers have yet to copy",
}
LEADER_ALONE, EVERYBODY = 1, -1
QUICK = ("produce.jsonl", "offsets_by_time.jsonl")


def for_three(recorded: Any) -> Any:
    """A recording as it would be on three brokers: lists of brokers are longer, topics get three copies; and records
    that are read back at once have to be acknowledged by all replicas, as readers see what all have."""
    if isinstance(recorded, list):
        return [for_three(entry) for entry in recorded]
    if not isinstance(recorded, dict):
        return recorded
    changed = {key: "<any>" if key in WHO_IS_THERE else for_three(value) for key, value in recorded.items()}
    if changed.get("acks") == LEADER_ALONE:
        changed["acks"] = EVERYBODY
    if COPIES in changed and "error_code" in changed and changed[COPIES] > 0:
        changed[COPIES] = "<any>"  # in an answer
    return changed


def rewritten(name: str, directory: Path) -> str:
    cases = (json.loads(line) for line in (alone.BEHAVIOUR / name).read_text().splitlines())
    path = directory / name
    path.write_text("".join(json.dumps(for_three(case)) + "\n" for case in cases if case["id"] not in ALONE))
    return str(path)


def led_by_one(
    brokers: Sequence[placement.PlacementBroker], partitions: int, copies: int, rng: random.Random, **rest: Any
) -> dict[int, list[int]]:
    """Kafka's refusals, and then all three for every partition, the one that is asked first."""
    placed = placement.place(brokers, partitions, copies, rng, **rest)
    return {partition: [ASKED, *OTHERS] for partition in placed}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    directory = tmp_path_factory.mktemp("three")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(topics, "place", led_by_one)
        stack.enter_context(alone.as_large_as_kafkas())
        brokers = [stack.enter_context(_one(directory, node)) for node in (ASKED, *OTHERS)]
        with Admin({"bootstrap.servers": brokers[0].address}) as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == len(brokers), "three brokers")
        yield brokers[0]


def _one(directory: Path, node: int) -> contextlib.AbstractContextManager[EmbeddedBroker]:
    shared = {"node.id": str(node), "headrace.metadata.dir": str(directory / "metadata")}
    return broker(str(directory / f"broker-{node}"), SETTINGS | shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_one_of_three_answers_as_the_real_broker_did(kafka: EmbeddedBroker, tmp_path: Path, name: str) -> None:
    alone.replay(kafka.address, rewritten(name, tmp_path))


@pytest.mark.long
@pytest.mark.timeout(3 * alone.REPLAY_TIMEOUT_S)
def test_one_of_three_answers_all_as_the_real_broker_did(kafka: EmbeddedBroker, tmp_path: Path) -> None:
    others = {path.name for path in alone.BEHAVIOUR.glob("*.jsonl")}.difference(alone.LARGE)
    names = [*alone.LARGE, *sorted(others)]
    wanted = [rewritten(name, tmp_path) for name in names if name not in alone.LATER_FILES]
    alone.replay(kafka.address, *wanted)
