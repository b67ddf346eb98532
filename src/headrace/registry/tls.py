"""TLS of the registry's listener, out of the settings `ssl.*`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from headrace.config import ConfigError

_CLIENTS = {"NONE": ssl.CERT_NONE, "REQUESTED": ssl.CERT_OPTIONAL, "REQUIRED": ssl.CERT_REQUIRED}


def server_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context of an https listener; a `ConfigError` says which file is missing or is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    store, certificate, key = (
        values[name] for name in ("ssl.keystore.location", "ssl.certificate.location", "ssl.key.location")
    )
    if store is None and (certificate is None or key is None):
        raise ConfigError(
            {
                "ssl.keystore.location": "an https listener needs a certificate: set ssl.keystore.location to a PEM "
                "file with the key and the certificates, or ssl.certificate.location and ssl.key.location"
            }
        )
    password = values["ssl.key.password"] or values["ssl.keystore.password"]
    shown = password.value if password is not None else ""
    where = store or f"{certificate} and {key}"
    try:
        context.load_cert_chain(certificate or store, key or store, password=lambda: shown)
    except (OSError, ValueError) as error:
        raise ConfigError({"ssl.keystore.location": f"{where}: no certificate with its key: {error}"}) from error
    context.verify_mode = _CLIENTS[values["ssl.client.authentication"]]
    if context.verify_mode is not ssl.CERT_NONE:
        authorities = values["ssl.truststore.location"]
        if authorities is None:
            raise ConfigError(
                {"ssl.truststore.location": "to check clients' certificates it takes those that are trusted"}
            )
        try:
            context.load_verify_locations(authorities)
        except OSError as error:
            raise ConfigError({"ssl.truststore.location": f"{authorities}: {error}"}) from error
    return context
