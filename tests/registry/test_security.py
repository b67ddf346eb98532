"""Who may ask what of a registry, over TLS or not; by confluent-kafka's client and by ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import urllib3
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaRegistryClient

from headrace import ConfigError
from headrace.certificates import Authority
from headrace.registry.access import hashed
from headrace.schemas.registry_client import RegistryClient, RegistryRequestError, RegistryUnavailableError
from headrace.schemas.schema import Schema
from headrace.testing import broker, registry

TEXT = Schema('{"type": "record", "name": "R", "fields": []}')
RIGHTS = """
# user  right  subject
ann    write  ann-*
ben    read   *
root   admin  *
"""


@pytest.fixture
def secured(tmp_path: Path) -> dict[str, str]:
    users = {"ann": "secret:with:colons", "ben": hashed("ben's", b"salt"), "root": "root's"}
    (tmp_path / "users").write_text("".join(f"{name}: {secret}\n" for name, secret in users.items()))
    (tmp_path / "rights").write_text(RIGHTS)
    return {
        "authentication.method": "BASIC",
        "authentication.users": str(tmp_path / "users"),
        "authorization.rights": str(tmp_path / "rights"),
    }


def client_of(url: str, user: str) -> RegistryClient:
    return RegistryClient(url, {"basic.auth.user.info": user, "schema.registry.timeout.ms": 5_000})


def code_of(ask: Any) -> int:
    with pytest.raises(RegistryRequestError) as failed:
        ask()
    return failed.value.code


def test_passwords_and_rights_per_subject(secured: dict[str, str]) -> None:
    with registry(overrides=secured) as running:
        ann, ben, root = (
            client_of(running.url, user) for user in ("ann:secret:with:colons", "ben:ben's", "root:root's")
        )
        ann.register("ann-value", TEXT)
        root.register("other-value", TEXT)
        assert code_of(lambda: ann.register("other-value", TEXT)) == 40301
        assert code_of(lambda: ann.version("other-value", 1)) == 40301
        assert ann.subjects() == ["ann-value"]
        assert ben.subjects() == ["ann-value", "other-value"]
        assert code_of(lambda: ben.register("ann-value", TEXT)) == 40301
        assert code_of(lambda: ben.set_level(None, "FULL")) == 40301
        assert ann.delete("ann-value") == [1]
        assert code_of(lambda: ann.delete("ann-value", permanent=True)) == 40301
        assert root.delete("ann-value", permanent=True) == [1]
        with SchemaRegistryClient({"url": running.url, "basic.auth.user.info": "root:root's"}) as theirs:
            theirs.register_schema("theirs-value", ConfluentSchema(TEXT.text, "AVRO"))
        for one in (ann, ben, root):
            one.close()


@pytest.mark.parametrize("user", ["ann:wrong", "nobody:x", "ann", ""])
def test_who_is_not_known_learns_nothing(secured: dict[str, str], user: str) -> None:
    with registry(overrides=secured) as running:
        client = client_of(running.url, user)
        assert code_of(client.subjects) == 401
        client.close()
        with urllib3.PoolManager() as pool:
            answer = pool.request("GET", f"{running.url}/subjects", headers={"authorization": "Basic ***"})
            assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Basic")


def test_tokens(secured: dict[str, str]) -> None:
    Path(secured["authentication.users"]).write_text("root: 0123456789abcdef\n")
    with registry(overrides={**secured, "authentication.method": "BEARER"}) as running:
        client = RegistryClient(running.url, {"bearer.auth.token": "0123456789abcdef"})
        client.register("a-value", TEXT)
        client.close()
        stranger = RegistryClient(running.url, {"bearer.auth.token": "0123456789abcdeg"})
        assert code_of(stranger.subjects) == 401
        stranger.close()


def test_tls_and_certificates_of_clients(tmp_path: Path) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.certificate)
    server = authority.issue("registry", hosts=["localhost", "127.0.0.1"]).save(tmp_path / "server.pem")
    own = authority.issue("client").save(tmp_path / "client.pem")
    settings = {
        "listeners": "https://127.0.0.1:0",
        "ssl.keystore.location": str(server),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.authentication": "REQUIRED",
    }
    with registry(overrides=settings) as running:
        assert running.url.startswith("https://")
        trusting = {"schema.registry.ssl.truststore.location": str(tmp_path / "ca.pem")}
        client = RegistryClient(running.url, {**trusting, "schema.registry.ssl.keystore.location": str(own)})
        client.register("a-value", TEXT)
        client.close()
        for less in (trusting, {}):
            stranger = RegistryClient(running.url, {**less, "schema.registry.timeout.ms": 300})
            with pytest.raises(RegistryUnavailableError, match=r"(?i)certificate|ssl|reset|closed"):
                stranger.subjects()
            stranger.close()


def test_another_instance_passes_on_who_asks(secured: dict[str, str]) -> None:
    follows = {**secured, "leader.eligibility": "false"}
    with (
        broker() as kafka,
        registry(kafka.address, secured),
        registry(kafka.address, follows) as follower,
    ):
        ann = client_of(follower.url, "ann:secret:with:colons")
        ann.register("ann-value", TEXT)
        assert code_of(lambda: ann.register("other-value", TEXT)) == 40301
        ann.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"listeners": "https://127.0.0.1:0"}, "needs a certificate"),
        ({"listeners": "127.0.0.1:8081"}, "give one address"),
        ({"authentication.method": "BASIC"}, "needs a file of users"),
        ({"authorization.rights": "/nothing"}, "rights need users"),
        ({"authentication.method": "BASIC", "authentication.users": "/nothing"}, "cannot be read"),
        ({"schema.compatibility.level": "sideways"}, "must be"),
        ({"kafkastor.topic": "x"}, "did you mean kafkastore.topic"),
    ],
)
def test_wrong_settings_are_refused_with_what_would_be_right(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason), registry(overrides=settings):
        pass


def test_requests_are_bounded() -> None:
    with registry() as running, urllib3.PoolManager() as pool:
        url = f"{running.url}/subjects/a-value/versions"
        answer = pool.request("POST", url, body=b"x" * (17 << 20), retries=False)
        assert answer.status == 413
        deep = json.dumps({"schema": "[" * 5_000 + "]" * 5_000})
        answer = pool.request("POST", url, body=deep, retries=False)
        assert json.loads(answer.data)["error_code"] == 42201
