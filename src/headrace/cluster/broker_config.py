"""What can be configured about a broker, and the values in effect for one.

The keys are Kafka 4.3's (tables in `broker_keys`). Values come from four places, the first that has one wins: dynamic
configuration of this broker, dynamic defaults of the cluster, what the broker was started with, the key's default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.cluster.broker_keys.row import AREAS, load
from headrace.cluster.broker_keys.row import BrokerKey as BrokerKey
from headrace.cluster.broker_keys.row import UpdateMode as UpdateMode
from headrace.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigValue,
    Password,
    RawValue,
    format_value,
)

BROKER_KEYS: Final[dict[str, BrokerKey]] = {
    row.name: row for row in sorted((row for area in AREAS for row in load(area)), key=lambda row: row.name)
}
"""Every key with what is said about it, by name."""

BROKER_CONFIGS: Final = ConfigDefinition(row.key for row in BROKER_KEYS.values() if not row.dynamic_only)
"""The keys that a broker can be started with."""

_SYNONYM_GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_PER_LISTENER_ONLY: Final = frozenset(
    {
        "ssl.keystore.certificate.chain",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.keystore.location",
        "ssl.truststore.type",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.keystore.type",
    }
)
_OF_AUTHORIZER: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
"""Kafka's broker does not know these either: they are handed to the authorizer as they are."""
_PER_MECHANISM: Final = (
    "sasl.login.class",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "connections.max.reauth.ms",
    "sasl.server.callback.handler.class",
)
#: Keys of the authorizer, which no listener or topic has; Kafka takes changes of them, which then have no effect.
_AUTHORIZERS: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
#: How the settings of tokens begin: by which keys they are checked, and where those are.
_TOKENS: Final = ("sasl.oauthbearer.", "headrace.oauthbearer.")
_LOGIN_MODULES: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.login.class",
        "sasl.login.callback.handler.class",
        "sasl.server.callback.handler.class",
        "sasl.client.callback.handler.class",
    }
)
"""What says who may log in, or would name code to be run: nobody changes that from afar."""
_CLUSTER_WIDE_PER_LISTENER: Final = frozenset(
    {"max.connection.creation.rate", "num.network.threads", "max.connections"}
)
_LISTENER_PREFIX: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")


def base_name(name: str) -> str:
    """The key that a name is about: `listener.name.internal.ssl.client.auth` is about `ssl.client.auth`."""
    match = _LISTENER_PREFIX.fullmatch(name)
    if match is None:
        return name
    inner = match.group(1)
    of_tokens = inner.partition(".")[2]  # behind the mechanism
    if of_tokens.startswith(_TOKENS):
        return of_tokens
    return next((key for key in _PER_MECHANISM if inner.endswith("." + key)), inner)


def key_for(name: str) -> ConfigKey | None:
    """The key of a name, with or without a listener's prefix; None for names that Kafka does not know either."""
    row = BROKER_KEYS.get(base_name(name))
    return None if row is None else row.key


def is_secret(name: str) -> bool:
    """Whether a key's value may be seen by nobody but the broker itself."""
    key = key_for(name)
    return key is not None and key.is_sensitive


def synonyms_of(name: str) -> tuple[str, ...]:
    """The names under which a value of this key may be given, itself among them, the one that counts most first."""
    for group in _SYNONYM_GROUPS:
        if name in group:
            return group
    if name == "log.flush.interval.ms":
        return (name, "log.flush.scheduler.interval.ms")
    base = base_name(name)
    return (name,) if base == name else (name, base)


def is_dynamic(name: str) -> bool:
    """Whether a key can be changed while the broker runs."""
    row = BROKER_KEYS.get(name)
    return row is not None and row.mode is not UpdateMode.READ_ONLY


def inert_keys() -> list[str]:
    """The keys that are accepted and change nothing, for the documentation."""
    return [row.name for row in BROKER_KEYS.values() if row.inert and not row.internal]


def dynamic_problem(values: Mapping[str, str], *, per_broker: bool) -> str | None:
    """Why these cannot be the dynamic values of one broker (or, if not `per_broker`, of the cluster); None if they can.

    Names that are not known are let through: Kafka keeps them, for plug-ins.
    """
    fixed = sorted(name for name in values if name in _AUTHORIZERS or (name in BROKER_KEYS and not is_dynamic(name)))
    if fixed:
        return f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
    modules = sorted(name for name in values if _says_who_logs_in(base_name(name)))
    if modules:
        return f"These say how clients log in, and are read from the broker's own file only: [{', '.join(modules)}]"
    bare = sorted(name for name in values if name in _PER_LISTENER_ONLY)
    if bare:
        return (
            f"These security configs can only be changed with the prefix of a listener (listener.name.NAME.): "
            f"[{', '.join(bare)}]"
        )
    if not per_broker:
        own = sorted(name for name in values if _only_per_broker(name))
        if own:
            return f"Cannot update these configs for all brokers at once, name a broker: [{', '.join(own)}]"
    problems = []
    for name, value in values.items():
        key = key_for(name)
        if key is None:
            continue
        try:
            key.parse(value)
        except ConfigError as error:
            problems.append(str(error))
        else:
            problems += [problem for _, problem in _retention_problems({name: key.parse(value)})]
    return "; ".join(problems) or None


def _says_who_logs_in(base: str) -> bool:
    return base in _LOGIN_MODULES or base.startswith(_TOKENS)


