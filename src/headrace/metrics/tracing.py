"""Traces from produce to consume with OpenTelemetry, by headers that every Kafka client passes on (W3C traceparent).

    Producer({..., "interceptor.classes": ["headrace.metrics.tracing.Tracing"]})
    Consumer({..., "interceptor.classes": ["headrace.metrics.tracing.Tracing"]})

    for record in consumer:
        with tracer.start_as_current_span("bill", context=context_of(record)):
            ...

Needs `pip install 'headrace[tracing]'`; where the spans go is what your program has set up (opentelemetry-sdk).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

_NAME = "headrace"


class _Record(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def headers(self) -> Any: ...


class Tracing:
    """An interceptor of producers and consumers: a span for every record that is sent, and one where it is received."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(_NAME)
        self._client_id = ""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Called by the client that it is for."""
        self._client_id = str(config.get("client.id") or "")

    def on_send(self, record: Any) -> Any:
        """The record with headers that say which trace it is of."""
        about = self._about(record.topic, "send")
        with self._tracer.start_as_current_span(f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=about):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
        own = [one for one in record.headers or () if one[0] not in carrier]
        return record._replace(headers=[*own, *((name, value.encode()) for name, value in carrier.items())])

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        """The span ended when the record was taken: how it is batched is no part of whoever sends it."""

    def on_consume(self, records: Iterable[Any]) -> None:
        """A span for each record, in the trace that it was sent in."""
        for record in records:
            about = self._about(record.topic, "receive")
            about["messaging.destination.partition.id"] = str(record.partition)
            about["messaging.kafka.offset"] = record.offset
            self._tracer.start_span(
                f"receive {record.topic}", context_of(record), kind=SpanKind.CONSUMER, attributes=about
            ).end()

    def on_commit(self, offsets: Any) -> None:
        """Nothing of a trace."""

    def _about(self, topic: str, operation: str) -> dict[str, Any]:
        return {
            "messaging.system": "kafka",
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            "messaging.client.id": self._client_id,
        }


def context_of(record: _Record) -> Context:
    """The trace that a record was sent in: for spans of whoever handles it."""
    carrier = {
        name: value.decode("ascii", "replace") if isinstance(value, bytes) else value
        for name, value in record.headers or ()
        if isinstance(value, (bytes, str))
    }
    return propagate.extract(carrier)
