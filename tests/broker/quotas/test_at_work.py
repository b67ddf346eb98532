"""Quotas on a broker: who is slowed down, and by how much; whoever is within them is answered as fast as before."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceResponse

from .. import raw
from ..played import World, run
from ..test_at_once import fetch, produce, taken_the_long_way  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("large_segments")

PRODUCE, FETCH = 9, 12
BATCH = raw.batch([bytes(1000)])


async def set_quota(world: World, key: str, value: float | None, **entity: str | None) -> None:
    parts = [EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()]
    change = OpData(key=key, value=value or 0.0, remove=value is None)
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=parts, ops=[change])])
    before = world.broker.image.quotas_version
    world.send((request, 1))
    while world.broker.image.quotas_version == before:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    world.transport.written.clear()


def sent(world: World, message: Any, version: int, client_id: str = "client") -> Any:
    """The answer to a request of that client id; None where it is not answered at once."""
    world.transport.written.clear()
    world.send_bytes(raw.frame(message, version, client_id=client_id))
    data = bytes(world.transport.written)
    if not data:
        return None
    size = struct.unpack_from(">i", data)[0]
    kind = {"ProduceRequest": ProduceResponse, "FetchRequest": FetchResponse}[type(message).__name__]
    return codec.decode_response(kind, version, data[4 : 4 + size])[1]


def test_who_is_within_the_quotas_is_answered_in_one_go(taken_the_long_way: list[ApiKey]) -> None:  # noqa: F811
    async def scenario(world: World) -> None:
        await set_quota(world, "producer_byte_rate", 1e6, client_id="client")
        await set_quota(world, "request_percentage", 1000.0, client_id="client")
        for offset in range(1, 50):
            assert sent(world, produce(BATCH), PRODUCE).throttle_time_ms == 0
            if offset == 2:
                taken_the_long_way.clear()  # what is in memory is found out by the first
            assert sent(world, fetch(offset), FETCH).throttle_time_ms == 0
        assert not taken_the_long_way

    run(scenario)


def test_many_small_requests_are_counted_together_until_they_are_too_much() -> None:
    async def scenario(world: World) -> None:
        await set_quota(world, "producer_byte_rate", 10_000, client_id="client")
        throttle_ms: list[int] = []
        while not throttle_ms or not throttle_ms[-1]:
            throttle_ms.append(sent(world, produce(BATCH), PRODUCE).throttle_time_ms)
        # Ten seconds' worth may come at once. What is over is told, and waited for.
        assert 80 <= len(throttle_ms) <= 100
        assert 0 < throttle_ms[-1] <= 200
        assert world.connection.is_reading_paused
        assert sent(world, produce(BATCH), PRODUCE) is None
        await asyncio.sleep(throttle_ms[-1] / 1000 + 0.01)
        assert world.transport.written
        assert sent(world, produce(BATCH), PRODUCE, "other") is None
        await asyncio.sleep(1)
        assert sent(world, produce(BATCH), PRODUCE, "other").throttle_time_ms == 0

    run(scenario)


def test_connections_of_one_client_share_its_quota_and_others_are_not_slowed() -> None:
    async def scenario(world: World) -> None:
        await set_quota(world, "producer_byte_rate", 1000, client_id="client")
        assert sent(world, produce(raw.batch([bytes(12_000)])), PRODUCE).throttle_time_ms > 1000
        world.connect()
        assert sent(world, produce(BATCH), PRODUCE, "other").throttle_time_ms == 0
        assert sent(world, produce(BATCH), PRODUCE).throttle_time_ms > 1000

    run(scenario)


def test_a_fetch_over_its_quota_is_given_nothing_and_later_all() -> None:
    async def scenario(world: World) -> None:
        await set_quota(world, "consumer_byte_rate", 5200, client_id="client")
        given = sent(world, fetch(0), FETCH)
        assert given.throttle_time_ms == 0
        assert given.responses
        held = sent(world, fetch(0), FETCH)
        assert held.throttle_time_ms > 1000
        assert not held.responses
        await asyncio.sleep(20)
        assert sent(world, fetch(0), FETCH).responses

    run(scenario)


def test_a_quota_that_is_taken_back_counts_no_more() -> None:
    async def scenario(world: World) -> None:
        await set_quota(world, "producer_byte_rate", 100, client_id="client")
        assert sent(world, produce(raw.batch([bytes(12_000)])), PRODUCE).throttle_time_ms > 1000
        world.connect()
        await set_quota(world, "producer_byte_rate", None, client_id="client")
        assert sent(world, produce(BATCH), PRODUCE).throttle_time_ms == 0
        assert world.broker.pipeline.access.meter_of is None

    run(scenario)


def test_connections_of_an_address_over_its_quota_are_not_heard_and_ended() -> None:
    async def scenario(world: World) -> None:
        await set_quota(world, "connection_creation_rate", 1, ip=None)
        for _ in range(9):
            world.connect()
        world.send((MetadataRequest(topics=None), 9))
        assert world.transport.written
        world.connect()
        world.connect()
        world.send((MetadataRequest(topics=None), 9))
        assert not world.transport.written
        assert not world.transport.closed
        await asyncio.sleep(3)
        assert world.transport.closed
        assert not world.transport.written

    run(scenario)
