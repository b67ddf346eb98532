"""SCRAM (RFC 5802): both ends prove that they know the password, and neither sends it.

As Kafka has it: no channel binding, and no normalisation of names and passwords but for commas and equals signs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from headrace.errors import SaslAuthenticationFailedError
from headrace.net.sasl.exchange import Exchange

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
"""More would let a server keep its clients busy for seconds; Kafka's own limit is 16,384."""
_DIGITS_MAX = 20
_NONCE_BYTES = 24
_NO_CHANNEL_BINDING = "n,,"


def scram(
    mechanism: str, username: str, password: str, *, nonce: str | None = None, token_authenticated: bool = False
) -> Exchange:
    """The client's side. `token_authenticated` says that name and password are a delegation token's."""
    digest = DIGESTS[mechanism]
    own_nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
    extension = ",tokenauth=true" if token_authenticated else ""
    first = f"n={_escape(username)},r={own_nonce}{extension}"
    server_first = _text((yield (_NO_CHANNEL_BINDING + first).encode()))
    fields = _fields(server_first)
    server_nonce, salt, iterations = _nonce(fields, own_nonce), _bytes(fields, "s"), _iterations(fields)
    binding = base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()
    unproved = f"c={binding},r={server_nonce}"
    signed = f"{first},{server_first},{unproved}".encode()
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature))
    server_last = _fields(_text((yield f"{unproved},p={base64.b64encode(proof).decode()}".encode())))
    if "e" in server_last:
        raise SaslAuthenticationFailedError(f"the broker refused the credentials ({mechanism}): {server_last['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(_bytes(server_last, "v"), expected):
        raise SaslAuthenticationFailedError(
            "the broker does not know the password that it was asked to check: it may not be the one it says it is"
        )


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise _malformed("it is no text") from error


def _fields(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _nonce(fields: dict[str, str], own: str) -> str:
    nonce = fields.get("r", "")
    if not nonce.startswith(own) or nonce == own:
        raise _malformed("its nonce does not continue ours")
    return nonce


def _bytes(fields: dict[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (KeyError, ValueError) as error:
        raise _malformed(f"its field {name} is missing or damaged") from error


def _iterations(fields: dict[str, str]) -> int:
    text = fields.get("i", "")
    # Of thousands of digits Python makes no number.
    if not text.isdecimal() or len(text) > _DIGITS_MAX or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise _malformed(f"{text[:100]!r} iterations are not between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
    return int(text)


def _malformed(why: str) -> SaslAuthenticationFailedError:
    return SaslAuthenticationFailedError(f"the broker's SCRAM message cannot be used: {why}")
