"""What waits while a partition's log is exchanged has its turn, whatever becomes of those before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.log import Log
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .sim import SimulatedBroker


class UnexpectedError(Exception):
    """Of no kind that anyone provided for."""


def test_an_append_that_fails_unexpectedly_after_an_exchange_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition = broker.partition("t", 0)
        may_end = asyncio.Event()
        exchange = asyncio.ensure_future(partition.turns.exchange(may_end.wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        append = Log.append

        def fails_once(self: Log, *arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(Log, "append", append)
            raise UnexpectedError

        monkeypatch.setattr(Log, "append", fails_once)
        first, second = (asyncio.ensure_future(partition.append(raw.batch([b"one"]))) for _ in range(2))  # type: ignore[arg-type]
        may_end.set()
        await exchange
        async with asyncio.timeout(10):
            with pytest.raises(UnexpectedError):
                await first
            assert (await second).base_offset == 0

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(test(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)
