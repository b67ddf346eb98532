"""What a real broker answered is what the coordinator answers, conversation by conversation."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.groups import GroupConfig
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

from .driver import Driver
from .recordings import Conversation, apis_of, cases

CASES = [
    case
    for name in ("group_offsets.jsonl", "groups.jsonl")
    for case in cases(name)
    # Where a coordinator is, only a broker can tell.
    if "find_coordinator" not in apis_of(case)
]
TRANSACTIONS = [
    case
    for case in cases("transactions.jsonl")
    # Whether the transaction has the group is for its own coordinator to say.
    if "txn_offset_commit" in apis_of(case) and case["id"] != "txn/offsets-without-add-v3"
]


def the_group_without_a_name(driver: Driver) -> None:
    """The broker that was recorded had one, from an earlier case."""
    driver.topics.create("before")
    topic = OffsetCommitRequestTopic(name="before", partitions=[OffsetCommitRequestPartition()])
    driver.ask("offset_commit", OffsetCommitRequest(topics=[topic]), 8)


BEFORE = {"groups_admin/delete-several": the_group_without_a_name}


@pytest.mark.parametrize("case", CASES + TRANSACTIONS, ids=lambda case: case["id"])
def test_answers_as_the_real_broker_did(case: dict[str, Any]) -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0))
    BEFORE.get(case["id"], lambda _: None)(driver)
    assert Conversation(driver).play(case) == []


def test_all_recordings_are_played() -> None:
    assert len(CASES) == 119
    assert len(TRANSACTIONS) == 12
