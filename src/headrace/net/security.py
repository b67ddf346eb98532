"""How connections are secured: what `security.protocol` asks for."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import ConfigError
from headrace.net.authentication import Authenticate
from headrace.net.tls import client_context


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """TLS around a connection, and a proof of who opens it, each where it is wanted."""

    tls: ssl.SSLContext | None = None
    authenticate: Authenticate | None = None


PLAINTEXT = Security()


def client_security(values: Mapping[str, Any]) -> Security:
    """From a client's configuration (`security.protocol`, `ssl.*`, `sasl.*`)."""
    protocol = values["security.protocol"].upper()
    if protocol.startswith("SASL_"):
        raise ConfigError(
            {
                "security.protocol": f"security.protocol={protocol} asks for SASL, which this version of Headrace "
                "does not speak yet; use PLAINTEXT or SSL (client certificates work)"
            }
        )
    if protocol == "PLAINTEXT":
        return PLAINTEXT
    try:
        return Security(tls=client_context(values))
    except (OSError, ValueError) as error:
        raise ConfigError({"security.protocol": f"the TLS settings (ssl.*) cannot be used: {error}"}) from error
