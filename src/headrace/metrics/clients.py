"""The metrics of producers and consumers, under the names that Prometheus' exporter gives those of Java's clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class HasMetrics(Protocol):
    """A producer or consumer, blocking or not."""

    def metrics(self) -> Mapping[str, float]: ...


_OF_COORDINATOR = (
    "assigned-partitions",
    "rebalance-total",
    "heartbeat-total",
    "commit-total",
)


class ClientCollector:
    """One client. Its metrics are read when they are asked for: counting them costs it what it counts anyway."""

    def __init__(self, client: HasMetrics) -> None:
        if not callable(getattr(client, "metrics", None)):
            raise TypeError(f"{client!r} has neither metrics() nor collect(): pass a producer, consumer or collector")
        self._client = client
        self._kind = "producer" if "Producer" in type(client).__name__ else "consumer"
        self._name = _client_id(client)

    def collect(self) -> Iterator[Metric]:
        for name, value in sorted(self._client.metrics().items()):
            full = f"kafka_{self._kind}_{self._group(name)}_{name}".replace("-", "_")
            kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
            family = kind(full, f"{name} of a {self._kind}, as Kafka's {self._group(name)}.", labels=["client_id"])
            family.add_metric([self._name], value)
            yield family

    def _group(self, name: str) -> str:
        """The group of metrics that Kafka has it in."""
        if self._kind == "producer":
            return "producer-metrics"
        return "consumer-coordinator-metrics" if name in _OF_COORDINATOR else "consumer-fetch-manager-metrics"


def _client_id(client: Any) -> str:
    found = getattr(client, "client_id", None)
    return found if isinstance(found, str) else ""
