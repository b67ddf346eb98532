"""Fetches of followers that wait here, and are answered early."""

from __future__ import annotations

import asyncio

from headrace.broker.partitions.purgatory import Waiter
from headrace.broker.replication.coming import ComingFollowers


def test_those_who_wait_are_woken_in_order_and_nothing_is_kept_of_them() -> None:
    """Anybody can claim to be any broker: what is kept of each would grow as they like."""

    async def story() -> None:
        coming, woken = ComingFollowers(), []

        async def wait(number: int) -> None:
            waiter = Waiter(1)
            with coming.waiting(number % 2, waiter):
                await waiter.wait((), 60.0)
            woken.append(number)

        tasks = [asyncio.ensure_future(wait(number)) for number in range(12)]
        await asyncio.sleep(0)
        coming.expect([1, 0])
        await asyncio.gather(*tasks)
        assert woken == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]
        assert not coming._waiting

    asyncio.run(story())
