"""A client may send the next request before it has the answer to the last, whatever that answer waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import testing
from headrace.broker.broker import Broker
from headrace.runtime.real_disk import RealFile

from .wire import Wire, batch
from .world import World, fetch_of


@pytest.fixture
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with testing.broker() as running:
        yield running


@pytest.mark.slow
def test_a_request_behind_a_fetch_that_waits_for_the_disk_is_answered(
    kafka: testing.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_is_done = threading.Event()
    read = RealFile.read

    def read_late(file: RealFile, position: int, length: int) -> bytes:
        disk_is_done.wait()
        return read(file, position, length)

    def requests_waiting(broker: Broker) -> bool:
        return any(connection._frames for connection in broker.acceptor.connections)

    with Wire(kafka.address) as wire:
        world = World(wire)
        topic, _ = world.topic()
        # Too much to be read before the answer, and little enough to go to the kernel in one piece.
        world.append(topic, batch(b"x" * 50_000))
        monkeypatch.setattr(RealFile, "read_into_nowait", lambda file, position, buffer: None)
        monkeypatch.setattr(RealFile, "read", read_late)
        try:
            wire.send("fetch", 11, **fetch_of(topic, None))
            wire.send("metadata", 9, topics=[])
            eventually(lambda: kafka.call(requests_waiting), what="a request that waits behind the fetch")
        finally:
            disk_is_done.set()
        fetched: Any = wire.receive("fetch", 11)
        wire.receive("metadata", 9)
    assert len(fetched.responses[0].partitions[0].records) > 50_000
