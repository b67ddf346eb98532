"""Cipher suites by the names that Kafka's settings have (Java's, which are IANA's), as OpenSSL wants them."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

#: The suites of TLS 1.3, which name no key exchange.
SUITES_13: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)
#: Those of them that OpenSSL offers unless it is asked for others.
_DEFAULT_13: Final = frozenset(SUITES_13[:3])
_WITHOUT_MODE: Final = ("_CBC_SHA", "_CBC_SHA256", "_CBC_SHA384")


def openssl_name(name: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is OpenSSL's `ECDHE-RSA-AES128-GCM-SHA256`; its own names stay."""
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if cipher.endswith(_WITHOUT_MODE):
        cipher = cipher.replace("_CBC", "")
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20_POLY1305"
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    return "-".join(part for part in (exchange.replace("_", "-"), cipher.replace("_", "-")) if part != "RSA")


def allow_only(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Let a context use these suites alone; a ValueError names those that are not known.

    A version of TLS of which none is named is not spoken, as in Java.
    """
    new = [name for name in suites if name in SUITES_13]
    old = [name for name in suites if name not in SUITES_13]
    for name in old:
        try:
            context.set_ciphers(openssl_name(name))
        except ssl.SSLError:
            raise ValueError(f"ssl.cipher.suites: {name} is no cipher suite that OpenSSL has here") from None
    if old:
        context.set_ciphers(":".join(map(openssl_name, old)))
    if not new:
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
    elif hasattr(context, "set_ciphersuites"):
        context.set_ciphersuites(":".join(new))
    elif not set(new) >= _DEFAULT_13:
        raise ValueError(
            "ssl.cipher.suites: this Python (before 3.15) cannot choose among the suites of TLS 1.3: name all three of "
            f"{', '.join(SUITES_13[:3])}, or none and use TLS 1.2"
        )
    if not old:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise ValueError("ssl.cipher.suites has none for any of ssl.enabled.protocols")
