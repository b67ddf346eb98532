"""No class is loaded because a configuration names it (CVE-2023-25194, CVE-2025-27818)."""

from __future__ import annotations

import pytest

from headrace import testing
from headrace.client.admin import Admin, ConfigResource, ResourceType
from headrace.config import ConfigError
from headrace.errors import HeadraceError

from .settings import plain_jaas, with_logins

KEY = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
MODULES = [
    "com.sun.security.auth.module.JndiLoginModule",
    "com.sun.security.auth.module.LdapLoginModule",
    "os.system",
    "org.apache.kafka.common.security.scram.ScramLoginModule",
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_is_not_the_mechanisms_is_refused_at_start(module: str) -> None:
    line = plain_jaas().replace("org.apache.kafka.common.security.plain.PlainLoginModule", module)
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config"), testing.broker(overrides=with_logins() | {KEY: line}):
        pass


@pytest.mark.parametrize("module", MODULES[:1])
def test_nor_can_it_be_set_from_afar(module: str) -> None:
    listeners = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with testing.broker(overrides=with_logins("PLAIN") | listeners) as kafka:
        host, port = kafka.broker.addresses[1]
        with Admin(bootstrap_servers=f"{host}:{port}") as admin:
            broker = ConfigResource(ResourceType.BROKER, str(kafka.broker.node_id))
            for key in (KEY, "sasl.jaas.config"):
                with pytest.raises(HeadraceError):
                    admin.incremental_alter_configs({broker: {key: f"{module} required;"}}).all()
            shown = admin.describe_configs([broker])[broker]
            assert shown[KEY].value is None
            assert shown[KEY].is_sensitive


TOKENS = "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (TOKENS, "file:///etc/passwd"),
        ("sasl.oauthbearer.jwks.endpoint.url", "http://169.254.169.254/"),
        ("listener.name.sasl_plaintext.oauthbearer.headrace.oauthbearer.allow.unsigned.tokens", "true"),
        ("delegation.token.secret.key", "known"),
        ("authorizer.class.name", ""),
        ("super.users", "User:mallory"),
        ("allow.everyone.if.no.acl.found", "true"),
    ],
)
def test_who_may_come_in_and_who_decides_is_not_changed_from_afar(key: str, value: str) -> None:
    """Nor is a broker sent to read a file or an address (CVE-2025-27817)."""
    with testing.broker() as kafka, Admin(bootstrap_servers=kafka.address) as admin:
        for name in (str(kafka.broker.node_id), ""):
            change = {ConfigResource(ResourceType.BROKER, name): {key: value}}
            with pytest.raises(HeadraceError, match=key):
                admin.incremental_alter_configs(change).all()
