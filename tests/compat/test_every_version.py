"""Every advertised version of every API key answers, in kio's encoding of it (SPEC 0.2)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from headrace.broker.requests.dispatch import load_handlers
from headrace.protocol.api import ApiKey
from headrace.testing import EmbeddedBroker

from .scenarios import SCENARIOS
from .served import Served
from .wire import NAMES, Wire
from .world import World

# Advertised only because old librdkafka wants to see it; a request of it closes the connection, as Apache Kafka does.
NOT_SERVED = {("produce", version) for version in range(3)}
SERVED = [
    (NAMES[int(handler.api_key)], version)
    for handler in sorted(load_handlers().values(), key=lambda handler: handler.api_key)
    if not handler.between_brokers
    for version in range(handler.low, handler.high + 1)
]


@pytest.fixture(scope="module")
def wire(kafka: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(kafka.address) as connection:
        yield connection


@pytest.fixture
def world(wire: Wire) -> World:
    return World(wire)


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), SERVED, ids=[f"{api}-{version}" for api, version in SERVED])
def test_a_version_is_served(world: World, served: Served, api: str, version: int) -> None:
    assert api in SCENARIOS, f"{api} is advertised and no scenario covers it"
    SCENARIOS[api](world, version)
    assert version in {seen for client, key, seen in list(served.counts) if client == "kio" and NAMES[int(key)] == api}


def test_what_is_advertised_is_what_is_served(world: World) -> None:
    answer = world.ask("api_versions", 0)
    advertised = {
        (NAMES[entry.api_key], version)
        for entry in answer.api_keys
        for version in range(entry.min_version, entry.max_version + 1)
    }
    assert advertised == set(SERVED) | NOT_SERVED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_below_version_3_closes_the_connection(kafka: EmbeddedBroker, version: int) -> None:
    host, port = kafka.address.split(":")
    acks, timeout_ms, topics = 1, 1000, 0
    frame = struct.pack(">hhihhii", int(ApiKey.PRODUCE), version, 1, -1, acks, timeout_ms, topics)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        assert connection.recv(1) == b""
