"""What a real broker answered is what the coordinator answers, conversation by conversation."""

from __future__ import annotations

from typing import Any

import pytest

from groups.recordings import cases

from .recordings import Conversation

CASES = [
    case
    for case in cases("transactions.jsonl")
    # Which versions there are, and that others close the connection, is the broker's matter.
    if case["id"] != "txn/init-v6-is-not-served"
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_answers_as_the_real_broker_did(case: dict[str, Any]) -> None:
    assert Conversation().play(case) == []


def test_all_recordings_are_played() -> None:
    assert len(CASES) > 60
