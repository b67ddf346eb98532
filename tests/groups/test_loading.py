"""A coordinator reads back what Kafka wrote in any version, and writes what Kafka would."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.coordination import Caller
from headrace.errors import ErrorCode
from headrace.groups import GroupConfig, GroupCoordinator, GroupState, Now, StoredRecord
from headrace.groups.classic.kind import ClassicGroups
from headrace.groups.classic.rebalance import Rebalances
from headrace.groups.classic.records import group_record
from headrace.groups.classic.state import ClassicGroup
from headrace.groups.consumer import records as consumer_records
from headrace.groups.consumer.group import ConsumerMember
from headrace.groups.group_offsets import CommittedOffset
from headrace.groups.loading import Loader
from headrace.groups.records import offset_record
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.stored.consumer_offsets import encode_record

from .driver import Driver, Topics
from .members import Members

VECTORS = Path(__file__).parent.parent / "reference" / "vectors" / "offsets-topic.jsonl.gz"
CLASSIC = {"LEGACY_OFFSET_COMMIT", "OFFSET_COMMIT", "GROUP_METADATA"}


def lines() -> list[dict[str, Any]]:
    with gzip.open(VECTORS, "rt") as file:
        read = [json.loads(line) for line in file]
    return [line for line in read if line["topic"] == "__consumer_offsets"]


LINES = lines()
CLASSIC_GROUPS = ClassicGroups(GroupConfig(), Rebalances(GroupConfig()))


def raw(field: str | None) -> bytes | None:
    return None if field is None else base64.b64decode(field)


def load_one(line: dict[str, Any]) -> Loader:
    loader = Loader()
    loader.add(StoredRecord(raw(line["key"]) or b"", raw(line["value"])))
    return loader


def test_offsets_of_every_version_are_read_as_kafka_reads_them() -> None:
    seen = set()
    for line in LINES:
        if line.get("type") not in ("LEGACY_OFFSET_COMMIT", "OFFSET_COMMIT") or line["value"] is None:
            continue
        (found,) = load_one(line).offsets()
        want, key = line["decoded_value_fields"], line["key_fields"]
        assert (found.group_id, found.topic, found.partition) == (key["group"], key["topic"], key["partition"])
        assert found.offset.offset == want["offset"]
        assert found.offset.metadata == want["metadata"]
        assert found.offset.leader_epoch == want.get("leaderEpoch", -1)
        assert found.offset.commit_timestamp_ms == want["commitTimestamp"]
        assert found.offset.expire_timestamp_ms == want.get("expireTimestamp", -1)
        seen.add((line["type_id"], line["value_version"]))
    assert seen == {(0, 0), *((1, version) for version in range(5))}


def test_groups_of_every_version_are_read_as_kafka_reads_them() -> None:
    seen = set()
    for line in LINES:
        if line.get("type") != "GROUP_METADATA" or line["value"] is None:
            continue
        (group,) = load_one(line).groups(7, [CLASSIC_GROUPS])
        want = line["decoded_value_fields"]
        assert group.group_id == line["key_fields"]["group"]
        assert group.state is (GroupState.STABLE if want["members"] else GroupState.EMPTY)
        assert (group.generation, group.protocol_name) == (want["generation"], want["protocol"])
        assert (group.protocol_type or "") == want["protocolType"]
        timestamp = want.get("currentStateTimestamp", -1)
        assert group.state_timestamp_ms == (None if timestamp == -1 else timestamp)
        for member, wanted in zip(group.members.values(), want["members"], strict=True):
            assert member.member_id == wanted["memberId"]
            assert member.instance_id == wanted.get("groupInstanceId")
            assert (member.client_id, member.client_host) == (wanted["clientId"], wanted["clientHost"])
            assert member.session_timeout_ms == wanted["sessionTimeout"]
            rebalance_timeout = wanted.get("rebalanceTimeout", -1)
            assert member.rebalance_timeout_ms == (
                wanted["sessionTimeout"] if rebalance_timeout == -1 else rebalance_timeout
            )
            assert member.metadata(group.protocol_name) == raw(wanted["subscription"])
            assert member.assignment == raw(wanted["assignment"])
        seen.add(line["value_version"])
    assert seen == set(range(5))


def test_records_of_the_versions_that_kafka_writes_come_back_byte_for_byte() -> None:
    count = 0
    for line in LINES:
        key, value = raw(line["key"]), raw(line["value"])
        if line.get("type") == "OFFSET_COMMIT" and line["value_version"] in (1, 4):
            (found,) = load_one(line).offsets()
            if line["value_version"] == 1 and found.offset.expire_timestamp_ms == -1:
                continue  # Kafka would write version 4
            record = offset_record(3, found.group_id, found.topic, found.partition, found.offset)
        elif line.get("type") == "GROUP_METADATA" and line["value_version"] == 3:
            want = line["value_fields"]
            if want["members"] and (
                want["leader"] is None or any(m["rebalanceTimeout"] == -1 for m in want["members"])
            ):
                continue  # Kafka, too, makes up a leader and a time-out for these
            (group,) = load_one(line).groups(3, [CLASSIC_GROUPS])
            record = group_record(group, {m.member_id: m.assignment for m in group.members.values()})
        else:
            continue
        assert (record.partition, record.key, record.value) == (3, key, value)
        count += 1
    assert count > 80


def test_damaged_and_foreign_records_are_counted_and_never_stop_the_loading() -> None:
    skipped = unreadable = 0
    for line in LINES:
        if line.get("op") != "decode" and line["type"] in CLASSIC:
            continue
        loader = load_one(line)
        groups, offsets = list(loader.groups(0, [CLASSIC_GROUPS])), list(loader.offsets())
        report = loader.report
        assert report.records == 1
        kept = len(groups) + len(offsets)
        assert kept + report.skipped + report.unreadable == (1 if line["value"] is not None or report.skipped else 0)
        if kept:
            assert line["error"] is None, f"Java refuses it: {line['why']}"
        skipped, unreadable = skipped + report.skipped, unreadable + report.unreadable
    assert skipped > 200
    assert unreadable > 20


def test_a_whole_partition_of_them_answers_requests() -> None:
    """All good lines of the vectors as one log: the last value of each key is what is told."""
    driver = Driver(load=False)
    for partition in range(50):
        driver.absorb(driver.coordinator.begin_load(partition, 0))
    offsets: dict[tuple[str, str, int], int] = {}
    groups: set[str] = set()
    for line in LINES:
        if line.get("op") == "decode":
            continue
        key = line["key_fields"]
        group_id = key.get("group", key.get("groupId"))
        record = StoredRecord(raw(line["key"]) or b"", raw(line["value"]))
        driver.coordinator.load(driver.coordinator.partition_of(group_id), record)
        if line["type"] == "GROUP_METADATA":
            (groups.discard if line["value"] is None else groups.add)(group_id)
        elif line["type"] in CLASSIC:
            name = (group_id, key["topic"], key["partition"])
            if line["value"] is None:
                offsets.pop(name, None)
            else:
                offsets[name] = line["decoded_value_fields"]["offset"]
    for partition in range(50):
        driver.absorb(driver.coordinator.loaded(partition, driver.now))
    listed = driver.ask("list_groups", ListGroupsRequest(), 5)
    classic = {group.group_id for group in listed.groups if group.group_type == "classic"}
    newer = {group.group_id for group in listed.groups} - classic  # the vectors have groups of all kinds
    assert classic == (groups | {group_id for group_id, _, _ in offsets}) - newer
    for group_id in {group_id for group_id, _, _ in offsets}:
        response = driver.ask("offset_fetch", OffsetFetchRequest(group_id=group_id, topics=None), 5)
        told = {
            (group_id, topic.name, partition.partition_index): partition.committed_offset
            for topic in response.topics
            for partition in topic.partitions
        }
        assert told == {name: offset for name, offset in offsets.items() if name[0] == group_id}
    described = driver.ask("describe_groups", DescribeGroupsRequest(groups=sorted(groups - newer)), 5)
    assert {group.group_state for group in described.groups} == {"Empty", "Stable"}


def group_in_two_partitions() -> tuple[Driver, str]:
    """The topic was given a second partition, to which the group belongs by now; it has offset 5 in the old one, 100 in
    its own. Nothing is loaded."""
    driver = Driver(GroupConfig(offsets_topic_partitions=2), load=False)
    name = next(f"g{number}" for number in range(100) if driver.coordinator.partition_of(f"g{number}") == 1)
    for partition, offset in enumerate((5, 100)):
        record = offset_record(partition, name, "topic", 0, CommittedOffset(offset, -1, "", driver.now_ms))
        driver.log[partition] = [StoredRecord(record.key, record.value)]
    return driver, name


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["its old partition first", "its own partition first"])
def test_a_group_that_two_partitions_hold_is_that_of_its_own(order: tuple[int, int]) -> None:
    driver, name = group_in_two_partitions()
    for partition in order:
        driver.load(partition)
    members = Members(driver)
    assert members.offsets(name) == {("topic", 0): 100}
    assert [group.group_id for group in driver.ask("list_groups", ListGroupsRequest(), 5).groups] == [name]
    driver.topics.create("topic")
    assert members.commit(101, group=name) == ErrorCode.NONE
    assert len(driver.log[1]) == 2, "it is written to its own partition"
    for partition in order:
        driver.absorb(driver.coordinator.unload(partition))
    response = driver.ask("offset_fetch", OffsetFetchRequest(group_id=name, topics=None), 7)
    assert response.error_code == ErrorCode.NOT_COORDINATOR
    assert driver.timers == {}


def test_who_waits_for_a_group_in_its_old_partition_is_told_when_it_is_found_in_its_own() -> None:
    driver, name = group_in_two_partitions()
    driver.load(0)
    joining = Members(driver).join(group=name, version=3)
    driver.load(1)
    assert driver.answers[joining].error_code == ErrorCode.NOT_COORDINATOR


def test_members_from_before_a_change_of_protocol_that_was_not_written_do_not_come_back() -> None:
    """The consumer group became a classic one: its tombstones could not be written, the classic group was later."""
    driver = Driver(load=False)
    partition = driver.coordinator.partition_of("g")
    member = consumer_records.member("g", ConsumerMember("ghost", topics=frozenset({"t"}), rebalance_timeout_ms=1))
    before = [StoredRecord(*encode_record(*record, 0)) for record in (member, consumer_records.epoch("g", 4, 0))]
    record = group_record(ClassicGroup("g", partition, state=GroupState.EMPTY, generation=5), {})
    driver.log[partition] = [*before, StoredRecord(record.key, record.value)]
    driver.load_all()
    [listed] = driver.ask("list_groups", ListGroupsRequest(), 5).groups
    assert listed.group_type == "classic"

    joins = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", rebalance_timeout_ms=1000)
    joins.subscribed_topic_names, joins.topic_partitions = ["t"], []
    driver.absorb(driver.coordinator.consumer.heartbeat(Caller("join", "c", "/h", 1), joins, driver.now))
    assert driver.answers["join"].error_code == ErrorCode.NONE
    driver.reload()
    describes = ConsumerGroupDescribeRequest(group_ids=["g"])
    driver.absorb(driver.coordinator.consumer.describe(Caller("describe", "c", "/h", 1), describes, driver.now))
    assert [one.member_id for one in driver.answers["describe"].groups[0].members] == ["m"]


def test_a_group_whose_epoch_could_not_be_written_gives_out_partitions() -> None:
    """The record of its epoch failed; the one of the target that was computed for that epoch did not."""
    driver = Driver(load=False)
    driver.topics.create("t", 2)
    partition = driver.coordinator.partition_of("g")
    written = (consumer_records.epoch("g", 3, 0), consumer_records.target_epoch("g", 5, 0))
    driver.log[partition] = [StoredRecord(*encode_record(*record, 0)) for record in written]
    driver.load_all()
    joins = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", rebalance_timeout_ms=1000)
    joins.subscribed_topic_names, joins.topic_partitions = ["t"], []
    driver.absorb(driver.coordinator.consumer.heartbeat(Caller("join", "c", "/h", 1), joins, driver.now))
    response = driver.answers["join"]
    assert response.member_epoch > 5
    assert [part.partitions for part in response.assignment.topic_partitions] == [[0, 1]]


def test_a_partition_that_serves_takes_no_more_records() -> None:
    coordinator = GroupCoordinator(GroupConfig(), random.Random(0), Topics())
    coordinator.begin_load(3, 0)
    coordinator.loaded(3, Now(0, 0))
    with pytest.raises(ValueError, match="begin_load"):
        coordinator.load(3, StoredRecord(b"\x00\x02\x00\x01g", None))
