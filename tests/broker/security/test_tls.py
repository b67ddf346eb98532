"""Listeners with TLS: who is let in, by which name, with which certificates, and what becomes of them while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.security.settings import plain_jaas
from tests.broker.security.tls import KEY_PASSWORD, trusting, with_tls
from tests.waiting import eventually

from headrace import Admin, Consumer, Producer
from headrace.certificates import Authority
from headrace.client.admin import ConfigResource, ResourceType
from headrace.config import ConfigError
from headrace.errors import HeadraceError
from headrace.testing import EmbeddedBroker, broker

AUTHORITY = Authority()


def client(kafka: EmbeddedBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SSL",
        "ssl.truststore.certificates": AUTHORITY.certificate,
        "retry.backoff.max.ms": 100,
        **more,
    }


def shown(name: str) -> dict[str, str]:
    identity = AUTHORITY.issue(name)
    return {"ssl.keystore.key": identity.key, "ssl.keystore.certificate.chain": identity.certificate}


def principals(kafka: EmbeddedBroker) -> set[str]:
    return kafka.call(lambda one: {connection.principal for connection in one.acceptor.connections})


def serial(kafka: EmbeddedBroker) -> str:
    """Of the certificate that the broker shows now."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate)
    with (
        socket.create_connection(("127.0.0.1", kafka.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        certificate = tls.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def to_and_fro(config: dict[str, Any], topic: str = "t") -> None:
    with Producer(config) as producer:
        sent = producer.send(topic, b"x" * 100_000).result(30)
    with Consumer({**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, sent.partition)])
        assert consumer.poll(30)[0].value == b"x" * 100_000


def test_a_client_without_a_certificate_is_anonymous_where_none_is_asked_for(tmp_path: Path) -> None:
    with broker(overrides=with_tls(tmp_path, AUTHORITY)) as kafka:
        to_and_fro(client(kafka))
        with Admin(client(kafka, **shown("alice"))) as admin:
            admin.list_topics()
            assert principals(kafka) == {"User:ANONYMOUS"}, "nobody looked at the certificate"


def test_certificates_that_are_asked_for(tmp_path: Path) -> None:
    settings = with_tls(tmp_path, AUTHORITY, **{"ssl.client.auth": "requested"})
    stranger = Authority().issue("mallory")
    bad = {"ssl.keystore.key": stranger.key, "ssl.keystore.certificate.chain": stranger.certificate}
    with broker(overrides=settings) as kafka:
        for given, principal in (({}, "User:ANONYMOUS"), (shown("alice"), "User:CN=alice")):
            with Admin(client(kafka, **given)) as admin:
                admin.list_topics()
                assert principals(kafka) == {principal}
            eventually(lambda: not principals(kafka))
        with Admin(client(kafka, **bad)) as admin, pytest.raises(HeadraceError):
            admin.list_topics()


def test_certificates_that_are_required(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": r"RULE:^CN=([a-z]*)$/$1@us/U"}
    with broker(overrides=with_tls(tmp_path, AUTHORITY, **rules)) as kafka:
        nobody = client(kafka, **{**shown("Nobody 1"), "default.api.timeout.ms": 1000, "request.timeout.ms": 1000})
        with Admin(nobody) as admin, pytest.raises((HeadraceError, TimeoutError)):
            admin.list_topics()
        assert "no rule of ssl.principal.mapping.rules" in caplog.text
        with Admin(client(kafka)) as admin, pytest.raises(HeadraceError, match="certificate"):
            admin.list_topics()
        with Admin(client(kafka, **shown("alice"))) as admin:
            admin.list_topics()
            assert principals(kafka) == {"User:ALICE@US"}


def test_stores_of_every_kind(tmp_path: Path) -> None:
    identity = AUTHORITY.issue("a broker")
    locked = AUTHORITY.issue("a broker", password=KEY_PASSWORD)
    (tmp_path / "store.p12").write_bytes(AUTHORITY.pkcs12(identity, "of the store"))
    ways: list[dict[str, str]] = [
        {"ssl.keystore.key": identity.key, "ssl.keystore.certificate.chain": identity.certificate},
        {"ssl.keystore.location": str(locked.save(tmp_path / "locked.pem")), "ssl.key.password": KEY_PASSWORD},
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(tmp_path / "store.p12"),
            "ssl.keystore.password": "of the store",
        },
    ]
    for way in ways:
        with broker(overrides={"listeners": "SSL://127.0.0.1:0", **way}) as kafka, Admin(client(kafka)) as admin:
            admin.list_topics()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ssl.keystore.location": ""}, "needs a certificate and its key"),
        ({"ssl.keystore.location": "/no/such/file"}, "cannot be read"),
        ({"ssl.enabled.protocols": "TLSv1"}, "ssl.enabled.protocols has none of"),
        ({"ssl.cipher.suites": "TLS_WITH_LOVE"}, "TLS_WITH_LOVE is no cipher suite"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "neither DEFAULT nor"),
        ({"ssl.key.password": "not the key's secret", "locked": "yes"}, "ssl.key.password is not the key's"),
    ],
)
def test_settings_that_cannot_be_used_are_said_at_start(tmp_path: Path, wrong: dict[str, str], words: str) -> None:
    settings = with_tls(tmp_path, AUTHORITY)
    if wrong.pop("locked", ""):
        AUTHORITY.issue("a broker", password=KEY_PASSWORD).save(tmp_path / "broker.pem")
    with pytest.raises(ConfigError, match=words) as refused, broker(overrides=settings | wrong):
        pass
    assert "not the key's secret" not in f"{refused.value!r} {refused.value.__cause__!r}"


