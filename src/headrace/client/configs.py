"""Configuration of clients: Kafka's own keys, as a mapping or as keywords with underscores.

`read_config` turns what a user gave into typed values: unknown keys are warned of with the nearest known name, wrong
values are refused all at once. A client adds its own keys to `COMMON_KEYS` in a `ConfigDefinition` of its own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from headrace.client.other_names import equivalent, in_kafkas_words
from headrace.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    at_least,
    between,
    list_matching,
    one_of,
)
from headrace.net.backoff import Backoff
from headrace.net.key_stores import STORE_TYPES
from headrace.net.security import client_security
from headrace.net.settings import ConnectionSettings

_ADDRESS = r"(?:[A-Za-z0-9_+]+://)?(?:\[[0-9A-Fa-f:%.]+\]|[^\s:/,\[\]]+):\d{1,5}"
_PACKAGE = __name__.partition(".")[0]


class UnknownConfigWarning(UserWarning):
    """A key was given that this client does not know; it has no effect."""


def key(name: str, type_: ConfigType, default: Any, validator: Any = None, doc: str = "", **rest: Any) -> ConfigKey:
    """A `ConfigKey` in one line."""
    return ConfigKey(name, type_, default, validator, doc, **rest)


_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_DOUBLE, _SHORT, _CLASS, _PASSWORD = ConfigType.DOUBLE, ConfigType.SHORT, ConfigType.CLASS, ConfigType.PASSWORD

SSL_KEYS = (
    key("ssl.protocol", _STRING, "TLSv1.3", doc="Without effect: ssl.enabled.protocols decides."),
    key("ssl.cipher.suites", _LIST, (), doc="Cipher suites, by Java's names or OpenSSL's; empty: Python's choice."),
    key(
        "ssl.enabled.protocols",
        _LIST,
        ("TLSv1.2", "TLSv1.3"),
        doc="TLS versions to speak: from the lowest of these to the highest.",
    ),
    key("ssl.keystore.type", _STRING, "PEM", one_of(*STORE_TYPES), "What a file is (PEM, PKCS#12), its content says."),
    key("ssl.keystore.location", _STRING, None, doc="The client's key and certificate chain, PEM or PKCS#12."),
    key(
        "ssl.keystore.password",
        _PASSWORD,
        None,
        doc="Opens a PKCS#12 store, and a key without ssl.key.password.",
    ),
    key("ssl.key.password", _PASSWORD, None, doc="Opens an encrypted key."),
    key("ssl.keystore.key", _PASSWORD, None, doc="The client's key as PEM text."),
    key("ssl.keystore.certificate.chain", _PASSWORD, None, doc="The client's certificate chain as PEM text."),
    key("ssl.certificate.location", _STRING, None, doc="The client's certificate (PEM); librdkafka's name."),
    key("ssl.key.location", _STRING, None, doc="The key of ssl.certificate.location (PEM); librdkafka's name."),
    key("ssl.truststore.certificates", _PASSWORD, None, doc="Certificates to trust, as PEM text."),
    key("ssl.truststore.type", _STRING, "PEM", one_of(*STORE_TYPES), "As ssl.keystore.type."),
    key(
        "ssl.truststore.location",
        _STRING,
        None,
        doc="Certificates to trust: PEM, PKCS#12 or a directory of PEM files; none: those of the system.",
    ),
    key("ssl.truststore.password", _PASSWORD, None, doc="Opens a PKCS#12 store."),
    key(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        one_of("https", "", "none", ignore_case=True),
        "Whether a certificate has to be for the name that was connected to.",
    ),
    key(
        "enable.ssl.certificate.verification",
        ConfigType.BOOLEAN,
        True,
        doc="Whether brokers have to prove who they are; librdkafka's name.",
    ),
)

SASL_KEYS = (
    key(
        "sasl.mechanism",
        _STRING,
        "GSSAPI",
        doc="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. Kafka's default, GSSAPI, is not spoken.",
    ),
    key("sasl.jaas.config", _PASSWORD, None, doc="Name and password as Java's clients take them."),
    key("sasl.username", _STRING, None, doc="For PLAIN and SCRAM; librdkafka's name. Java's is in sasl.jaas.config."),
    key("sasl.password", _PASSWORD, None, doc="For PLAIN and SCRAM."),
    key(
        "sasl.oauthbearer.token.callback",
        _CLASS,
        None,
        doc="A function without arguments, or its dotted name: returns a token, or (token, seconds since 1970).",
    ),
    key(
        "sasl.login.connect.timeout.ms",
        _INT,
        None,
        doc="Without effect: sasl.login.read.timeout.ms holds for the connection too.",
    ),
    key("sasl.login.read.timeout.ms", _INT, None, doc="How long an OAuth server may take to answer; none: 10 s."),
    key("sasl.login.retry.backoff.max.ms", _LONG, 10_000, doc="Without effect."),
    key("sasl.login.retry.backoff.ms", _LONG, 100, doc="Wait before an OAuth server is asked again."),
    key(
        "sasl.login.refresh.window.factor",
        _DOUBLE,
        0.8,
        between(0.5, 1.0),
        doc="Without effect: see sasl.oauthbearer.token.callback.",
    ),
    key("sasl.login.refresh.window.jitter", _DOUBLE, 0.05, between(0.0, 0.25), doc="Without effect."),
    key("sasl.login.refresh.min.period.seconds", _SHORT, 60, between(0, 900), doc="Without effect."),
    key("sasl.login.refresh.buffer.seconds", _SHORT, 300, between(0, 3600), doc="Without effect."),
    key("sasl.oauthbearer.scope", _STRING, None, doc="The scope that is asked for."),
    key("sasl.oauthbearer.client.credentials.client.id", _STRING, None, doc="The client's id at the OAuth server."),
    key("sasl.oauthbearer.client.credentials.client.secret", _PASSWORD, None, doc="The client's secret there."),
    key("sasl.oauthbearer.token.endpoint.url", _STRING, None, doc="The OAuth server that gives tokens."),
)

COMMON_KEYS = (
    ConfigKey(
        "bootstrap.servers",
        _LIST,
        validator=list_matching("host:port, several separated by commas", _ADDRESS, allow_empty=False),
        doc="Brokers to ask for the cluster's metadata first; two or three are enough to find all.",
        importance=Importance.HIGH,
    ),
    key(
        "client.dns.lookup",
        _STRING,
        "use_all_dns_ips",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "Try every address of a name in turn, or look up the full name of each address of bootstrap.servers first.",
    ),
    key("client.id", _STRING, "", doc="A name that brokers log, and count quotas by."),
    key("send.buffer.bytes", _INT, 131_072, at_least(-1), "The socket's SO_SNDBUF; -1 leaves it to the system."),
    key("receive.buffer.bytes", _INT, 65_536, at_least(-1), "The socket's SO_RCVBUF; -1 leaves it to the system."),
    key(
        "reconnect.backoff.ms",
        _LONG,
        50,
        at_least(0),
        doc="Wait before a failed connection is tried again; doubles with every failure.",
    ),
    key("reconnect.backoff.max.ms", _LONG, 1000, at_least(0), doc="The longest such wait."),
    key(
        "retry.backoff.ms",
        _LONG,
        100,
        at_least(0),
        doc="Wait before a failed request is tried again; doubles with every failure.",
    ),
    key("retry.backoff.max.ms", _LONG, 1000, at_least(0), doc="The longest such wait."),
    key("request.timeout.ms", _INT, 30_000, at_least(0), doc="How long a broker may take to answer a request."),
    key(
        "metadata.max.age.ms",
        _LONG,
        300_000,
        at_least(0),
        doc="Ask for the cluster's metadata again after so long, though nothing failed.",
    ),
    key(
        "socket.connection.setup.timeout.ms",
        _LONG,
        10_000,
        at_least(1),
        doc="How long a connection may take to open; doubles with every failure.",
    ),
    key("socket.connection.setup.timeout.max.ms", _LONG, 30_000, at_least(1), doc="The longest such time."),
    key("connections.max.idle.ms", _LONG, 540_000, at_least(-1), "-1: never."),
    key(
        "metadata.recovery.strategy",
        _STRING,
        "rebootstrap",
        one_of("rebootstrap", "none", ignore_case=True),
        doc="When no known broker answers: ask bootstrap.servers again, or not.",
    ),
    key(
        "metadata.recovery.rebootstrap.trigger.ms",
        _LONG,
        300_000,
        at_least(0),
        doc="How long metadata may fail before bootstrap.servers are asked again.",
    ),
    key(
        "security.protocol",
        _STRING,
        "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", ignore_case=True),
        "TLS or not, SASL or not.",
    ),
    *SSL_KEYS,
    *SASL_KEYS,
)

_COMMON = ConfigDefinition(COMMON_KEYS)


def common_keys(**defaults: ConfigValue) -> tuple[ConfigKey, ...]:
    """`COMMON_KEYS` of a client that has other defaults for some, given by their names with underscores."""
    others = {name.replace("_", "."): value for name, value in defaults.items()}
    return tuple(replace(one, default=others.get(one.name, one.default)) for one in COMMON_KEYS)


# Keys that Kafka's Java clients know and that mean nothing here: accepted without a warning, without effect.
_WITHOUT_EFFECT = frozenset(
    {
        "auto.include.jmx.reporter",
        "config.providers",
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "security.providers",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
_WITHOUT_EFFECT_PREFIXES = ("sasl.kerberos.", "sasl.oauthbearer.", "sasl.login.", "sasl.client.")


SCHEMA_SETTINGS = (
    "schema.registry.",
    "auto.register.schemas",
    "use.latest.version",
    "use.schema.id",
    "normalize.schemas",
    "latest.cache.",
    "subject.name.strategy",
    "key.subject.name.strategy",
    "value.subject.name.strategy",
    "basic.auth.user.info",
    "bearer.auth.token",
    "json.fail.invalid.schema",
    "skip.known.types",
)
"""Settings that the serializers with schemas read; and what those begin with that are several."""


def merge(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping by Kafka's names, of a mapping and of keywords that have underscores for dots."""
    check_config(config)
    merged: dict[str, Any] = dict(config or {})
    for name, value in keywords.items():
        dotted = name.replace("_", ".")
        if dotted in merged:
            raise ConfigError({dotted: f"{dotted} is given twice: in the mapping and as the keyword {name}"})
        merged[dotted] = value
    return merged


