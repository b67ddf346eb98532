"""What makes a cluster on this machine a secured one: certificates, users, and the settings that name them.

All of it is in one directory of the cluster's, for its owner alone. Brokers log in at each other as a user that they
make by themselves; clients as `admin`, who is made once they run.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.cli.options import read_properties
from headrace.client.admin import Admin, ScramMechanism, UserScramCredentialUpsertion
from headrace.config import format_properties
from headrace.secret_files import write_secret

DIRECTORY: Final = "secrets"
PROTOCOL: Final = "SASL_SSL"
_MECHANISM: Final = "SCRAM-SHA-512"
_BROKER, _ADMIN = "broker", "admin"
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PASSWORD_BYTES: Final = 24


def make_secure(cluster: Path) -> dict[str, str]:
    """Certificates and passwords of a new cluster; gives the settings that all of its brokers have."""
    from headrace.certificates import Authority

    directory = cluster / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    authority = Authority("Headrace cluster on this machine")
    authority.save(directory / "authority.key")
    trusted = directory / "authority.pem"
    trusted.write_text(authority.certificate)
    store = authority.issue(_BROKER).save(directory / "broker.pem")
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    for user in (_BROKER, _ADMIN):
        client = {
            "security.protocol": PROTOCOL,
            "ssl.truststore.location": str(trusted),
            "ssl.truststore.type": "PEM",
            "sasl.mechanism": _MECHANISM,
            "sasl.jaas.config": f'{_MODULE} required username="{user}" password="{password}";',
        }
        write_secret(_properties(cluster, user), format_properties(client))
        if user == _BROKER:
            own = client["sasl.jaas.config"]
            password = secrets.token_urlsafe(_PASSWORD_BYTES)
    write_secret(directory / "admin.password", password)
    return {
        "inter.broker.listener.name": PROTOCOL,
        "sasl.enabled.mechanisms": f"{_MECHANISM},SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": _MECHANISM,
        f"listener.name.{PROTOCOL.lower()}.{_MECHANISM.lower()}.sasl.jaas.config": own,
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "ssl.truststore.type": "PEM",
        "authorizer.class.name": _AUTHORIZER,
        "super.users": f"User:{_ADMIN};User:{_BROKER}",
    }


def is_secure(cluster: Path) -> bool:
    return (cluster / DIRECTORY).is_dir()


def client_file(cluster: Path) -> Path:
    """The properties of a client that may do everything."""
    return _properties(cluster, _ADMIN)


def client_config(cluster: Path) -> Mapping[str, str]:
    """The same as settings; none for a cluster in the clear."""
    return read_properties(client_file(cluster)) if is_secure(cluster) else {}


def make_admin(cluster: Path, bootstrap: str, timeout_s: float) -> None:
    """The user whose properties clients are given; nobody could make it before the brokers ran."""
    file = cluster / DIRECTORY / "admin.password"
    if not file.exists():
        return
    config = {**read_properties(_properties(cluster, _BROKER)), "bootstrap.servers": bootstrap}
    with Admin(config, default_api_timeout_ms=int(timeout_s * 1000)) as admin:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(_ADMIN, mechanism, file.read_text())
            admin.alter_user_scram_credentials([change]).all()
    file.unlink()


def _properties(cluster: Path, user: str) -> Path:
    return cluster / DIRECTORY / ("client.properties" if user == _ADMIN else f"{user}.properties")
