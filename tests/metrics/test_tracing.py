"""One trace from whoever sends a record to whoever handles it."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from confluent_kafka import Consumer as Librdkafka
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import Consumer, Producer
from headrace.metrics.tracing import context_of
from headrace.testing.embedded import broker

TRACING = {"interceptor.classes": ["headrace.metrics.tracing.Tracing"]}


def test_a_record_carries_its_trace_through_any_client() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("test")
    with broker() as kafka:
        config = {"bootstrap.servers": kafka.address}
        with tracer.start_as_current_span("order"), Producer({**config, **TRACING}) as producer:
            producer.send("orders", b"one", headers=[("own", b"kept")]).result(30)
        with Consumer({**config, **TRACING, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["orders"])
            records: list[object] = []
            while not records:
                records = list(consumer.poll(1.0))
            (record,) = records
            with tracer.start_as_current_span("bill", context=context_of(record)):
                pass
        other = Librdkafka({**config, "group.id": "other", "auto.offset.reset": "earliest"})
        other.subscribe(["orders"])
        message = None
        while message is None:
            message = other.poll(1.0)
        other.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"order", "send orders", "receive orders", "bill"}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert spans["receive orders"].parent.span_id == spans["send orders"].context.span_id
    assert spans["receive orders"].attributes["messaging.kafka.offset"] == 0
    headers = dict(message.headers())
    assert headers["own"] == b"kept"
    assert format(spans["order"].context.trace_id, "032x").encode() in headers["traceparent"]
