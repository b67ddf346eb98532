"""A name that cannot be a host's, as `a..b`: nobody knows it, and nothing ends because of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headrace.aio
from headrace import Consumer, Producer
from headrace.client.errors import DeliveryTimeoutError

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
