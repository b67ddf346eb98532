"""A connection of a simulated broker whose transport is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.server.connection import ServerConnection
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .sim import Client, SimulatedBroker


class Transport(asyncio.Transport):
    """Takes everything, or nothing while it is full; says what was done to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("client", 1)})
        self.connection: ServerConnection
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
        self.connect()

    def connect(self) -> None:
        """A connection of its own, which has sent nothing yet; the one before is left as it is."""
        self.transport = Transport()
        self.connection = self.transport.connection = ServerConnection(self.broker.acceptor, "PLAINTEXT")
        self.connection.connection_made(self.transport)

    def send_bytes(self, data: bytes) -> None:
        while data:
            buffer = self.connection.get_buffer(-1)
            piece, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))

    def send(self, *messages: tuple[Any, int]) -> None:
        for message, version in messages:
            self.send_bytes(raw.frame(message, version))

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
