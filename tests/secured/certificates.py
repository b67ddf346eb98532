"""An authority of our own, and certificates that it signs: PEM, as files and as text."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

_PEM = serialization.Encoding.PEM
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str

    def save(self, path: Path) -> Path:
        """Both in one file."""
        path.write_text(self.key + self.certificate)
        return path


class Authority:
    """Signs certificates."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace test authority")])
        made = self._builder(self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = made.sign(self._key, hashes.SHA256()).public_bytes(_PEM).decode()

    def issue(self, name: str, *, password: str | None = None) -> Identity:
        """A certificate for 127.0.0.1 and localhost; with a password, its key is encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = made.sign(self._key, hashes.SHA256()).public_bytes(_PEM).decode()
        locked = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password.encode())
        )
        return Identity(certificate, key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, locked).decode())

    def pkcs12(self, identity: Identity, password: str) -> bytes:
        """The identity and this authority in one store, as Java's tools write them."""
        certificate, authority = (
            x509.load_pem_x509_certificate(pem.encode()) for pem in (identity.certificate, self.certificate)
        )
        key = serialization.load_pem_private_key(identity.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        locked = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"it", key, certificate, [authority], locked)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )
