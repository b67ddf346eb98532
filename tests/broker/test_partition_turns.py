"""What waits while a partition's log is exchanged has its turn, whatever becomes of those before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.log import Log
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .sim import SimulatedBroker


class UnexpectedError(Exception):
    """Of no kind that anyone provided for."""


def on_a_partition(test: Callable[[Partition], Coroutine[Any, Any, None]]) -> None:
    async def with_a_topic(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        async with asyncio.timeout(10):
            await test(broker.partition("t", 0))

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(with_a_topic(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)


def test_an_append_that_fails_unexpectedly_after_an_exchange_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(partition: Partition) -> None:
        may_end = asyncio.Event()
        exchange = asyncio.ensure_future(partition.turns.exchange(may_end.wait))  # type: ignore[arg-type]
        await becomes(lambda: partition.turns.held is not None)
        append = Log.append

        def fails_once(self: Log, *arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(Log, "append", append)
            raise UnexpectedError

        monkeypatch.setattr(Log, "append", fails_once)
        first, second = (asyncio.ensure_future(partition.append(raw.batch([b"one"]))) for _ in range(2))  # type: ignore[arg-type]
        may_end.set()
        await exchange
        with pytest.raises(UnexpectedError):
            await first
        assert (await second).base_offset == 0

    on_a_partition(test)


def test_what_waited_for_one_exchange_is_not_waited_for_by_the_next_while_it_waits_for_that() -> None:
    async def test(partition: Partition) -> None:
        turns = partition.turns

        async def nothing() -> None:
            await asyncio.sleep(0.01)

        async def twice() -> None:
            await turns.exchange(nothing)
            await turns.exchange(nothing)

        exchanges = asyncio.ensure_future(twice())
        await becomes(lambda: turns.held is not None)
        assert await turns.in_turn(lambda: 7) == 7
        await exchanges

    on_a_partition(test)


def test_what_was_begun_after_an_exchange_is_finished_though_nobody_waits_for_it() -> None:
    async def test(partition: Partition) -> None:
        turns = partition.turns
        may_end, has_begun = asyncio.Event(), asyncio.Event()
        exchange = asyncio.ensure_future(turns.exchange(may_end.wait))  # type: ignore[arg-type]
        await becomes(lambda: turns.held is not None)
        steps: list[str] = []

        async def work() -> None:
            has_begun.set()
            await asyncio.sleep(0.01)
            steps.append("done")

        waiting = asyncio.ensure_future(turns._run(work))
        may_end.set()
        await exchange
        await has_begun.wait()
        waiting.cancel()
        await turns.idle()
        assert steps == ["done"]

    on_a_partition(test)
