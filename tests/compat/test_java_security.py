"""Java's clients and Kafka's own tools at a secured broker: by every mechanism over TLS, and by a delegation token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers import kafka_libs, why_no_kafka

from headrace.config import format_properties
from headrace.testing import EmbeddedBroker, Secured, broker

from .java_tools import JavaTools

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(kafka_libs() is None, reason=why_no_kafka()),
]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECURED = Secured("SASL_SSL", users={"admin": "admin-secret", "alice": 'alice = "secret"'}, acls=True)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTools]:
    with JavaTools(tmp_path_factory.mktemp("tools") / "errors") as running:
        yield running


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(overrides={"delegation.token.secret.key": "of the cluster"}, security=SECURED) as running:
        yield running


def properties(
    kafka: EmbeddedBroker, path: Path, user: str, mechanism: str, password: str | None = None, extra: str = ""
) -> Path:
    """What Java's clients take."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    word = (SECURED.users[user] if password is None else password).replace('"', '\\"')
    path.write_text(
        format_properties(
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(kafka.client()["ssl.ca.location"]),
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": f'{module} required username="{user}" password="{word}"{extra};',
            }
        )
    )
    return path


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_writes_and_reads_by_every_mechanism_over_tls(
    tools: JavaTools, kafka: EmbeddedBroker, tmp_path: Path, mechanism: str
) -> None:
    config = str(properties(kafka, tmp_path / "client.properties", "admin", mechanism))
    topic, server = f"java-{mechanism}", ("--bootstrap-server", kafka.address)
    tools.run("kafka-topics", *server, "--command-config", config, "--create", "--topic", topic, "--partitions", "1")
    tools.run("kafka-console-producer", *server, "--command-config", config, "--topic", topic, typed="one\ntwo\n")
    read = ("--topic", topic, "--from-beginning", "--max-messages", "2", "--timeout-ms", "30000")
    assert "one\ntwo" in tools.run("kafka-console-consumer", *server, "--command-config", config, *read)


def test_kafkas_tools_make_users_rules_and_tokens(tools: JavaTools, kafka: EmbeddedBroker, tmp_path: Path) -> None:
    as_admin = str(properties(kafka, tmp_path / "admin.properties", "admin", "SCRAM-SHA-512"))
    server = ("--bootstrap-server", kafka.address, "--command-config", as_admin)
    made = tools.run(
        "kafka-configs", *server, "--alter", "--entity-type", "users", "--entity-name", "dora",
        "--add-config", "SCRAM-SHA-256=[iterations=4096,password=explorer]",
    )  # fmt: skip
    assert "Completed updating" in made
    tools.run("kafka-topics", *server, "--create", "--topic", "of-dora", "--partitions", "1")
    rule = ("--add", "--allow-principal", "User:dora", "--operation", "All", "--topic", "of-dora")
    assert "of-dora" in tools.run("kafka-acls", *server, *rule)
    assert "User:dora" in tools.run("kafka-acls", *server, "--list")

    as_dora = str(properties(kafka, tmp_path / "dora.properties", "dora", "SCRAM-SHA-256", "explorer"))
    tokens = ("--bootstrap-server", kafka.address, "--command-config", as_dora)
    told = tools.run("kafka-delegation-tokens", *tokens, "--create", "--max-life-time-period", "-1")
    token_id, hmac = re.findall(r"^(\S+)\s+(\S+==)\s+User:dora", told, re.M)[0]
    by_token = properties(
        kafka, tmp_path / "token.properties", token_id, "SCRAM-SHA-512", hmac, extra=' tokenauth="true"'
    )
    producer = ("--bootstrap-server", kafka.address, "--command-config", str(by_token), "--topic", "of-dora")
    tools.run("kafka-console-producer", *producer, typed="by a token\n")
    read = ("--partition", "0", "--offset", "earliest", "--max-messages", "1", "--timeout-ms", "30000")
    assert "by a token" in tools.run("kafka-console-consumer", *producer, *read)
    assert token_id in tools.run("kafka-delegation-tokens", *tokens, "--describe", "--owner-principal", "User:dora")
    tools.run("kafka-delegation-tokens", *tokens, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tools.run("kafka-delegation-tokens", *tokens, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert token_id not in tools.run("kafka-delegation-tokens", *tokens, "--describe", "--owner-principal", "User:dora")
