"""What the admin clients of kafka-python and aiokafka can ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiokafka.admin
import aiokafka.admin.config_resource
import pytest
from kafka import KafkaAdminClient, TopicPartition, TopicPartitionReplica
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    OffsetSpec,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import (
    ElectionNotNeededError,
    LogDirNotFoundError,
    NoError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
)
from kafka.protocol.admin.topics import ElectionType
from kafka.structs import OffsetAndMetadata

from headrace.testing import EmbeddedBroker

from .clients import PYTHON_CLIENTS, AioKafka, KafkaPython, create_topic, sample
from .members import KafkaPythonMember, wait_until_shared_out

NOW_MS = int(time.time() * 1000)


@pytest.fixture(scope="module")
def admin(kafka: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka.address, client_id=KafkaPython.name)
    yield client
    client.close()


def test_topics_are_created_described_grown_and_deleted(admin: KafkaAdminClient, topic: str) -> None:
    new = NewTopic(topic, num_partitions=2, replication_factor=1, topic_configs={"cleanup.policy": "compact"})
    admin.create_topics([new])
    admin.wait_for_topics([topic])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([new])
    assert topic in admin.list_topics()
    admin.create_partitions({topic: 4})
    described = admin.describe_topics([topic])[0]
    assert [part["partition_index"] for part in described["partitions"]] == [0, 1, 2, 3]
    paged = admin.describe_topic_partitions([topic])
    assert len(paged["topics"][0]["partitions"]) == 4
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_configs_are_read_and_changed(admin: KafkaAdminClient, kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic)

    def value_of(name: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = admin.describe_configs([resource], config_filter="all")
        return str(found["topic"][topic][name]["value"])

    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "1234567"})])
    assert value_of("retention.ms") == "1234567"
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=["retention.ms"])])
    assert value_of("retention.ms") == "604800000"
    assert topic in admin.list_config_resources(["topic"])["topic"]


def test_the_cluster_features_log_dirs_and_producers_are_described(
    admin: KafkaAdminClient, kafka: EmbeddedBroker, topic: str
) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(10), **{"enable.idempotence": True})
    assert admin.describe_cluster()["cluster_id"] == kafka.broker.cluster_id
    assert "metadata.version" in admin.describe_features()
    part = TopicPartition(topic, 0)
    directories = admin.describe_log_dirs()
    text = repr(directories)
    assert topic in text
    producers = admin.describe_producers([part])[part].active_producers
    assert [producer.last_sequence for producer in producers] == [9]
    assert admin.list_partition_reassignments() == {}
    elected = admin.elect_leaders(ElectionType.PREFERRED, {topic: [0]})
    assert str(ElectionNotNeededError.errno) in repr(elected)
    replica = TopicPartitionReplica(topic, 0, kafka.broker.node_id)
    assert admin.alter_replica_log_dirs({replica: "/nowhere"}) == {replica: LogDirNotFoundError}


def test_offsets_are_listed_and_records_deleted(admin: KafkaAdminClient, kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[1].produce(kafka.address, topic, sample(10, null_headers=False))
    part = TopicPartition(topic, 0)
    assert admin.list_partition_offsets({part: OffsetSpec.LATEST})[part].offset == 10
    assert admin.list_partition_offsets({part: OffsetSpec.MAX_TIMESTAMP})[part].offset == 9
    admin.delete_records({part: 4})
    assert admin.list_partition_offsets({part: OffsetSpec.EARLIEST})[part].offset == 4


def test_groups_are_listed_described_reset_and_deleted(
    admin: KafkaAdminClient, kafka: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(kafka.address, topic)
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(10, start_ms=NOW_MS))
    member = KafkaPythonMember(kafka.address, group, [topic]).start()
    try:
        wait_until_shared_out([member], {(topic, 0)})
        described = admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert described["members"][0]["client_id"] == "kafka-python"
    finally:
        member.stop()
    assert group in {entry["group_id"] for entry in admin.list_groups()}
    part = TopicPartition(topic, 0)
    changed = admin.alter_group_offsets(group, {part: OffsetAndMetadata(3, "note", -1)})
    assert changed == {part: NoError}
    assert admin.list_group_offsets([group])[group][part].offset == 3
    admin.reset_group_offsets(group, {part: OffsetSpec.LATEST})
    assert admin.list_group_offsets([group])[group][part].offset == 10
    assert admin.delete_group_offsets(group, [part]) == {part: NoError}
    assert part not in admin.list_group_offsets([group])[group]
    deleted = admin.delete_groups([group])
    assert group in repr(deleted)
    assert group not in {entry["group_id"] for entry in admin.list_groups()}


def test_acls_and_scram_are_off(admin: KafkaAdminClient) -> None:
    acl = ACL("User:a", "*", ACLOperation.READ, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "t"))
    anything = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, ResourcePattern(ResourceType.TOPIC, "t"))
    assert "SecurityDisabled" in repr(admin.create_acls([acl]))
    with pytest.raises(SecurityDisabledError):
        admin.describe_acls(anything)
    assert "SecurityDisabled" in repr(admin.delete_acls([anything]))
    assert admin.describe_user_scram_credentials() == {}


def test_aiokafkas_admin_calls(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    part = aiokafka.TopicPartition(topic, 0)

    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=kafka.address, client_id=AioKafka.name)
        await admin.start()
        try:
            created = await admin.create_topics([aiokafka.admin.NewTopic(topic, 2, 1)])
            assert created.topic_errors[0][1] == 0
            grown = await admin.create_partitions({topic: aiokafka.admin.NewPartitions(3)})
            assert grown.topic_errors[0][1] == 0
            assert topic in await admin.list_topics()
            described = await admin.describe_topics([topic])
            assert len(described[0]["partitions"]) == 3
            assert (await admin.describe_cluster())["cluster_id"] == kafka.broker.cluster_id
            kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
            changed = aiokafka.admin.config_resource.ConfigResource(kind, topic, configs={"retention.ms": "-1"})
            answers = await admin.alter_configs([changed])
            assert answers[0].resources[0][0] == 0
            asked = aiokafka.admin.config_resource.ConfigResource(kind, topic)
            entries = (await admin.describe_configs([asked]))[0].resources[0][4]
            assert {entry[0]: entry[1] for entry in entries}["retention.ms"] == "-1"
            await asyncio.to_thread(PYTHON_CLIENTS[2].produce, kafka.address, topic, sample(10))
            deleted = await admin.delete_records({part: aiokafka.admin.RecordsToDelete(before_offset=4)})
            assert deleted[part] == 4
            await _commit(kafka.address, group, part)
            assert group in {name for name, _ in await admin.list_consumer_groups()}
            groups = (await admin.describe_consumer_groups([group]))[0].groups[0]
            assert groups[1:3] == (group, "Empty")
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[part].offset == 7
            assert await admin.find_coordinator(group) == kafka.broker.node_id
            gone = await admin.delete_topics([topic])
            assert gone.topic_error_codes[0][1] == 0
        finally:
            await admin.close()

    asyncio.run(run())


async def _commit(address: str, group: str, part: aiokafka.TopicPartition) -> None:
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, client_id=AioKafka.name, group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.assign([part])
        await consumer.commit({part: aiokafka.structs.OffsetAndMetadata(7, "")})
