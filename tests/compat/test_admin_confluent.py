"""What confluent-kafka's admin client can ask."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from tests.waiting import eventually

from headrace.testing import EmbeddedBroker

from .clients import (
    PYTHON_CLIENTS,
    TIMEOUT_S,
    confluent_admin,
    confluent_consumer,
    create_topic,
    poll_confluent,
    sample,
)


@pytest.fixture(scope="module")
def admin(kafka: EmbeddedBroker) -> AdminClient:
    return confluent_admin(kafka.address)


def error_name(call: Callable[[], object]) -> str:
    with pytest.raises(KafkaException) as caught:
        call()
    return str(caught.value.args[0].name())


def test_topics_are_created_described_grown_and_deleted(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, num_partitions=2, replication_factor=1, config={"cleanup.policy": "compact"})
    admin.create_topics([new], validate_only=True)[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    assert error_name(lambda: admin.create_topics([new])[topic].result(TIMEOUT_S)) == "TOPIC_ALREADY_EXISTS"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    assert [part.id for part in described.partitions] == [0, 1, 2, 3, 4]
    assert all(part.leader is not None and len(part.isr) == 1 for part in described.partitions)
    assert not described.is_internal
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert error_name(lambda: admin.delete_topics([topic])[topic].result(TIMEOUT_S)) == "UNKNOWN_TOPIC_OR_PART"


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("bad name!", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("too-many-replicas", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("unknown-config", 1, 1, config={"no.such.config": "1"}), "INVALID_CONFIG"),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else value,
)
def test_a_bad_topic_is_refused(admin: AdminClient, new: NewTopic, error: str) -> None:
    assert error_name(lambda: admin.create_topics([new])[new.topic].result(TIMEOUT_S)) == error


def test_configs_of_topics_are_read_and_changed(admin: AdminClient, kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def value_of(name: str) -> ConfigEntry:
        described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
        return next(iter(described.values())).result(TIMEOUT_S)[name]

    assert value_of("retention.ms").value == "604800000"
    assert value_of("retention.ms").is_default
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
    assert value_of("retention.ms").value == "1000"
    assert value_of("retention.ms").source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    whole = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"segment.bytes": "2000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        admin.alter_configs([whole])[whole].result(TIMEOUT_S)
    assert value_of("retention.ms").value == "604800000"  # alter_configs puts all of them
    assert value_of("segment.bytes").value == "2000000"
    bad = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)],
    )
    assert error_name(lambda: admin.incremental_alter_configs([bad])[bad].result(TIMEOUT_S)) == "INVALID_CONFIG"
    assert resource.name == topic


def test_configs_of_the_broker_are_read_and_changed(admin: AdminClient, kafka: EmbeddedBroker) -> None:
    node = str(kafka.broker.node_id)

    def value_of(name: str) -> str | None:
        described = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, node)])
        return str(next(iter(described.values())).result(TIMEOUT_S)[name].value)

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.retention.ms", "7200000", incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, node, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    before = value_of("log.retention.ms")
    change(AlterConfigOpType.SET)
    assert value_of("log.retention.ms") == "7200000"
    change(AlterConfigOpType.DELETE)
    assert value_of("log.retention.ms") == before


def test_the_cluster_is_described(admin: AdminClient, kafka: EmbeddedBroker) -> None:
    described = admin.describe_cluster().result(TIMEOUT_S)
    assert described.cluster_id == kafka.broker.cluster_id
    assert [(node.id, node.host, node.port) for node in described.nodes] == [
        (kafka.broker.node_id, "127.0.0.1", kafka.port)
    ]
    assert described.controller.id == kafka.broker.node_id


def test_records_are_deleted_and_offsets_listed(admin: AdminClient, kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(10))
    part = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> tuple[int, int]:
        found = admin.list_offsets({part: spec}, isolation_level=isolation)[part].result(TIMEOUT_S)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED) == (10, -1)
    assert offset(OffsetSpec.max_timestamp()) == (9, 1_700_000_000_063)
    assert offset(OffsetSpec.for_timestamp(1_700_000_000_008)) == (2, 1_700_000_000_014)
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])[part].result(TIMEOUT_S)
    assert deleted.low_watermark == 4
    assert offset(OffsetSpec.earliest()) == (4, -1)
    too_far = TopicPartition(topic, 0, 40)
    assert error_name(lambda: admin.delete_records([too_far])[part].result(TIMEOUT_S)) == "OFFSET_OUT_OF_RANGE"


@pytest.mark.slow
def test_groups_are_listed_described_reset_and_deleted(
    admin: AdminClient, kafka: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(10))
    consumer = confluent_consumer(kafka.address, group)
    consumer.subscribe([topic])
    poll_confluent(consumer, 10)
    consumer.commit(asynchronous=False)

    def listed(**filters: object) -> set[str]:
        return {entry.group_id for entry in admin.list_consumer_groups(**filters).result(TIMEOUT_S).valid}

    assert group in listed(states={ConsumerGroupState.STABLE})
    assert group in listed(types={ConsumerGroupType.CLASSIC})
    assert group not in listed(states={ConsumerGroupState.EMPTY})
    assert error_name(lambda: admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)) == "NON_EMPTY_GROUP"
    consumer.close()
    eventually(lambda: group in listed(states={ConsumerGroupState.EMPTY}), what="an empty group")

    def committed() -> int:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        return admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S).topic_partitions[0].offset

    assert committed() == 10
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([change])[group].result(TIMEOUT_S)
    assert committed() == 3
    everything = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(TIMEOUT_S)
    assert [(part.topic, part.partition, part.offset) for part in everything.topic_partitions] == [(topic, 0, 3)]
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert group not in listed()
    assert error_name(lambda: admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)) == "GROUP_ID_NOT_FOUND"


def test_an_election_is_not_needed_in_a_cluster_of_one(admin: AdminClient, kafka: EmbeddedBroker, topic: str) -> None:
    create_topic(kafka.address, topic)
    part = TopicPartition(topic, 0)
    result = admin.elect_leaders(ElectionType.PREFERRED, [part]).result(TIMEOUT_S)
    assert result[part] is not None
    assert result[part].name() == "ELECTION_NOT_NEEDED"


def test_acls_and_scram_are_off(admin: AdminClient) -> None:
    new = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert error_name(lambda: admin.create_acls([new])[new].result(TIMEOUT_S)) == "SECURITY_DISABLED"
    assert admin.describe_acls(anything).result(TIMEOUT_S) == []  # librdkafka does not look at this error
    assert error_name(lambda: admin.delete_acls([anything])[anything].result(TIMEOUT_S)) == "SECURITY_DISABLED"
    assert admin.describe_user_scram_credentials().result(TIMEOUT_S) == {}
    drop = UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)
    deleted = admin.alter_user_scram_credentials([drop])["nobody"]
    assert error_name(lambda: deleted.result(TIMEOUT_S)) == "RESOURCE_NOT_FOUND"


def test_watermarks_are_told_to_a_consumer(kafka: EmbeddedBroker, topic: str, group: str) -> None:
    create_topic(kafka.address, topic, retention_ms="-1")
    PYTHON_CLIENTS[0].produce(kafka.address, topic, sample(5))
    consumer = confluent_consumer(kafka.address, group)
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 5)
    finally:
        consumer.close()
