"""What only a broker or a client may know is shown nowhere: a test for each place where it could be."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.security.settings import MODULES
from tests.broker.security.test_signed_tokens import RSA, jwk, token
from tests.broker.security.tls import KEY_PASSWORD, with_tls

from headrace import Admin
from headrace.certificates import Authority
from headrace.cli.app import run
from headrace.cli.options_of_start import settings_as_options
from headrace.cli.start import parser, read_settings
from headrace.client.admin import ConfigResource, ResourceType, ScramMechanism, UserScramCredentialUpsertion
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.tokens import TokenSettings
from headrace.config import ConfigError
from headrace.errors import SaslAuthenticationFailedError
from headrace.testing import BrokerProcess, EmbeddedBroker, broker

AUTHORITY = Authority()
PLAIN, SCRAM, WRONG, OF_TOKENS = "plain-word-1", "scram-word-2", "wrong-word-3", "token-word-4"
SECRETS = (PLAIN, SCRAM, WRONG, OF_TOKENS, KEY_PASSWORD)


def settings(directory: Path) -> dict[str, str]:
    keys = directory / "jwks.json"
    keys.write_text(json.dumps({"keys": [jwk(RSA, "one", "RS256")]}))
    found = with_tls(directory, AUTHORITY, **{"ssl.key.password": KEY_PASSWORD}) | {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{MODULES}plain.PlainLoginModule required "
        f'username="admin" password="{PLAIN}" user_admin="{PLAIN}";',
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "delegation.token.secret.key": OF_TOKENS,
    }
    AUTHORITY.issue("a broker", password=KEY_PASSWORD).save(directory / "broker.pem")
    return found


def client(kafka: EmbeddedBroker, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.certificates": AUTHORITY.certificate,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@contextlib.contextmanager
def used(directory: Path) -> Iterator[tuple[EmbeddedBroker, Admin, str]]:
    """A broker at which everybody has logged in by everything, rightly and wrongly."""
    bearer = token()
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(broker(str(directory / "data"), settings(directory)))
        admin = stack.enter_context(Admin(client(kafka, "PLAIN", "admin", PLAIN)))
        change = UserScramCredentialUpsertion("dora", ScramMechanism.SCRAM_SHA_256, SCRAM)
        admin.alter_user_scram_credentials([change]).all()
        by_token = client(kafka, "OAUTHBEARER", "", "")
        by_token["sasl.oauthbearer.token.callback"] = lambda: (bearer, time.time() + 600)
        for config in (client(kafka, "SCRAM-SHA-256", "dora", SCRAM), by_token):
            with Admin(config) as other:
                other.list_topics()
        for mechanism, user in (("PLAIN", "admin"), ("SCRAM-SHA-256", "dora")):
            wrong = client(kafka, mechanism, user, WRONG)
            with Admin(wrong) as other, pytest.raises(SaslAuthenticationFailedError) as refused:
                other.list_topics()
            assert not _found(f"{refused.value!r} {refused.value.__cause__!r}")
        resource = ConfigResource(ResourceType.BROKER, str(kafka.broker.node_id))
        admin.incremental_alter_configs({resource: {"listener.name.sasl_ssl.ssl.key.password": KEY_PASSWORD}}).all()
        yield kafka, admin, bearer


def _found(text: str, *more: str) -> list[str]:
    return [secret for secret in (*SECRETS, *more) if secret in text]


def test_none_in_logs_and_repr(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with used(tmp_path) as (kafka, _, bearer):
        shown = [kafka.broker.started_with, kafka.broker.config, kafka.broker.security.tokens.settings]
        shown += [kafka.broker.security.listeners, vars(kafka.broker.security)]
        assert not _found(repr(shown), bearer)
    assert "was refused" in caplog.text
    assert not _found(caplog.text, bearer)


def test_none_in_described_configs(tmp_path: Path) -> None:
    with used(tmp_path) as (kafka, admin, bearer):
        resource = ConfigResource(ResourceType.BROKER, str(kafka.broker.node_id))
        described = admin.describe_configs([resource]).all()[resource]
        hidden = ("delegation.token.secret.key", "ssl.key.password", "listener.name.sasl_ssl.ssl.key.password")
        assert {described[name].value for name in hidden} == {None}
        assert not _found(repr(described), bearer)


def test_none_in_dumps_of_the_metadata(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with used(tmp_path) as (kafka, _, _bearer):
        keys = kafka.call(lambda one: list(one.image.scram.values()))
    logs = sorted(path for path in (tmp_path / "data").rglob("*.log") if "__cluster_metadata" in str(path.parent))
    assert run(["log", "dump", "--records", *map(str, logs)]) == 0
    out = capfd.readouterr().out
    assert "dora" in out
    assert not _found(out)
    assert not [key for key in keys if key.stored_key.hex() in out or key.server_key.hex() in out]


def test_none_in_errors_of_settings(tmp_path: Path) -> None:
    wrong: list[dict[str, str]] = [
        {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'PlainLoginModule required password="{PLAIN}"'},
        {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'{MODULES}plain.Other required password="{PLAIN}";'},
        {"ssl.key.password": WRONG},
        {"ssl.keystore.key": PLAIN},
    ]
    for changed in wrong:
        with pytest.raises(ConfigError) as refused, broker(overrides=settings(tmp_path) | changed):
            pass
        assert not _found(f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r}")


def test_none_on_command_lines(tmp_path: Path) -> None:
    given = settings(tmp_path) | {"num.partitions": "3"}
    options = settings_as_options(given, tmp_path / "secrets")
    assert not _found(" ".join(options))
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert read_settings(parser().parse_args(options)).items() >= given.items()
    with BrokerProcess(tmp_path / "process", {"delegation.token.secret.key": OF_TOKENS}) as process:
        assert not _found(Path(f"/proc/{process.pid}/cmdline").read_text())


def test_one_on_a_command_line_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    read_settings(parser().parse_args(["--override", f"ssl.key.password={KEY_PASSWORD}"]))
    assert "everybody on this machine can see command lines: put ssl.key.password into a file" in caplog.text
    assert not _found(caplog.text)


def test_the_secret_of_tokens_is_in_no_repr() -> None:
    made = TokenSettings.of(BrokerConfig.parse({"delegation.token.secret.key": OF_TOKENS}))
    assert not _found(repr(made))
