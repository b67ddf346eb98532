"""`security.protocol` and the listener do not fit: that is said in moments, and by its cause.

A broker that wants TLS closes the connection of who comes without and says nothing, and so does one without TLS; and so
does a proxy whose broker is not up yet, which has to be waited for. A client that nobody ever answered asks once in the
other way, and knows.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import Admin, Consumer, Producer, aio
from headrace.errors import HeadraceError
from headrace.net.tls import TlsRefusedError
from headrace.testing import EmbeddedBroker, FaultProxy, broker

pytestmark = pytest.mark.slow

NEEDS_TLS, HAS_NO_TLS = "speaks TLS, and this client does not", "does not speak TLS there"


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.fixture(scope="module")
def secured(kafka: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the broker is reached by TLS only."""
    pytest.importorskip("cryptography")
    from tests.secured.certificates import Authority

    path = Authority().issue("a broker").save(tmp_path_factory.mktemp("tls") / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with FaultProxy(kafka.address, tls=context) as proxy:
        yield proxy.address


def blocking(config: dict[str, Any], kind: str) -> None:
    if kind == "admin":
        with Admin(config) as admin:
            admin.list_topics()
    elif kind == "producer":
        with Producer(config) as producer:
            producer.send("any", b"x").result()
    else:
        with Consumer({**config, "group.id": "g"}) as consumer:
            consumer.subscribe(["any"])
            consumer.poll(60)


async def on_a_loop(config: dict[str, Any], kind: str) -> None:
    if kind == "admin":
        async with aio.Admin(config) as admin:
            await admin.list_topics()
    elif kind == "producer":
        async with aio.Producer(config) as producer:
            await producer.send("any", b"x")
    else:
        async with aio.Consumer({**config, "group.id": "g"}) as consumer:
            consumer.subscribe(["any"])
            await consumer.poll(60)


def said(config: dict[str, Any], kind: str) -> Iterator[HeadraceError]:
    for call in (lambda: blocking(config, kind), lambda: asyncio.run(on_a_loop(config, kind))):
        with pytest.raises(HeadraceError) as refused:
            call()
        yield refused.value


@pytest.mark.parametrize("kind", ["admin", "producer", "consumer"])
def test_a_client_without_tls_learns_that_there_is_some(secured: str, kind: str) -> None:
    for error in said({"bootstrap.servers": secured}, kind):
        assert isinstance(error, TlsRefusedError)
        assert NEEDS_TLS in str(error)


def test_so_does_one_that_would_log_in(secured: str) -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    config |= {"bootstrap.servers": secured, "sasl.username": "me", "sasl.password": "my secret"}
    for error in said(config, "admin"):
        assert NEEDS_TLS in str(error)
        assert "my secret" not in str(error)


@pytest.mark.parametrize("kind", ["admin", "producer", "consumer"])
def test_a_client_with_tls_learns_that_there_is_none(kafka: EmbeddedBroker, kind: str) -> None:
    for error in said({"bootstrap.servers": kafka.address, "security.protocol": "SSL"}, kind):
        assert isinstance(error, TlsRefusedError)
        assert HAS_NO_TLS in str(error)


def test_a_proxy_whose_broker_comes_later_is_waited_for(tmp_path: Path) -> None:
    """What stands between containers accepts connections, and closes them, before there is a broker behind it."""
    with FaultProxy() as proxy:
        answers: list[Any] = []

        def ask() -> None:
            with Admin(bootstrap_servers=proxy.address) as admin:
                answers.append(admin.list_topics())

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: proxy.accepted > 6, "some tries, the question among them")
        with broker(overrides=proxy.overrides) as kafka:
            proxy.target = kafka.address
            asking.join(60)
        assert answers == [{}]


def test_a_missing_mechanism_is_called_missing() -> None:
    with pytest.raises(HeadraceError, match=r"sasl\.mechanism has to be set"):
        Admin({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL"})
