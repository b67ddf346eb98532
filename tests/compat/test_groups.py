"""Groups of three with members leaving and joining, by every strategy of every client (SPEC 4)."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from confluent_kafka import ConsumerGroupState
from tests.waiting import eventually

from headrace.testing import EmbeddedBroker

from .clients import PYTHON_CLIENTS, TIMEOUT_S, KafkaPython, Message, confluent_admin, create_topic
from .members import (
    MEMBERS,
    ConfluentMember,
    HeadraceMember,
    KafkaPythonMember,
    Member,
    stop_all,
    wait_until_shared_out,
)

PARTITIONS = 6
COMBINATIONS = [(name, strategy) for name, kind in MEMBERS.items() for strategy in kind.strategies]


def fill(address: str, topic: str, per_partition: int) -> set[tuple[str, int, int]]:
    messages = [
        Message(None, b"value", 1_700_000_000_000, partition=partition)
        for partition in range(PARTITIONS)
        for _ in range(per_partition)
    ]
    PYTHON_CLIENTS[0].produce(address, topic, messages)
    return {(topic, partition, offset) for partition in range(PARTITIONS) for offset in range(per_partition)}


def all_partitions(topic: str) -> set[tuple[str, int]]:
    return {(topic, partition) for partition in range(PARTITIONS)}


def read_by(members: list[Member]) -> Counter[tuple[str, int, int]]:
    return Counter(record for member in members for record in list(member.read))


@pytest.mark.slow
@pytest.mark.parametrize(("client", "strategy"), COMBINATIONS, ids=["-".join(pair) for pair in COMBINATIONS])
def test_three_members_share_out_the_partitions_as_members_leave_and_join(
    kafka: EmbeddedBroker, topic: str, group: str, client: str, strategy: str
) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    wanted = all_partitions(topic)
    members = [MEMBERS[client](kafka.address, group, [topic], strategy) for _ in range(4)]
    everyone = list(members)
    running = members[:3]
    try:
        for member in running:
            member.start()
        wait_until_shared_out(running, wanted)
        records = fill(kafka.address, topic, 20)
        eventually(lambda: set(read_by(everyone)) == records, what="all records read")

        running.pop(0).stop()
        wait_until_shared_out(running, wanted)
        running.append(members[3].start())
        wait_until_shared_out(running, wanted)
        PYTHON_CLIENTS[0].produce(
            kafka.address, topic, [Message(None, b"more", 1_700_000_000_000, partition=n) for n in range(PARTITIONS)]
        )
        records |= {(topic, partition, 20) for partition in range(PARTITIONS)}
        eventually(lambda: set(read_by(everyone)) == records, what="the later records read")
    finally:
        stop_all(running)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_clients_of_all_kinds_are_members_of_one_group(
    kafka: EmbeddedBroker, topic: str, group: str, strategy: str
) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    records = fill(kafka.address, topic, 10)
    members = [kind(kafka.address, group, [topic], strategy) for kind in MEMBERS.values()]
    try:
        for member in members:
            member.start()
        wait_until_shared_out(members, all_partitions(topic))
        assert sorted(len(member.partitions) for member in members) == [2, 2, 2]
        eventually(lambda: set(read_by(members)) == records, what="all records read")
    finally:
        stop_all(members)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_kafka_python_leads_a_group_of_ours_and_confluent_kafka(
    kafka: EmbeddedBroker, topic: str, group: str, strategy: str
) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    records = fill(kafka.address, topic, 10)
    leader, *others = (
        kind(kafka.address, group, [topic], strategy) for kind in (KafkaPythonMember, HeadraceMember, ConfluentMember)
    )
    members = [leader]
    try:
        leader.start()
        wait_until_shared_out(members, all_partitions(topic))
        for other in others:
            members.append(other.start())
            wait_until_shared_out(members, all_partitions(topic))
        assert leader_of(kafka, group).startswith(KafkaPython.name)
        assert sorted(len(member.partitions) for member in members) == [2, 2, 2]
        eventually(lambda: set(read_by(members)) == records, what="all records read")
    finally:
        stop_all(members)


@pytest.mark.slow
@pytest.mark.parametrize("client", MEMBERS)
def test_a_static_member_comes_back_without_a_rebalance(
    kafka: EmbeddedBroker, topic: str, group: str, client: str
) -> None:
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    kind = MEMBERS[client]
    members = [kind(kafka.address, group, [topic], "range", f"instance-{n}").start() for n in range(3)]
    try:
        wait_until_shared_out(members, all_partitions(topic))
        had = members[0].partitions
        changes = [member.rebalances for member in members[1:]]
        before = generation_of(kafka, group)
        members[0].stop()
        members[0] = kind(kafka.address, group, [topic], "range", "instance-0").start()
        wait_until_shared_out(members, all_partitions(topic))
        assert members[0].partitions == had
        assert [member.rebalances for member in members[1:]] == changes
        assert generation_of(kafka, group) == before
    finally:
        stop_all(members)


def generation_of(kafka: EmbeddedBroker, group: str) -> int:
    """As the coordinator counts; no client shows it."""
    return kafka.call(lambda broker: broker.groups.coordinator._shards.serving(group).groups[group].generation)


def leader_of(kafka: EmbeddedBroker, group: str) -> str:
    """The id of the member that assigns; it begins with the name of its client."""
    return kafka.call(lambda broker: broker.groups.coordinator._shards.serving(group).groups[group].leader) or ""


def test_a_group_is_described_with_its_members(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(kafka.address, topic, 2)
    member = ConfluentMember(kafka.address, group, [topic]).start()
    admin = confluent_admin(kafka.address)
    try:
        wait_until_shared_out([member], {(topic, 0), (topic, 1)})
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        assert len(described.members) == 1
        only = described.members[0]
        assert only.client_id == "confluent-kafka"
        assert {(part.topic, part.partition) for part in only.assignment.topic_partitions} == {(topic, 0), (topic, 1)}
    finally:
        member.stop()
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert described.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
    assert described.members == []


@pytest.mark.slow
def test_many_members_that_join_and_leave_at_once_end_up_stable(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    """UNKNOWN_MEMBER_ID under concurrent rebalances: no member is lost on the way (a known mistake of others)."""
    create_topic(kafka.address, topic, PARTITIONS, retention_ms="-1")
    records = fill(kafka.address, topic, 5)
    members = [ConfluentMember(kafka.address, group, [topic], "cooperative-sticky") for _ in range(9)]
    try:
        for member in members:
            member.start()
        leaving = [threading.Thread(target=member.stop) for member in members[6:]]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join(TIMEOUT_S)
        wait_until_shared_out(members[:6], all_partitions(topic))
        eventually(lambda: set(read_by(members)) == records, what="all records read")
    finally:
        stop_all(members[:6])
