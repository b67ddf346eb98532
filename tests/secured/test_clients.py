"""Producer, Consumer, Admin, asyncio and the command line on a Kafka that asks who they are."""

from __future__ import annotations

import asyncio
import io
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.secured.conftest import (
    KEY_PASSWORD,
    MECHANISMS,
    PASSWORD,
    PLAIN_MODULE,
    SCRAM_MODULE,
    USER,
    SecuredKafka,
    token,
)

from headrace import Admin, Consumer, NewTopic, Producer, aio
from headrace.cli.app import run
from headrace.config import format_properties
from headrace.errors import HeadraceError, SaslAuthenticationFailedError
from headrace.net.tls import TlsRefusedError

pytestmark = [pytest.mark.slow, pytest.mark.java]

EARLIEST = {"auto.offset.reset": "earliest"}


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def to_and_fro(config: dict[str, Any]) -> None:
    """A topic is made, written and read."""
    topic = fresh()
    with Admin(config) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    with Producer(config) as producer:
        producer.send(topic, b"hello").result(30)
    with Consumer({**config, **EARLIEST, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in consumer.poll(30)] == [b"hello"]
        consumer.commit_sync()


async def to_and_fro_async(config: dict[str, Any]) -> None:
    topic = fresh()
    async with aio.Admin(config) as admin:
        (await admin.create_topics([NewTopic(topic, 1)])).all()
    async with aio.Producer(config) as producer:
        await producer.send(topic, b"hello")
    async with aio.Consumer({**config, **EARLIEST, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in await consumer.poll(30)] == [b"hello"]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism(secured_kafka: SecuredKafka, mechanism: str, protocol: str) -> None:
    config = secured_kafka.sasl(mechanism, protocol)
    to_and_fro(config)
    asyncio.run(to_and_fro_async(config))


def test_a_clients_certificate(secured_kafka: SecuredKafka) -> None:
    to_and_fro(secured_kafka.tls())
    asyncio.run(to_and_fro_async(secured_kafka.tls()))


def test_a_certificate_inline_or_in_two_files_or_locked(secured_kafka: SecuredKafka, tmp_path: Path) -> None:
    base = {name: secured_kafka.tls()[name] for name in ("bootstrap.servers", "security.protocol")}
    client = secured_kafka.client
    (tmp_path / "certificate.pem").write_text(client.certificate)
    (tmp_path / "key.pem").write_text(client.key)
    locked = secured_kafka.authority.issue("locked", password=KEY_PASSWORD)
    ways: list[dict[str, Any]] = [
        {
            "ssl.truststore.certificates": secured_kafka.authority.certificate,
            "ssl.keystore.key": client.key,
            "ssl.keystore.certificate.chain": client.certificate,
        },
        {
            "ssl.ca.pem": secured_kafka.authority.certificate,
            "ssl.key.pem": locked.key,
            "ssl.certificate.pem": locked.certificate,
            "ssl.key.password": KEY_PASSWORD,
        },
        {
            "ssl.ca.location": str(secured_kafka.truststore),
            "ssl.certificate.location": str(tmp_path / "certificate.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
        },
    ]
    for way in ways:
        with Admin({**base, **way}) as admin:
            admin.list_topics()


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN_MODULE), ("SCRAM-SHA-512", SCRAM_MODULE)])
def test_javas_jaas_line(secured_kafka: SecuredKafka, mechanism: str, module: str) -> None:
    config = secured_kafka.sasl(mechanism)
    del config["sasl.username"], config["sasl.password"]
    with Admin({**config, "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";'}) as admin:
        admin.list_topics()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_said_by_every_client(
    secured_kafka: SecuredKafka, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**secured_kafka.sasl(mechanism), "sasl.password": "wrong secret"}
    said: list[str] = []
    caplog.set_level(logging.DEBUG)
    with Admin(config) as admin, pytest.raises(SaslAuthenticationFailedError) as refused:
        admin.list_topics()
    said.append(str(refused.value))
    with Producer(config) as producer:
        with pytest.raises(SaslAuthenticationFailedError) as refused:
            producer.send("any", b"x").result(60)
        said += [str(refused.value), repr(producer)]
    with Consumer({**config, "group.id": "g"}) as consumer:
        consumer.subscribe(["any"])
        with pytest.raises(SaslAuthenticationFailedError) as refused:
            consumer.poll(60)
        said += [str(refused.value), repr(consumer)]

    async def main() -> None:
        async with aio.Producer(config) as producer:
            with pytest.raises(SaslAuthenticationFailedError):
                await producer.send("any", b"x")
        async with aio.Consumer({**config, "group.id": "g"}) as consumer:
            consumer.subscribe(["any"])
            with pytest.raises(SaslAuthenticationFailedError):
                await consumer.poll(60)

    asyncio.run(main())
    assert all("wrong secret" not in text for text in [*said, *caplog.messages])


def test_a_token_that_has_ended_is_said(secured_kafka: SecuredKafka) -> None:
    config = secured_kafka.sasl("OAUTHBEARER") | {"sasl.oauthbearer.token.callback": lambda: token(-60)}
    with Admin(config) as admin, pytest.raises(SaslAuthenticationFailedError, match="has expired"):
        admin.list_topics()
    config["sasl.oauthbearer.token.callback"] = lambda: ("nonsense", 4e9)
    with Admin(config) as admin, pytest.raises(SaslAuthenticationFailedError):
        admin.list_topics()


def test_who_does_not_log_in_is_told_to(secured_kafka: SecuredKafka) -> None:
    trusting = {name: value for name, value in secured_kafka.tls().items() if name != "ssl.keystore.location"}
    for listener, config, words in (
        ("SASL_PLAINTEXT", {}, r"who logs in, by .*SCRAM-SHA-512.*security\.protocol to SASL_PLAINTEXT"),
        ("SASL_SSL", trusting, r"who logs in, by .*SCRAM-SHA-512.*security\.protocol to SASL_SSL"),
        ("SASL_SSL", {}, "speaks TLS there, and this client does not"),
        ("SSL", {}, "speaks TLS there, and this client does not"),
    ):
        with (
            Admin({**config, "bootstrap.servers": secured_kafka.at(listener)}) as admin,
            pytest.raises(HeadraceError, match=words),
        ):
            admin.list_topics()


def test_tls_that_cannot_be_is_said_at_once(secured_kafka: SecuredKafka) -> None:
    from headrace.certificates import Authority

    trusting = secured_kafka.tls()
    strangers = {**trusting, "ssl.truststore.location": None, "ssl.truststore.certificates": Authority().certificate}
    anonymous = {name: value for name, value in trusting.items() if name != "ssl.keystore.location"}
    for config, words in ((strangers, "is not trusted"), (anonymous, "want a client's certificate")):
        with Admin(config) as admin, pytest.raises(TlsRefusedError, match=words):
            admin.list_topics()
    with (
        Admin({**trusting, "bootstrap.servers": secured_kafka.kafka.address}) as admin,
        pytest.raises(TlsRefusedError, match="does not speak TLS there"),
    ):
        admin.list_topics()


# --- the command line -------------------------------------------------------------------------------------------------


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(arguments))
    return int(code), *capfd.readouterr()


def properties(config: dict[str, Any]) -> list[str]:
    given = [f"-X{name}={value}" for name, value in config.items() if name != "bootstrap.servers"]
    return ["-b", config["bootstrap.servers"], *given]


@pytest.mark.parametrize("way", ["options", "file", "environment"])
def test_the_command_line(
    secured_kafka: SecuredKafka,
    way: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = secured_kafka.sasl("SCRAM-SHA-512", "SASL_SSL")
    secure: list[str] = []
    if way == "options":
        secure = properties(config)
    elif way == "file":
        (tmp_path / "client.properties").write_text(format_properties({**config, "acks": "all"}))
        secure = ["--command-config", str(tmp_path / "client.properties")]
    else:
        for name, value in config.items():
            monkeypatch.setenv("HEADRACE_" + name.upper().replace(".", "_"), value)
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", config["bootstrap.servers"])
    topic = fresh()
    assert command(capfd, "topic", "create", topic, *secure)[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert command(capfd, "produce", topic, "-p", "0", *secure)[0] == 0
    assert command(capfd, "consume", topic, "--group", topic, *secure)[1] == "one\ntwo\n"
    assert topic in command(capfd, "group", "describe", topic, *secure)[1]


def test_a_wrong_password_on_the_command_line(
    secured_kafka: SecuredKafka, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**secured_kafka.sasl("PLAIN"), "sasl.password": "wrong secret"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    for arguments in (("topic", "list"), ("consume", "any"), ("group", "list"), ("produce", "any")):
        code, _, err = command(capfd, *arguments, *properties(config))
        assert code == 1
        assert "refused the credentials (PLAIN)" in err
        assert "wrong secret" not in err
        assert len(err.splitlines()) == 1
