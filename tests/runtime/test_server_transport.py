"""The server's own transport does what asyncio's does, and one connection's trouble is no other's."""

from __future__ import annotations

import asyncio
import select
import socket

import pytest
from tests.waiting import becomes

from headrace.runtime import real_runtime
from headrace.runtime.server_transport import ServerTransport
from headrace.runtime.system import HAS_EPOLL

from .recorder import BufferedRecorder, Recorder

reads_together = pytest.mark.skipif(not HAS_EPOLL, reason="connections are read one by one without epoll")


async def connected(count=1, factory=BufferedRecorder):
    """A listener, the clients and the server's ends of their connections, in the same order."""
    servers = []

    def make():
        servers.append(factory())
        return servers[-1]

    runtime = real_runtime(io_threads=1, seed=1)
    listener = await runtime.network.listen(make, "127.0.0.1", 0)
    clients = []
    for number in range(count):
        _, client = await runtime.network.connect(Recorder, "127.0.0.1", listener.addresses[0][1], timeout_s=60)
        clients.append(client)
        await becomes(
            lambda number=number: len(servers) > number and hasattr(servers[number], "transport"), "the server's end"
        )
        assert isinstance(servers[number].transport, ServerTransport)
    return listener, clients, servers


async def end(listener, clients, servers):
    for client in clients:
        client.transport.abort()
    for protocol in (*clients, *servers):
        await protocol.lost
        assert protocol.events.count("lost") == 1
    listener.close()
    await asyncio.sleep(0)
    assert listener.ready.is_idle, "nothing is left behind when the last connection is gone"


def test_what_does_not_fit_the_socket_is_sent_when_there_is_room():
    async def main():
        _, (client,), (server,) = made = await connected()
        client.transport.pause_reading()
        server.transport.set_write_buffer_limits(high=0)
        data = bytes(range(256)) * 40_000
        server.transport.write(data)
        server.transport.write(b"the end")
        assert server.events[-1] == "pause"
        assert 0 < server.transport.get_write_buffer_size() <= len(data) + 7
        client.transport.resume_reading()
        await client.until(lambda: len(client.received) == len(data) + 7)
        assert client.received == data + b"the end"
        await server.until(lambda: server.events[-1] == "resume")
        assert server.transport.get_write_buffer_size() == 0
        await end(*made)

    asyncio.run(main())


def test_closing_sends_what_was_written_first_and_aborting_does_not():
    async def main():
        for how in ("close", "abort"):
            _, (client,), (server,) = made = await connected()
            client.transport.pause_reading()
            server.transport.write(bytes(10_000_000))
            getattr(server.transport, how)()
            assert server.transport.is_closing()
            server.transport.close()  # again does nothing
            client.transport.resume_reading()
            await client.lost
            assert (len(client.received) == 10_000_000) is (how == "close")
            assert await server.lost is None
            server.transport.write(b"into the void")
            await end(*made)

    asyncio.run(main())


def test_a_reset_is_told_and_so_is_one_that_a_write_finds():
    async def main():
        made = await connected(2)
        _, clients, servers = made
        servers[1].transport.pause_reading()
        for client in clients:
            client.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
            )
            client.transport.abort()
            await client.lost
        assert isinstance(await servers[0].lost, ConnectionResetError)
        await asyncio.sleep(0.01)
        assert not servers[1].lost.done(), "it is not read"
        servers[1].transport.write(b"x")
        assert isinstance(await servers[1].lost, ConnectionError)
        await end(*made)

    asyncio.run(main())


def test_a_protocol_that_fails_loses_its_connection_and_no_other():
    class Failing(BufferedRecorder):
        fails_in = ""

        def get_buffer(self, sizehint):
            if self.fails_in == "get_buffer":
                raise ValueError("no buffer")
            return memoryview(bytearray()) if self.fails_in == "empty" else super().get_buffer(sizehint)

        def buffer_updated(self, count):
            if self.fails_in == "buffer_updated":
                raise ValueError("not today")
            super().buffer_updated(count)

        def eof_received(self):
            if self.fails_in == "eof_received":
                raise ValueError("no end")

    async def main():
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
        for place in ("get_buffer", "empty", "buffer_updated", "eof_received"):
            made = await connected(2, Failing)
            _, clients, servers = made
            servers[0].fails_in = place
            clients[0].transport.write(b"x")
            clients[1].transport.write(b"y")
            if place == "eof_received":
                clients[0].transport.write_eof()
            assert isinstance(await servers[0].lost, (ValueError, RuntimeError))
            other = servers[1]
            await other.until(lambda other=other: other.received == b"y")
            assert said.pop() is servers[0].lost.result()
            assert not said
            await end(*made)

    asyncio.run(main())


