"""What a broker for tests needs to be a secured one, and what its clients need: certificates, users, their settings."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.broker.broker import Broker
from headrace.broker.security.inter_broker import scram_record
from headrace.broker.security.users import SCRAM_NUMBERS
from headrace.certificates import Authority
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image
from headrace.cluster.records import MetadataRecord
from headrace.net.sasl.serving import scram_keys

ADMIN: Final = "admin"
USERS: Final = {ADMIN: "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
PROTOCOLS: Final = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", *SCRAM_NUMBERS)
_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class Secured:
    """How a broker for tests is secured. Users log in by PLAIN and SCRAM, or show a certificate (SSL)."""

    protocol: str = "SASL_SSL"
    users: Mapping[str, str] = field(default_factory=lambda: dict(USERS), repr=False)
    """Their passwords. `admin` may do everything."""
    acls: bool = False
    """Whether everybody but `admin` may do only what ACLs allow."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"security={self.protocol!r}: there are {', '.join(PROTOCOLS)}")


class SecuredClients:
    """The settings of a secured broker, and of its clients. Its files are in a directory of their own."""

    def __init__(self, security: Secured, directory: Path) -> None:
        self.security = security
        self._directory = directory
        self.has_tls = security.protocol.endswith("SSL")
        self.has_login = security.protocol.startswith("SASL_")
        self.authority = _authority()
        self.authority_path = directory / "authority.pem"
        self.authority_path.write_text(self.authority.certificate)

    def settings(self, port: int) -> dict[str, str]:
        """Of the broker."""
        protocol = self.security.protocol
        found = {"listeners": f"{protocol}://127.0.0.1:{port}", "inter.broker.listener.name": protocol}
        if self.has_tls:
            found |= {
                "ssl.keystore.location": str(_broker_certificate().save(self._directory / "broker.pem")),
                "ssl.truststore.location": str(self.authority_path),
                "ssl.client.auth": "none" if self.has_login else "required",
                "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)$/$1/",
            }
        if self.has_login:
            users = " ".join(f'user_{_quoted(name)}="{_quoted(word)}"' for name, word in self.security.users.items())
            found |= {
                "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
                f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": f"{_PLAIN_MODULE} required {users};",
            }
        if self.security.acls:
            found |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{ADMIN}",
            }
        return found

    async def add_users(self, broker: Broker) -> None:
        """Let users log in by SCRAM, too."""
        if self.has_login:
            records: list[MetadataRecord] = []
            for name, password in self.security.users.items():
                for mechanism, number in SCRAM_NUMBERS.items():
                    keys = scram_keys(
                        mechanism, password, iterations=_ITERATIONS, salt=broker.runtime.rng.randbytes(16)
                    )
                    records.append(scram_record(name, number, keys))

            def decide(image: Image) -> Decision[None]:
                return Decision(None, records)

            await broker.metadata.change(decide)

    # --- clients

    def client(self, address: str, user: str, mechanism: str) -> dict[str, Any]:
        """By Kafka's names, as confluent-kafka and Headrace's own clients take them."""
        found = {"bootstrap.servers": address, "security.protocol": self.security.protocol}
        if self.has_tls:
            found["ssl.ca.location"] = str(self.authority_path)
        if self.has_login:
            found |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": self.security.users[user]}
        else:
            certificate = str(self._certificate(user))
            found |= {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
        return found

    def python_client(self, address: str, user: str, mechanism: str) -> dict[str, Any]:
        """The same in the words of kafka-python and aiokafka."""
        found: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": self.security.protocol}
        if self.has_tls:
            found["ssl_context"] = context = ssl.create_default_context(cafile=str(self.authority_path))
            if not self.has_login:
                context.load_cert_chain(self._certificate(user))
        if self.has_login:
            password = self.security.users[user]
            found |= {
                "sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password
            }  # fmt: skip
        return found

    def _certificate(self, user: str) -> Path:
        path = self._directory / f"{user}.pem"
        if not path.exists():
            self.authority.issue(user, is_client=True).save(path)
        return path


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@functools.cache
def _authority() -> Authority:
    """One for all brokers of a process: to make it takes longer than all else."""
    return Authority()


@functools.cache
def _broker_certificate() -> Any:
    return _authority().issue("broker")
