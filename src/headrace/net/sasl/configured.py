"""From a client's `sasl.*` keys to an authentication flow."""

from __future__ import annotations

import importlib
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from headrace.config import ConfigError, Password, check_plain_setting
from headrace.net.authentication import Authenticate
from headrace.net.sasl import oauthbearer
from headrace.net.sasl.exchange import authenticate_by
from headrace.net.sasl.jaas import InvalidJaasError, parse_jaas
from headrace.net.sasl.oauthbearer import ClientCredentials, TokenSource, token_of
from headrace.net.sasl.plain import plain
from headrace.net.sasl.scram import DIGESTS, scram

MECHANISMS = ("PLAIN", *DIGESTS, "OAUTHBEARER")
_KERBEROS = "GSSAPI"
_CLIENT = "sasl.oauthbearer.client.credentials.client."
_CALLBACK = "sasl.oauthbearer.token.callback"


def sasl_security(values: Mapping[str, Any]) -> tuple[Authenticate, Callable[[], None] | None]:
    """How connections authenticate, and what has to be done before each does, which may block."""
    mechanism = str(values["sasl.mechanism"]).upper()
    if mechanism == _KERBEROS:
        raise ConfigError(
            {
                "sasl.mechanism": f"sasl.mechanism has to be set to one of {', '.join(MECHANISMS)}: its default, "
                "GSSAPI (Kerberos), is not spoken here"
            }
        )
    if mechanism not in MECHANISMS:
        raise ConfigError(
            {"sasl.mechanism": f"sasl.mechanism={mechanism} is not spoken here; there are {', '.join(MECHANISMS)}"}
        )
    options = _jaas_options(values, mechanism)
    if mechanism == "OAUTHBEARER":
        source = TokenSource(_provider(values, options))
        return authenticate_by(mechanism, source.exchange), source.refresh
    username, password = _credentials(values, options, mechanism)
    if mechanism == "PLAIN":
        return authenticate_by(mechanism, lambda: plain(username, password)), None
    by_token = options.get("tokenauth", "").lower() == "true"
    return (
        authenticate_by(mechanism, lambda: scram(mechanism, username, password, token_authenticated=by_token)),
        None,
    )


def _jaas_options(values: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    given = values["sasl.jaas.config"]
    if given is None:
        return {}
    try:
        entry = parse_jaas(_secret(given))
        entry.check_mechanism(mechanism)
    except InvalidJaasError as error:
        raise ConfigError({"sasl.jaas.config": f"sasl.jaas.config cannot be used: {error}"}) from None
    return entry.options


def _credentials(values: Mapping[str, Any], options: Mapping[str, str], mechanism: str) -> tuple[str, str]:
    username = values["sasl.username"] if values["sasl.username"] is not None else options.get("username")
    password = values["sasl.password"]
    secret = options.get("password") if password is None else _secret(password)
    if username is None or secret is None:
        missing = "sasl.username" if username is None else "sasl.password"
        raise ConfigError(
            {
                missing: f"{mechanism} needs sasl.username and sasl.password, or both in sasl.jaas.config: "
                f"{missing} is not set"
            }
        )
    return username, secret


def _provider(values: Mapping[str, Any], options: Mapping[str, str]) -> oauthbearer.Provider:
    given = values[_CALLBACK]
    if given is not None:
        callback = _loaded(given) if isinstance(given, str) else given
        check_plain_setting(_CALLBACK, callback)
        return lambda: token_of(callback())
    url = values["sasl.oauthbearer.token.endpoint.url"]
    client_id = values[_CLIENT + "id"] or options.get("clientId")
    secret = values[_CLIENT + "secret"]
    client_secret = options.get("clientSecret") if secret is None else _secret(secret)
    if not url or not client_id or client_secret is None:
        raise ConfigError(
            {
                "sasl.oauthbearer.token.endpoint.url": "OAUTHBEARER needs a function that gives tokens "
                "(sasl.oauthbearer.token.callback), or an OAuth server: sasl.oauthbearer.token.endpoint.url, "
                f"{_CLIENT}id and {_CLIENT}secret"
            }
        )
    if urllib.parse.urlsplit(url).scheme not in ("https", "http"):
        raise ConfigError(
            {
                "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url has to begin with https or "
                "http; for tokens that are in a file give a function that reads it (sasl.oauthbearer.token.callback)"
            }
        )
    extensions = {
        name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
    }
    return ClientCredentials(
        url=url,
        client_id=client_id,
        client_secret=client_secret,
        scope=values["sasl.oauthbearer.scope"] or options.get("scope"),
        extensions=extensions,
        timeout_s=(values["sasl.login.read.timeout.ms"] or 10_000) / 1000,
        backoff_s=values["sasl.login.retry.backoff.ms"] / 1000,
    )


def _loaded(dotted: str) -> Callable[[], object]:
    """The function that a dotted name stands for: what a properties file, or an option of Spark's, can say."""
    module, _, attribute = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError) as error:
        raise ConfigError({_CALLBACK: f"{_CALLBACK}={dotted} cannot be loaded: {error}"}) from error
    if not callable(found):
        raise ConfigError({_CALLBACK: f"{_CALLBACK}={dotted} names no function: give module.function"})
    called: Callable[[], object] = found
    return called


def _secret(given: Password | str) -> str:
    return given.value if isinstance(given, Password) else given
