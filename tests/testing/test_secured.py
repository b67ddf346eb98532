"""A secured broker for users' tests: every client gets in by the settings that it gives, and nobody else."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

from headrace import Producer
from headrace.errors import HeadraceError, SaslAuthenticationFailedError, TopicAuthorizationFailedError
from headrace.testing import EmbeddedBroker, Secured, broker


def principals(kafka: EmbeddedBroker) -> set[str]:
    return kafka.call(lambda one: {connection.principal for connection in one.acceptor.connections})


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_every_client_gets_in(protocol: str) -> None:
    with broker(security=protocol) as kafka:
        with Producer(kafka.client("alice")) as producer:
            producer.send("t", b"ours").result(10)
            assert principals(kafka) == {"User:alice"}
        other = confluent_kafka.Producer(kafka.client("bob", "PLAIN"))
        other.produce("t", b"librdkafka")
        assert other.flush(10) == 0
        third = kafka_python.KafkaProducer(**kafka.python_client("bob"))
        third.send("t", b"kafka-python").get(10)
        third.close()

        async def fourth() -> None:
            async with aiokafka.AIOKafkaProducer(**kafka.python_client("alice", "SCRAM-SHA-512")) as producer:
                await producer.send_and_wait("t", b"aiokafka")

        asyncio.run(fourth())


def test_nobody_else_gets_in() -> None:
    with broker(security="SASL_SSL") as kafka:
        guessing = {**kafka.client("alice"), "sasl.password": "guessed"}
        with Producer(guessing) as producer, pytest.raises(SaslAuthenticationFailedError):
            producer.send("t", b"x").result(30)
        distrusting = {**kafka.client("alice"), "ssl.ca.location": "probe"}
        with Producer(distrusting) as producer, pytest.raises(HeadraceError, match="not trusted"):
            producer.send("t", b"x").result(30)


def test_users_and_acls_of_ones_own() -> None:
    security = Secured("SASL_PLAINTEXT", users={"admin": 'a "quoted" \\ secret', "dora": "explorer"}, acls=True)
    assert "explorer" not in repr(security)
    with broker(security=security) as kafka:
        with Producer(kafka.client(mechanism="PLAIN")) as producer:
            producer.send("t", b"x").result(10)
        with Producer(kafka.client("dora")) as producer, pytest.raises(TopicAuthorizationFailedError):
            producer.send("t", b"x").result(10)


def test_a_wrong_protocol_is_said() -> None:
    with pytest.raises(ValueError, match="SASL_SSL"), broker(security="TLS"):
        pass
