"""Client telemetry (KIP-714): who is asked for what, who is refused, and what can be read of what was pushed."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from prometheus_client import CollectorRegistry, generate_latest
from tests.client.fake import VirtualClock

from headrace.broker.metrics.client_metrics import ClientMetricsCollector
from headrace.broker.telemetry import clients as module
from headrace.broker.telemetry.clients import TelemetryClients
from headrace.broker.telemetry.pushed import ClientMetrics
from headrace.broker.telemetry.subscriptions import ClientIdentity, MetricsSubscriptions
from headrace.cluster.image import Image
from headrace.cluster.records import ConfigRecord, ResourceType
from headrace.errors import ErrorCode
from headrace.protocol.messages.push_telemetry import PushTelemetryRequest

ID = bytes(range(16))
OTHER = bytes(range(1, 17))
BYTES_MAX = 10_000
GZIP, UNKNOWN_CODEC = 1, 9


class World:
    def __init__(self) -> None:
        self.image = Image()
        self.clock = VirtualClock()
        self.pushed = ClientMetrics(100_000)
        self.clients = TelemetryClients(
            MetricsSubscriptions(lambda: self.image), self.pushed, self.clock, random.Random(1), lambda: BYTES_MAX
        )

    def configure(self, name: str, **values: str) -> None:
        for key, value in values.items():
            self.image.apply(
                ConfigRecord(
                    resource_type=ResourceType.CLIENT_METRICS,
                    resource_name=name,
                    name=key.replace("_", "."),
                    value=value,
                )
            )

    def identify(self, instance: bytes) -> ClientIdentity:
        return ClientIdentity(instance.hex(), "billing-1", "librdkafka", "2.16", "10.0.0.7", "4711")

    def ask(self, instance: bytes = ID) -> Any:
        return self.clients.subscribe(instance, self.identify)

    def push(self, subscription_id: int, data: bytes = b"", codec: int = 0, *, terminating: bool = False) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=ID,
            subscription_id=subscription_id,
            terminating=terminating,
            compression_type=codec,
            metrics=data,
        )
        return self.clients.push(request, self.identify)


def otlp(name: str, value: float, *, is_delta: bool = True) -> bytes:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = name
    metric.sum.aggregation_temporality = 1 if is_delta else 2
    point = metric.sum.data_points.add()
    point.as_double = value
    attribute = point.attributes.add()
    attribute.key, attribute.value.string_value = "topic", "orders"
    return data.SerializeToString()


def test_without_subscriptions_a_client_is_asked_for_nothing() -> None:
    answer = World().ask(bytes(16))
    assert (answer.requested_metrics, answer.push_interval_ms, answer.error_code) == ([], 300_000, 0)
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert (answer.telemetry_max_bytes, answer.delta_temporality) == (BYTES_MAX, True)
    assert len(answer.client_instance_id) == 16
    assert any(answer.client_instance_id)


def test_subscriptions_that_match_are_put_together() -> None:
    world = World()
    world.configure("a", metrics="org.apache.kafka.producer.", interval_ms="60000", match="client_id=billing.*")
    world.configure("b", metrics="org.apache.kafka.consumer.", interval_ms="1000")
    world.configure("c", metrics="*", match="client_software_name=apache-kafka-java")
    answer = world.ask()
    assert answer.requested_metrics == ["org.apache.kafka.consumer.", "org.apache.kafka.producer."]
    assert answer.push_interval_ms == 1000
    world.configure("d", metrics="*", match="client_source_address=10[.].*,client_source_port=4711")
    assert world.ask(OTHER).requested_metrics == ["*"]


def test_who_asks_or_pushes_too_early_is_told_so() -> None:
    world = World()
    world.configure("a", metrics="*", interval_ms="1000")
    number = world.ask().subscription_id
    assert world.ask().error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert world.push(number, otlp("x", 1)) == ErrorCode.NONE
    assert world.push(number, otlp("x", 1)) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.clock.now += 1.0
    assert world.push(number, otlp("x", 1)) == ErrorCode.NONE
    assert world.ask().error_code == ErrorCode.NONE


def test_after_a_change_the_client_asks_again_at_once() -> None:
    world = World()
    world.configure("a", metrics="*", interval_ms="1000")
    number = world.ask().subscription_id
    world.configure("a", metrics="org.", interval_ms="1000")
    assert world.push(number) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    answer = world.ask()
    assert (answer.error_code, answer.requested_metrics) == (ErrorCode.NONE, ["org."])
    assert answer.subscription_id != number


@pytest.mark.parametrize(
    ("data", "codec", "error"),
    [
        (b"x" * (BYTES_MAX + 1), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (gzip.compress(b"\0" * BYTES_MAX * 100), GZIP, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"no gzip", GZIP, ErrorCode.INVALID_RECORD),
        (b"", UNKNOWN_CODEC, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_what_is_too_large_or_damaged_is_refused(data: bytes, codec: int, error: ErrorCode) -> None:
    world = World()
    assert world.push(world.ask().subscription_id, data, codec) == error
    assert not list(world.pushed.clients())


def test_after_its_last_push_a_client_pushes_no_more() -> None:
    world = World()
    number = world.ask().subscription_id
    assert world.push(number, otlp("x", 1), terminating=True) == ErrorCode.NONE
    assert world.push(number, terminating=True) == ErrorCode.INVALID_REQUEST
    assert next(world.pushed.clients()).is_last


def test_silent_clients_are_forgotten_and_no_more_are_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    number = world.ask().subscription_id
    assert world.push(number, otlp("x", 1)) == ErrorCode.NONE
    for first in range(5):
        world.ask(bytes([first + 1]) * 16)
    # It is new again: it may ask at once.
    assert world.ask().error_code == ErrorCode.NONE


def test_the_bytes_that_are_kept_are_bounded() -> None:
    world = World()
    world.pushed = ClientMetrics(1_000)
    world.clients.pushed = world.pushed
    for first in range(20):
        identity = world.identify(bytes([first]) * 16)
        world.pushed.put(module.PushedMetrics(identity, b"x" * 300, 0, False))
    assert len(list(world.pushed.clients())) == 3


def test_what_is_pushed_is_read_by_prometheus_and_deltas_are_added_up() -> None:
    world = World()
    collector = ClientMetricsCollector(world.pushed)
    registry = CollectorRegistry()
    registry.register(collector)
    world.configure("a", metrics="*", interval_ms="1000")
    number = world.ask().subscription_id
    for value in (2.0, 3.0):
        assert world.push(number, gzip.compress(otlp("org.apache.kafka.producer.sent", value)), GZIP) == ErrorCode.NONE
        world.clock.now += 1
    page = generate_latest(registry).decode()
    line = next(line for line in page.splitlines() if line.startswith("org_apache_kafka_producer_sent_total"))
    assert line.endswith(" 5.0")
    assert 'client_id="billing-1"' in line
    assert 'topic="orders"' in line


def test_bytes_that_are_no_metrics_do_no_harm() -> None:
    world = World()
    ClientMetricsCollector(world.pushed)
    assert world.push(world.ask().subscription_id, b"\xff\xff\xff") == ErrorCode.NONE
