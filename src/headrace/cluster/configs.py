"""The configuration in effect: of topics, brokers and groups, each value with where it comes from.

A value of a topic may be the topic's own, or come from the broker's key of which it is a synonym: there the dynamic
value of the broker wins, then the dynamic default of the cluster, then what the broker was started with, then the
default.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.cluster.broker_config import BROKER_KEYS, BrokerConfig, is_dynamic, key_for, synonyms_of
from headrace.cluster.client_metrics_config import CLIENT_METRICS_CONFIGS
from headrace.cluster.group_config import GROUP_CONFIGS
from headrace.cluster.image import Image
from headrace.cluster.records import ResourceType
from headrace.config import ConfigDefinition, ConfigError, ConfigKey, ConfigValue, format_value
from headrace.log.config import TOPIC_CONFIGS, broker_defaults

_PROCESS_ROLES: Final = "broker,controller"
_WITHOUT_DEFAULT: Final = frozenset({"node.id", "process.roles"})


class ConfigSource(enum.IntEnum):
    """Where a value comes from; the numbers are those that DescribeConfigs answers with."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class SynonymEntry(NamedTuple):
    """One of the places that could have given a key its value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key of a resource with the value in effect, as DescribeConfigs shows it."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: int
    synonyms: tuple[SynonymEntry, ...]
    doc: str


@dataclass(frozen=True, slots=True, repr=False)
class BrokerLayers:
    """What a broker's values come from, before the defaults: the first layer that has a key wins."""

    dynamic: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    given: Mapping[str, str]

    @classmethod
    def of(cls, image: Image, config: BrokerConfig, node_id: int) -> BrokerLayers:
        own = image.config(ResourceType.BROKER, str(node_id))
        # A broker has these also when nobody gave them; Kafka does not start without.
        identity = {"node.id": str(node_id), "broker.id": str(node_id), "process.roles": _PROCESS_ROLES}
        return cls(own, image.config(ResourceType.BROKER, ""), {**identity, **config.given})

    def in_order(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        return (
            (ConfigSource.DYNAMIC_BROKER, self.dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (ConfigSource.STATIC_BROKER, self.given),
        )

    def synonyms(self, name: str) -> tuple[SynonymEntry, ...]:
        """Every place that gives a broker's key a value, in the order in which they count; the key itself leads."""
        key = key_for(name)
        hidden = key is None or key.is_sensitive
        names = synonyms_of(name)
        found = [
            SynonymEntry(synonym, None if hidden else layer[synonym], source)
            for source, layer in self.in_order()
            for synonym in names
            if synonym in layer
        ]
        for synonym in names:
            row = BROKER_KEYS.get(synonym)
            if row is not None and row.key.default is not None and synonym not in _WITHOUT_DEFAULT:
                text = None if hidden else _text_of_default(row.key)
                found.append(SynonymEntry(synonym, text, ConfigSource.DEFAULT))
        # Values under other names of the key count only after one under its own.
        own = next((i for i, entry in enumerate(found) if entry.name == name), len(found))
        return tuple(found[own:])


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_values(layers: BrokerLayers, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Every topic key with the value in effect, for a topic with these values of its own."""
    values = TOPIC_CONFIGS.defaults()
    for _, layer in reversed(layers.in_order()):
        values.update(_readable_defaults(layer))
    return with_own_values(values, overrides)


def with_own_values(values: Mapping[str, ConfigValue], overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
    """The values of a topic that has these of its own, where others have those."""
    return {**values, **_readable(TOPIC_CONFIGS, overrides)}


def topic_value(name: str, layers: BrokerLayers, overrides: Mapping[str, str]) -> ConfigValue:
    """One of `topic_values`, without making the others."""
    key = TOPIC_CONFIGS[name]
    own = {name: overrides[name]} if name in overrides else {}
    synonyms = [synonym.name for synonym in key.synonyms]
    only = [{n: layer[n] for n in synonyms if n in layer} for _, layer in layers.in_order()]
    default = key.default
    if not own and not any(only) and not isinstance(default, enum.Enum):
        return default
    return topic_values(BrokerLayers(*only), own)[name]


def describe_topic(
    layers: BrokerLayers, overrides: Mapping[str, str], names: Iterable[str] | None
) -> list[ConfigEntry]:
    values = topic_values(layers, overrides)
    wanted = None if names is None else set(names)
    return [
        _topic_entry(key, format_value(values[key.name]), layers, overrides)
        for key in TOPIC_CONFIGS
        if wanted is None or key.name in wanted
    ]


def _topic_entry(key: ConfigKey, value: str | None, layers: BrokerLayers, overrides: Mapping[str, str]) -> ConfigEntry:
    synonyms = layers.synonyms(key.synonyms[0].name) if key.synonyms else ()
    if key.name in overrides:
        synonyms = (SynonymEntry(key.name, value, ConfigSource.DYNAMIC_TOPIC), *synonyms)
        source = ConfigSource.DYNAMIC_TOPIC
    else:
        source = _source_of(key, layers)
    return ConfigEntry(key.name, value, source, False, False, key.type, synonyms, key.doc)


def describe_own_values(overrides: Mapping[str, str]) -> dict[str, str | None]:
    """By name, what a topic's own values are told as."""
    return {name: format_value(value) for name, value in _readable(TOPIC_CONFIGS, overrides).items()}


def _source_of(key: ConfigKey, layers: BrokerLayers) -> ConfigSource:
    for source, layer in layers.in_order():
        if any(synonym.name in layer for synonym in key.synonyms):
            return source
    return ConfigSource.DEFAULT


# --- brokers ----------------------------------------------------------------------------------------------------------


def describe_broker(layers: BrokerLayers, names: Iterable[str] | None) -> list[ConfigEntry]:
    """All keys of a broker, those that nobody knows but someone set among them."""
    known = [row.name for row in BROKER_KEYS.values() if not row.internal and not row.dynamic_only]
    others = {name for _, layer in layers.in_order() for name in layer} - set(known)
    others -= {row.name for row in BROKER_KEYS.values() if row.internal}
    wanted = None if names is None else set(names)
    return [
        _broker_entry(name, layers, layers.synonyms(name))
        for name in (*known, *sorted(others))
        if wanted is None or name in wanted
    ]


def describe_cluster_defaults(layers: BrokerLayers, names: Iterable[str] | None) -> list[ConfigEntry]:
    """Only what was set dynamically for all brokers."""
    wanted = None if names is None else set(names)
    entries = []
    for name in sorted(layers.dynamic_default):
        if wanted is None or name in wanted:
            default = ConfigSource.DYNAMIC_DEFAULT_BROKER
            synonyms = tuple(entry for entry in layers.synonyms(name) if entry.source is default)
            entries.append(_broker_entry(name, BrokerLayers({}, layers.dynamic_default, {}), synonyms))
    return entries


def _broker_entry(name: str, layers: BrokerLayers, synonyms: tuple[SynonymEntry, ...]) -> ConfigEntry:
    key = key_for(name)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    if key is None:
        # Nobody knows whether it is a secret, so it is treated as one.
        return ConfigEntry(name, None, source, True, True, 0, (), "")
    value = None if key.is_sensitive else _broker_value(name, key, layers)
    return ConfigEntry(name, value, source, not is_dynamic(name), key.is_sensitive, key.type, synonyms, key.doc)


def _broker_value(name: str, key: ConfigKey, layers: BrokerLayers) -> str | None:
    for _, layer in layers.in_order():
        if name in layer:
            return _printed(key, layer[name])
    return _text_of_default(key)


def broker_values(layers: BrokerLayers, definition: ConfigDefinition) -> dict[str, ConfigValue]:
    """The broker's values in effect for the keys of a table."""
    values = definition.defaults()
    for _, layer in reversed(layers.in_order()):
        values.update(_readable(definition, layer))
    return values


# --- groups -----------------------------------------------------------------------------------------------------------


def group_values(layers: BrokerLayers, overrides: Mapping[str, str]) -> dict[str, ConfigValue]:
    values = GROUP_CONFIGS.defaults()
    for key in GROUP_CONFIGS:
        for synonym in key.synonyms:
            for _, layer in layers.in_order():
                if synonym.name in layer:
                    values.update(_readable(GROUP_CONFIGS, {key.name: layer[synonym.name]}))
                    break
    values.update(_readable(GROUP_CONFIGS, overrides))
    return values


def describe_group(
    layers: BrokerLayers, overrides: Mapping[str, str], names: Iterable[str] | None
) -> list[ConfigEntry]:
    values = group_values(layers, overrides)
    wanted = None if names is None else set(names)
    entries = []
    for key in GROUP_CONFIGS:
        if wanted is not None and key.name not in wanted:
            continue
        value = format_value(values[key.name])
        source = ConfigSource.GROUP if key.name in overrides else _source_of(key, layers)
        if key.synonyms:
            synonyms = layers.synonyms(key.synonyms[0].name)
        else:
            synonyms = (SynonymEntry(key.name, _text_of_default(key), ConfigSource.DEFAULT),)
        if key.name in overrides:
            synonyms = (SynonymEntry(key.name, value, ConfigSource.GROUP), *synonyms)
        entries.append(ConfigEntry(key.name, value, source, False, False, key.type, synonyms, key.doc))
    return entries


def describe_client_metrics(overrides: Mapping[str, str], names: Iterable[str] | None) -> list[ConfigEntry]:
    values = CLIENT_METRICS_CONFIGS.defaults() | _readable(CLIENT_METRICS_CONFIGS, overrides)
    wanted = None if names is None else set(names)
    entries = []
    for key in CLIENT_METRICS_CONFIGS:
        if wanted is not None and key.name not in wanted:
            continue
        value = format_value(values[key.name])
        # As in Kafka, a default is none of the synonyms here.
        synonyms: tuple[SynonymEntry, ...] = ()
        source = ConfigSource.DEFAULT
        if key.name in overrides:
            source = ConfigSource.CLIENT_METRICS
            synonyms = (SynonymEntry(key.name, value, source),)
        entries.append(ConfigEntry(key.name, value, source, False, False, key.type, synonyms, key.doc))
    return entries


# --- text and values --------------------------------------------------------------------------------------------------


def _readable(definition: ConfigDefinition, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """The values that can be read. The controller refuses others; what an older version let in must not break a log."""
    values: dict[str, ConfigValue] = {}
    for name, text in texts.items():
        key = definition.get(name)
        if key is not None:
            try:
                values[name] = key.parse(text)
            except ConfigError:
                continue
    return values


def _readable_defaults(layer: Mapping[str, str]) -> dict[str, ConfigValue]:
    readable = {}
    for name, text in layer.items():
        key = key_for(name)
        if key is not None and key.name == name:
            try:
                readable[name] = key.parse(text)
            except ConfigError:
                continue
    return broker_defaults(readable)


def _printed(key: ConfigKey, text: str) -> str | None:
    try:
        return format_value(key.parse(text))
    except ConfigError:
        return text


def _text_of_default(key: ConfigKey) -> str | None:
    return None if isinstance(key.default, enum.Enum) else format_value(key.default)
