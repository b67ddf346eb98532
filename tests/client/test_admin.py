"""Admin against a broker: the embedded one, and an Apache Kafka where HEADRACE_TEST_KAFKA names one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

import headrace
import headrace.aio
from headrace.client.admin import (
    AclBinding,
    AclOperation,
    AclResourceType,
    Admin,
    AlterConfigOp,
    ClientQuotaEntity,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    OpType,
    ResetTo,
    ResourceType,
    ScramMechanism,
    TopicPartitionReplica,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from headrace.client.errors import ClientClosedError
from headrace.config import ConfigError
from headrace.errors import (
    BrokerIdNotRegisteredError,
    ElectionNotNeededError,
    GroupIdNotFoundError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidTopicError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from headrace.testing import broker
from headrace.topics import TopicPartition

ENVIRONMENT = "HEADRACE_TEST_KAFKA"


@pytest.fixture(scope="module", params=["headrace", "apache"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache":
        given = os.environ.get(ENVIRONMENT)
        if not given:
            pytest.skip(f"no Apache Kafka: {ENVIRONMENT} (host:port) is not set")
        yield given
        return
    with broker() as embedded:
        yield embedded.address


@pytest.fixture
def admin(address: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=address, default_api_timeout_ms=30_000) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> Iterator[str]:
    """A topic of three partitions, the first of which has ten records at 1000, 1001 … ms."""
    name = f"admin-{uuid.uuid4().hex[:10]}"
    admin.create_topics([NewTopic(name, 3, 1, {"retention.ms": "-1"})]).all()
    with headrace.Producer(bootstrap_servers=admin._runner._values["bootstrap.servers"]) as producer:
        for number in range(10):
            producer.send(name, b"v%d" % number, partition=0, timestamp=1000 + number)
    yield name
    admin.delete_topics([name])


def group_name() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_made_listed_described_and_deleted(admin: Admin) -> None:
    name = f"admin-{uuid.uuid4().hex[:10]}"
    results = admin.create_topics([NewTopic(name, 4, 1, {"retention.ms": "5000"}), NewTopic("bad name!", 1, 1)])
    made = results[name]
    assert (made.num_partitions, made.replication_factor, made.configs["retention.ms"]) == (4, 1, "5000")
    with pytest.raises(InvalidTopicError):
        results["bad name!"]
    with pytest.raises(InvalidTopicError):
        results.all()
    with pytest.raises(TopicAlreadyExistsError, match=name):
        admin.create_topics([NewTopic(name)]).all()
    # A change is done when the controller has it; brokers of an Apache Kafka hear of it a moment later.
    eventually(lambda: name in admin.list_topics())
    assert admin.list_topics()[name].topic_id == made.topic_id
    description = admin.describe_topics([name])[name]
    assert [info.partition for info in description.partitions] == [0, 1, 2, 3]
    assert all(info.leader >= 0 and info.isr == info.replicas for info in description.partitions)
    admin.delete_topics([name]).all()
    eventually(lambda: name in admin.describe_topics([name]).errors)
    with pytest.raises(UnknownTopicOrPartitionError, match=name):
        admin.describe_topics([name])[name]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name]).all()


def test_defaults_and_explicit_assignments(admin: Admin) -> None:
    node = admin.describe_cluster().nodes[0].id
    plain, assigned = f"admin-{uuid.uuid4().hex[:10]}", f"admin-{uuid.uuid4().hex[:10]}"
    results = admin.create_topics(
        [NewTopic(plain), NewTopic(assigned, replicas_assignments={0: [node], 1: [node]})]
    ).all()
    resource = ConfigResource(ResourceType.BROKER, str(node))
    assert results[plain].num_partitions == int(
        admin.describe_configs([resource])[resource]["num.partitions"].value or ""
    )
    assert results[assigned].num_partitions == 2
    admin.delete_topics([plain, assigned]).all()


def test_validating_makes_nothing(admin: Admin) -> None:
    name = f"admin-{uuid.uuid4().hex[:10]}"
    admin.create_topics([NewTopic(name, 2, 1)], validate_only=True).all()
    assert name not in admin.list_topics()


def test_partitions_are_added_never_taken(admin: Admin, topic: str) -> None:
    admin.create_partitions({topic: 5}).all()
    eventually(lambda: len(admin.describe_topics([topic])[topic].partitions) == 5)
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions({topic: NewPartitions(2)}).all()


def test_offsets_by_position_and_time(admin: Admin, topic: str) -> None:
    partition, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def offset(spec: OffsetSpec, of: TopicPartition = partition) -> int:
        return admin.list_offsets({of: spec})[of].offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.latest(), empty) == 0
    assert offset(OffsetSpec.for_timestamp(1004)) == 4
    assert offset(OffsetSpec.for_timestamp(5000)) == -1
    newest = admin.list_offsets({partition: OffsetSpec.max_timestamp()})[partition]
    assert (newest.offset, newest.timestamp) == (9, 1009)


def test_records_are_deleted_up_to_an_offset(admin: Admin, topic: str) -> None:
    partition, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    results = admin.delete_records({partition: 4, other: 99})
    assert results[partition] == 4
    with pytest.raises(OffsetOutOfRangeError):
        results[other]
    assert admin.list_offsets({partition: OffsetSpec.earliest()})[partition].offset == 4
    assert admin.delete_records({partition: -1})[partition] == 10


# --- configuration ----------------------------------------------------------------------------------------------------


def test_configuration_is_described_and_changed_key_by_key(admin: Admin, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    before = admin.describe_configs([resource])[resource]
    assert before["retention.ms"].value == "-1"
    assert before["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert before["segment.bytes"].is_default
    admin.incremental_alter_configs({resource: {"retention.ms": "1234", "max.message.bytes": "2000"}}).all()
    operations = [
        AlterConfigOp("max.message.bytes", None, OpType.DELETE),
        AlterConfigOp("cleanup.policy", "compact", OpType.APPEND),
    ]
    admin.incremental_alter_configs({resource: operations}).all()
    keys = ["retention.ms", "max.message.bytes", "cleanup.policy"]
    eventually(lambda: admin.describe_configs([resource])[resource]["cleanup.policy"].value == "delete,compact")
    after = admin.describe_configs([resource], keys=keys)[resource]
    assert set(after) == {"retention.ms", "max.message.bytes", "cleanup.policy"}
    assert after["retention.ms"].value == "1234"
    assert after["max.message.bytes"].is_default
    assert after["cleanup.policy"].value == "delete,compact"


def test_wrong_configuration_is_refused_and_changes_nothing(admin: Admin, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with pytest.raises(InvalidConfigError):
        admin.incremental_alter_configs({resource: {"retention.ms": "soon"}}).all()
    admin.incremental_alter_configs({resource: {"retention.ms": "77"}}, validate_only=True).all()
    assert admin.describe_configs([resource])[resource]["retention.ms"].value == "-1"


def test_a_brokers_configuration_is_told_by_that_broker(admin: Admin) -> None:
    node = str(admin.describe_cluster().nodes[0].id)
    resource, missing = ConfigResource(ResourceType.BROKER, node), ConfigResource(ResourceType.BROKER, "777")
    results = admin.describe_configs([resource, missing], include_synonyms=True, include_documentation=True)
    assert results[resource]["log.dirs"].is_read_only
    assert results[resource]["log.retention.hours"].documentation
    assert "there is no broker 777" in str(results.errors[missing])


# --- groups -----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_are_set_read_and_deleted(admin: Admin, topic: str) -> None:
    group, first, second = group_name(), TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.list_group_offsets([group])[group] == {}
    with pytest.raises(GroupIdNotFoundError):
        admin.describe_groups([group])[group]
    admin.alter_group_offsets(group, {first: 7, second: OffsetAndMetadata(0, "a note", 0)}).all()
    found = admin.list_group_offsets([group])[group]
    assert found == {first: OffsetAndMetadata(7), second: OffsetAndMetadata(0, "a note", 0)}
    assert admin.list_partition_offsets(group, [first, TopicPartition(topic, 2)]) == {first: OffsetAndMetadata(7)}
    assert group in [listing.group_id for listing in admin.list_groups()]
    assert group in [listing.group_id for listing in admin.list_groups(states=["Empty"])]
    assert group not in [listing.group_id for listing in admin.list_groups(states=["Stable"])]
    assert admin.describe_groups([group])[group].state == "Empty"
    admin.delete_group_offsets(group, [first]).all()
    assert list(admin.list_group_offsets([group])[group]) == [second]
    admin.delete_groups([group]).all()
    with pytest.raises(GroupIdNotFoundError, match=group):
        admin.delete_groups([group]).all()


def test_offsets_are_reset_in_every_way(admin: Admin, topic: str) -> None:
    group, other, partition = group_name(), group_name(), TopicPartition(topic, 0)
    admin.alter_group_offsets(group, {partition: 5}).all()
    admin.alter_group_offsets(other, {partition: 2}).all()
    ways = {
        ResetTo.earliest(): 0,
        ResetTo.latest(): 10,
        ResetTo.offset(3): 3,
        ResetTo.offset(99): 10,
        ResetTo.timestamp(1006): 6,
        ResetTo.timestamp(99_999): 10,
        ResetTo.duration(0): 10,
        ResetTo.duration(10**10): 0,
        ResetTo.shift(-2): 3,
        ResetTo.shift(3): 8,
        ResetTo.shift(100): 10,
        ResetTo.group(other): 2,
        ResetTo.each({partition: 4}): 4,
        ResetTo.current(): 5,
    }
    for way, expected in ways.items():
        shown = admin.reset_group_offsets(group, way, dry_run=True)
        assert (shown[partition].before, shown[partition].after) == (5, expected), way
    assert admin.list_group_offsets([group])[group][partition].offset == 5
    done = admin.reset_group_offsets(group, ResetTo.latest(), topics=[topic])
    assert {tp.partition: change.after for tp, change in done.items()} == {0: 10, 1: 0, 2: 0}
    assert admin.list_group_offsets([group])[group][TopicPartition(topic, 2)].offset == 0
    admin.delete_groups([group, other]).all()


def test_a_group_with_members_is_described_and_not_reset(admin: Admin, address: str, topic: str) -> None:
    from confluent_kafka import Consumer

    group = group_name()
    settings = {"bootstrap.servers": address, "group.id": group, "client.id": "someone", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        description = admin.describe_groups([group])[group]
        assert description.state == "Stable"
        (member,) = description.members
        assert member.client_id == "someone"
        assert member.topics == (topic,)
        assert member.assignment == tuple(TopicPartition(topic, index) for index in range(3))
        with pytest.raises(NonEmptyGroupError, match="stop its consumers"):
            admin.reset_group_offsets(group, ResetTo.earliest(), topics=[topic])
        with pytest.raises(NonEmptyGroupError):
            admin.delete_groups([group]).all()
        removed = admin.remove_members(group)
        assert list(removed.ok) == [member.member_id]
    finally:
        consumer.close()


# --- cluster ----------------------------------------------------------------------------------------------------------


def test_the_cluster_and_its_disks(admin: Admin, topic: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller in cluster.nodes
    node = cluster.nodes[0].id
    directories = admin.describe_log_dirs()[node]
    ((path, directory),) = directories.items()
    assert directory.error is None
    assert directory.replicas[TopicPartition(topic, 0)].size > 0
    assert directory.total_bytes >= directory.usable_bytes > 0
    # Where it is already: nothing to do, and no error.
    admin.alter_replica_log_dirs({TopicPartitionReplica(topic, 0, node): path}).all()
    assert "metadata.version" in admin.describe_features().finalized


def test_leaders_and_reassignments_of_a_cluster_of_one(admin: Admin, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    node = admin.describe_cluster().nodes[0].id
    with pytest.raises(ElectionNotNeededError):
        admin.elect_leaders([partition])[partition]
    assert admin.elect_leaders().errors == {}
    admin.alter_partition_reassignments({partition: [node]}).all()
    with pytest.raises(InvalidReplicaAssignmentError):
        admin.alter_partition_reassignments({partition: [node + 70]}).all()
    assert admin.list_partition_reassignments() == {}
    with pytest.raises(BrokerIdNotRegisteredError):
        admin.unregister_broker(node + 70)


def test_producers_of_a_partition(admin: Admin, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    (producer,) = admin.describe_producers([partition])[partition]
    assert producer.last_sequence == 9
    assert producer.current_transaction_start_offset is None


def test_credentials_and_quotas(admin: Admin) -> None:
    user = f"user-{uuid.uuid4().hex[:8]}"
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_256, b"secret", 4096)]
    ).all()
    eventually(lambda: user in admin.describe_user_scram_credentials().ok)
    (info,) = admin.describe_user_scram_credentials([user])[user]
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)]).all()
    eventually(lambda: user not in admin.describe_user_scram_credentials().ok)
    entity = ClientQuotaEntity.of({"user": user})
    admin.alter_client_quotas({entity: {"producer_byte_rate": 1000.0}}).all()
    eventually(lambda: admin.describe_client_quotas({"user": user}) == {entity: {"producer_byte_rate": 1000.0}})
    admin.alter_client_quotas({entity: {"producer_byte_rate": None}}).all()
    eventually(lambda: admin.describe_client_quotas({"user": user}) == {})


def test_acls_are_off_without_an_authorizer(admin: Admin) -> None:
    acl = AclBinding(AclResourceType.TOPIC, "t", "User:me", AclOperation.READ)
    with pytest.raises(SecurityDisabledError):
        admin.create_acls([acl]).all()
    with pytest.raises(SecurityDisabledError):
        admin.describe_acls()


def test_transactions_are_listed_or_said_to_be_unserved(admin: Admin) -> None:
    try:
        assert isinstance(admin.list_transactions(), list)
    except UnsupportedVersionError as error:
        assert "ListTransactions" in str(error)  # noqa: PT017 - either is right, by what the broker serves


# --- asyncio, threads, time -------------------------------------------------------------------------------------------


def test_the_same_with_asyncio_and_many_at_once(address: str, topic: str) -> None:
    async def main() -> None:
        async with headrace.aio.Admin(bootstrap_servers=address) as admin:
            partition = TopicPartition(topic, 0)
            listed, cluster, offsets = await asyncio.gather(
                admin.list_topics(),
                admin.describe_cluster(),
                admin.list_offsets({partition: OffsetSpec.latest()}),
            )
            assert topic in listed
            assert cluster.nodes
            assert offsets[partition].offset == 10
            with pytest.raises(UnknownTopicOrPartitionError):
                (await admin.describe_topics(["nope"])).all()
        with pytest.raises(ClientClosedError):
            await admin.list_topics()

    asyncio.run(main())


def test_threads_share_an_admin(admin: Admin, topic: str) -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(topic in admin.list_topics())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def test_a_broker_that_is_not_there_ends_with_the_time() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1") as admin:
        began = time.monotonic()
        with pytest.raises(RequestTimedOutError, match=r"127\.0\.0\.1:1.*refused"):
            admin.within(0.3).list_topics()
        assert time.monotonic() - began < 30


def test_a_closed_admin_says_so(address: str) -> None:
    admin = Admin({"bootstrap.servers": address})
    admin.close()
    admin.close()
    with pytest.raises(ClientClosedError):
        admin.list_topics()


def test_what_is_under_way_ends_when_an_asyncio_admin_is_closed() -> None:
    """And does not ask on, of nobody, until its time is over."""

    async def close_meanwhile() -> None:
        settings = {"default.api.timeout.ms": 600_000, "request.timeout.ms": 300_000}
        admin = headrace.aio.Admin({"bootstrap.servers": "127.0.0.1:1", **settings})
        asking = [asyncio.create_task(admin.list_topics()), asyncio.create_task(admin.describe_groups(["g"]))]
        await asyncio.sleep(0)
        await admin.close()
        for task in asking:
            with pytest.raises(ClientClosedError):
                await asyncio.wait_for(task, 60)

    asyncio.run(close_meanwhile())


def test_wrong_configuration_of_the_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"default\.api\.timeout\.ms"):
        Admin(bootstrap_servers="localhost:9092", default_api_timeout_ms="soon")


def test_an_admin_works_in_a_forked_child(admin: Admin, topic: str) -> None:
    assert topic in admin.list_topics()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run in the child: it leaves by _exit, whatever happens.
        try:
            os.write(writer, b"y" if topic in admin.list_topics() else b"n")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"y"
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    assert topic in admin.list_topics()


def test_many_admins_leave_nothing_behind(address: str) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def one() -> None:
        async with headrace.aio.Admin(bootstrap_servers=address) as admin:
            await admin.describe_cluster()

    asyncio.run(one())
    before, threads = open_files(), threading.active_count()
    for _ in range(20):
        with Admin(bootstrap_servers=address) as admin:
            admin.describe_cluster()
        asyncio.run(one())
    assert threading.active_count() == threads
    # The embedded broker lives in this process and notices closed connections a moment later.
    eventually(lambda: open_files() <= before)
