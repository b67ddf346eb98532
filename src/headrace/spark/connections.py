"""Connections of a Spark task: one client per configuration and process, kept for the tasks that follow.

A Python worker of Spark runs many tasks one after the other; connecting anew for each would cost more than a small
task does. A client has no thread: bytes move while a task waits for them. A producer has one, which sleeps meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.client.cluster import BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, common_config, read_config
from headrace.config import ConfigDefinition
from headrace.records import use_fast
from headrace.runtime.real import RealClock
from headrace.spark.options import text_of

if TYPE_CHECKING:
    from headrace.client.producer.blocking import Producer

_COMMON = ConfigDefinition(COMMON_KEYS)
_CLIENTS_MAX = 4

Key = tuple[int, tuple[tuple[str, Hashable], ...]]
"""A process and a configuration."""

_clients: dict[Key, BlockingClient] = {}

PRODUCER_IDLE_MAX_S = 300.0
"""A producer that was not used for longer is made anew: brokers close idle connections, and forget producers."""

_producers: dict[Key, tuple[Producer, float]] = {}

FAST_FROM_ROWS = 50_000
"""Once a worker has so many rows behind or before it, a second to load the compiled kernels is soon earned back."""

_rows = 0

_TASK_DEFAULTS = {
    # The system's own choice grows with the connection; a fixed 64 KB would be a third of the speed.
    "receive.buffer.bytes": "-1",
    "send.buffer.bytes": "-1",
    "client.id": "headrace-spark",
}


def make_client(kafka: Mapping[str, Any]) -> BlockingClient:
    """A client of one's own."""
    given = {**_TASK_DEFAULTS, **common_config(kafka)}
    values = read_config(_COMMON, given)
    client = BlockingClient(ConnectionConfig.of(values))
    # Only topics that are asked about matter; a task never creates one.
    client.core.allow_auto_topic_creation = False
    return client


def shared_client(kafka: Mapping[str, Any], topics: Collection[str]) -> BlockingClient:
    """The client of this process for that configuration, told what is to be read or written; `forget` it after trouble.

    What only earlier tasks needed it no longer asks for: a topic that is gone it would ask for again and again.
    """
    key = _key(common_config(kafka))
    client = _clients.get(key)
    if client is None:
        while len(_clients) >= _CLIENTS_MAX:
            _drop(next(iter(_clients)))
        client = _clients[key] = make_client(kafka)
    core = client.core
    core.topics = (core.topics or set()).intersection(topics)
    for topic in topics:
        core.add_topic(topic)
    return client


def _key(kafka: Mapping[str, Any]) -> Key:
    """Secrets count as what they are: a password that has changed is another connection."""
    return os.getpid(), tuple(
        (name, kafka[name] if callable(kafka[name]) else text_of(kafka[name])) for name in sorted(kafka)
    )


@contextmanager
def lent_producer(kafka: Mapping[str, Any]) -> Iterator[Producer]:
    """A producer for the length of one task, kept for the next one if all went well.

    Whoever has it waits for every delivery. After an error it is closed: nothing of a failed task is sent later.
    """
    from headrace.client.producer.blocking import Producer

    key = _key(kafka)
    clock = RealClock()
    producer, used = _producers.pop(key, (None, 0.0))
    if producer is not None and clock.monotonic() - used > PRODUCER_IDLE_MAX_S:
        producer.close(timeout=0)
        producer = None
    if producer is None:
        producer = Producer(dict(kafka))
    finished = False
    try:
        yield producer
        finished = True
    finally:
        if finished:
            while key in _producers or len(_producers) >= _CLIENTS_MAX:
                other = key if key in _producers else next(iter(_producers))
                unused, _ = _producers.pop(other)
                if other[0] == os.getpid():
                    # One of before a fork belongs to the other process.
                    unused.close(timeout=0)
            _producers[key] = (producer, clock.monotonic())
        else:
            producer.close(timeout=0)


def expect_rows(count: int) -> None:
    """So many rows more are to be coded in this process: load the compiled kernels when that pays."""
    global _rows
    if _rows < FAST_FROM_ROWS <= _rows + count:
        use_fast()
    _rows += count


def forget(client: BlockingClient) -> None:
    """Close a client whose state is in doubt: the next task gets a new one."""
    for key in [key for key, one in _clients.items() if one is client]:
        del _clients[key]
    client.close()


def _drop(key: Key) -> None:
    client = _clients.pop(key)
    if key[0] == os.getpid():
        client.close()
    else:
        client.abandon()
