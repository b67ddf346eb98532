"""TLS contexts from Kafka's `ssl.*` keys (librdkafka's too), and what a failed handshake means for a person."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.config import Password
from headrace.errors import HeadraceError
from headrace.net.ciphers import allow_only
from headrace.net.key_stores import read_store
from headrace.net.node import Node
from headrace.runtime.system import HAS_MEMORY_FILES

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SYSTEMS_OWN = "probe"
"""What librdkafka calls the certificates that the system trusts."""
_NO_CHECK = ("", "none")
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_NAME_IS_ANOTHER = (62, 64)
"""OpenSSL's numbers for a certificate of another host name, and of another address."""
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
)


class TlsRefusedError(HeadraceError):
    """A TLS handshake that failed and would fail again: a certificate that is not trusted, or not taken, or no TLS."""


# --- contexts ---------------------------------------------------------------------------------------------------------


def client_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context that a client's connections are wrapped in; ValueError or OSError when `ssl.*` cannot be used."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, values)
    context.check_hostname = values["ssl.endpoint.identification.algorithm"].lower() not in _NO_CHECK
    if not values["enable.ssl.certificate.verification"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _trust(context, values)
    _load_identity(context, values)
    return context


def server_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """The context of a listener; ValueError or OSError when `ssl.*` cannot be used."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, values)
    # Nobody may ask for another handshake on a connection, which costs a broker more than who asks.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 1
    context.verify_mode = _CLIENT_AUTH[values["ssl.client.auth"]]
    if context.verify_mode != ssl.CERT_NONE:
        _trust(context, values, purpose=ssl.Purpose.CLIENT_AUTH)
    if not _load_identity(context, values):
        raise ValueError(
            "a listener with TLS needs a certificate and its key: ssl.keystore.location, or ssl.keystore.key and "
            "ssl.keystore.certificate.chain"
        )
    return context


def renew(context: ssl.SSLContext, values: Mapping[str, Any]) -> None:
    """Let the next connections show another certificate, and trust other authorities as well as those before."""
    _trust(context, values)
    _load_identity(context, values)


def der_of(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


def _context(protocol: int, values: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = [_VERSIONS[name] for name in values["ssl.enabled.protocols"] if name in _VERSIONS]
    if not versions:
        raise ValueError(f"ssl.enabled.protocols has none of {', '.join(_VERSIONS)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if values["ssl.cipher.suites"]:
        allow_only(context, values["ssl.cipher.suites"])
    return context


def _trust(context: ssl.SSLContext, values: Mapping[str, Any], purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
    inline, location = values["ssl.truststore.certificates"], values["ssl.truststore.location"]
    if inline is not None:
        _load_authorities(context, _secret(inline), "ssl.truststore.certificates")
    elif not location or location == _SYSTEMS_OWN:
        context.load_default_certs(purpose)
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        password = _secret_or_none(values["ssl.truststore.password"])
        _load_authorities(context, read_store(location, "ssl.truststore.location", password), f"{location}")


def _load_authorities(context: ssl.SSLContext, pem: str, where: str) -> None:
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{where} has no certificate that can be read ({_reason(error)})") from None


def identity(values: Mapping[str, Any]) -> tuple[str, str | None, str] | None:
    """Certificate chain and key as PEM (from one file, two, or inline), the key's password, where they are from."""
    chain, key = values["ssl.keystore.certificate.chain"], values["ssl.keystore.key"]
    store, certificate_file, key_file = (
        values.get(name) for name in ("ssl.keystore.location", "ssl.certificate.location", "ssl.key.location")
    )
    store_password = _secret_or_none(values["ssl.keystore.password"])
    password = _secret_or_none(values["ssl.key.password"]) or store_password
    if chain is not None or key is not None:
        if chain is None or key is None:
            raise ValueError("ssl.keystore.key and ssl.keystore.certificate.chain are needed together")
        where = "ssl.keystore.key and ssl.keystore.certificate.chain"
        return f"{_secret(key)}\n{_secret(chain)}\n", password, where
    if certificate_file is not None or key_file is not None:
        if certificate_file is None or key_file is None:
            raise ValueError("ssl.certificate.location and ssl.key.location are needed together")
        parts = (
            read_store(key_file, "ssl.key.location"),
            read_store(certificate_file, "ssl.certificate.location"),
        )
        return "\n".join(parts), password, f"{certificate_file} and {key_file}"
    if store:
        return read_store(store, "ssl.keystore.location", store_password), password, store
    return None


def _load_identity(context: ssl.SSLContext, values: Mapping[str, Any]) -> bool:
    found = identity(values)
    if found is None:
        return False
    pem, password, where = found
    with _as_file(pem) as path:
        try:
            context.load_cert_chain(path, password=_asked_for if password is None else password)
        except (ssl.SSLError, ValueError) as error:
            why = "" if password is None else " (or ssl.key.password is not the key's)"
            raise ValueError(f"{where}: no certificate with its key can be read there{why}: {_reason(error)}") from None
    return True


def _asked_for() -> str:
    """Called for the password of a key when none was given; OpenSSL would ask for it on the terminal."""
    raise ValueError("the key is encrypted: set ssl.key.password")


@contextlib.contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """A path at which OpenSSL, which takes nothing else, can read a key that may be nowhere on a disk."""
    if HAS_MEMORY_FILES:
        descriptor = os.memfd_create("headrace-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only its owner may read it
        file.write(pem)
        file.flush()
        yield file.name


def _secret(given: Password | str) -> str:
    return given.value if isinstance(given, Password) else given


def _secret_or_none(given: Password | str | None) -> str | None:
    return None if given is None else _secret(given)


# --- handshakes that failed -------------------------------------------------------------------------------------------


def refusal(node: Node, error: BaseException | None) -> TlsRefusedError | None:
    """What a TLS error of a connection that was never ready means; None: it is none, or may pass."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__
    if error is None or isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_IS_ANOTHER:
            return TlsRefusedError(
                f"{node} has a certificate for another name: {error.verify_message}. Connect by a name that is in it "
                "(advertised.listeners), or set ssl.endpoint.identification.algorithm to nothing if that is safe"
            )
        return TlsRefusedError(
            f"the certificate of {node} is not trusted: {error.verify_message}. Set ssl.truststore.location (or "
            "ssl.ca.location) to a PEM file with the authority that signed it"
        )
    reason = error.reason or str(error)
    if reason in _NOT_TLS:
        return TlsRefusedError(f"{node} does not speak TLS there ({reason}): check the port, and security.protocol")
    if "ALERT" in reason:
        return TlsRefusedError(
            f"{node} ended the TLS handshake ({reason}): it may want a client's certificate that it trusts "
            "(ssl.keystore.location, or ssl.certificate.location and ssl.key.location)"
        )
    return TlsRefusedError(f"TLS with {node} cannot be set up: {reason}")


def needs_tls(node: Node) -> TlsRefusedError:
    """What an alert means to who came without TLS."""
    return TlsRefusedError(
        f"{node} speaks TLS there, and this client does not: set security.protocol to SSL, or to SASL_SSL if it also "
        "wants a login"
    )


def has_no_tls(node: Node) -> TlsRefusedError:
    """What an answer without TLS means to who wants it."""
    return TlsRefusedError(f"{node} does not speak TLS there: check the port, and security.protocol")


def _reason(error: BaseException) -> str:
    return getattr(error, "reason", None) or str(error)