def check_config(config: object) -> None:
    """Refuse the address alone, which other libraries take."""
    if isinstance(config, (str, bytes)):
        raise TypeError(
            f"a client takes its settings as a mapping, {{'bootstrap.servers': {config!r}}}, or as keywords, "
            f"bootstrap_servers={config!r}"
        )


def common_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """What of one client's configuration any other client of the same cluster needs too, under Kafka's names."""
    return {name: value for name, value in in_kafkas_words(given, _COMMON).items() if name in _COMMON}


def read_config(
    definition: ConfigDefinition, given: Mapping[str, Any], *, extra: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Typed values of every key of the definition. `extra` names keys (or prefixes) that others read."""
    given = in_kafkas_words(given, definition)
    objects = {name: value for name, value in given.items() if _is_object(definition, name, value)}
    values = cast(
        "dict[str, Any]", definition.parse({name: value for name, value in given.items() if name not in objects})
    )
    values.update(objects)
    for name, nearest in definition.unknown(given).items():
        if (has_no_effect(name) and not equivalent(name)) or name in extra or name.startswith(extra):
            continue
        hint = equivalent(name) or (f"; did you mean {nearest}?" if nearest else "")
        text = f"unknown configuration {name} has no effect{hint}"
        warnings.warn(text, UnknownConfigWarning, stacklevel=_callers_level())
    return values


def has_no_effect(name: str) -> bool:
    """Whether this is a setting of Kafka's Java clients that means nothing here."""
    return name in _WITHOUT_EFFECT or name.startswith(_WITHOUT_EFFECT_PREFIXES)


def _callers_level() -> int:
    """The `stacklevel` of a warning that shall point at the line that made the client: the first that is not ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level


def _is_object(definition: ConfigDefinition, name: str, value: Any) -> bool:
    """Whether an object stands where a dotted name could: a serializer, a partitioner, a list of interceptors."""
    found = definition.get(name)
    if found is None or value is None or isinstance(value, str):
        return False
    if found.type is _CLASS:
        return True
    return found.type is _LIST and isinstance(value, (list, tuple)) and any(not isinstance(v, str) for v in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig(ConnectionSettings):
    """What the common core of every client needs to know, in its own types."""

    bootstrap: tuple[tuple[str, int], ...]
    retry_backoff: Backoff
    metadata_max_age_ms: int
    rebootstrap: bool
    rebootstrap_trigger_ms: int
    canonical_bootstrap: bool

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ConnectionConfig:
        """From values that `read_config` gave."""
        return cls(
            bootstrap=tuple(parse_address(text) for text in values["bootstrap.servers"]),
            client_id=values["client.id"],
            reconnect_backoff=Backoff(values["reconnect.backoff.ms"], values["reconnect.backoff.max.ms"]),
            retry_backoff=Backoff(values["retry.backoff.ms"], values["retry.backoff.max.ms"]),
            setup_backoff=Backoff(
                values["socket.connection.setup.timeout.ms"], values["socket.connection.setup.timeout.max.ms"]
            ),
            request_timeout_ms=values["request.timeout.ms"],
            metadata_max_age_ms=values["metadata.max.age.ms"],
            idle_max_ms=values["connections.max.idle.ms"],
            rebootstrap=values["metadata.recovery.strategy"].lower() == "rebootstrap",
            rebootstrap_trigger_ms=values["metadata.recovery.rebootstrap.trigger.ms"],
            canonical_bootstrap=values["client.dns.lookup"] == "resolve_canonical_bootstrap_servers_only",
            send_buffer_bytes=values["send.buffer.bytes"],
            receive_buffer_bytes=values["receive.buffer.bytes"],
            security=client_security(values),
            in_flight_max=values.get("max.in.flight.requests.per.connection", 100),
        )


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `PROTOCOL://host:port`."""
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not 0 < int(port) <= 65_535:
        raise ConfigError({"bootstrap.servers": f"bootstrap.servers has {text}, but {port} is not a port"})
    return host.removeprefix("[").removesuffix("]"), int(port)
