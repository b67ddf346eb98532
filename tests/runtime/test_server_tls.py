"""The server's own ends of TLS: every byte comes and goes, however it is cut, and handshakes that fail end alone."""

from __future__ import annotations

import asyncio
import random
import ssl

import pytest
from tests.runtime.test_real_tls import certificate as certificate
from tests.runtime.test_real_tls import server_context
from tests.waiting import becomes

from headrace.runtime import real_runtime
from headrace.runtime.server_tls import TlsServerTransport

from .recorder import BufferedRecorder, Recorder


class SmallBuffers(BufferedRecorder):
    """Takes no record of TLS in one piece."""

    def get_buffer(self, sizehint):
        self.buffer = bytearray(1000)
        return self.buffer


async def connected(certificate, factory=BufferedRecorder, version=None):
    servers = []

    def make():
        servers.append(factory())
        return servers[-1]

    context = server_context(certificate)
    runtime = real_runtime(io_threads=1, seed=1)
    listener = await runtime.network.listen(make, "127.0.0.1", 0, ssl=lambda: context)
    trusting = ssl.create_default_context(cafile=str(certificate))
    if version is not None:
        trusting.maximum_version = version
    port = listener.addresses[0][1]
    _, client = await runtime.network.connect(Recorder, "127.0.0.1", port, ssl=trusting, timeout_s=60)
    await becomes(lambda: servers and hasattr(servers[0], "transport"), "the server's end")
    assert isinstance(servers[0].transport, TlsServerTransport)
    return listener, client, servers[0]


async def end(listener, client, server):
    client.transport.close()
    await client.lost
    await server.lost
    listener.close()
    await asyncio.sleep(0)
    assert listener.ready.is_idle, "nothing is left behind when the last connection is gone"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("factory", [BufferedRecorder, SmallBuffers])
def test_every_byte_comes_and_goes_however_it_is_cut(certificate, factory, version):
    async def main():
        _, client, server = made = await connected(certificate, factory, version)
        rng = random.Random(1)
        there = b""
        server.transport.set_write_buffer_limits(high=0)
        back = bytes(20_000_000)
        server.transport.write(back)
        for turn in range(60):
            piece = rng.randbytes(rng.choice((1, 100, 16_383, 16_384, 16_385, 70_000)))
            client.transport.write(piece)
            there += piece
            piece = rng.randbytes(rng.choice((1, 100, 16_384, 65_536, 65_537, 400_000)))
            server.transport.write(piece)
            back += piece
            if turn % 7 == 0:
                server.transport.pause_reading()
            elif turn % 7 == 3:
                server.transport.resume_reading()
                await asyncio.sleep(0)
        server.transport.resume_reading()
        await becomes(lambda: len(server.received) >= len(there), "all that the client wrote")
        await becomes(lambda: len(client.received) >= len(back), "all that the server wrote")
        assert server.received == there
        assert client.received == back
        assert "pause" in server.events, "the socket had no room for a while"
        await end(*made)

    asyncio.run(main())


def test_what_was_written_before_a_close_is_sent_and_its_end_is_said(certificate):
    async def main():
        _, client, server = made = await connected(certificate)
        server.transport.write(bytes(5_000_000))
        server.transport.close()
        await client.lost
        assert len(client.received) == 5_000_000
        assert client.events == ["made", "eof", "lost"], "nothing was cut off"
        await end(*made)

    asyncio.run(main())


def test_a_handshake_that_nobody_goes_on_with_ends_in_time(certificate):
    async def main():
        servers = []

        class Told(BufferedRecorder):
            def tls_refused(self, why):
                servers.append(why)

        context = server_context(certificate)
        runtime = real_runtime(io_threads=1, seed=1)
        listener = await runtime.network.listen(Told, "127.0.0.1", 0, ssl=lambda: context, handshake_timeout_s=0.05)
        _, client = await runtime.network.connect(Recorder, "127.0.0.1", listener.addresses[0][1], timeout_s=60)
        await client.lost
        assert servers == ["no handshake within 0.05 s"]
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())
