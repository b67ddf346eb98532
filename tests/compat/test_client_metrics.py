"""Clients push their metrics (KIP-714), as they are asked to by `client-metrics` resources."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.waiting import eventually

import headrace.testing
from headrace import Admin
from headrace.admin import ConfigResource as OurResource
from headrace.admin import ResourceType
from headrace.testing.server_process import free_port

Fresh = Callable[[str], str]


def test_librdkafka_pushes_what_it_is_asked_for(fresh: Fresh) -> None:
    port = free_port()
    with headrace.testing.broker(overrides={"headrace.metrics.port": str(port)}) as broker:
        with Admin({"bootstrap.servers": broker.address}) as admin:
            asked = {OurResource(ResourceType.CLIENT_METRICS, "all"): {"metrics": "*", "interval.ms": "200"}}
            admin.incremental_alter_configs(asked).all()
        topic = fresh("pushed")
        client = AdminClient({"bootstrap.servers": broker.address})
        client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        producer = Producer({"bootstrap.servers": broker.address, "client.id": "pusher"})

        def has_pushed() -> bool:
            producer.produce(topic, b"x")
            producer.poll(0.05)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                return 'client_id="pusher"' in page.read().decode()

        eventually(has_pushed, what="metrics of the producer")
        producer.flush(10)
