"""A broker that did not run for a while does not count as one that knows what was decided."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.metadata.stalls import Stalls
from headrace.cluster.store import StoreUnavailableError
from headrace.runtime.simulated import Simulation

LIMIT_S = 1.0


def test_after_a_pause_nothing_is_known_until_it_was_looked_up() -> None:
    simulation = Simulation(1)
    host = simulation.host("broker")
    seen: list[tuple[str, bool]] = []
    looks: list[float] = []
    is_reached = asyncio.Event()

    async def catch_up(before: float) -> None:
        assert before <= host.runtime.clock.boottime()
        looks.append(simulation.loop.time())
        if len(looks) == 1:
            raise StoreUnavailableError("not yet")
        await is_reached.wait()

    stalls = Stalls(host.runtime.clock, LIMIT_S, catch_up)

    async def main() -> None:
        host.start(stalls.watch())
        await asyncio.sleep(10.0)
        seen.append(("running", stalls.is_behind))
        host.pause()
        await asyncio.sleep(LIMIT_S / 2)
        host.resume()
        await asyncio.sleep(LIMIT_S)
        seen.append(("after a short pause", stalls.is_behind))
        host.pause()
        await asyncio.sleep(LIMIT_S * 2)
        host.resume()
        seen.append(("at once after a long one", stalls.is_behind))
        await asyncio.sleep(LIMIT_S * 2)
        seen.append(("while it is looked up", stalls.is_behind))
        is_reached.set()
        await asyncio.sleep(0.01)
        seen.append(("then", stalls.is_behind))

    simulation.run(main())
    assert seen == [
        ("running", False),
        ("after a short pause", False),
        ("at once after a long one", True),
        ("while it is looked up", True),
        ("then", False),
    ]
    assert len(looks) == 2


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_machine_that_was_suspended_counts_as_one_that_was_away(is_counted: bool) -> None:
    """Its monotonic clock stood still meanwhile; in a virtual machine that its host had paused every clock did, but for
    the wall clock, which is set right afterwards."""
    simulation = Simulation(1)
    host = simulation.host("broker")
    found: list[bool] = []

    async def catch_up(before: float) -> None:
        found.append(True)

    stalls = Stalls(host.runtime.clock, LIMIT_S, catch_up)

    async def main() -> None:
        host.start(stalls.watch())
        await asyncio.sleep(LIMIT_S)
        found.append(stalls.is_behind)
        monotonic = host.runtime.clock.monotonic()
        host.suspend()
        await asyncio.sleep(LIMIT_S * 2)
        host.resume(is_counted=is_counted)
        assert host.runtime.clock.monotonic() == pytest.approx(monotonic)
        found.append(stalls.is_behind)
        await asyncio.sleep(LIMIT_S)
        found.append(stalls.is_behind)

    simulation.run(main())
    assert found == [False, True, True, False]


def test_what_was_known_before_a_second_pause_is_not_enough() -> None:
    simulation = Simulation(1)
    host = simulation.host("broker")
    looked: list[float] = []
    go_on = asyncio.Event()

    async def catch_up(before: float) -> None:
        looked.append(before)
        await go_on.wait()

    stalls = Stalls(host.runtime.clock, LIMIT_S, catch_up)

    async def main() -> None:
        host.start(stalls.watch())
        for _ in range(2):
            await asyncio.sleep(LIMIT_S)
            host.pause()
            await asyncio.sleep(LIMIT_S * 2)
            host.resume()
        await asyncio.sleep(LIMIT_S)
        go_on.set()
        await asyncio.sleep(LIMIT_S)

    simulation.run(main())
    assert len(looked) == 2, "it is looked up anew"
    assert looked[1] - looked[0] > LIMIT_S * 2
    assert not stalls.is_behind


def test_a_defect_in_looking_it_up_does_not_end_the_watch() -> None:
    """Nobody would tell the time any more: the broker would count as one that does not run, and coordinate nothing."""
    simulation = Simulation(1)
    host = simulation.host("broker")
    looks: list[float] = []
    is_behind: list[bool] = []

    async def catch_up(before: float) -> None:
        looks.append(before)
        if len(looks) == 1:
            raise RuntimeError("a defect")

    stalls = Stalls(host.runtime.clock, LIMIT_S, catch_up)

    async def main() -> None:
        host.start(stalls.watch())
        await asyncio.sleep(LIMIT_S)
        host.pause()
        await asyncio.sleep(LIMIT_S * 2)
        host.resume()
        await asyncio.sleep(LIMIT_S * 10)
        is_behind.append(stalls.is_behind)

    simulation.run(main())
    assert is_behind == [False]
    assert len(looks) == 2
