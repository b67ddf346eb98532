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
