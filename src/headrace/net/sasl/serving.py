"""The server's side of SASL mechanisms: messages of a client in, answers out, and at the end who it is.

No I/O, and no knowledge of where users come from: whoever makes a mechanism gives it a look-up. Refusals are
`SaslAuthenticationFailedError` with a text that the client may see; `BadCredentialsError` has none of its own, because
whatever was wrong a client is told the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from headrace.errors import SaslAuthenticationFailedError
from headrace.net.sasl.scram import DIGESTS

USER: Final = "User"


class BadCredentialsError(Exception):
    """What the client said is malformed or does not prove anything. The text is for our own log alone."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Who was shown to be there; how long what showed it is good (milliseconds since 1970, None: no end)."""

    name: str
    kind: str = USER
    expires_at_ms: int | None = None
    #: Shown by a delegation token, which may do less than who made it.
    by_token: bool = False

    @property
    def principal(self) -> str:
        return f"{self.kind}:{self.name}"


class ServerMechanism(Protocol):
    """One conversation. `proof` is None as long as it is not over."""

    proof: Proof | None

    def respond(self, message: bytes) -> bytes:
        """The answer to what the client said."""


# --- PLAIN ------------------------------------------------------------------------------------------------------------

PasswordCheck = Callable[[str, str], bool]


class PlainServer:
    """RFC 4616: user and password in one message. `is_password` must take as long whoever is asked for."""

    def __init__(self, is_password: PasswordCheck) -> None:
        self._is_password = is_password
        self.proof: Proof | None = None

    def respond(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise SaslAuthenticationFailedError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, name, password = (part.decode(errors="replace") for part in parts)
        if not name:
            raise SaslAuthenticationFailedError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailedError("Authentication failed: password not specified")
        if not self._is_password(name, password):
            raise SaslAuthenticationFailedError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", name):
            raise SaslAuthenticationFailedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.proof = Proof(name)
        return b""


# --- SCRAM ------------------------------------------------------------------------------------------------------------

_SAFE = r"[\x01-\x2b\x2d-\x3c\x3e-\x7f]"
_SASL_NAME = rf"(?:{_SAFE}|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}))(?:{_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_ESCAPED = re.compile("=(?!2C|3D)")
_NONCE_BYTES = 24


class ScramKeys(NamedTuple):
    """What a server keeps of a password: enough to check a client, not enough to be one."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


# Keys and identity of a user, or (the second argument) of a delegation token; None when there is no such.
ScramLookup = Callable[[str, bool], "tuple[ScramKeys, Proof] | None"]


def scram_keys(mechanism: str, password: str, *, iterations: int, salt: bytes) -> ScramKeys:
    """What a server has to know of this password. Takes a few milliseconds."""
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    return keys_of_salted(mechanism, salted, iterations=iterations, salt=salt)


def keys_of_salted(mechanism: str, salted: bytes, *, iterations: int, salt: bytes) -> ScramKeys:
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    return ScramKeys(
        salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest), iterations
    )


class ScramServer:
    """RFC 5802, as Kafka has it: no channel binding, and names in ASCII."""

    def __init__(self, mechanism: str, lookup: ScramLookup, *, nonce: str | None = None) -> None:
        self._digest = DIGESTS[mechanism]
        self._lookup = lookup
        self._own_nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        self._client_first = self._server_first = self._nonce = ""
        self._keys: ScramKeys | None = None
        self._claimed: Proof | None = None
        self.proof: Proof | None = None

    def respond(self, message: bytes) -> bytes:
        try:
            text = message.decode("ascii")
        except UnicodeDecodeError:
            raise BadCredentialsError("the message has characters beyond ASCII") from None
        if self._keys is None:
            return self._first(text)
        return self._final(text, self._keys)

    def _first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise BadCredentialsError("the first message cannot be read")
        name = unescape(found["name"])
        is_token = "tokenauth=true" in found["extensions"].split(",")
        authorization_id = found["authorization"]
        if authorization_id is not None and authorization_id != name:
            raise SaslAuthenticationFailedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        known = self._lookup(name, is_token)
        if known is None:
            raise BadCredentialsError("there is no such user")
        self._keys, self._claimed = known
        self._nonce = found["nonce"] + self._own_nonce
        self._client_first = found["bare"]
        salt = base64.b64encode(self._keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        return self._server_first.encode()

    def _final(self, text: str, keys: ScramKeys) -> bytes:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise BadCredentialsError("the final message cannot be read")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise BadCredentialsError("the nonce in the final message is another")
        proof = base64.b64decode(found["proof"])
        signed = f"{self._client_first},{self._server_first},{found['without_proof']}".encode()
        signature = hmac.digest(keys.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise BadCredentialsError("the proof has another length than the mechanism's")
        client_key = bytes(a ^ b for a, b in zip(signature, proof))
        if not hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), keys.stored_key):
            raise BadCredentialsError("the password is another")
        self.proof = self._claimed
        verifier = base64.b64encode(hmac.digest(keys.server_key, signed, self._digest)).decode()
        return f"v={verifier}".encode()


def unescape(name: str) -> str:
    """A user's name as it was before commas and equals signs were escaped."""
    if _ESCAPED.search(name):
        raise BadCredentialsError("an equals sign in the name is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")


# --- OAUTHBEARER ------------------------------------------------------------------------------------------------------

_BEARER_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTHORIZATION = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+) *")
_INVALID_TOKEN = '{"status":"invalid_token"}'

# Who a token is of, for how long; `BadCredentialsError` says for our own log what is wrong with it.
TokenCheck = Callable[[str], Proof]


class OauthServer:
    """RFC 7628: a token instead of a password. The refusal of a token is told in two steps."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        #: Why the token was refused, after that has been said and before the client has acknowledged it.
        self.refused: str | None = None
        self.proof: Proof | None = None

    def respond(self, message: bytes) -> bytes:
        if self.refused is not None:
            if message == b"\x01":
                raise SaslAuthenticationFailedError(_INVALID_TOKEN)
            raise BadCredentialsError("a refusal is acknowledged with one byte")
        try:
            found = _BEARER_FIRST.fullmatch(message.decode())
        except UnicodeDecodeError:
            found = None
        if found is None:
            raise BadCredentialsError("the first message cannot be read")
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
        said = _AUTHORIZATION.fullmatch(pairs.get("auth", ""))
        if said is None or said["scheme"].lower() != "bearer":
            raise BadCredentialsError("there is no bearer token in the first message")
        try:
            proof = self._check(said["token"])
        except BadCredentialsError as error:
            self.refused = str(error)
            return _INVALID_TOKEN.encode()
        authorization_id = found["authorization"]
        if authorization_id is not None and unescape(authorization_id) != proof.name:
            raise SaslAuthenticationFailedError(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({proof.name})"
            )
        self.proof = proof
        return b""