def _only_per_broker(name: str) -> bool:
    base = base_name(name)
    if base != name:
        return base not in _CLUSTER_WIDE_PER_LISTENER
    row = BROKER_KEYS.get(name)
    return row is not None and row.mode is UpdateMode.PER_BROKER and not row.dynamic_only


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The configuration of one broker: what it was started with, as text, and the values in effect."""

    given: Mapping[str, str] = field(repr=False)
    values: Mapping[str, ConfigValue] = field(repr=False)
    dynamic_default: Mapping[str, str] = field(default_factory=dict, repr=False)
    dynamic: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, RawValue]) -> BrokerConfig:
        """A broker's configuration from a properties file or native values; a `ConfigError` names all that is wrong."""
        problems = dict(_listener_problems(given))
        try:
            values = BROKER_CONFIGS.parse(given)
        except ConfigError as error:
            raise ConfigError(problems | error.problems) from None
        problems.update(_contradictions(values, given))
        if problems:
            raise ConfigError(problems)
        texts = {name: _as_text(name, raw) for name, raw in given.items() if raw is not None}
        return cls(_both_ids(texts), BROKER_CONFIGS.parse(_both_ids(texts)))

    def with_dynamic(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> BrokerConfig:
        """The same broker under other dynamic configuration; values there that cannot be read are left aside."""
        if dynamic_default == self.dynamic_default and dynamic == self.dynamic:
            # As a rule there is none. What is in effect is asked for after every change of the metadata.
            return self
        is_plain = not self.dynamic_default and not self.dynamic
        values = dict(self.values) if is_plain else BROKER_CONFIGS.parse(self.given)
        for layer in (dynamic_default, dynamic):
            for name, text in layer.items():
                row = BROKER_KEYS.get(name)
                if row is None or row.mode is UpdateMode.READ_ONLY:
                    continue
                try:
                    values[name] = row.key.parse(text)
                except ConfigError:
                    # The controller refuses such values; one that an older version let in must not stop a broker.
                    continue
        return BrokerConfig(self.given, values, dict(dynamic_default), dict(dynamic))

    def unknown(self) -> dict[str, str | None]:
        """Keys given that nobody knows, each with the one probably meant."""
        bases = {base_name(name): name for name in self.given if name not in _OF_AUTHORIZER}
        return {bases[base]: near for base, near in BROKER_CONFIGS.unknown(bases).items()}

    def without_effect(self) -> list[str]:
        """Keys given a value other than Kafka's own, of which nothing depends here."""
        found = []
        for name, text in self.given.items():
            row = BROKER_KEYS.get(base_name(name))
            if row is not None and row.inert and row.key.parse(text) != row.key.default:
                found.append(name)
        return sorted(found)

    def __getitem__(self, name: str) -> ConfigValue:
        return self.values[name]

    def get_int(self, name: str) -> int:
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not a number")
        return value

    def get_float(self, name: str) -> float:
        value = self.values[name]
        if not isinstance(value, float):
            raise TypeError(f"{name} is {value!r}, not a number")
        return value

    def get_bool(self, name: str) -> bool:
        value = self.values[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not true or false")
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        if not isinstance(value, tuple):
            raise TypeError(f"{name} is {value!r}, not a list")
        return value

    def listener_value(self, listener: str, name: str, mechanism: str | None = None) -> ConfigValue:
        """The value of a key for one listener (and SASL mechanism), or the general one when it has none of its own."""
        prefix = f"listener.name.{listener.lower()}."
        candidates = [prefix + name]
        if mechanism is not None:
            candidates.insert(0, f"{prefix}{mechanism.lower()}.{name}")
        for source in (self.dynamic, self.dynamic_default, self.given):
            for candidate in candidates:
                if candidate in source:
                    return BROKER_CONFIGS[name].parse(source[candidate])
        return self.values[name]

    @property
    def node_id(self) -> int:
        """The broker's number; -1 when none is configured."""
        node_id = self.get_int("node.id")
        return node_id if node_id >= 0 else self.get_int("broker.id")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return self.get_list("log.dirs") if self.values["log.dirs"] is not None else self.get_list("log.dir")


def _both_ids(texts: dict[str, str]) -> dict[str, str]:
    """node.id and broker.id are two names of one number, so giving one gives the other."""
    for name, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if name in texts:
            texts.setdefault(other, texts[name])
    return texts


def _as_text(name: str, raw: RawValue) -> str:
    if isinstance(raw, str):
        return raw.strip()
    if isinstance(raw, Password):
        return raw.value
    key = key_for(name)
    value = key.parse(raw) if key is not None else raw
    if isinstance(value, list):
        value = tuple(value)
    return format_value(value) or ""  # type: ignore[arg-type]  # an unknown key's native value is printed as it is


def _listener_problems(given: Mapping[str, RawValue]) -> Iterable[tuple[str, str]]:
    for name, raw in given.items():
        if base_name(name) == name:
            continue
        key = key_for(name)
        if key is not None:
            try:
                key.parse(raw)
            except ConfigError as error:
                yield name, str(error).replace(key.name, name, 1)


def _contradictions(values: Mapping[str, ConfigValue], given: Mapping[str, RawValue]) -> Iterable[tuple[str, str]]:
    """What is right key by key but cannot be right together."""
    if "node.id" in given and "broker.id" in given and values["node.id"] != values["broker.id"]:
        yield "node.id", f"node.id={values['node.id']} and broker.id={values['broker.id']} differ; give only node.id"
    for low, high in (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ):
        if _number(values[low]) > _number(values[high]):
            yield low, f"{low}={values[low]} must not be larger than {high}={values[high]}"
    yield from _retention_problems(values)


def _retention_problems(values: Mapping[str, ConfigValue]) -> Iterable[tuple[str, str]]:
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values.get(name) is not None and (values[name] == 0 or _number(values[name]) < -1):
            yield name, f"Invalid value {values[name]} for configuration {name}: must be -1 (for ever) or at least 1"


def _number(value: ConfigValue) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value
