"""What clients have pushed of their own metrics (KIP-714), as collectors of prometheus-client read it.

Needs `headrace[telemetry]`, to read OpenTelemetry's format; without it there is nothing to see here. Sums that a client
sends as deltas are added up from when the page was begun.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.broker.telemetry.pushed import ClientMetrics, PushedMetrics

SERIES_PER_CLIENT_MAX: Final = 2_000
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_DELTA: Final = 1  # of OpenTelemetry's AggregationTemporality
_OWN_LABELS: Final = ("client_id", "client_instance_id", "client_software_name")

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a metric and its labels."""


@dataclass(slots=True)
class _OfClient:
    labels: tuple[tuple[str, str], ...]
    sums: dict[Series, float] = field(default_factory=dict)
    gauges: dict[Series, float] = field(default_factory=dict)


class ClientMetricsCollector:
    """Reads each push as it comes, on the broker's loop; `collect` may be called by any thread."""

    def __init__(self, pushed: ClientMetrics) -> None:
        self._pushed = pushed
        self._lock = threading.Lock()
        self._clients: dict[str, _OfClient] = {}
        pushed.listeners.append(self._take)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            present = {one.client.client_instance_id for one in self._pushed.clients()}
            self._clients = {name: found for name, found in self._clients.items() if name in present}
            clients = [(one.labels, dict(one.sums), dict(one.gauges)) for one in self._clients.values()]
        made: dict[tuple[str, tuple[str, ...], bool], Metric] = {}
        for own, sums, gauges in clients:
            for values, is_sum in ((sums, True), (gauges, False)):
                for (name, labels), value in values.items():
                    all_labels = dict(own) | dict(labels)
                    key = name, tuple(all_labels), is_sum
                    family = made.get(key)
                    if family is None:
                        kind = CounterMetricFamily if is_sum else GaugeMetricFamily
                        family = made[key] = kind(name, "Pushed by clients (KIP-714).", labels=list(all_labels))
                    family.add_metric(list(all_labels.values()), value)  # type: ignore[attr-defined]  # both kinds have it
        yield from made.values()

    def _take(self, pushed: PushedMetrics) -> None:
        data = _metrics_data(pushed.data)
        if data is None:
            return
        client = pushed.client
        own = tuple((name, getattr(client, name)) for name in _OWN_LABELS)
        with self._lock:
            found = self._clients.setdefault(client.client_instance_id, _OfClient(own))
            for resource in data.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        _read(found, metric)


def _metrics_data(data: bytes) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
    except ImportError:
        return None
    try:
        return MetricsData.FromString(data)
    except DecodeError:
        return None


def _read(found: _OfClient, metric: Any) -> None:
    kind = metric.WhichOneof("data")
    if kind not in ("sum", "gauge"):
        return
    values = found.sums if kind == "sum" else found.gauges
    is_delta = kind == "sum" and metric.sum.aggregation_temporality == _DELTA
    for point in getattr(metric, kind).data_points:
        value = point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)
        labels = tuple((_name(one.key), _text(one.value)) for one in point.attributes)
        series = _name(metric.name), labels
        if series in values or len(found.sums) + len(found.gauges) < SERIES_PER_CLIENT_MAX:
            values[series] = values.get(series, 0.0) + value if is_delta else value


def _name(text: str) -> str:
    return _NO_NAME.sub("_", text)


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))
