"""Foreign clients at our listeners with TLS, by certificate and by every mechanism that they have."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest
from tests.broker.security.settings import USERS, plain_jaas
from tests.broker.security.tls import with_tls

from headrace import Admin
from headrace.certificates import Authority
from headrace.client.admin import ScramMechanism, UserScramCredentialUpsertion
from headrace.testing import EmbeddedBroker, broker

AUTHORITY = Authority()
WAYS = ("certificate", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
RECORDS = 200
VALUE = b"x" * 20_000


class Secured:
    """A broker with two listeners, and what its clients need."""

    def __init__(self, kafka: EmbeddedBroker, directory: Path) -> None:
        self.by_certificate, self.by_login = (f"{host}:{port}" for host, port in kafka.broker.addresses)
        self.authority = directory / "authority.pem"
        self.client = AUTHORITY.issue("alice").save(directory / "alice.pem")

    def librdkafka(self, way: str) -> dict[str, Any]:
        if way == "certificate":
            return {
                "bootstrap.servers": self.by_certificate,
                "security.protocol": "SSL",
                "ssl.ca.location": str(self.authority),
                "ssl.certificate.location": str(self.client),
                "ssl.key.location": str(self.client),
            }
        return {
            "bootstrap.servers": self.by_login,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": way,
            "sasl.username": "alice",
            "sasl.password": USERS["alice"],
        }

    def python(self, way: str) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(self.authority))
        if way == "certificate":
            context.load_cert_chain(self.client)
            return {
                "bootstrap_servers": self.by_certificate, "security_protocol": "SSL", "ssl_context": context
            }  # fmt: skip
        return {
            "bootstrap_servers": self.by_login,
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": way,
            "sasl_plain_username": "alice",
            "sasl_plain_password": USERS["alice"],
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    settings = with_tls(directory, AUTHORITY) | {
        "listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain_jaas(),
    }
    with broker(overrides=settings) as kafka:
        made = Secured(kafka, directory)
        with Admin(made.librdkafka("PLAIN")) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                change = UserScramCredentialUpsertion("alice", mechanism, USERS["alice"])
                admin.alter_user_scram_credentials([change]).all()
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_librdkafka(secured: Secured, way: str) -> None:
    topic = f"librdkafka-{way}"
    producer = confluent_kafka.Producer(secured.librdkafka(way))
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
    assert producer.flush(30) == 0
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(secured.librdkafka(way) | group)
    consumer.subscribe([topic])
    values = [consumer.poll(30).value() for _ in range(RECORDS)]
    consumer.close()
    assert values == [VALUE] * RECORDS


@pytest.mark.parametrize("way", WAYS)
def test_kafka_python(secured: Secured, way: str) -> None:
    topic = f"kafka-python-{way}"
    producer = kafka_python.KafkaProducer(**secured.python(way))
    for _ in range(RECORDS):
        sent = producer.send(topic, VALUE)
    sent.get(30)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **secured.python(way)
    )
    values = [next(consumer).value for _ in range(RECORDS)]
    consumer.close()
    assert values == [VALUE] * RECORDS


@pytest.mark.parametrize("way", WAYS)
def test_aiokafka(secured: Secured, way: str) -> None:
    topic = f"aiokafka-{way}"

    async def both() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**secured.python(way)) as producer:
            sent = [await producer.send(topic, VALUE) for _ in range(RECORDS)]
            await asyncio.gather(*sent)
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **secured.python(way)
        ) as consumer:
            async with asyncio.timeout(30):
                return [(await consumer.getone()).value for _ in range(RECORDS)]

    assert asyncio.run(both()) == [VALUE] * RECORDS
