"""Certificates for trials and tests: an authority of one's own, and what it signs.

For a cluster that others rely on, take the authority that they trust already.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.secret_files import write_secret

_PEM: Final = serialization.Encoding.PEM
_NAME_MAX: Final = 64
#: A clock that is slow by less does not refuse what was just made.
_BEFORE: Final = datetime.timedelta(days=1)
DAYS: Final = 365
THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str = field(repr=False)

    def save(self, path: Path) -> Path:
        """Both in one file, for its owner alone."""
        return write_secret(path, self.key + self.certificate)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "Headrace trial authority", *, days: int = 10 * DAYS) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        made = _builder(subject, subject, self._key.public_key(), days)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(_usage(signs_certificates=True), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self._certificate = made.sign(self._key, hashes.SHA256())

    @classmethod
    def load(cls, pem: str) -> Authority:
        """One that was saved; a ValueError where it is none."""
        found = cls.__new__(cls)
        key = serialization.load_pem_private_key(pem.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind than those that are made here")
        found._key, found._certificate = key, x509.load_pem_x509_certificate(pem.encode())
        return found

    def save(self, path: Path) -> Path:
        """Certificate and key: whoever has them can be anybody."""
        return write_secret(path, _key_text(self._key) + self.certificate)

    @property
    def certificate(self) -> str:
        return self._certificate.public_bytes(_PEM).decode()

    def issue(
        self,
        name: str,
        hosts: Iterable[str] = THIS_MACHINE,
        *,
        password: str | None = None,
        days: int = DAYS,
        is_client: bool = False,
    ) -> Certified:
        """A certificate for these hosts (a client's has none); with a password, its key is encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_subject(name), self._certificate.subject, key.public_key(), days)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_usage(signs_certificates=False), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = made.add_extension(by, critical=False)
        # Brokers are each other's clients.
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if is_client else [ExtendedKeyUsageOID.SERVER_AUTH])]
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if not is_client:
            made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        certificate = made.sign(self._key, hashes.SHA256()).public_bytes(_PEM).decode()
        return Certified(certificate, _key_text(key, password))

    def pkcs12(self, identity: Certified, password: str) -> bytes:
        """The identity and this authority in one store, as Java's tools write them."""
        key = serialization.load_pem_private_key(identity.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate(identity.certificate.encode())
        locked = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"it", key, certificate, [self._certificate], locked)


def _key_text(key: ec.EllipticCurvePrivateKey, password: str | None = None) -> str:
    locked = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password.encode())
    )
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, locked).decode()


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= _NAME_MAX:
        raise ValueError(f"a certificate's name has 1 to {_NAME_MAX} characters, not {len(name)}: {name}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )
