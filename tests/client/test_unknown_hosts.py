"""An address that cannot be a broker's, by its host (`a..b`) or its port: nothing ends because of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import headrace.aio
from headrace import Consumer, Producer
from headrace.client.cluster.drivers import AsyncClient, BlockingClient
from headrace.client.configs import COMMON_KEYS, ConnectionConfig, read_config
from headrace.client.errors import DeliveryTimeoutError
from headrace.config import ConfigDefinition
from headrace.errors import NetworkError
from headrace.net.node import Node
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.runtime import real_runtime

NO_HOST = "a..b:9092"
NO_LABEL = "idna|label empty"
"""What Python says of such a name, by its version."""


@pytest.mark.slow
def test_a_producer_goes_on_without_it() -> None:
    with Producer(bootstrap_servers=NO_HOST, max_block_ms=1000) as producer:
        for _ in range(2):
            error = producer.send("t", b"x").exception(30)
            assert isinstance(error, DeliveryTimeoutError)
            assert "'a..b' cannot be the name of a host" in str(error)


def test_a_consumer_goes_on_without_it() -> None:
    consumer = Consumer(bootstrap_servers=NO_HOST, group_id="g")
    consumer.subscribe(["t"])
    assert not consumer.poll(0.05)
    consumer.close(0)


def test_asyncio_clients_go_on_without_it() -> None:
    unheard: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        async with headrace.aio.Producer(bootstrap_servers=NO_HOST, max_block_ms=1000) as producer:
            with pytest.raises(DeliveryTimeoutError, match=NO_LABEL):
                await producer.send("t", b"x")

    asyncio.run(main())
    assert unheard == []


# --- ports ------------------------------------------------------------------------------------------------------------

PORTS = 65_536


@pytest.fixture
def connection_config() -> ConnectionConfig:
    return ConnectionConfig.of(read_config(ConfigDefinition(COMMON_KEYS), {"bootstrap.servers": "127.0.0.1:9"}))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def advertised(server: socket.socket, host: str) -> Node:
    """A broker that says its port is one that there is not; by its last 16 bits, it would be the server's."""
    return Node(7, host, server.getsockname()[1] + PORTS)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_there_is_not_is_not_taken_for_another(
    host: str, server: socket.socket, connection_config: ConnectionConfig
) -> None:
    client = BlockingClient(connection_config)
    client.core.learn_node(advertised(server, host))
    with pytest.raises(NetworkError, match="there is no port"):
        client.request(7, ListGroupsRequest())
    client.close()
    with pytest.raises(BlockingIOError):
        server.accept()


def ask_in_vain(config: ConnectionConfig, node: Node, why: str) -> None:
    """Ask a node that cannot be reached, from a loop in which nothing else goes wrong."""
    unheard: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        runtime = real_runtime(io_threads=1)
        client = AsyncClient(config, runtime)
        client.core.learn_node(node)
        with pytest.raises(NetworkError, match=why):
            await client.request(7, ListGroupsRequest())
        await client.close()
        await runtime.close()

    asyncio.run(main())
    assert unheard == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_there_is_not_ends_no_task_of_an_asyncio_client(
    host: str, server: socket.socket, connection_config: ConnectionConfig
) -> None:
    ask_in_vain(connection_config, advertised(server, host), "there is no port")
    with pytest.raises(BlockingIOError):
        server.accept()


def test_a_host_with_a_zero_byte_ends_no_task_of_an_asyncio_client(connection_config: ConnectionConfig) -> None:
    ask_in_vain(connection_config, Node(7, "a\0b", 9092), "cannot be reached")
