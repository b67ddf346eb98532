"""Foreign clients and Apache Kafka's own tools set rights and quotas on our broker, and feel them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from bench.peers import kafka_libs, why_no_kafka
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, KafkaAdminClient, ResourcePattern, ResourcePatternFilter
from kafka.admin import ACLOperation as PythonOperation
from kafka.admin import ACLPermissionType as PythonPermission
from kafka.admin import ACLResourcePatternType as PythonPattern
from kafka.admin import ResourceType as PythonResource
from tests.broker.security.settings import USERS, with_logins

from headrace.client.admin import Admin, ClientQuotaEntity
from headrace.testing import EmbeddedBroker, broker

from .java_tools import JavaTools

pytestmark = pytest.mark.slow

TIMEOUT_S = 10
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NEEDS_JAVA = [pytest.mark.java, pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    rights = {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin"}
    with broker(overrides=with_logins("PLAIN") | rights) as running:
        yield running


def confluent(kafka: EmbeddedBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
        **more,
    }


def python(kafka: EmbeddedBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": USERS[user],
    }


def outcome(kafka: EmbeddedBroker, user: str, topic: str) -> str:
    """What comes of a record that a user writes with librdkafka."""
    told: list[str] = []
    producer = confluent_kafka.Producer(confluent(kafka, user, **{"message.timeout.ms": 5000}))
    producer.produce(topic, b"v", callback=lambda error, _: told.append("ok" if error is None else error.name()))
    producer.flush(TIMEOUT_S)
    return told[0]


def allow(kafka: EmbeddedBroker, user: str, *operations: AclOperation, topic: str) -> None:
    admin = AdminClient(confluent(kafka, "admin"))
    rules = [
        AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", one,
                   AclPermissionType.ALLOW)
        for one in operations
    ]  # fmt: skip
    for done in admin.create_acls(rules).values():
        done.result(TIMEOUT_S)


def test_librdkafka_makes_finds_and_deletes_rules_that_count(kafka: EmbeddedBroker) -> None:
    admin = AdminClient(confluent(kafka, "admin"))
    assert outcome(kafka, "alice", "librdkafka") == "TOPIC_AUTHORIZATION_FAILED"
    rule = AclBinding(
        ResourceType.TOPIC, "librd", ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.ALL,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([rule])[rule].result(TIMEOUT_S)
    of_alice = AclBindingFilter(
        ResourceType.TOPIC, "librdkafka", ResourcePatternType.MATCH, "User:alice", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(of_alice).result(TIMEOUT_S) == [rule]
    assert outcome(kafka, "alice", "librdkafka") == "ok"
    assert admin.delete_acls([of_alice])[of_alice].result(TIMEOUT_S) == [rule]
    assert outcome(kafka, "alice", "librdkafka") == "TOPIC_AUTHORIZATION_FAILED"
    alice = AdminClient(confluent(kafka, "alice"))
    refused = alice.create_acls([rule])[rule]
    with pytest.raises(confluent_kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        refused.result(TIMEOUT_S)


def test_kafka_python_makes_finds_and_deletes_rules(kafka: EmbeddedBroker) -> None:
    admin = KafkaAdminClient(**python(kafka, "admin"))
    rule = ACL(
        principal="User:bob", host="*", operation=PythonOperation.WRITE, permission_type=PythonPermission.ALLOW,
        resource_pattern=ResourcePattern(PythonResource.TOPIC, "kafka-python", PythonPattern.LITERAL),
    )  # fmt: skip
    made = admin.create_acls([rule])
    assert rule in made["succeeded"], made
    wanted = ACLFilter(
        principal="User:bob", host=None, operation=PythonOperation.ANY, permission_type=PythonPermission.ANY,
        resource_pattern=ResourcePatternFilter(PythonResource.TOPIC, "kafka-python", PythonPattern.ANY),
    )  # fmt: skip
    found, error = admin.describe_acls(wanted)
    assert (found, getattr(error, "errno", 0)) == ([rule], 0)
    ((_, deleted, _),) = admin.delete_acls([wanted])
    assert [one if isinstance(one, ACL) else one[0] for one in deleted] == [rule]
    admin.close()


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_librdkafka_is_told_for_how_long_it_has_to_wait(kafka: EmbeddedBroker) -> None:
    allow(kafka, "bob", AclOperation.WRITE, AclOperation.CREATE, topic="bounded")
    with Admin(confluent(kafka, "admin")) as admin:
        entity = ClientQuotaEntity.of({"user": "bob"})
        admin.alter_client_quotas({entity: {"producer_byte_rate": 20_000.0}}).all()
    told: list[float] = []
    producer = confluent_kafka.Producer(
        confluent(kafka, "bob", **{"throttle_cb": lambda event: told.append(event.throttle_time), "linger.ms": 0})
    )
    deadline = time.monotonic() + 60
    while not any(told) and time.monotonic() < deadline:
        producer.produce("bounded", bytes(10_000))
        producer.flush(60)
        producer.poll(0)
    assert max(told) > 0


# --- Apache Kafka's tools ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as running:
        yield running


@pytest.fixture
def admins_file(kafka: EmbeddedBroker, tmp_path: Path) -> str:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="admin" password="{USERS["admin"]}";\n'
    )
    return str(path)


class TestTools:
    pytestmark = NEEDS_JAVA

    def test_kafka_acls(self, kafka: EmbeddedBroker, tools: JavaTools, admins_file: str) -> None:
        where = ("--bootstrap-server", kafka.address, "--command-config", admins_file)
        added = tools.run(
            "kafka-acls", *where, "--add", "--allow-principal", "User:carol", "--producer", "--topic", "java-",
            "--resource-pattern-type", "prefixed",
        )  # fmt: skip
        assert "operation=WRITE, permissionType=ALLOW" in added
        assert outcome(kafka, "carol", "java-topic") == "ok"
        group = ("--group", "billing", "--topic", "t", "--deny-principal", "User:carol", "--deny-host", "10.0.0.1")
        tools.run("kafka-acls", *where, "--add", "--operation", "Read", *group)
        listed = tools.run("kafka-acls", *where, "--list", "--principal", "User:carol")
        for words in ("name=java-, patternType=PREFIXED", "name=billing, patternType=LITERAL", "host=10.0.0.1"):
            assert words in listed
        for what in (
            ("--topic", "java-", "--resource-pattern-type", "prefixed"),
            ("--group", "billing"),
            ("--topic", "t"),
        ):
            tools.run("kafka-acls", *where, "--remove", "--force", *what)
        assert "User:carol" not in tools.run("kafka-acls", *where, "--list")
        assert outcome(kafka, "carol", "java-topic") == "TOPIC_AUTHORIZATION_FAILED"

    def test_kafka_configs(self, kafka: EmbeddedBroker, tools: JavaTools, admins_file: str) -> None:
        where = ("--bootstrap-server", kafka.address, "--command-config", admins_file)
        of_both = (
            "--entity-type",
            "users",
            "--entity-name",
            "erin",
            "--entity-type",
            "clients",
            "--entity-name",
            "app",
        )
        bounds = "producer_byte_rate=1024,request_percentage=12.5"
        tools.run("kafka-configs", *where, "--alter", "--add-config", bounds, *of_both)
        told = tools.run("kafka-configs", *where, "--describe", *of_both)
        assert "producer_byte_rate=1024" in told
        assert "request_percentage=12.5" in told
        of_all = ("--entity-type", "ips", "--entity-default")
        tools.run("kafka-configs", *where, "--alter", "--add-config", "connection_creation_rate=500", *of_all)
        assert "connection_creation_rate=500" in tools.run("kafka-configs", *where, "--describe", *of_all)
        status, refused = tools.try_run(
            "kafka-configs", *where, "--alter", "--add-config", "connection_creation_rate=5", *of_both
        )
        assert status != 0 or "Exception" in refused
        for entity, key in ((of_both, "producer_byte_rate,request_percentage"), (of_all, "connection_creation_rate")):
            tools.run("kafka-configs", *where, "--alter", "--delete-config", key, *entity)
            assert "=" not in tools.run("kafka-configs", *where, "--describe", *entity).replace("entity-", "")


def test_kafka_python_reads_only_what_it_may(kafka: EmbeddedBroker) -> None:
    allow(kafka, "carol", AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, topic="readable")
    assert outcome(kafka, "carol", "readable") == "ok"
    consumer = kafka_python.KafkaConsumer(**python(kafka, "carol"), consumer_timeout_ms=10_000)
    consumer.assign([kafka_python.TopicPartition("readable", 0)])
    consumer.seek_to_beginning()
    assert next(consumer).value == b"v"
    consumer.close()
    grouped = kafka_python.KafkaConsumer("readable", group_id="not-hers", **python(kafka, "carol"))
    with pytest.raises(kafka_python.errors.GroupAuthorizationFailedError):
        grouped.poll(TIMEOUT_S * 1000)
    grouped.close()
