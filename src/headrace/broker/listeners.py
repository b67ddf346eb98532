"""`listeners` and `advertised.listeners`: where the broker listens, and what it tells clients to connect to."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.broker_config import BrokerConfig
from headrace.config import ConfigError

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_ANY_ADDRESS = ("", "0.0.0.0", "::", "[::]")


@dataclass(slots=True)
class ListenerSetting:
    """One listener; a port of 0 is replaced by the real one once it is bound."""

    name: str
    host: str
    port: int
    protocol: str
    advertised_host: str
    advertised_port: int

    @property
    def public_port(self) -> int:
        return self.advertised_port or self.port


def parse_listeners(config: BrokerConfig) -> list[ListenerSetting]:
    """The listeners of a broker, or a `ConfigError` that says what to write instead."""
    protocols = _protocol_map(config)
    advertised = {}
    if config["advertised.listeners"]:
        advertised = {name: (host, port) for name, host, port in _split(config, "advertised.listeners")}
    settings = []
    controllers = {name.upper() for name in _items(config, "controller.listener.names")}
    for name, host, port in _split(config, "listeners"):
        if name in controllers:
            continue  # one process is broker and controller here: there is nothing to listen for
        protocol = protocols.get(name, name)
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                {
                    "listeners": f"listeners: {name} has no security protocol: give it one in "
                    f"listener.security.protocol.map ({name}:PLAINTEXT), or name it in controller.listener.names if "
                    "it is the controller's"
                }
            )
        public_host, public_port = advertised.get(name, ("", 0))
        public_host = public_host or ("localhost" if host in _ANY_ADDRESS else host)
        settings.append(
            ListenerSetting(name, "" if host in _ANY_ADDRESS else host, port, protocol, public_host, public_port)
        )
    if not settings:
        raise ConfigError({"listeners": "listeners: give at least one, like PLAINTEXT://127.0.0.1:9092"})
    return settings


def _protocol_map(config: BrokerConfig) -> dict[str, str]:
    items = _items(config, "listener.security.protocol.map")
    return {
        name.strip().upper(): protocol.strip().upper() for name, _, protocol in (item.partition(":") for item in items)
    }


def _items(config: BrokerConfig, key: str) -> list[str]:
    """What a comma-separated setting lists."""
    value = config[key]
    texts = value if isinstance(value, tuple) else str(value or "").split(",")
    return [text.strip() for text in texts if text.strip()]


def _split(config: BrokerConfig, key: str) -> list[tuple[str, str, int]]:
    found = []
    for text in _items(config, key):
        name, separator, rest = text.partition("://")
        host, colon, port = rest.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError({key: f"{key}: {text!r} is not NAME://host:port"})
        found.append((name.strip().upper(), host.strip("[]"), int(port)))
    return found
