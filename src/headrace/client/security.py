"""What `security.protocol` asks for: a TLS context, or a clear word that something is not there yet."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from headrace.config import ConfigError

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(values: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The context that connections are wrapped in; None for plain text."""
    protocol = values["security.protocol"].upper()
    if protocol.startswith("SASL_"):
        raise ConfigError(
            {
                "security.protocol": f"security.protocol={protocol} asks for SASL, which this version of Headrace "
                "does not speak yet; use PLAINTEXT or SSL (client certificates work)"
            }
        )
    if protocol == "PLAINTEXT":
        return None
    try:
        return _context(values)
    except (OSError, ValueError) as error:
        raise ConfigError({"security.protocol": f"the TLS settings (ssl.*) cannot be used: {error}"}) from error


def _context(values: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in values["ssl.enabled.protocols"] if name in _VERSIONS]
    if not versions:
        raise ValueError(f"ssl.enabled.protocols has none of {', '.join(_VERSIONS)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = bool(values["ssl.endpoint.identification.algorithm"])
    if values["ssl.cipher.suites"]:
        context.set_ciphers(":".join(values["ssl.cipher.suites"]))
    certificates = values["ssl.truststore.certificates"]
    if certificates is not None:
        context.load_verify_locations(cadata=certificates.value)
    elif values["ssl.truststore.location"] is not None:
        context.load_verify_locations(cafile=values["ssl.truststore.location"])
    else:
        context.load_default_certs()
    if values["ssl.keystore.key"] is not None:
        raise ValueError(
            "ssl.keystore.key as text is not supported: put key and chain into ssl.keystore.location (PEM)"
        )
    if values["ssl.keystore.location"] is not None:
        password = values["ssl.key.password"] or values["ssl.keystore.password"]
        context.load_cert_chain(values["ssl.keystore.location"], password=None if password is None else password.value)
    return context
