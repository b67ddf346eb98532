"""Which metrics a client is to push, and how often: worked out of the subscriptions that are configured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from headrace.cluster.client_metrics_config import (
    ALL_METRICS,
    CLIENT_METRICS_CONFIGS,
    INTERVAL,
    INTERVAL_DEFAULT_MS,
    MATCH,
    METRICS,
    parse_patterns,
)
from headrace.cluster.image import Image
from headrace.cluster.records import ResourceType
from headrace.config import ConfigError


class ClientIdentity(NamedTuple):
    """Who pushes, as far as it is known; named as subscriptions name it."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


@dataclass(frozen=True, slots=True)
class MetricsSubscription:
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, re.Pattern[str]]

    def is_for(self, client: ClientIdentity) -> bool:
        return all(pattern.fullmatch(getattr(client, name)) for name, pattern in self.match.items())


class WantedMetrics(NamedTuple):
    """What one client is to push. Another id, another question: the client asks again."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class MetricsSubscriptions:
    """Those of the cluster, read again after each change of them."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image
        self._read: dict[str, dict[str, str]] = {}
        self._found: tuple[MetricsSubscription, ...] = ()
        self.version = 0
        """Counts their changes."""

    def refresh(self) -> int:
        """Look whether they are others by now; gives their version."""
        configured = {
            name: values
            for (kind, name), values in self._image().configs.items()
            if kind == ResourceType.CLIENT_METRICS and values
        }
        if configured != self._read or not self.version:
            self._read = {name: dict(values) for name, values in configured.items()}
            self._found = tuple(filter(None, map(_subscription, self._read.values())))
            self.version += 1
        return self.version

    def wanted_of(self, client: ClientIdentity) -> WantedMetrics:
        matching = [one for one in self._found if one.is_for(client)]
        metrics = tuple(sorted({name for one in matching for name in one.metrics}))
        if ALL_METRICS in metrics:
            metrics = (ALL_METRICS,)
        interval_ms = min((one.interval_ms for one in matching), default=INTERVAL_DEFAULT_MS)
        text = f"{','.join(metrics)} {interval_ms} {client.client_instance_id}"
        number = crc32c(text.encode())
        return WantedMetrics(number - (1 << 32) if number >> 31 else number, metrics, interval_ms)


def _subscription(overrides: Mapping[str, str]) -> MetricsSubscription | None:
    try:
        values = CLIENT_METRICS_CONFIGS.defaults() | CLIENT_METRICS_CONFIGS.parse_given(overrides)
        metrics, match, interval_ms = values[METRICS], values[MATCH], values[INTERVAL]
        assert isinstance(metrics, tuple)
        assert isinstance(match, tuple)
        assert isinstance(interval_ms, int)
        return MetricsSubscription(tuple(metrics), interval_ms, parse_patterns(match))
    except ConfigError:
        # The controller refuses such; one that another version let in asks for nothing.
        return None
