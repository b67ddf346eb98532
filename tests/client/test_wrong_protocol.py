"""`security.protocol` and the listener do not fit: that is found out in moments, and nobody guesses.

A listener closes the connection of who comes in another way than it wants and says nothing, and so does a broker that
is down, or a proxy in front of it. A client that nobody ever answered asks before it takes that for a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.waiting import eventually

from headrace import Admin, Consumer, Producer, aio
from headrace.config import ConfigError
from headrace.errors import ErrorCode, HeadraceError, IllegalSaslStateError
from headrace.net.node import Node
from headrace.net.sasl.exchange import login_is_wanted
from headrace.net.tls import TlsRefusedError
from headrace.protocol.api import ApiKey, api, declared_keys, is_flexible
from headrace.protocol.codec import decode_request_header, encode_response
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.testing import Direction, EmbeddedBroker, FaultProxy, broker

ALERT = bytes.fromhex("15030300020250")
"""What Java's TLS answers to what is none: of level "fatal", an internal error."""
HANDSHAKE = b"\x16"
"""What TLS begins with."""
NEVER_S = 60.0

Answer = Callable[[bytes], bytes | None]
"""Of a request: the bytes that it is answered with; None: the connection is closed."""


@contextmanager
def listener(answer: Answer) -> Iterator[str]:
    """Connections one after the other, each until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rb") as stream:
                    while length := stream.read(4):
                        if (answered := answer(stream.read(struct.unpack(">i", length)[0]))) is None:
                            break
                        connection.sendall(answered)
                        if answered == ALERT:
                            break

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def wants_a_login() -> Answer:
    """As a SASL listener of Apache Kafka: it tells its versions and its mechanisms, and nothing else."""

    def answer(frame: bytes) -> bytes | None:
        header = decode_request_header(frame, is_flexible)
        if header.api_key == ApiKey.API_VERSIONS:
            served = [(key, api(key)) for key in declared_keys()]
            told: Any = ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=key, min_version=one.min_version, max_version=one.max_version)
                    for key, one in served
                ]
            )
        elif header.api_key == ApiKey.SASL_HANDSHAKE:
            told = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["PLAIN", "SCRAM-SHA-512"]
            )
        else:
            return None
        return b"".join(encode_response(told, header.api_version, header.correlation_id))

    return answer


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


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
            consumer.poll(NEVER_S)


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
            await consumer.poll(NEVER_S)


def said(config: dict[str, Any], kind: str) -> Iterator[HeadraceError]:
    for call in (lambda: blocking(config, kind), lambda: asyncio.run(on_a_loop(config, kind))):
        with pytest.raises(HeadraceError) as refused:
            call()
        yield refused.value


KINDS = pytest.mark.parametrize("kind", ["admin", "producer", "consumer"])


@KINDS
def test_a_client_without_tls_learns_that_there_is_some(kind: str) -> None:
    with listener(lambda frame: ALERT) as address:
        for error in said({"bootstrap.servers": address}, kind):
            assert isinstance(error, TlsRefusedError)
            assert "speaks TLS there, and this client does not" in str(error)


def test_so_does_one_that_would_log_in() -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with listener(lambda frame: ALERT) as address:
        config |= {"bootstrap.servers": address, "sasl.username": "me", "sasl.password": "my secret"}
        for error in said(config, "admin"):
            assert "speaks TLS there" in str(error)
            assert "my secret" not in str(error)


@KINDS
def test_a_client_with_tls_learns_that_there_is_none(kafka: EmbeddedBroker, kind: str) -> None:
    for error in said({"bootstrap.servers": kafka.address, "security.protocol": "SSL"}, kind):
        assert isinstance(error, TlsRefusedError)
        assert "does not speak TLS there" in str(error)


@KINDS
def test_a_client_that_does_not_log_in_learns_that_it_has_to(kind: str) -> None:
    with listener(wants_a_login()) as address:
        for error in said({"bootstrap.servers": address}, kind):
            assert isinstance(error, IllegalSaslStateError)
            assert "by PLAIN or SCRAM-SHA-512: set security.protocol to SASL_PLAINTEXT" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"security.protocol": "SSL"}])
def test_who_only_closes_connections_is_not_taken_for_one_that_wants_something(config: dict[str, Any]) -> None:
    """What stands between containers accepts connections, and closes them, before there is a broker behind it."""
    with FaultProxy() as proxy, Admin({**config, "bootstrap.servers": proxy.address}) as admin:
        while proxy.accepted < 4:
            with pytest.raises(HeadraceError) as failed:
                admin.within(2).list_topics()
            assert not isinstance(failed.value, (TlsRefusedError, IllegalSaslStateError))
            assert "security.protocol" in str(failed.value)


@pytest.mark.slow
def test_a_listener_with_tls_that_is_starting_is_not_taken_for_one_without() -> None:
    """It breaks handshakes off, and answers what is no TLS with an alert: the client's own question is such."""
    plain: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        if (first := connection.recv(4096))[:1] != HANDSHAKE:
                            plain.append(first)
                            connection.sendall(ALERT)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            with Admin({"bootstrap.servers": address, "security.protocol": "SSL"}) as admin:
                while len(plain) < 2:
                    with pytest.raises(HeadraceError) as failed:
                        admin.within(2).list_topics()
                    assert not isinstance(failed.value, TlsRefusedError)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_who_names_mechanisms_where_there_is_no_login_wants_none() -> None:
    flow = login_is_wanted("SASL_PLAINTEXT")(Node(1, "broker", 9092))
    next(flow)
    with pytest.raises(StopIteration):
        flow.send(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=["GSSAPI"]))


def test_a_proxy_whose_broker_comes_later_is_waited_for() -> None:
    with FaultProxy() as proxy:
        answers: list[Any] = []

        def ask() -> None:
            with Admin(bootstrap_servers=proxy.address) as admin:
                answers.append(admin.list_topics())

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: proxy.accepted > 3, "some tries")
        with broker(overrides=proxy.overrides) as kafka:
            proxy.target = kafka.address
            asking.join(NEVER_S)
        assert answers == [{}]


def test_a_broker_that_died_before_its_first_answer_and_is_back_serves(kafka: EmbeddedBroker) -> None:
    """It is asked whether it wants a login, on the very connection that goes on."""
    with FaultProxy(kafka.address) as proxy, Admin(bootstrap_servers=proxy.address) as admin:
        cut = proxy.cut_after(2, Direction.TO_BROKER)
        assert "any" not in admin.list_topics()
        assert cut.happened


@pytest.mark.parametrize("given", [{}, {"sasl.mechanism": "GSSAPI"}])
def test_a_mechanism_that_has_to_be_set_is_called_so(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.mechanism has to be set.*PLAIN, SCRAM-SHA-256"):
        Admin({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", **given})
