"""`secured_kafka`: one Apache Kafka with SASL and TLS listeners for all tests here; skipped where there is no Java."""

from __future__ import annotations

import base64
import json
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.certificates import Authority, Certified

MODULES = "org.apache.kafka.common.security."
PLAIN_MODULE = MODULES + "plain.PlainLoginModule"
SCRAM_MODULE = MODULES + "scram.ScramLoginModule"
USER, PASSWORD = "alice", "alice's secret, = and ;"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
KEY_PASSWORD = "of the key"
SHORT_SESSIONS = ("SCRAM-SHA-256", "OAUTHBEARER")
"""Mechanisms after which the brokers want to be told again who it is, on SASL_PLAINTEXT."""
SESSION_MS = 1500


def token(seconds: float = 3600) -> tuple[str, float]:
    """A token that nobody signed, which Kafka takes by default, and when it ends."""

    def part(content: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': USER, 'iat': now - 10, 'exp': now + seconds})}.", now + seconds


class SecuredKafka:
    """Where it listens, and what a client needs."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        from bench.peers import ApacheKafka

        self.authority = authority
        self.truststore = directory / "authority.pem"
        self.truststore.write_text(authority.certificate)
        self.client: Certified = authority.issue("a client")
        self.keystore = self.client.save(directory / "client.pem")
        server = authority.issue("a broker").save(directory / "server.pem")
        self.ports = dict(zip(("SASL_PLAINTEXT", "SASL_SSL", "SSL", "CONTROLLER"), _free_ports(4)))
        self.kafka = ApacheKafka(directory / "kafka")
        listeners = [f"PLAINTEXT://{self.kafka.address}", *(f"{name}://{self.at(name)}" for name in self.ports)]
        users = f'user_{USER}="{PASSWORD}"'
        self.kafka.extra = {
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners[:-1]),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "controller.quorum.voters": f"1@{self.at('CONTROLLER')}",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.truststore),
            "listener.name.ssl.ssl.client.auth": "required",
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            modules = {
                "plain": f"{PLAIN_MODULE} required {users};",
                "scram-sha-256": f"{SCRAM_MODULE} required;",
                "scram-sha-512": f"{SCRAM_MODULE} required;",
                "oauthbearer": f"{MODULES}oauthbearer.OAuthBearerLoginModule required;",
            }
            for mechanism, module in modules.items():
                self.kafka.extra[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = module
        for mechanism in SHORT_SESSIONS:
            key = f"listener.name.sasl_plaintext.{mechanism.lower()}.connections.max.reauth.ms"
            self.kafka.extra[key] = str(SESSION_MS)

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def sasl(self, mechanism: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, Any]:
        """By Kafka's names, with librdkafka's for user and password."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.at(protocol),
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            config["sasl.oauthbearer.token.callback"] = token
        else:
            config |= {"sasl.username": USER, "sasl.password": PASSWORD}
        if protocol == "SASL_SSL":
            config["ssl.truststore.location"] = str(self.truststore)
        return config

    def tls(self) -> dict[str, Any]:
        """With a client's certificate."""
        return {
            "bootstrap.servers": self.at("SSL"),
            "security.protocol": "SSL",
            "ssl.truststore.location": str(self.truststore),
            "ssl.keystore.location": str(self.keystore),
        }


def pytest_configure(config: pytest.Config) -> None:
    """Spark leaves sockets to its Java open until the garbage collector finds them: in a test, or after the last."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return ports


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    pytest.importorskip("cryptography")
    from bench.peers import kafka_libs, why_no_kafka

    from headrace import Admin
    from headrace.certificates import Authority
    from headrace.client.admin import ScramMechanism, UserScramCredentialUpsertion

    if kafka_libs() is None:
        pytest.skip(why_no_kafka())
    made = SecuredKafka(tmp_path_factory.mktemp("secured"), Authority())
    with made.kafka:
        with Admin(bootstrap_servers=made.kafka.address) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                # A password is text to whoever types it. (Kafka takes one change of a user in a request.)
                admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, mechanism, PASSWORD)]).all()
        yield made
