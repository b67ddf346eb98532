"""TLS: all clients through a proxy that speaks it, and certificates that are not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.testing
from headrace import Admin, Consumer, Producer, aio
from headrace.errors import HeadraceError
from headrace.testing import FaultProxy

pytestmark = pytest.mark.slow

pytest.importorskip("cryptography")


def make_certificate(path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one PEM file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(pem))
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture(scope="module")
def address(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FaultProxy(tls=context) as proxy, headrace.testing.broker(overrides=proxy.overrides) as kafka:
        proxy.target = kafka.address
        yield proxy.address


def trusting(certificate: Path, address: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }


@pytest.fixture
def config(address: str, certificate: Path) -> dict[str, Any]:
    return trusting(certificate, address)


READING = {"auto.offset.reset": "earliest", "group.id": "g"}
# Longer than a TLS record, and than a socket's buffer.
LARGE = bytes(range(256)) * 3_000


def test_the_blocking_clients_speak_tls(config: dict[str, Any]) -> None:
    with Producer(config) as producer:
        producer.send("blocking", LARGE).result(30)
        for number in range(500):
            producer.send("blocking", b"%d" % number)
    found: list[bytes] = []
    with Consumer(config, group_id="b", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["blocking"])
        for record in consumer:
            found.append(record.value)
            if len(found) == 501:
                break
    assert found == [LARGE, *(b"%d" % number for number in range(500))]
    with Admin(config) as admin:
        assert "blocking" in admin.list_topics()


def test_the_asyncio_clients_speak_tls(config: dict[str, Any]) -> None:
    async def main() -> list[bytes]:
        found: list[bytes] = []
        async with aio.Producer(config) as producer:
            await producer.send("asyncio", LARGE)
            for number in range(500):
                producer.send("asyncio", b"%d" % number)
        async with asyncio.timeout(60), aio.Consumer({**config, **READING}) as consumer:
            consumer.subscribe(["asyncio"])
            while len(found) < 501:
                found.extend(record.value for record in await consumer.poll(1.0))
        async with aio.Admin(config) as admin:
            assert "asyncio" in await admin.list_topics()
        return found

    assert asyncio.run(main()) == [LARGE, *(b"%d" % number for number in range(500))]


def test_a_certificate_that_is_not_trusted_is_named_as_the_cause(config: dict[str, Any], tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other.pem")
    with (
        Admin({**config, "ssl.truststore.location": str(other)}) as admin,
        pytest.raises(HeadraceError, match="certificate"),
    ):
        admin.within(1.5).list_topics()


def test_the_asyncio_clients_name_it_too(config: dict[str, Any], tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other.pem")

    async def main() -> None:
        async with aio.Admin({**config, "ssl.truststore.location": str(other)}) as admin:
            with pytest.raises(HeadraceError, match="certificate"):
                await admin.within(1.5).list_topics()

    asyncio.run(main())


def test_what_an_asyncio_producer_without_acknowledgements_has_flushed_has_gone_out(certificate: Path) -> None:
    """All of it, to the socket: not only to the buffer below asyncio's TLS, which is lost with the producer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FaultProxy(tls=context) as proxy, headrace.testing.broker(overrides=proxy.overrides) as kafka:
        proxy.target = kafka.address
        settings = trusting(certificate, proxy.address)
        flushed = 0

        async def send_until_nothing_goes_out() -> None:
            nonlocal flushed
            producer = aio.Producer({**settings, "acks": "0", "enable.idempotence": "false"})
            await producer.send("unacknowledged", b"first")
            proxy.pause()
            with contextlib.suppress(TimeoutError):
                for count in range(1, 10_000):
                    flushed = count
                    producer.send("unacknowledged", bytes(20_000), on_delivery=lambda *_: None)
                    await producer.flush(0.5)
            await producer.close(0)

        asyncio.run(send_until_nothing_goes_out())
        proxy.resume()
        with Consumer(settings) as consumer:
            deadline = time.monotonic() + 30
            while (ends := list(consumer.end_offsets([("unacknowledged", 0)]).values())) < [flushed]:
                assert time.monotonic() < deadline, (ends, flushed)
                time.sleep(0.01)
