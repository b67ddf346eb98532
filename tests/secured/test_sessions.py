"""Connections that outlive the time for which a broker takes a client's word: told again, without a record's harm."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.secured.conftest import SESSION_MS, SHORT_SESSIONS, SecuredKafka, token

from headrace import Admin, Consumer, NewTopic, Producer, aio
from headrace.net.node import Node
from headrace.net.sasl import configured

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

LIFETIMES = 4
RUN_S = LIFETIMES * SESSION_MS / 1000


def expected(sent: int) -> list[bytes]:
    return [b"%d" % number for number in range(sent)]


def blocking(config: dict[str, Any], topic: str) -> tuple[int, list[bytes]]:
    read: list[bytes] = []
    sent = 0
    consuming = {**config, "group.id": topic, "auto.offset.reset": "earliest"}
    with Producer({**config, "linger.ms": 5}) as producer, Consumer(consuming) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + RUN_S
        while time.monotonic() < until:
            producer.send(topic, b"%d" % sent)
            sent += 1
            read += [record.value or b"" for record in consumer.poll(0.01)]
        producer.flush(60)
        while len(read) < sent and time.monotonic() < until + 60:
            read += [record.value or b"" for record in consumer.poll(1)]
        consumer.commit_sync()
    return sent, read


async def on_a_loop(config: dict[str, Any], topic: str) -> tuple[int, list[bytes]]:
    read: list[bytes] = []
    sent = 0
    consuming = {**config, "group.id": topic, "auto.offset.reset": "earliest"}
    async with aio.Producer({**config, "linger.ms": 5}) as producer, aio.Consumer(consuming) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + RUN_S
        while time.monotonic() < until:
            producer.send(topic, b"%d" % sent)
            sent += 1
            read += [record.value or b"" for record in await consumer.poll(0.01)]
        await producer.flush(60)
        while len(read) < sent and time.monotonic() < until + 60:
            read += [record.value or b"" for record in await consumer.poll(1)]
        await consumer.commit_sync()
    return sent, read


def test_clients_go_on_over_several_sessions(secured_kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record once and in order. (The broker closes a connection that is late, on a busy machine: no harm.)"""
    logins: Counter[tuple[str, int]] = Counter()
    really = configured.authenticate_by

    def counted(mechanism: str, exchange: Any) -> Any:
        flow = really(mechanism, exchange)

        def counting(node: Node) -> Any:
            logins[threading.current_thread().name, node.id] += 1
            return flow(node)

        return counting

    monkeypatch.setattr(configured, "authenticate_by", counted)
    results: dict[str, tuple[int, list[bytes]]] = {}
    threads: list[threading.Thread] = []
    topics = {f"{mechanism}-{kind}": f"t-{uuid.uuid4().hex[:8]}" for mechanism in SHORT_SESSIONS for kind in ("b", "a")}
    with Admin(bootstrap_servers=secured_kafka.kafka.address) as admin:
        admin.create_topics([NewTopic(topic, 1) for topic in topics.values()]).all()
    for name, topic in topics.items():
        config = secured_kafka.sasl(name[:-2])
        if "OAUTHBEARER" in name:
            config["sasl.oauthbearer.token.callback"] = lambda: token(2 * SESSION_MS / 1000)
        work: Callable[[dict[str, Any], str], Any] = blocking
        if name.endswith("a"):
            work = lambda config, topic: asyncio.run(on_a_loop(config, topic))  # noqa: E731

        def run(
            name: str = name, work: Callable[..., Any] = work, config: dict[str, Any] = config, topic: str = topic
        ) -> None:
            results[name] = work(config, topic)

        threads.append(threading.Thread(target=run, name=name))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    for name in topics:
        sent, read = results[name]
        assert sent > 0
        assert read == expected(sent), name
    # Who has a connection to the broker for all that time has logged in at least once a session.
    assert max(logins.values()) >= LIFETIMES