def test_listeners_with_settings_of_their_own(tmp_path: Path) -> None:
    settings = with_tls(tmp_path, AUTHORITY) | {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,LOGINS://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL,LOGINS:SASL_SSL",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.inside.ssl.client.auth": "required",
        "listener.name.outside.ssl.enabled.protocols": "TLSv1.2",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.logins.ssl.client.auth": "required",
        "listener.name.logins.plain.sasl.jaas.config": plain_jaas(),
    }
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bob",
        "sasl.password": "bob-secret",
    }
    with broker(overrides=settings) as kafka:
        inside, outside, logins = (f"{host}:{port}" for host, port in kafka.broker.addresses)
        expected = {inside: "User:CN=alice", outside: "User:ANONYMOUS", logins: "User:bob"}
        for address, principal in expected.items():
            config = client(kafka, **{"bootstrap.servers": address, **shown("alice")})
            with Admin(config | (login if address == logins else {})) as admin:
                admin.list_topics()
                assert principals(kafka) == {principal}
            eventually(lambda: not principals(kafka))
        host, _, port = outside.rpartition(":")
        context = ssl.create_default_context(cadata=AUTHORITY.certificate)
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            assert tls.version() == "TLSv1.2"


def test_who_logs_in_needs_a_certificate_only_where_the_listener_itself_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = with_tls(tmp_path, AUTHORITY) | {
        "listeners": "LOGINS://127.0.0.1:0,BOTH://127.0.0.1:0",
        "listener.security.protocol.map": "LOGINS:SASL_SSL,BOTH:SASL_SSL",
        "inter.broker.listener.name": "LOGINS",
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.client.auth": "required",
        "listener.name.both.ssl.client.auth": "required",
        "listener.name.logins.plain.sasl.jaas.config": plain_jaas(),
        "listener.name.both.plain.sasl.jaas.config": plain_jaas(),
    }
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    login |= {"sasl.username": "bob", "sasl.password": "bob-secret"}
    with broker(overrides=settings) as kafka:
        logins, both = (f"{host}:{port}" for host, port in kafka.broker.addresses)
        with Admin(client(kafka, **login, **{"bootstrap.servers": logins})) as admin:
            admin.list_topics()
        with (
            Admin(client(kafka, **login, **{"bootstrap.servers": both})) as admin,
            pytest.raises(HeadraceError, match="client's certificate"),
        ):
            admin.list_topics()
    assert "LOGINS asks for no certificates" in caplog.text
    assert "BOTH asks for no certificates" not in caplog.text


# --- exchange ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(kafka: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(client(kafka)) as admin:
        admin.list_topics()
        before = set(kafka.broker.acceptor.connections)
        yield admin
        admin.list_topics()
        assert before <= set(kafka.broker.acceptor.connections), "a connection was dropped"


