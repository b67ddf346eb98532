"""The registry's settings, by Confluent's names. Those of the client that reaches Kafka begin with `kafkastore.`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.client.configs import SSL_KEYS
from headrace.config import (
    ConfigDefinition,
    ConfigError,
    ConfigKey,
    ConfigType,
    RawValue,
    at_least,
    between,
    non_empty,
    one_of,
)
from headrace.registry.catalog import SCHEMA_CHARACTERS_MAX
from headrace.schemas.compatibility import Level

_STRING, _INT, _LIST, _BOOLEAN = ConfigType.STRING, ConfigType.INT, ConfigType.LIST, ConfigType.BOOLEAN
_STORE = "kafkastore."
_LISTENER = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]*\]|[^:/\s]*):(\d{1,5})/?\Z")
DEFAULT_LISTENER = "http://127.0.0.1:8081"

REGISTRY_KEYS = ConfigDefinition(
    [
        ConfigKey("kafkastore.bootstrap.servers", _LIST, doc="The brokers whose topic keeps the schemas."),
        ConfigKey("kafkastore.topic", _STRING, "_schemas", non_empty(), "The compacted topic that keeps the schemas."),
        ConfigKey(
            "kafkastore.topic.replication.factor",
            _INT,
            3,
            at_least(1),
            "Replicas of that topic when it is made; fewer where there are fewer brokers.",
        ),
        ConfigKey("kafkastore.init.timeout.ms", _INT, 60_000, at_least(0), "How long to wait for Kafka at the start."),
        ConfigKey("kafkastore.timeout.ms", _INT, 10_000, at_least(1), "How long a change may take to be written."),
        ConfigKey("listeners", _LIST, (DEFAULT_LISTENER,), doc="One address to listen on: http:// or https://."),
        ConfigKey("host.name", _STRING, None, doc="The name by which other instances reach this one."),
        ConfigKey("leader.eligibility", _BOOLEAN, True, doc="Whether this instance may be the one that writes."),
        ConfigKey(
            "schema.registry.group.id",
            _STRING,
            "schema-registry",
            non_empty(),
            "The group in which instances find out which of them writes.",
        ),
        ConfigKey(
            "schema.compatibility.level",
            _STRING,
            "backward",
            one_of(*(level.lower() for level in Level), ignore_case=True),
            "What holds where no level is set by a request.",
        ),
        ConfigKey(
            "schema.providers.avro.validate.defaults",
            _BOOLEAN,
            False,
            doc="Whether a new Avro schema is refused whose defaults do not go with their types.",
        ),
        ConfigKey("mode.mutability", _BOOLEAN, True, doc="Whether modes may be changed by requests."),
        ConfigKey(
            "schema.max.size",
            _INT,
            SCHEMA_CHARACTERS_MAX,
            at_least(1),
            "The longest schema that is taken, in characters.",
        ),
        ConfigKey("schema.requests.max", _INT, 64, between(1, 10_000), "How many requests are answered at once."),
        ConfigKey(
            "authentication.method",
            _STRING,
            "NONE",
            one_of("NONE", "BASIC", "BEARER"),
            "How users say who they are: BASIC, a name and a password; BEARER, a token.",
        ),
        ConfigKey(
            "authentication.users",
            _STRING,
            None,
            doc="A file with a line `name: password` per user, or `name: scram…`; for BEARER `name: token`.",
        ),
        ConfigKey(
            "authorization.rights",
            _STRING,
            None,
            doc="A file with a line `user read|write|admin subject` per right; * at a subject's end stands for any.",
        ),
        ConfigKey(
            "ssl.client.authentication",
            _STRING,
            "NONE",
            one_of("NONE", "REQUESTED", "REQUIRED"),
            "Whether clients have to show a certificate.",
        ),
        *SSL_KEYS,
    ]
)


class HttpListener(NamedTuple):
    """Where the registry is reached."""

    scheme: str
    host: str
    port: int

    def url(self, port: int, name: str | None = None) -> str:
        host = name or self.host or "127.0.0.1"
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """What was configured, read and checked."""

    values: Mapping[str, Any]
    listener: HttpListener
    client: Mapping[str, Any]
    """Settings of the clients that reach Kafka."""

    @classmethod
    def parse(cls, given: Mapping[str, RawValue]) -> RegistryConfig:
        own = {name: value for name, value in given.items() if name in REGISTRY_KEYS}
        values = REGISTRY_KEYS.parse(own)
        others = {name: value for name, value in given.items() if name not in REGISTRY_KEYS}
        unknown = [name for name in others if not name.startswith(_STORE)]
        if unknown:
            nearest = {name: REGISTRY_KEYS.nearest(name) for name in unknown}
            raise ConfigError(
                {
                    name: f"a registry has no setting {name}" + (f"; did you mean {near}?" if near else "")
                    for name, near in nearest.items()
                }
            )
        client = {name.removeprefix(_STORE): value for name, value in others.items()}
        servers = values["kafkastore.bootstrap.servers"]
        assert isinstance(servers, tuple)
        # Confluent's registry takes addresses with the listener's name before them.
        client["bootstrap.servers"] = ",".join(str(one).rpartition("://")[2] for one in servers)
        return cls(values, _listener(values["listeners"]), client)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def _listener(given: Any) -> HttpListener:
    text = ",".join(given)
    found = _LISTENER.match(text)
    if found is None or int(found[3]) > 65_535:
        raise ConfigError({"listeners": f"listeners={text}: give one address, as in {DEFAULT_LISTENER}"})
    return HttpListener(found[1], found[2].strip("[]"), int(found[3]))