def test_a_protocol_that_fails_at_its_beginning_loses_its_connection_and_leaves_nothing_behind():
    class Failing(BufferedRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise ValueError("not at all")

    async def main():
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
        made = await connected(1, Failing)
        _, (client,), (server,) = made
        assert await server.lost is said[0]
        assert await client.lost is None
        await end(*made)

    asyncio.run(main())


def test_a_protocol_may_pause_and_resume_when_it_is_told_of_its_connection():
    class Hesitating(BufferedRecorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()
            transport.resume_reading()

    async def main():
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        made = await connected(1, Hesitating)
        _, (client,), (server,) = made
        client.transport.write(b"x")
        await server.until(lambda: server.received == b"x")
        assert not said
        await end(*made)

    asyncio.run(main())


@pytest.mark.parametrize("ends_by", ["abort", "close", ""])
def test_a_protocol_that_fails_when_it_may_write_again_is_told_so_and_the_loop_forgets_its_socket(ends_by):
    class Failing(BufferedRecorder):
        def pause_writing(self):
            super().pause_writing()
            raise ValueError("no pause")

        def resume_writing(self):
            super().resume_writing()
            if ends_by:
                getattr(self.transport, ends_by)()
            raise ValueError("no more")

    async def main():
        said = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: said.append(str(context["exception"])))
        made = await connected(1, Failing)
        _, (client,), (server,) = made
        number = server.transport.get_extra_info("socket").fileno()
        server.transport.set_write_buffer_limits(high=0)
        client.transport.pause_reading()
        server.transport.write(bytes(10_000_000))
        client.transport.resume_reading()
        await client.until(lambda: len(client.received) == 10_000_000)
        await server.until(lambda: "resume" in server.events)
        assert said == ["no pause", "no more"]
        if ends_by:
            assert await server.lost is None
        assert loop.remove_writer(number) is False
        await end(*made)

    asyncio.run(main())


@reads_together
def test_one_that_is_closed_by_another_of_the_same_turn_is_not_read():
    class Closing(BufferedRecorder):
        others = ()

        def buffer_updated(self, count):
            super().buffer_updated(count)
            for other in self.others:
                other.transport.abort()

    async def main():
        made = await connected(2, Closing)
        _, clients, servers = made
        servers[0].others, servers[1].others = servers[1:], servers[:1]
        clients[0].transport.write(b"x")
        clients[1].transport.write(b"y")
        numbers = [server.transport.get_extra_info("socket").fileno() for server in servers]
        for number in numbers:
            waiting = select.poll()
            waiting.register(number, select.POLLIN)
            assert waiting.poll(60_000), "both have come before either is looked at"
        made[0].ready.read_all()
        assert sorted(len(server.received) for server in servers) == [0, 1]
        await end(*made)

    asyncio.run(main())


def in_one_turn(listener, clients, servers):
    """Each client sends its number, and all are read in one turn."""
    for number, client in enumerate(clients):
        client.transport.write(b"%d" % number)
    for server in servers:
        waiting = select.poll()
        waiting.register(server.transport.get_extra_info("socket").fileno(), select.POLLIN)
        assert waiting.poll(60_000), "all have come before any is looked at"
    listener.ready.read_all()


@reads_together
@pytest.mark.parametrize(("size", "reads"), [(500, 1), (2_048, 3), (100_000, 1)])
def test_one_that_fills_its_buffer_is_read_again_in_its_turn_where_that_is_worth_it(size, reads):
    class Small(BufferedRecorder):
        counts = ()

        def get_buffer(self, sizehint):
            self.room = bytearray(size)
            return memoryview(self.room)

        def buffer_updated(self, count):
            self.counts = (*self.counts, count)
            self.received += self.room[:count]

    async def main():
        made = await connected(1, Small)
        listener, (client,), (server,) = made
        sent = bytes(range(200)) * 40
        client.transport.write(sent)
        waiting = select.poll()
        waiting.register(server.transport.get_extra_info("socket").fileno(), select.POLLIN)
        assert waiting.poll(60_000)
        listener.ready.read_all()
        assert len(server.counts) == reads
        await becomes(lambda: server.received == sent, "the rest, in later turns")
        await end(*made)

    asyncio.run(main())


@reads_together
@pytest.mark.parametrize("count", [1, 2, 6, 70])
def test_answers_of_one_turn_are_sent_whatever_else_happens_in_it(count):
    class Answering(BufferedRecorder):
        after = None

        def buffer_updated(self, count):
            super().buffer_updated(count)
            transport, answer = self.transport, bytes(self.received) * 3
            transport.write(answer)
            assert transport.get_write_buffer_size() in (0, len(answer))
            if self.after == "more":
                transport.write(memoryview(b"a part"))
                transport.write(b" and an end")
            elif self.after == "fail":
                raise ValueError("not today")
            elif self.after is not None:
                getattr(transport, self.after)()

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        made = await connected(count, Answering)
        listener, clients, servers = made
        cases = (None, "more", "close", "abort", "write_eof", "fail")
        for number, server in enumerate(servers):
            server.after = cases[number % len(cases)]
        in_one_turn(*made)
        assert listener.ready.answered is None
        for number, (client, server) in enumerate(zip(clients, servers, strict=True)):
            wanted = b"%d" % number * 3 + (b"a part and an end" if server.after == "more" else b"")
            await client.until(lambda client=client, wanted=wanted: client.received == wanted)
        await end(*made)

    asyncio.run(main())


@reads_together
@pytest.mark.parametrize("count", [1, 2, 70])
def test_what_is_left_for_the_end_of_a_turn_is_done_before_its_answers_are_sent(count):
    ended = []

    class Late(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            assert self.transport.at_turn_end(self.answer)

        def answer(self):
            ended.append(self)
            self.transport.write(bytes(self.received) * 2)
            assert count == 1 or self.transport.get_write_buffer_size() > 0, "it goes with the others"

    async def main():
        made = await connected(count, Late)
        listener, clients, servers = made
        in_one_turn(*made)
        assert not listener.ready.ends
        assert sorted(map(servers.index, ended)) == list(range(count))
        for number, client in enumerate(clients):
            wanted = b"%d" % number * 2
            await client.until(lambda client=client, wanted=wanted: client.received == wanted)
        await end(*made)

    asyncio.run(main())


@reads_together
def test_an_answer_to_a_client_that_is_gone_keeps_no_other_from_its_own():
    class Answering(BufferedRecorder):
        def buffer_updated(self, count):
            super().buffer_updated(count)
            if self.fails:
                self.transport._send = self._reset
            self.transport.write(b"answer")

        def _reset(self, data):
            raise ConnectionResetError("gone")

    async def main():
        made = await connected(3, Answering)
        _, clients, servers = made
        for number, server in enumerate(servers):
            server.fails = number == 1
        in_one_turn(*made)
        assert isinstance(await servers[1].lost, ConnectionResetError)
        for client in (clients[0], clients[2]):
            await client.until(lambda client=client: client.received == b"answer")
        await end(*made)

    asyncio.run(main())


def test_reading_can_be_paused_and_an_end_of_the_peer_outlasted():
    class Outlasting(BufferedRecorder):
        def eof_received(self):
            super().eof_received()
            return True

    async def main():
        made = await connected(1, Outlasting)
        _, (client,), (server,) = made
        server.transport.pause_reading()
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"waits")
        await asyncio.sleep(0.02)
        assert not server.received
        server.transport.resume_reading()
        server.transport.resume_reading()
        await server.until(lambda: server.received == b"waits")
        client.transport.write_eof()
        await server.until(lambda: "eof" in server.events)
        server.transport.write(b"still")
        server.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            server.transport.write(b"no more")
        await client.until(lambda: "eof" in client.events)
        assert client.received == b"still"
        server.transport.close()
        await end(*made)

    asyncio.run(main())


def test_a_listener_that_is_closed_leaves_its_connections():
    async def main():
        made = await connected(1)
        listener, (client,), (server,) = made
        listener.close()
        await listener.wait_closed()
        client.transport.write(b"still here")
        await server.until(lambda: server.received == b"still here")
        await end(*made)

    asyncio.run(main())
