"""TLS contexts from Kafka's `ssl.*` keys."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def client_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context that a client's connections are wrapped in; ValueError or OSError when `ssl.*` cannot be used."""
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
