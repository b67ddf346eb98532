"""Settings of brokers with logins, for tests."""

from __future__ import annotations

from collections.abc import Mapping

MODULES = "org.apache.kafka.common.security."
USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret", "carol": "carol-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def plain_jaas(users: Mapping[str, str] = USERS, *, own: str | None = None) -> str:
    login = f'username="{own}" password="{users[own]}" ' if own else ""
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f"{MODULES}plain.PlainLoginModule required {login}{known};"


def with_logins(*mechanisms: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    """One listener, at which one has to log in."""
    enabled = mechanisms or ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    return {
        "listeners": f"{protocol}://127.0.0.1:0",
        "inter.broker.listener.name": protocol,
        "sasl.enabled.mechanisms": ",".join(enabled),
        f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": plain_jaas(),
    }


def of_the_recordings() -> dict[str, str]:
    """As the recordings of a secured broker were made: three listeners, on two of which one has to log in."""
    scram = f"{MODULES}scram.ScramLoginModule required;"
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,REAUTH://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,REAUTH:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain_jaas(own="admin"),
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.reauth.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.reauth.plain.sasl.jaas.config": plain_jaas(),
        "listener.name.reauth.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.reauth.plain.connections.max.reauth.ms": "2000",
        "listener.name.reauth.scram-sha-256.connections.max.reauth.ms": "2000",
        "headrace.oauthbearer.allow.unsigned.tokens": "true",
        "delegation.token.secret.key": "a-secret-of-the-cluster",
        "num.partitions": "4",
    }
