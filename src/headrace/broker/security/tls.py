"""TLS of one listener: its certificates, exchanged while it runs, and who a client's certificate names.

What is exchanged counts for connections that are made from then on; those that are open go on as they are.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.requests.client import Client
from headrace.broker.security.principals import MalformedNameError, NoRuleError, PrincipalRules, subject_of
from headrace.cluster.broker_config import base_name
from headrace.config import ConfigError
from headrace.net.key_stores import first_certificate
from headrace.net.sasl.serving import USER
from headrace.net.tls import identity, server_context

if TYPE_CHECKING:
    from headrace.cluster.broker_config import BrokerConfig
    from headrace.config import ConfigValue

log = logging.getLogger("headrace.broker.security")

#: What a listener's TLS is made of.
TLS_KEYS: Final = (
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
)
_CLIENT_AUTH: Final = "ssl.client.auth"
_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")


class NoPrincipalError(Exception):
    """A certificate from which nobody can be named."""


class _Names(NamedTuple):
    """For whom a certificate is."""

    subject: str
    others: frozenset[str]


class ListenerTls:
    """Gives the context of the next connection. `reload` may be called from any thread, one at a time."""

    def __init__(self, listener: str, config: BrokerConfig, *, has_login: bool = False) -> None:
        self._listener = listener
        self._has_login = has_login
        if has_login and config.values[_CLIENT_AUTH] != "none" and not self._has_own_client_auth(config):
            log.warning(
                "%s counts for listeners without a login: %s asks for no certificates. Set %s if it is to do so",
                _CLIENT_AUTH,
                listener,
                self._key(_CLIENT_AUTH),
            )
        rules = config.listener_value(listener, "ssl.principal.mapping.rules")
        try:
            self._rules = PrincipalRules(str(rules or ""))
        except ValueError as error:
            raise ConfigError({self._key("ssl.principal.mapping.rules"): str(error)}) from None
        self._values = self._listener_values(config)
        self._files = _looked_at(self._values)
        self._context = self._made(self._values)
        self._names = _names_in(self._values)

    def _key(self, name: str) -> str:
        return f"listener.name.{self._listener.lower()}.{name}"

    def _listener_values(self, config: BrokerConfig) -> dict[str, ConfigValue]:
        values = {name: config.listener_value(self._listener, name) for name in TLS_KEYS}
        if self._has_login and not self._has_own_client_auth(config):
            # As in Kafka: a login says who a client is, unless this listener by its name wants a certificate besides.
            values[_CLIENT_AUTH] = "none"
        return values

    def _has_own_client_auth(self, config: BrokerConfig) -> bool:
        key = self._key(_CLIENT_AUTH)
        return any(key in given for given in (config.given, config.dynamic, config.dynamic_default))

    def _made(self, values: Mapping[str, ConfigValue]) -> ssl.SSLContext:
        try:
            return server_context(values)
        except (OSError, ValueError) as error:
            key = self._key("ssl.keystore.location")
            raise ConfigError(
                {key: f"the TLS settings (ssl.*) of the listener {self._listener} cannot be used: {error}"}
            ) from None

    def context(self) -> ssl.SSLContext:
        return self._context

    # --- exchange

    def check(self, config: BrokerConfig) -> None:
        """Whether this listener could go on with other settings; a `ConfigError` says why not."""
        values = self._listener_values(config)
        if values != self._values:
            self._made(values)
            self._check_names(config, _names_in(values))

    def reload(self, config: BrokerConfig) -> bool:
        """Take up other settings or files, if there are; a `ConfigError` if they cannot be used: nothing is changed.

        Whether anything was.
        """
        values = self._listener_values(config)
        files = _looked_at(values)
        if values == self._values and files == self._files:
            return False
        # What cannot be used is said once, and looked at again when it is another.
        self._values, self._files = values, files
        context, names = self._made(values), _names_in(values)
        self._check_names(config, names)
        self._context, self._names = context, names
        return True

    def _check_names(self, config: BrokerConfig, names: _Names) -> None:
        """Clients connect by the names in a certificate, and other brokers may know this one by its subject."""
        checks: tuple[tuple[str, str, Callable[[], bool]], ...] = (
            ("ssl.allow.dn.changes", "subject", lambda: names.subject == self._names.subject),
            ("ssl.allow.san.changes", "alternative names", lambda: names.others >= self._names.others),
        )
        for key, what, is_same in checks:
            if not config.listener_value(self._listener, key) and not is_same():
                raise ConfigError(
                    {
                        key: f"the new certificate of the listener {self._listener} has another {what} than the one "
                        f"before: set {key} to true if that is meant"
                    }
                )

    # --- who is there

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked for a certificate."""
        return self._context.verify_mode != ssl.CERT_NONE

    def user(self, tls: ssl.SSLSocket | ssl.SSLObject) -> str | None:
        """Whose certificate was shown; None where none was. Raises `NoPrincipalError`."""
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None or tls.context.verify_mode == ssl.CERT_NONE:
            return None
        try:
            return self._rules.user(subject_of(certificate))
        except (MalformedNameError, NoRuleError) as error:
            raise NoPrincipalError(str(error)) from None


def identify(connection: Client, tls: ListenerTls, shown: ssl.SSLSocket | ssl.SSLObject) -> None:
    """The client of a connection is whom its certificate names, if it has shown one."""
    try:
        user = tls.user(shown)
    except NoPrincipalError as error:
        connection.rights = None
        connection.tls_refused(str(error))
        connection.abort("its certificate names nobody")
        return
    if user is not None:
        connection.identify(f"{USER}:{user}")


def is_of_tls(name: str) -> bool:
    """Whether a key, with a listener's prefix or without, is about certificates and the like."""
    return base_name(name) in TLS_KEYS


def _looked_at(values: Mapping[str, ConfigValue]) -> tuple[tuple[int, ...], ...]:
    """What changes whenever one of the files does."""
    found = []
    for key in _FILES:
        location = values[key]
        try:
            state = os.stat(os.path.expanduser(str(location))) if location else None
        except OSError:
            state = None
        found.append(() if state is None else (state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)


def _names_in(values: Mapping[str, ConfigValue]) -> _Names:
    from cryptography import x509

    found = identity(values)
    pem = None if found is None else first_certificate(found[0])
    if pem is None:
        return _Names("", frozenset())
    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        others = x509.SubjectAlternativeName([])
    return _Names(certificate.subject.rfc4514_string(), frozenset(map(repr, others)))
