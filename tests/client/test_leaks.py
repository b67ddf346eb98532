"""Clients made and closed leave no socket, no thread and no task behind.

Each test counts in a process of its own: the one of the suite has brokers of other tests, whose threads and files come
and go as they like.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace import Admin, Consumer, Producer, aio
from headrace.testing import BrokerProcess

pytestmark = pytest.mark.slow

COUNTS = [30, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # A process of its own: its sockets are not ours to count.
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(Path(tmp_path_factory.mktemp("leaks")) / "data", settings) as broker:
        with Producer(bootstrap_servers=broker.address) as producer:
            producer.send("t", b"x").result(60)
        yield broker.address


def held() -> tuple[int, int]:
    gc.collect()
    return psutil.Process().num_fds(), threading.active_count()


def assert_no_more_than(before: tuple[int, int]) -> None:
    descriptors, threads = held()
    assert descriptors <= before[0]
    assert threads <= before[1]


def use_blocking(address: str, number: int) -> None:
    """One of each kind in turn, used."""
    if number % 3 == 0:
        with Producer(bootstrap_servers=address) as producer:
            producer.send("t", b"x").result(60)
    elif number % 3 == 1:
        with Consumer(bootstrap_servers=address, group_id=None) as consumer:
            consumer.assign([("t", 0)])
            consumer.poll(0.0)
    else:
        with Admin(bootstrap_servers=address) as admin:
            admin.list_topics()


async def use_async(address: str, number: int) -> None:
    if number % 3 == 0:
        async with aio.Producer(bootstrap_servers=address) as producer:
            await producer.send("t", b"x")
    elif number % 3 == 1:
        async with aio.Consumer(bootstrap_servers=address, group_id=None) as consumer:
            consumer.assign([("t", 0)])
            await consumer.poll(0.0)
    else:
        async with aio.Admin(bootstrap_servers=address) as admin:
            await admin.list_topics()


def use_group(address: str, number: int) -> None:
    """A consumer of a group, whose heartbeats have a thread."""
    with Consumer(bootstrap_servers=address, group_id=f"group-{number}") as consumer:
        consumer.subscribe(["t"])
        for _ in range(600):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        assert consumer.assignment()


def count_blocking(address: str, count: int, use: Callable[[str, int], None]) -> None:
    for number in range(3):
        use(address, number)
    before = held()
    for number in range(count):
        use(address, number)
    assert_no_more_than(before)


def count_async(address: str, count: int) -> None:
    async def main() -> None:
        for number in range(3):
            await use_async(address, number)
        before = held()
        for number in range(count):
            await use_async(address, number)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        # Transports close their sockets in callbacks of the loop.
        await asyncio.sleep(0)
        assert_no_more_than(before)

    asyncio.run(main())


def cancel_twice(address: str) -> None:
    async def join_and_close(turns: int) -> None:
        consumer = aio.Consumer(bootstrap_servers=address, group_id=f"cancelled-{turns}")
        consumer.subscribe(["t"])
        for _ in range(600):
            await consumer.poll(0.1)
            if consumer.assignment():
                break
        closing = asyncio.create_task(consumer.close())
        for _ in range(2):
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        # What was cancelled is over when the loop has come round.
        for _ in range(3):
            await asyncio.sleep(0)

    async def main() -> None:
        await join_and_close(10)
        before = held()
        for turns in range(1, 10):
            await join_and_close(turns)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert_no_more_than(before)

    asyncio.run(main())


def alone(function: Callable[..., None], *arguments: object) -> None:
    """Run it in a new process, whose traceback is in the test's output when it fails."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    try:
        process.join(300)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", COUNTS)
def test_blocking_clients_leave_nothing_behind(address: str, count: int) -> None:
    alone(count_blocking, address, count, use_blocking)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", COUNTS)
def test_asyncio_clients_leave_nothing_behind(address: str, count: int) -> None:
    alone(count_async, address, count)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_members_of_groups_leave_nothing_behind(address: str, count: int) -> None:
    alone(count_blocking, address, count, use_group)


def test_a_consumer_whose_close_is_cancelled_twice_leaves_nothing_behind(address: str) -> None:
    alone(cancel_twice, address)
