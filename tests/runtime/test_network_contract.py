"""What both networks, the real and the simulated, promise."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import becomes

from headrace.runtime import ConnectFailedError, ListenFailedError

from .recorder import BufferedRecorder, Recorder


class Buffered(asyncio.BufferedProtocol):
    """Receives into a small buffer of its own, as the broker's connection does."""

    def __init__(self):
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)[:777]

    def buffer_updated(self, count):
        assert 0 < count <= 777
        self.received += self.buffer[:count]
        self.transport.write(self.buffer[:count])

    def connection_lost(self, error):
        self.lost.set_result(error)


@pytest.fixture(params=[Recorder, BufferedRecorder])
def server_class(request):
    """Servers of both kinds of protocol: the real network has transports of its own for one of them."""
    return request.param


async def pair(world, factory, client=Recorder):
    """A listener, and the two ends of one connection."""
    accepted = asyncio.get_running_loop().create_future()

    def make():
        protocol = factory()
        accepted.set_result(protocol)
        return protocol

    listener = await world.runtime.network.listen(make, "localhost", 0)
    port = listener.addresses[0][1]
    transport, protocol = await world.runtime.network.connect(client, "localhost", port, timeout_s=60)
    server = await accepted
    await becomes(lambda: hasattr(server, "transport"), "the server's transport")
    assert protocol.transport is transport
    return listener, protocol, server


def test_bytes_arrive_in_order_whatever_the_chunks(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        sent = bytearray()
        for i in range(200):
            chunk = bytes([i]) * (i * 7)
            client.transport.write(chunk)
            sent += chunk
        client.transport.writelines([b"the ", b"end"])
        sent += b"the end"
        await server.until(lambda: len(server.received) == len(sent))
        assert server.received == sent
        client.transport.close()
        assert await server.lost is None
        assert await client.lost is None
        listener.close()

    world.run(main())


def test_a_buffered_protocol_gets_its_bytes_in_its_own_buffer(world):
    async def main():
        listener, client, server = await pair(world, factory=Buffered)
        sent = bytes(range(256)) * 400
        client.transport.write(sent)
        await client.until(lambda: len(client.received) == len(sent))
        assert client.received == sent
        assert server.received == sent
        client.transport.close()
        await client.lost
        await server.lost
        listener.close()

    world.run(main())


def test_close_sends_what_was_written_first(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        client.transport.write(b"x" * 3_000_000)
        client.transport.close()
        assert client.transport.is_closing()
        await server.until(lambda: "eof" in server.events)
        assert len(server.received) == 3_000_000
        assert await client.lost is None
        await server.lost
        listener.close()

    world.run(main())


def test_writing_is_paused_while_the_peer_does_not_read_and_resumed_when_it_does(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=10_000)
        total = 0
        while "pause" not in client.events:
            client.transport.write(b"z" * 100_000)
            total += 100_000
            assert total < 100_000_000
            await asyncio.sleep(0.001)
        assert client.transport.get_write_buffer_size() > 10_000
        assert "resume" not in client.events
        server.transport.resume_reading()
        await server.until(lambda: len(server.received) == total)
        await client.until(lambda: "resume" in client.events)
        assert client.events.count("pause") == client.events.count("resume") == 1
        client.transport.close()
        await client.lost
        await server.lost
        listener.close()

    world.run(main())


def test_abort_is_a_reset_or_an_end_for_the_peer(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        client.transport.write(b"hello")
        await server.until(lambda: server.received)
        client.transport.abort()
        assert await client.lost is None
        error = await server.lost
        assert error is None or isinstance(error, ConnectionResetError)
        server.transport.write(b"into the void")
        listener.close()

    world.run(main())


def test_a_half_closed_connection_still_answers(world, server_class):
    class Answers(server_class):
        def eof_received(self):
            self.transport.write(b"got %d" % len(self.received))
            self.transport.close()
            return True

    async def main():
        listener, client, server = await pair(world, factory=Answers)
        client.transport.write(b"12345")
        client.transport.write_eof()
        await client.until(lambda: "eof" in client.events)
        assert client.received == b"got 5"
        await client.lost
        await server.lost
        listener.close()

    world.run(main())


def test_both_ends_know_the_addresses(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        port = listener.addresses[0][1]
        assert client.transport.get_extra_info("peername")[1] == port
        assert server.transport.get_extra_info("sockname")[1] == port
        assert server.transport.get_extra_info("peername") == client.transport.get_extra_info("sockname")
        client.transport.close()
        await client.lost
        await server.lost
        listener.close()

    world.run(main())


def test_connecting_where_nobody_listens_is_refused(world, server_class):
    async def main():
        listener, client, server = await pair(world, server_class)
        port = listener.addresses[0][1]
        listener.close()
        await listener.wait_closed()
        with pytest.raises(ConnectFailedError, match=f"localhost:{port} failed") as caught:
            await world.runtime.network.connect(Recorder, "localhost", port, timeout_s=60)
        assert caught.value.port == port
        # Connections that are open stay open.
        client.transport.write(b"still here")
        await server.until(lambda: server.received == b"still here")
        client.transport.close()
        await client.lost
        await server.lost

    world.run(main())


def test_a_port_in_use_is_refused(world, server_class):
    async def main():
        listener = await world.runtime.network.listen(server_class, "localhost", 0)
        with pytest.raises(ListenFailedError, match="Address already in use"):
            await world.runtime.network.listen(server_class, "localhost", listener.addresses[0][1])
        listener.close()

    world.run(main())


def test_all_interfaces_share_one_port(world, server_class):
    async def main():
        listener = await world.runtime.network.listen(server_class, None, 0)
        assert len({port for _, port in listener.addresses}) == 1
        transport, protocol = await world.runtime.network.connect(
            Recorder, "localhost", listener.addresses[0][1], timeout_s=60
        )
        transport.close()
        await protocol.lost
        listener.close()
        await listener.wait_closed()

    world.run(main())


def test_many_connections_at_once(world, server_class):
    async def main():
        listener = await world.runtime.network.listen(lambda: server_class(echo=True), "localhost", 0)
        port = listener.addresses[0][1]

        async def talk(i):
            transport, protocol = await world.runtime.network.connect(Recorder, "localhost", port, timeout_s=60)
            message = b"%d;" % i * 100
            transport.write(message)
            await protocol.until(lambda: len(protocol.received) == len(message))
            assert protocol.received == message
            transport.close()
            await protocol.lost

        await asyncio.gather(*[talk(i) for i in range(50)])
        listener.close()
        await listener.wait_closed()

    world.run(main())


def test_streams_work_on_top(world, server_class):
    async def main():
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        listener = await world.runtime.network.listen(lambda: server_class(echo=True), "localhost", 0)
        transport, protocol = await world.runtime.network.connect(
            lambda: asyncio.StreamReaderProtocol(reader), "localhost", listener.addresses[0][1], timeout_s=60
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        writer.write(b"line\n" * 1000)
        await writer.drain()
        for _ in range(1000):
            assert await reader.readline() == b"line\n"
        writer.close()
        await writer.wait_closed()
        listener.close()

    world.run(main())
