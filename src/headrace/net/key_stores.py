"""Where keys and certificates lie: PEM files, and PKCS#12 stores, which are turned into PEM in memory.

What a file is, its content says: Java's tools write PKCS#12 into files named `.jks`, and Kafka reads those under either
type. Java's older JKS needs a conversion by Java's own tool; the error says with which command.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PEM_BEGIN: Final = b"-----BEGIN "
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
STORE_BYTES_MAX: Final = 4 * 1024 * 1024
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


def read_store(location: str, setting: str, password: str | None = None) -> str:
    """All that a file holds, as PEM text; a ValueError says what else it is, and what to do."""
    try:
        with Path(location).expanduser().open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{setting}={location} cannot be read: {error.strerror}") from None
    if len(data) > STORE_BYTES_MAX:
        raise ValueError(f"{setting}={location} has over {STORE_BYTES_MAX} bytes: that is no key store")
    if _PEM_BEGIN in data:
        return data.decode("ascii", "replace")
    if data.startswith(_JKS_MAGIC):
        raise ValueError(
            f"{setting}={location} is in Java's own format (JKS), which only Java reads. Convert it once: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {Path(location).with_suffix('.p12')} "
            "-deststoretype PKCS12"
        )
    if data.startswith(_DER_SEQUENCE):
        return _pem_of_pkcs12(data, location, setting, password)
    raise ValueError(f"{setting}={location} is neither PEM nor PKCS#12")


def _pem_of_pkcs12(data: bytes, location: str, setting: str, password: str | None) -> str:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise ValueError(
            f"{setting}={location} is a PKCS#12 store, for which the package cryptography is needed: "
            "pip install cryptography"
        ) from None
    try:
        found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        said = setting.replace("location", "password")
        raise ValueError(f"{setting}={location} cannot be opened (is {said} right?): {error}") from None
    parts = []
    if found.key is not None:
        parts.append(found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    own = [] if found.cert is None else [found.cert]
    parts += [one.certificate.public_bytes(Encoding.PEM) for one in (*own, *found.additional_certs)]
    return b"".join(parts).decode()


def first_certificate(pem: str) -> str | None:
    """The certificate that a key of the same text is for, as PEM."""
    found = _CERTIFICATE.search(pem)
    return None if found is None else found[0]
