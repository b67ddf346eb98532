"""Clients of `headrace.aio` on an event loop that is not asyncio's own, such as web servers bring along."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.runtime.recorder import Recorder

from headrace.aio import Admin, Consumer, Producer
from headrace.certificates import Authority
from headrace.runtime import real_runtime
from headrace.testing import broker

uvloop = pytest.importorskip("uvloop", reason="uvloop is not to be had for this Python")

RECORDS, TIMEOUT_S = 500, 60.0


@pytest.mark.parametrize("acks", ["all", "0"])
def test_clients_work_on_uvloop(acks: str) -> None:
    async def main(address: str) -> None:
        config = {"bootstrap.servers": address}
        sent = [b"%d" % number for number in range(RECORDS)]
        async with Producer(config | {"acks": acks}) as producer:
            for value in sent:
                producer.send("t", value)
        received: list[bytes | None] = []
        async with Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["t"])
            while len(received) < RECORDS:
                received += [record.value for record in await consumer.poll(1.0)]
        assert received == sent
        async with Admin(config) as admin:
            assert "t" in await admin.list_topics()

    with broker() as kafka:
        uvloop.run(asyncio.wait_for(main(kafka.address), TIMEOUT_S))


def test_tls_works_on_uvloop(tmp_path: Path) -> None:
    authority = Authority()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(authority.issue("broker").save(tmp_path / "server.pem"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Recorder(echo=True), "127.0.0.1", 0, ssl=served)
        context = ssl.create_default_context(cadata=authority.certificate)
        port = server.sockets[0].getsockname()[1]
        transport, client = await real_runtime().network.connect(
            Recorder, "127.0.0.1", port, ssl=context, timeout_s=TIMEOUT_S
        )
        transport.write(bytes(1_000_000))
        await client.until(lambda: len(client.received) == 1_000_000)
        transport.close()
        server.close()
        await server.wait_closed()

    uvloop.run(asyncio.wait_for(main(), TIMEOUT_S))
