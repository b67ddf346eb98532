"""`headrace share`: groups are described, set back, forgotten and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.share.test_share_consumer import Work, poll

from headrace.testing import EmbeddedBroker

from .conftest import Command

pytestmark = pytest.mark.slow


def test_a_share_group_is_described_set_back_forgotten_and_deleted(headrace: Command, kafka: EmbeddedBroker) -> None:
    work = Work(kafka.address)
    work.write(b"a", b"b", b"c")
    resets = ("share", "reset", work.group, "--topic", work.topic, "--to-earliest")

    def described() -> Any:
        (document,) = headrace("share", "describe", work.group, "--json").json()
        return document

    with work.consumer() as consumer:
        poll(consumer)
        consumer.commit_sync()
        assert described()["offsets"] == [{"topic": work.topic, "partition": 0, "start": 0, "lag": 0}]
        assert [member["assignment"] for member in described()["members"]] == [[f"{work.topic}-0"]]
        refused = headrace(*resets, "--execute")
        assert refused.code == 1
        assert "not empty" in refused.err
    assert any(line.startswith(work.group) for line in headrace("share", "list").lines)
    assert "Nothing was changed" in headrace(*resets).err
    assert headrace(*resets, "--execute").code == 0
    assert described()["lag"] == 3
    assert headrace("share", "forget", work.group, work.topic, "--yes").code == 0
    assert described()["offsets"] == []
    assert headrace("share", "delete", work.group, "--yes").code == 0
    assert "not found" in headrace("share", "describe", work.group).err
