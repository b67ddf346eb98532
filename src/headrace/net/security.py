"""How connections are secured: what `security.protocol` asks for."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import ConfigError
from headrace.net.authentication import Authenticate
from headrace.net.sasl import sasl_security
from headrace.net.tls import client_context


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """TLS around a connection, and a proof of who opens it, each where it is wanted.

    `prepare` is called before every authentication. It may block (a token is fetched), so the driver says where.
    """

    tls: ssl.SSLContext | None = None
    authenticate: Authenticate | None = None
    prepare: Callable[[], None] | None = None


PLAINTEXT = Security()


def client_security(values: Mapping[str, Any]) -> Security:
    """From a client's configuration (`security.protocol`, `ssl.*`, `sasl.*`)."""
    protocol = values["security.protocol"].upper()
    tls = None
    if protocol.endswith("SSL"):
        try:
            tls = client_context(values)
        except (OSError, ValueError) as error:
            raise ConfigError({"security.protocol": f"the TLS settings (ssl.*) cannot be used: {error}"}) from error
    if not protocol.startswith("SASL_"):
        return Security(tls)
    return Security(tls, *sasl_security(values))
