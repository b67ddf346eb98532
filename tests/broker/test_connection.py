"""A connection, its transport played by the test: every request is answered or its client is told that it is not."""

from __future__ import annotations

import asyncio
import errno
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.connection import Connection
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.runtime.simulated import Fault, Simulation, run_simulation

from . import raw
from .sim import Client, SimulatedBroker, SmallSegmentsBroker

METADATA_VERSION = 9


@pytest.fixture(autouse=True)
def room_for_an_answer_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallSegmentsBroker, "segment_bytes", 1 << 20)


class Transport(asyncio.Transport):
    """Takes everything, or nothing while it is full; says what was done to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("client", 1)})
        self.connection: Connection
        self.written = bytearray()
        self.is_full = False
        self.closed = ""

    def write(self, data: Any) -> None:
        self.written += data
        if self.is_full:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return bool(self.closed)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class World:
    def __init__(self, broker: SimulatedBroker) -> None:
        assert broker.broker is not None
        self.host = broker.host
        self.broker: Broker = broker.broker
        self.transport = Transport()
        self.connection = self.transport.connection = Connection(self.broker.acceptor, "PLAINTEXT")
        self.connection.connection_made(self.transport)

    def send(self, *messages: tuple[Any, int]) -> None:
        for message, version in messages:
            data = raw.frame(message, version)
            self.connection.get_buffer(-1)[: len(data)] = data
            self.connection.buffer_updated(len(data))

    def lose(self) -> None:
        self.transport.closed = "lost"
        self.connection.connection_lost(None)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run it as a part of a broker that has a topic t with one record."""

    async def main(simulation: Simulation) -> None:
        broker = SimulatedBroker(simulation)
        await broker.start()
        client = Client(simulation, "client")
        await client.insist(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
        await client.insist(raw.produce_request("t", 0, raw.batch([bytes(50_000)])), raw.PRODUCE_VERSION)
        client.close()
        await asyncio.sleep(1)
        world = World(broker)
        await broker.host.start(scenario(world))
        if world.connection in world.broker.acceptor.connections:
            world.lose()
        await asyncio.sleep(1)
        assert world.broker.acceptor.held_bytes == 0
        assert not world.broker.acceptor.is_busy
        await broker.stop()

    run_simulation(main, 1, time_max_s=900.0)


WAITING = (raw.fetch_request("t", 0, 1, max_wait_ms=60_000), raw.FETCH_VERSION)
READING = (raw.fetch_request("t", 0, 0), raw.FETCH_VERSION)
ASKING = (MetadataRequest(topics=None), METADATA_VERSION)


def test_a_connection_that_is_lost_before_its_request_has_begun_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.send(WAITING)
        assert world.connection.is_handling
        world.lose()
        await asyncio.sleep(0)
        assert len(world.broker.partition("t", 0).watchers) == 0

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(scenario)
        gc.collect()
    assert [str(warning.message) for warning in warned if "never awaited" in str(warning.message)] == []


def test_a_connection_that_is_lost_while_its_request_waits_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.send(WAITING, ASKING)
        await asyncio.sleep(1)
        assert len(world.broker.partition("t", 0).watchers) == 1
        world.lose()
        await asyncio.sleep(1)
        assert len(world.broker.partition("t", 0).watchers) == 0

    run(scenario)


def test_a_request_that_goes_on_without_its_connection_is_counted_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        may_end = asyncio.Event()

        async def slowly(*_: Any) -> None:
            await may_end.wait()

        monkeypatch.setattr(world.broker, "decide", slowly)
        world.send((raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION))
        await asyncio.sleep(1)
        held = world.broker.acceptor.held_bytes
        assert held > 0
        world.lose()
        assert world.broker.acceptor.held_bytes == held
        may_end.set()
        await asyncio.sleep(1)
        assert world.broker.acceptor.held_bytes == 0

    run(scenario)


def test_a_request_that_is_given_up_from_inside_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        async def cancelled(*_: Any) -> None:
            await asyncio.sleep(1)
            raise asyncio.CancelledError

        monkeypatch.setattr(world.broker, "decide", cancelled)
        world.send((raw.create_topics_request({"u": 1}), raw.CREATE_TOPICS_VERSION), ASKING)
        await asyncio.sleep(2)
        assert world.transport.closed == "aborted"
        assert world.transport.written == b""

    run(scenario)


def test_an_answer_that_cannot_be_read_to_its_end_ends_its_connection(failures: list[str]) -> None:
    async def scenario(world: World) -> None:
        world.transport.is_full = True
        world.send(READING, ASKING)
        await asyncio.sleep(1)
        before = len(world.transport.written)
        log = world.broker.partition("t", 0).log
        world.host.disk.inject(Fault("read", errno.EIO, under=log.directory, times=None))
        world.transport.is_full = False
        world.connection.resume_writing()
        await asyncio.sleep(1)
        assert world.transport.closed == "aborted"
        assert len(world.transport.written) == before, "neither the rest nor the next answer may follow"
        assert ["cannot be sent to its end" in text for text in failures] == [True]

    run(scenario)
