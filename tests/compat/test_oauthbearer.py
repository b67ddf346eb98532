"""Foreign clients log in over TLS by signed tokens, whose keys the broker has from a file."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import jwt
import kafka as kafka_python
import pytest
from aiokafka.abc import AbstractTokenProvider as AiokafkaProvider
from bench.peers import kafka_libs, why_no_kafka
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.broker.security.tls import with_tls

from headrace.certificates import Authority
from headrace.config import format_properties
from headrace.testing import EmbeddedBroker, broker

from .java_tools import JavaTools

AUTHORITY = Authority()
KEY = rsa.generate_private_key(65537, 2048)
ISSUER = "https://issuer.example"
RULES = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def token(user: str = "alice") -> str:
    now = int(time.time())
    claims = {"sub": user, "iss": ISSUER, "aud": "kafka", "scope": "kafka", "iat": now, "exp": now + 600}
    return jwt.encode(claims, KEY, "RS256", headers={"kid": "one"})


class Provider(AbstractTokenProvider):
    def token(self) -> str:
        return token()


class AsyncProvider(AiokafkaProvider):
    async def token(self) -> str:
        return token()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oauthbearer")


@pytest.fixture(scope="module")
def kafka(directory: Path) -> Iterator[EmbeddedBroker]:
    key: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "one"}
    (directory / "keys.json").write_text(json.dumps({"keys": [key]}))
    settings = with_tls(directory, AUTHORITY) | {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": "kafka",
        # Whoever is taken for alice may do everything here, and nobody else anything.
        "authorizer.class.name": RULES,
        "super.users": "User:alice",
    }
    with broker(overrides=settings) as running:
        yield running


def librdkafka(kafka: EmbeddedBroker, directory: Path, user: str = "alice") -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(directory / "authority.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(user), time.time() + 600),
    }


def python(kafka: EmbeddedBroker, directory: Path, provider: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.address,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(directory / "authority.pem")),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


def test_librdkafka(kafka: EmbeddedBroker, directory: Path) -> None:
    producer = confluent_kafka.Producer(librdkafka(kafka, directory))
    producer.produce("librdkafka", b"hello")
    assert producer.flush(20) == 0
    reading = {"group.id": "librdkafka", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(librdkafka(kafka, directory) | reading)
    consumer.subscribe(["librdkafka"])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"


def test_whoever_the_token_names_has_only_that_users_rights(kafka: EmbeddedBroker, directory: Path) -> None:
    producer = confluent_kafka.Producer(librdkafka(kafka, directory, "bob"))
    failed: list[Any] = []
    producer.produce("librdkafka", b"hello", on_delivery=lambda error, _: failed.append(error))
    producer.flush(20)
    assert [error.name() for error in failed] == ["TOPIC_AUTHORIZATION_FAILED"]


def test_kafka_python(kafka: EmbeddedBroker, directory: Path) -> None:
    settings = python(kafka, directory, Provider())
    producer = kafka_python.KafkaProducer(**settings)
    producer.send("kafka-python", b"hello").get(20)
    producer.close()
    reading = {"group_id": "kafka-python", "auto_offset_reset": "earliest", "consumer_timeout_ms": 20_000}
    consumer = kafka_python.KafkaConsumer("kafka-python", **reading, **settings)
    assert next(consumer).value == b"hello"
    consumer.close()


def test_aiokafka(kafka: EmbeddedBroker, directory: Path) -> None:
    settings = python(kafka, directory, AsyncProvider())

    async def both() -> bytes:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("aiokafka", b"hello")
        reading = {"group_id": "aiokafka", "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer("aiokafka", **reading, **settings) as consumer:
            value: bytes = (await asyncio.wait_for(consumer.getone(), 20)).value
            return value

    assert asyncio.run(both()) == b"hello"


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka())
def test_java(kafka: EmbeddedBroker, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "token"
    given.write_text(token())
    # Java reads tokens only from where its own command line allows it.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={given.as_uri()}")
    config = tmp_path / "client.properties"
    config.write_text(
        format_properties(
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(directory / "authority.pem"),
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
                "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
                "OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever",
                "sasl.oauthbearer.token.endpoint.url": given.as_uri(),
            }
        )
    )
    server = ("--bootstrap-server", kafka.address, "--command-config", str(config))
    with JavaTools(tmp_path / "errors") as tools:
        tools.run("kafka-topics", *server, "--create", "--topic", "java", "--partitions", "1")
        tools.run("kafka-console-producer", *server, "--topic", "java", typed="hello\n")
        read = ("--topic", "java", "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
        assert "hello" in tools.run("kafka-console-consumer", *server, *read)
