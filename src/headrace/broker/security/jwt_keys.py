"""Tokens of OAUTHBEARER: signed JWTs, checked by the keys of who issues them (a JWKS, by file or http, or one PEM key).

Keys are read again now and then, and when a token names one that is not there. A token without a signature is refused,
unless a setting for trials allows it; what a signature may be made by is said here, and never by the token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.config import ConfigError
from headrace.net.sasl.oauthbearer import NoRedirect
from headrace.net.sasl.serving import BadCredentialsError, Proof
from headrace.words import visible

if TYPE_CHECKING:
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.runtime import Runtime

log = logging.getLogger("headrace.broker.security")

URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
UNSIGNED_KEY: Final = "headrace.oauthbearer.allow.unsigned.tokens"
SCOPE_KEY: Final = "headrace.oauthbearer.expected.scope"
MECHANISM: Final = "OAUTHBEARER"
#: Asymmetric ones alone: whoever checks a token must not be able to make one.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_KEYS_MAX: Final = 1000
_TIMEOUT_S: Final = 10.0
#: How soon after one look a token with an unknown key is a reason for the next.
_LOOK_AGAIN_S: Final = 10.0
_NAME_MAX: Final = 1000
#: The end of the year 9999, in seconds: nothing that ends later can be told in an answer.
_TIME_MAX: Final = 253_402_300_799

KeyOf = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say."""

    issuer: str | None
    audience: tuple[str, ...]
    scope: frozenset[str]
    skew_s: int
    name_claim: str
    scope_claim: str

    @classmethod
    def of(cls, listener: str, config: BrokerConfig) -> TokenRules:
        def value(key: str) -> Any:
            return config.listener_value(listener, key, MECHANISM)

        return cls(
            issuer=value("sasl.oauthbearer.expected.issuer"),
            audience=tuple(value("sasl.oauthbearer.expected.audience") or ()),
            scope=frozenset(value(SCOPE_KEY) or ()),
            skew_s=int(value("sasl.oauthbearer.clock.skew.seconds")),
            name_claim=str(value("sasl.oauthbearer.sub.claim.name")),
            scope_claim=str(value("sasl.oauthbearer.scope.claim.name")),
        )

    def proof(self, claims: Mapping[str, Any]) -> Proof:
        """Who it is of, and until when; whatever else has to be right is by now."""
        name, ends = claims.get(self.name_claim), claims.get("exp")
        if not isinstance(name, str) or not name.strip() or len(name) > _NAME_MAX or not _is_text(name):
            raise BadCredentialsError(f"the token's {self.name_claim} is no name")
        # A comparison that holds for no NaN.
        if isinstance(ends, bool) or not isinstance(ends, (int, float)) or not 0 <= ends <= _TIME_MAX:
            raise BadCredentialsError("the token does not say when it ends")
        given = claims.get(self.scope_claim, ())
        words = given.split() if isinstance(given, str) else given if isinstance(given, list) else ()
        scope = frozenset(word for word in words if isinstance(word, str))
        if not self.scope <= scope:
            raise BadCredentialsError(f"the token lacks the scope {' '.join(sorted(self.scope - scope))}")
        return Proof(name, expires_at_ms=int(ends * 1000))


