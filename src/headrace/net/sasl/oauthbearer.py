"""OAUTHBEARER (RFC 7628): a token instead of a password; where tokens come from, and when the next is fetched."""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError, NetworkError, SaslAuthenticationFailedError
from headrace.net.sasl.exchange import Exchange

log = logging.getLogger("headrace.net")

_SEPARATOR = "\x01"
_EXTENSION = re.compile(r"[A-Za-z]+")
_REFRESH_PART = 0.8
_TRY_AGAIN_S = 10.0
_ANSWER_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at` in seconds since 1970; None when nobody said."""

    value: str = field(repr=False)
    expires_at: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


Provider = Callable[[], Token]


def oauthbearer(token: Token) -> Exchange:
    """The client's side."""
    extensions = "".join(f"{_SEPARATOR}{name}={value}" for name, value in token.extensions.items())
    refusal = yield f"n,,{_SEPARATOR}auth=Bearer {token.value}{extensions}{_SEPARATOR}{_SEPARATOR}".encode()
    if refusal:
        # The reason comes in a message that has to be acknowledged; the refusal itself follows.
        yield _SEPARATOR.encode()
        raise SaslAuthenticationFailedError(f"the broker refused the token: {refusal.decode(errors='replace')}")


class TokenSource:
    """Keeps one token for all connections of a client and fetches the next before it ends. For several threads.

    A token without an end may be over at any time, so it serves for one authentication. One that a broker refused is
    forgotten, whatever end it has.
    """

    def __init__(self, provider: Provider, *, now: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._now = now
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._token: Token | None = None
        self._refresh_at = 0.0
        self._refused: Token | None = None
        """The last token that a broker did not take."""

    def refresh(self) -> None:
        """Have a token that is good for a while; may wait for whoever gives them."""
        if self._pid != os.getpid():
            # Who held it while this process was forked off is not here to give it back.
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            if self._token is not self._refused and self._now() < self._refresh_at:
                return
            try:
                self._token = token = self._checked_token()
            except HeadraceError as error:
                self._go_on_with_the_last(error)
                return
            now = self._now()
            self._refresh_at = 0.0 if token.expires_at is None else now + (token.expires_at - now) * _REFRESH_PART

    def _go_on_with_the_last(self, error: HeadraceError) -> None:
        """No token is given now. While the last one is good, that is no reason to be cut off."""
        token, now = self._token, self._now()
        is_over = token is not None and token.expires_at is not None and token.expires_at <= now
        if token is self._refused or token is None or is_over:
            raise error
        self._refresh_at = now + _TRY_AGAIN_S if token.expires_at is None else min(token.expires_at, now + _TRY_AGAIN_S)
        log.warning("the next token could not be had, and the last one is used for now: %s", error)

    def _checked_token(self) -> Token:
        try:
            token = self._provider()
            _check(token, self._now())
        except HeadraceError:
            raise
        except OSError as error:
            # Whoever gives tokens could not be reached: that may pass.
            raise NetworkError(f"there is no token now: {type(error).__name__}: {error}") from error
        except Exception as error:
            # Whatever a callback gave or a server answered: it is this connection's failure, and nobody else's.
            raise SaslAuthenticationFailedError(f"there is no token: {type(error).__name__}: {error}") from error
        return token

    def exchange(self) -> Exchange:
        token = self._token
        assert token is not None, "refreshed before a connection is authenticated"
        try:
            yield from oauthbearer(token)
        except SaslAuthenticationFailedError:
            self._refused = token
            raise


def _check(token: Token, now: float) -> None:
    if not token.value or not token.value.isascii() or not token.value.isprintable() or " " in token.value:
        raise SaslAuthenticationFailedError("the token is empty, or has characters that no token may have")
    if token.expires_at is not None and token.expires_at <= now:
        raise SaslAuthenticationFailedError(
            f"the token that was given has expired {now - token.expires_at:.0f} s ago: give a new one at every call"
        )
    for name, value in token.extensions.items():
        if not _EXTENSION.fullmatch(name) or name == "auth" or not value.isascii() or not value.isprintable():
            raise SaslAuthenticationFailedError(
                f"{name!r} cannot be a SASL extension: only letters, and printable text"
            )


def token_of(given: Any) -> Token:
    """What a callback returned: a token; or a tuple of it, its end (seconds since 1970), and perhaps a principal (which
    is not used) and extensions, as confluent-kafka has it. Without an end, the one that a JWT names."""
    if isinstance(given, Token):
        return given
    if isinstance(given, str):
        return Token(given, _expiry_of(given))
    if isinstance(given, tuple) and 2 <= len(given) <= 4 and isinstance(given[0], str):
        extensions = given[3] if len(given) == 4 else {}
        return Token(given[0], float(given[1]), dict(extensions or {}))
    raise SaslAuthenticationFailedError(
        f"the token callback returned {type(given).__name__}: return the token, or (token, seconds since 1970)"
    )


def _expiry_of(value: str) -> float | None:
    parts = value.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Secrets go, and keys come, where the configuration says, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Fetches tokens from an OAuth server by a client's own id and secret (RFC 6749, 4.4)."""

    url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    attempts: int = 3
    backoff_s: float = 0.1
    sleep: Callable[[float], None] = time.sleep

    @property
    def _shown_url(self) -> str:
        """Without a user name and password, which an address may hold."""
        parts = urllib.parse.urlsplit(self.url)
        return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def __call__(self) -> Token:
        for attempt in range(self.attempts):
            try:
                return self._fetch()
            except NetworkError:
                if attempt + 1 == self.attempts:
                    raise
                self.sleep(self.backoff_s * 2**attempt)
        raise AssertionError("there is at least one attempt")

    def _fetch(self) -> Token:
        secret = f"{urllib.parse.quote_plus(self.client_id)}:{urllib.parse.quote_plus(self.client_secret)}"
        body = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        request = urllib.request.Request(
            self.url,
            data=urllib.parse.urlencode(body).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": "Basic " + base64.b64encode(secret.encode()).decode(),
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=self.timeout_s) as response:
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                raise SaslAuthenticationFailedError(
                    f"{self._shown_url} gives no token to client {self.client_id}: {error.code} {error.reason}. "
                    "Check the client's id, secret and scope"
                ) from None
            raise NetworkError(f"{self._shown_url} gives no token now: {error.code} {error.reason}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NetworkError(f"{self._shown_url} gives no token now: {error}") from error
        value = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(value, str):
            raise SaslAuthenticationFailedError(f"{self._shown_url} answered without an access_token")
        lifetime_s = answer.get("expires_in")
        expires_at = _expiry_of(value) if lifetime_s is None else time.time() + float(lifetime_s)
        return Token(value, expires_at, self.extensions)