def test_a_file_that_changes_counts_for_new_connections_and_drops_none(tmp_path: Path) -> None:
    settings = with_tls(tmp_path, AUTHORITY)
    with broker(overrides=settings) as kafka, connected(kafka):
        before = serial(kafka)
        new = tmp_path / "new.pem"
        AUTHORITY.issue("a broker").save(new)
        os.replace(new, tmp_path / "broker.pem")
        eventually(lambda: serial(kafka) != before)


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = with_tls(tmp_path, AUTHORITY)
    with broker(overrides=settings) as kafka, connected(kafka):
        before = serial(kafka)
        (tmp_path / "broker.pem").write_text("half a file")
        eventually(lambda: "It goes on with what it had" in caplog.text)
        assert serial(kafka) == before
        AUTHORITY.issue("another").save(tmp_path / "broker.pem")
        eventually(lambda: "another subject" in caplog.text)
        assert serial(kafka) == before
        AUTHORITY.issue("a broker").save(tmp_path / "broker.pem")
        eventually(lambda: serial(kafka) != before)


def test_certificates_are_exchanged_by_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = with_tls(tmp_path, AUTHORITY)
    with broker(overrides=settings) as kafka, connected(kafka) as admin:
        before = serial(kafka)
        resource = ConfigResource(ResourceType.BROKER, str(kafka.broker.node_id))

        def alter(**values: str) -> None:
            change = {f"listener.name.ssl.ssl.keystore.{name}": value for name, value in values.items()}
            admin.incremental_alter_configs({resource: change}).all()

        with pytest.raises(HeadraceError, match="no certificate with its key"):
            alter(location=str(tmp_path / "authority.pem"))
        with pytest.raises(HeadraceError, match="another subject"):
            alter(location=str(AUTHORITY.issue("another").save(tmp_path / "another.pem")))
        assert serial(kafka) == before
        inline = AUTHORITY.issue("a broker")
        alter(key=inline.key, **{"certificate.chain": inline.certificate})
        eventually(lambda: serial(kafka) != before)
        described = admin.describe_configs([resource]).all()[resource]
        assert described["listener.name.ssl.ssl.keystore.key"].value is None
        secret = inline.key.splitlines()[1]
        assert secret not in caplog.text
        assert secret not in str(described)


# --- hostile ----------------------------------------------------------------------------------------------------------


def test_what_is_no_tls_ends_the_connection_and_costs_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with broker(overrides=with_tls(tmp_path, AUTHORITY)) as kafka:
        for said in (b"\0\0\0\x10" + bytes(16), b"GET / HTTP/1.1\r\n\r\n", os.urandom(300), b"\x16\x03\x01\xff\xff"):
            with socket.create_connection(("127.0.0.1", kafka.port), timeout=10) as plain:
                plain.sendall(said)
                with contextlib.suppress(OSError):  # it may be reset at once
                    plain.shutdown(socket.SHUT_WR)
                    while plain.recv(1000):
                        pass
        assert "TLS:" in caplog.text
        with Admin(client(kafka)) as admin:
            admin.list_topics()
        eventually(lambda: not kafka.broker.acceptor.connections)


def test_connections_count_before_their_handshake(tmp_path: Path) -> None:
    with broker(overrides=with_tls(tmp_path, AUTHORITY, **{"max.connections.per.ip": "3"})) as kafka:
        silent = [socket.create_connection(("127.0.0.1", kafka.port), timeout=10) for _ in range(3)]
        eventually(lambda: len(kafka.broker.acceptor.connections) == 3)
        with socket.create_connection(("127.0.0.1", kafka.port), timeout=10) as one_more:
            assert one_more.recv(1) == b""
        for one in silent:
            one.close()
        eventually(lambda: not kafka.broker.acceptor.connections)
        with Admin(client(kafka)) as admin:
            admin.list_topics()


def test_a_client_of_another_version_of_tls_is_refused(tmp_path: Path) -> None:
    with broker(overrides=with_tls(tmp_path, AUTHORITY, **{"ssl.enabled.protocols": "TLSv1.3"})) as kafka:
        context = ssl.create_default_context(cadata=AUTHORITY.certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", kafka.port), timeout=10) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_trust_alone_is_no_identity(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="needs a certificate"),
        broker(overrides={"listeners": "SSL://127.0.0.1:0", **trusting(tmp_path, AUTHORITY)}),
    ):
        pass
