"""A directory that a real broker left behind: its groups and offsets are what that broker says they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig, StoredRecord
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.records import read_records, split

from .driver import Driver
from .members import Members

GOLDEN = Path(__file__).parent.parent / "reference" / "golden"
PARTITIONS = 3


def load(directory: Path) -> Members:
    driver = Driver(GroupConfig(offsets_topic_partitions=PARTITIONS), load=False)
    for partition in range(PARTITIONS):
        driver.absorb(driver.coordinator.begin_load(partition, 0))
        for file in sorted((directory / f"__consumer_offsets-{partition}").glob("*.log")):
            for batch in split(file.read_bytes()):
                for record in read_records(batch):
                    key = bytes(record.key or b"")
                    if batch.is_control:
                        committed = int.from_bytes(key[2:4], "big") == 1
                        found = StoredRecord(b"", None, batch.producer_id, committed)
                    else:
                        value = None if record.value is None else bytes(record.value)
                        found = StoredRecord(key, value, batch.producer_id)
                    driver.coordinator.load(partition, found)
        driver.absorb(driver.coordinator.loaded(partition, driver.now))
    return Members(driver)


def offsets_of(members: Members, group_id: str) -> dict[str, list[Any]]:
    response = members.driver.ask("offset_fetch", OffsetFetchRequest(group_id=group_id, topics=None), 7)
    return {
        f"{topic.name}-{found.partition_index}": [found.committed_offset, found.committed_leader_epoch, found.metadata]
        for topic in response.topics
        for found in topic.partitions
    }


def check_consumer_group(driver: Driver, group_id: str, wanted: dict[str, Any]) -> None:
    (group,) = (group for group in driver.coordinator.groups() if group.group_id == group_id)
    assert (group.kind.value, group.state_name) == (wanted["type"], wanted["state"]), group_id
    driver.tokens += 1
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    caller = Caller(driver.tokens, "c", "/h", 1)
    (described,) = driver.coordinator.consumer.describe(caller, request, driver.now).replies[0].response.groups
    assert described.error_code == ErrorCode.NONE
    assert described.group_epoch >= described.assignment_epoch > 0
    if wanted["state"] == "Stable":
        assert described.members
        assert all(member.member_epoch == described.assignment_epoch for member in described.members)


@pytest.mark.parametrize("shutdown", ["clean", "unclean"])
def test_groups_and_offsets_of_a_real_broker_are_read(shutdown: str) -> None:
    members = load(GOLDEN / shutdown / "data")
    expected = json.loads((GOLDEN / shutdown / "expected.json").read_text())["groups"]
    assert len(expected) == 6
    for group_id, wanted in expected.items():
        assert offsets_of(members, group_id) == wanted["offsets"], group_id
        if wanted["type"] != "classic":
            check_consumer_group(members.driver, group_id, wanted)
            continue
        described = members.describe(group_id)
        assert described.group_state == wanted["state"]
        assert described.protocol_type == wanted["classic"]["protocol_type"]
        assert described.protocol_data == wanted["classic"]["protocol_data"]
        for member, known in zip(described.members, wanted["classic"]["members"], strict=True):
            assert member.member_id == known["member_id"]
            assert member.client_host == known["client_host"]
    for partition in range(PARTITIONS):
        report = members.driver.coordinator.load_report(partition)
        assert report is not None
        assert report.unreadable == 0
