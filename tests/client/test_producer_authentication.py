"""A producer whose credentials are refused says so at once, and not when its time-outs are over."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Producer, aio
from headrace.errors import ErrorCode, HeadraceError, NetworkError, SaslAuthenticationFailedError
from headrace.protocol.api import ApiKey, api, is_flexible
from headrace.protocol.codec import decode, decode_request_header, encode_response
from headrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse

from .fake import FakeCluster, VirtualClock, World

SASL = {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
AT_ONCE_S = 5.0
"""Of virtual time: far below `max.block.ms` and `delivery.timeout.ms`."""
WAIT_S = 30.0


class Guard:
    """Brokers that let a client in or not: `refusing` are those that do not."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.refusing = set(cluster.brokers)
        cluster.script = self

    def __call__(self, node: int, name: str, request: Any) -> Any:
        if name == "SaslHandshake":
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        if name != "SaslAuthenticate":
            return None
        code = ErrorCode.SASL_AUTHENTICATION_FAILED if node in self.refusing else ErrorCode.NONE
        return SaslAuthenticateResponse(error_code=code, error_message="wrong password" if code else None)


def world_of(cluster: FakeCluster, **config: Any) -> World:
    world = World(cluster, linger_ms=0, **config)
    world.authenticate()
    return world


KINDS = [
    pytest.param({}, id="idempotent"),
    pytest.param({"enable_idempotence": False}, id="not idempotent"),
]


@pytest.mark.parametrize("config", KINDS)
def test_a_wrong_password_reaches_deliveries_callbacks_and_flushes_at_once(config: dict[str, Any]) -> None:
    cluster = FakeCluster(VirtualClock(), brokers=2, topics={"t": 2})
    Guard(cluster)
    world, begun, told = world_of(cluster, **config), cluster.clock.now, []
    delivery = world.send("t", b"x", on_delivery=lambda error, where: told.append(error))
    wait = world.producer.flush()
    world.run_until(lambda: delivery.done() and wait.is_done)
    assert world.clock.now - begun < AT_ONCE_S
    with pytest.raises(SaslAuthenticationFailedError, match=r"records for t were not sent.*wrong password"):
        delivery.result()
    assert [type(error) for error in told] == [SaslAuthenticationFailedError]
    assert world.producer.is_idle


@pytest.mark.parametrize("config", KINDS)
def test_a_producer_goes_on_once_it_is_let_in(config: dict[str, Any]) -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    guard = Guard(cluster)
    world = world_of(cluster, **config)
    first = world.send("t", b"refused")
    world.deliver([first])
    assert isinstance(first.exception(), SaslAuthenticationFailedError)
    guard.refusing.clear()
    # The refusal of before is not the answer to what is sent from now on.
    second = world.send("t", b"taken")
    world.deliver([second])
    assert second.exception() is None
    assert cluster.values("t") == [b"taken"]


@pytest.mark.parametrize("config", KINDS)
def test_only_what_waits_for_the_broker_that_refuses_fails(config: dict[str, Any]) -> None:
    cluster = FakeCluster(VirtualClock(), brokers=2, topics={"t": 2})
    guard = Guard(cluster)
    guard.refusing = set()
    world = world_of(cluster, **config)
    world.deliver([world.send("t", b"first", partition=0)])
    guard.refusing = {2}
    world.core.disconnect(2, NetworkError("cut"))
    begun = world.clock.now
    there, refused = world.send("t", b"a", partition=0), world.send("t", b"b", partition=1)
    world.deliver([there, refused])
    assert world.clock.now - begun < AT_ONCE_S
    assert there.exception() is None
    assert isinstance(refused.exception(), SaslAuthenticationFailedError)
    assert "1 record for t-1" in str(refused.exception())
    guard.refusing.clear()
    after = [world.send("t", b"c", partition=1), world.send("t", b"d", partition=1)]
    world.deliver(after)
    assert all(delivery.exception() is None for delivery in after)
    assert cluster.logs["t", 1].values == [b"c", b"d"]


# --- with sockets -----------------------------------------------------------------------------------------------------


class RefusingBroker:
    """Listens, and lets nobody in."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", head)[0])
                header = decode_request_header(frame, is_flexible)
                found, version = api(header.api_key), header.api_version
                request = decode(found.request, version, frame, header.body_position)
                answer = self._answer(found.name, request)
                connection.sendall(b"".join(encode_response(answer, version, header.correlation_id)))

    def _answer(self, name: str, request: Any) -> Any:
        if name == "ApiVersions":
            served = {ApiKey.API_VERSIONS: (0, 4), **SASL}
            keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in served.items()]
            return ApiVersionsResponse(api_keys=keys)
        if name == "SaslHandshake":
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="wrong password", auth_bytes=b""
        )

    def close(self) -> None:
        # A listener that is only closed goes on waiting in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def config() -> Iterator[dict[str, Any]]:
    broker = RefusingBroker()
    yield {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "user",
        "sasl.password": "wrong",
        "max.block.ms": 600_000,
        "delivery.timeout.ms": 600_000,
    }
    broker.close()


def test_everything_a_blocking_producer_waits_for_is_refused(config: dict[str, Any]) -> None:
    with Producer(config) as producer:
        told: list[HeadraceError | None] = []
        delivery = producer.send("t", b"x", on_delivery=lambda error, where: told.append(error))
        producer.flush(WAIT_S)
        assert isinstance(delivery.exception(0), SaslAuthenticationFailedError)
        assert [type(error) for error in told] == [SaslAuthenticationFailedError]
        with pytest.raises(SaslAuthenticationFailedError, match="wrong password"):
            producer.send_batch("t", [b"x"] * 3).result(WAIT_S)
        with pytest.raises(SaslAuthenticationFailedError, match="wrong password"):
            producer.partitions_for("t", WAIT_S)
    with Producer(config, transactional_id="x") as producer, pytest.raises(HeadraceError, match="wrong password"):
        producer.init_transactions(WAIT_S)


def test_everything_an_asyncio_producer_waits_for_is_refused(config: dict[str, Any]) -> None:
    async def main() -> None:
        async with aio.Producer(config) as producer:
            delivery = producer.send("t", b"x")
            await producer.flush(WAIT_S)
            assert isinstance(delivery.exception(), SaslAuthenticationFailedError)
            with pytest.raises(SaslAuthenticationFailedError, match="wrong password"):
                await producer.send("t", b"y")
            with pytest.raises(SaslAuthenticationFailedError, match="wrong password"):
                await producer.partitions_for("t", WAIT_S)
        async with aio.Producer(config, transactional_id="x") as producer:
            with pytest.raises(HeadraceError, match="wrong password"):
                await producer.init_transactions(WAIT_S)

    asyncio.run(main())
