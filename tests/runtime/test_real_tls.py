"""TLS over the real network: it works, and what fails says so in time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.runtime import ConnectFailedError, real_runtime

from .recorder import BufferedRecorder, Recorder

x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography to make a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a self-signed certificate for 127.0.0.1, and its key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


def serving(certificate: Path) -> Callable[[], ssl.SSLContext]:
    return lambda: server_context(certificate)


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_bytes_travel_through_tls(certificate):
    async def main():
        network = real_runtime().network
        listener = await network.listen(lambda: Recorder(echo=True), "127.0.0.1", 0, ssl=serving(certificate))
        port = listener.addresses[0][1]
        context = ssl.create_default_context(cafile=str(certificate))
        transport, client = await network.connect(Recorder, "127.0.0.1", port, ssl=context, timeout_s=60)
        transport.write(b"secret" * 10_000)
        await client.until(lambda: len(client.received) == 60_000)
        assert transport.get_extra_info("ssl_object").version().startswith("TLS")
        transport.close()
        await client.lost
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())


def test_an_untrusted_certificate_fails_the_connect(certificate):
    async def main():
        network = real_runtime().network
        listener = await network.listen(Recorder, "127.0.0.1", 0, ssl=serving(certificate))
        with pytest.raises(ConnectFailedError, match="certificate verify failed"):
            await network.connect(
                Recorder, "127.0.0.1", listener.addresses[0][1], ssl=ssl.create_default_context(), timeout_s=60
            )
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())


def test_a_peer_that_never_answers_the_handshake_is_given_up_in_time(certificate):
    async def main():
        network = real_runtime().network
        mute = await network.listen(Recorder, "127.0.0.1", 0)
        port = mute.addresses[0][1]
        context = ssl.create_default_context(cafile=str(certificate))
        with pytest.raises(ConnectFailedError, match=r"took over 0.1 s"):
            await network.connect(Recorder, "127.0.0.1", port, ssl=context, timeout_s=0.1)
        mute.close()
        await mute.wait_closed()

    asyncio.run(main())


def test_a_client_that_never_shakes_hands_is_thrown_out(certificate):
    async def main():
        network = real_runtime().network
        listener = await network.listen(Recorder, "127.0.0.1", 0, ssl=serving(certificate), handshake_timeout_s=0.1)
        _, client = await network.connect(Recorder, "127.0.0.1", listener.addresses[0][1], timeout_s=60)
        async with asyncio.timeout(60):
            await client.lost
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())


def test_what_was_written_before_a_pause_survives_an_abort(certificate):
    """With a limit of 0 there is a pause as soon as the socket does not take all, whatever TLS has handed on."""

    async def main():
        network = real_runtime().network
        peers = []

        def accept():
            peers.append(Recorder())
            return peers[0]

        listener = await network.listen(accept, "127.0.0.1", 0, ssl=serving(certificate))
        context = ssl.create_default_context(cafile=str(certificate))
        port = listener.addresses[0][1]
        transport, client = await network.connect(Recorder, "127.0.0.1", port, ssl=context, timeout_s=60)
        transport.write(b"first")
        [peer] = peers
        await peer.until(lambda: peer.received == b"first")
        peer.transport.pause_reading()
        transport.set_write_buffer_limits(0)
        written = len(b"first")
        for _ in range(100_000):
            transport.write(bytes(10_000))
            await asyncio.sleep(0)
            if client.events[-1] == "pause":
                break
            written += 10_000
        assert client.events == ["made", "pause"]
        assert transport.get_write_buffer_size() > 0
        transport.abort()
        peer.transport.resume_reading()
        await peer.until(lambda: len(peer.received) >= written)
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())


@pytest.mark.parametrize("says", [b"", b"hello"])
def test_a_protocol_hears_of_its_connection_before_all_that_came_with_the_end_of_the_handshake(certificate, says):
    """With TLS 1.2 the peer is the last to speak in it, and may say more in the same breath: also that it is closed."""

    async def answer(reader, writer):
        context = server_context(certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        if says:
            tls.write(says)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        writer.write(outgoing.read())
        await reader.read()
        writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(certificate))
        for kind in (Recorder, BufferedRecorder):
            _, client = await real_runtime().network.connect(kind, "127.0.0.1", port, ssl=context, timeout_s=60)
            await client.lost
            assert (client.events, client.received) == (["made", "eof", "lost"], says)
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_protocol_hears_nothing_of_a_connection_whose_handshake_fails(certificate):
    async def main():
        network = real_runtime().network
        listener = await network.listen(Recorder, "127.0.0.1", 0, ssl=serving(certificate))
        made = []

        def remembered():
            made.append(Recorder())
            return made[0]

        port, context = listener.addresses[0][1], ssl.create_default_context()
        with pytest.raises(ConnectFailedError, match="certificate verify failed"):
            await network.connect(remembered, "127.0.0.1", port, ssl=context, timeout_s=60)
        for _ in range(10):
            await asyncio.sleep(0)  # the transport is let go of in the loop's next turns
        assert made[0].events == []
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())
