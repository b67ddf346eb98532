"""Foreign clients log in at our broker, by every mechanism that they have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.broker.security.settings import USERS, with_logins

from headrace.testing import EmbeddedBroker, broker

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM_USER, SCRAM_PASSWORD = "dora", "dora's = secret,"


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides=with_logins()) as running:
        admin = AdminClient(confluent(running, "PLAIN"))
        changes = [
            UserScramCredentialUpsertion(SCRAM_USER, ScramCredentialInfo(mechanism, 4096), SCRAM_PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for change in changes:
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(10)
        yield running


def credentials(mechanism: str) -> tuple[str, str]:
    return ("alice", USERS["alice"]) if mechanism == "PLAIN" else (SCRAM_USER, SCRAM_PASSWORD)


def confluent(kafka: EmbeddedBroker, mechanism: str, **more: Any) -> dict[str, Any]:
    name, password = credentials(mechanism)
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(kafka: EmbeddedBroker, mechanism: str) -> None:
    topic = f"librdkafka-{mechanism}"
    producer = confluent_kafka.Producer(confluent(kafka, mechanism))
    producer.produce(topic, b"hello")
    assert producer.flush(10) == 0
    consumer = confluent_kafka.Consumer(
        confluent(kafka, mechanism, **{"group.id": topic, "auto.offset.reset": "earliest"})
    )
    consumer.subscribe([topic])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"


def test_librdkafka_describes_and_deletes_users(kafka: EmbeddedBroker) -> None:
    admin = AdminClient(confluent(kafka, "PLAIN"))
    described = admin.describe_user_scram_credentials([SCRAM_USER])[SCRAM_USER].result(10)
    assert sorted(int(info.iterations) for info in described.scram_credential_infos) == [4096, 4096]
    added = UserScramCredentialUpsertion("gone", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    admin.alter_user_scram_credentials([added])["gone"].result(10)
    removed = UserScramCredentialDeletion("gone", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([removed])["gone"].result(10)
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials(["gone"])["gone"].result(10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(kafka: EmbeddedBroker, mechanism: str) -> None:
    topic = f"kafka-python-{mechanism}"
    name, password = credentials(mechanism)
    settings = {
        "bootstrap_servers": kafka.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }
    producer = kafka_python.KafkaProducer(**settings)
    producer.send(topic, b"hello").get(10)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **settings
    )
    assert next(consumer).value == b"hello"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(kafka: EmbeddedBroker, mechanism: str) -> None:
    name, password = credentials(mechanism)
    settings = {
        "bootstrap_servers": kafka.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }
    topic = f"aiokafka-{mechanism}"

    async def both() -> bytes:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"hello")
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        ) as consumer:
            message = await asyncio.wait_for(consumer.getone(), 10)
            value: bytes = message.value
            return value

    assert asyncio.run(both()) == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_told(kafka: EmbeddedBroker, mechanism: str) -> None:
    settings = confluent(kafka, mechanism, **{"sasl.password": "wrong"})
    errors: list[str] = []
    client = confluent_kafka.Producer(settings | {"error_cb": lambda error: errors.append(str(error))})
    deadline = time.monotonic() + 10
    while not errors and time.monotonic() < deadline:
        client.poll(0.1)
    assert any("_AUTHENTICATION" in error for error in errors), errors
