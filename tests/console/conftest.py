"""A Kafka with something to see, and consoles of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.console.serving import Console, console

from headrace import Consumer, Producer
from headrace.client.admin import Admin, NewTopic
from headrace.testing.embedded import broker

ORDERS = 60


def stock(address: str) -> None:
    """Topics, messages of every kind, a group that has read half, two transactions."""
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topics(
            [
                NewTopic("orders", 3, 1, {"retention.ms": "3600000"}),
                NewTopic("binary", 1, 1),
                NewTopic("paid", 1, 1),
            ]
        ).all()
    with Producer(bootstrap_servers=address) as producer:
        for number in range(ORDERS):
            order = {"order": number, "amount": number * 10, "card": {"number": f"4111-{number}", "brand": "visa"}}
            producer.send(
                "orders",
                json.dumps(order).encode(),
                key=f"c{number % 7}".encode(),
                headers=[("source", b"till" if number % 2 else b"web")],
            )
        producer.send("orders", b"<script>document.title='owned'</script><img src=x onerror=alert(1)>", key=b"evil")
        producer.send("binary", bytes(range(256)), key=b"\xff\xfe")
        producer.send("binary", None, key=b"gone")
        producer.send("binary", b"x" * 1_000_000, key=b"large")
    with Producer(bootstrap_servers=address, transactional_id="till-1") as producer:
        producer.init_transactions()
        for commits in (True, False):
            producer.begin_transaction()
            producer.send("paid", b"kept" if commits else b"taken back")
            producer.flush()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    settings = {"bootstrap.servers": address, "group.id": "billing", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe(["orders"])
        read = 0
        while read < ORDERS // 2:
            read += len(consumer.poll(timeout=1.0, max_records=ORDERS // 2 - read))


@pytest.fixture(scope="session")
def shop() -> Iterator[str]:
    """A broker with something to see, which nothing changes; gives its address."""
    with broker() as kafka:
        stock(kafka.address)
        yield kafka.address


@pytest.fixture(scope="session")
def yard() -> Iterator[str]:
    """Another one, which tests change."""
    with broker() as kafka:
        stock(kafka.address)
        yield kafka.address


@pytest.fixture(scope="session")
def shown(shop: str) -> Iterator[Console]:
    """A console that only looks."""
    with console(shop) as running:
        yield running


@pytest.fixture
def changing(yard: str) -> Iterator[Console]:
    """A console that may change things."""
    with console(yard, allow_changes=True) as running:
        yield running
