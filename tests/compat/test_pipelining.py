"""A client may send the next request before it has the answer to the last, whatever that answer waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import testing
from headrace.runtime.real_disk import RealFile

from .scenarios import World, fetch_of
from .wire import Wire, batch


@pytest.fixture
def kafka() -> Iterator[testing.EmbeddedBroker]:
    with testing.broker() as running:
        yield running


def test_a_request_behind_a_fetch_that_waits_for_the_disk_is_answered(
    kafka: testing.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_in_memory(file: RealFile, position: int, length: int) -> None:
        return None

    with Wire(kafka.address) as wire:
        world = World(wire)
        topic, _ = world.topic()
        # Too much to be read before the answer, and little enough to go to the kernel in one piece.
        world.append(topic, batch(b"x" * 50_000))
        monkeypatch.setattr(RealFile, "read_nowait", not_in_memory)
        wire.send("fetch", 11, **fetch_of(topic, None))
        wire.send("metadata", 9, topics=[])
        wire.send("api_versions", 0)
        fetched: Any = wire.receive("fetch", 11)
        wire.receive("metadata", 9)
        wire.receive("api_versions", 0)
    assert len(fetched.responses[0].partitions[0].records) > 50_000