class SignedTokens:
    """Checks tokens by keys that are read from a URL: http, https, or a file."""

    def __init__(self, listener: str, config: BrokerConfig, url: str) -> None:
        self._listener = listener
        self._rules = TokenRules.of(listener, config)
        self._url = url
        self._refresh_s = _milliseconds(config, listener, "sasl.oauthbearer.jwks.endpoint.refresh.ms")
        self._retry_s = _milliseconds(config, listener, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")
        self._retry_max_s = _milliseconds(config, listener, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")
        self._keys: dict[str | None, Any] = {}
        self._is_wanted: asyncio.Event | None = None
        scheme = urllib.parse.urlsplit(url).scheme
        if scheme not in ("http", "https", "file"):
            raise ConfigError({URL_KEY: f"{URL_KEY}={url} is no address of keys: it begins with https, http or file"})
        if scheme == "file":
            # What is wrong with it is said at once; a server may come up later.
            self._keys = self._read()

    def check(self, token: str) -> Proof:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError) as error:
            raise BadCredentialsError(f"the token cannot be read: {error}") from None
        key = self._keys.get(header.get("kid"))
        if key is None and len(self._keys) == 1 and (None in self._keys or "kid" not in header):
            (key,) = self._keys.values()  # there is no other that it could mean
        if header.get("alg") not in ALGORITHMS:
            raise BadCredentialsError(f"tokens signed by {visible(str(header.get('alg'))[:40])} are not taken")
        if key is None:
            if self._is_wanted is not None:
                self._is_wanted.set()
            raise BadCredentialsError(f"there is no key {visible(str(header.get('kid'))[:100])} at {self._shown}")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=list(self._rules.audience) or None,
                issuer=self._rules.issuer,
                leeway=self._rules.skew_s,
                options={"require": ["exp", "iat"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise BadCredentialsError(f"the token is not taken: {visible(str(error)[:200])}") from None
        return self._rules.proof(claims)

    # --- keys

    @property
    def _shown(self) -> str:
        """The address without what may be secret in it."""
        parts = urllib.parse.urlsplit(self._url)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    async def refresh(self, runtime: Runtime) -> None:
        """Read the keys now, now and then, and when a token names one that is not there."""
        self._is_wanted = asyncio.Event()
        failures = 0
        while True:
            looked_at = runtime.clock.monotonic()
            try:
                self._keys = await runtime.offload(self._read)
                failures = 0
            except ConfigError as error:
                log.warning("%s; tokens are checked by the keys that were there before (%d)", error, len(self._keys))
                failures += 1
            wait_s = min(self._retry_s * 2 ** min(failures, 20), self._retry_max_s) if failures else self._refresh_s
            try:
                await asyncio.wait_for(self._is_wanted.wait(), wait_s)
                await asyncio.sleep(max(0.0, looked_at + _LOOK_AGAIN_S - runtime.clock.monotonic()))
            except TimeoutError:
                pass
            self._is_wanted.clear()

    def _read(self) -> dict[str | None, Any]:
        try:
            return _keys_in(_fetched(self._url))
        except (OSError, ValueError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigError({URL_KEY: f"no keys can be read at {self._shown}: {reason}"}) from None


def _fetched(url: str) -> bytes:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        with Path(urllib.request.url2pathname(parts.path)).open("rb") as file:
            data = file.read(_ANSWER_BYTES_MAX + 1)
    else:
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.build_opener(NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            data = answer.read(_ANSWER_BYTES_MAX + 1)
    if len(data) > _ANSWER_BYTES_MAX:
        raise ValueError(f"over {_ANSWER_BYTES_MAX} bytes")
    return bytes(data)


def _keys_in(data: bytes) -> dict[str | None, Any]:
    """By their ids; a key that stands alone has none."""
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if data.lstrip().startswith(b"-----BEGIN"):
        return {None: load_pem_public_key(data)}
    document = json.loads(data)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > _KEYS_MAX:
        raise ValueError("it holds no JWKS")
    found: dict[str | None, Any] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue  # a secret that is shared signs nothing here
        try:
            found[entry.get("kid")] = jwt.PyJWK(entry)
        except jwt.PyJWTError as error:
            log.warning("a key of a JWKS is left out: %s", visible(str(error)[:200]))
    if not found:
        raise ValueError("there is no key in it by which a signature could be checked")
    return found


def _is_text(name: str) -> bool:
    """Whether it can stand in an answer: JSON has a way to write halves of characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _milliseconds(config: BrokerConfig, listener: str, key: str) -> float:
    value = config.listener_value(listener, key, MECHANISM)
    assert isinstance(value, int)
    return value / 1000


# --- tokens of trials -------------------------------------------------------------------------------------------------


class UnsignedTokens:
    """Takes tokens without a signature, as Apache Kafka does by default: anybody can be anybody."""

    def __init__(self, listener: str, config: BrokerConfig) -> None:
        self._rules = TokenRules.of(listener, config)
        log.warning(
            "the listener %s takes tokens that nobody has signed (%s): anybody can log in there as anybody",
            listener,
            UNSIGNED_KEY,
        )

    def check(self, token: str) -> Proof:
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise BadCredentialsError("an unsigned token has three parts, the last of which is empty")
        header, claims = _object(parts[0]), _object(parts[1])
        if header.get("alg") != "none":
            raise BadCredentialsError("the token is signed, and there are no keys to check it by")
        proof = self._rules.proof(claims)
        now, issued = time.time(), claims.get("iat")
        if issued is not None and (isinstance(issued, bool) or not isinstance(issued, (int, float))):
            raise BadCredentialsError("the token's iat is no time")
        if issued is not None and issued > now + self._rules.skew_s:
            raise BadCredentialsError("the token was issued later than now")
        assert proof.expires_at_ms is not None
        if proof.expires_at_ms / 1000 < now - self._rules.skew_s or (issued or 0) > claims["exp"]:
            raise BadCredentialsError("the token has expired")
        return proof


def _object(part: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise BadCredentialsError("the token is no JWT") from None
    if not isinstance(found, dict):
        raise BadCredentialsError("the token is no JWT")
    return found


def token_checks(listeners: Sequence[str], config: BrokerConfig) -> dict[str, SignedTokens | UnsignedTokens]:
    """How each listener that takes tokens checks them; without keys it takes none, and says so."""
    found: dict[str, SignedTokens | UnsignedTokens] = {}
    for listener in listeners:
        url = config.listener_value(listener, URL_KEY, MECHANISM)
        if url:
            found[listener] = SignedTokens(listener, config, str(url))
        elif config.listener_value(listener, UNSIGNED_KEY, MECHANISM):
            found[listener] = UnsignedTokens(listener, config)
        else:
            log.warning(
                "the listener %s has no keys to check tokens by, and takes none: set %s (Apache Kafka would take "
                "tokens that nobody has signed)",
                listener,
                URL_KEY,
            )
    return found
