"""The simulated loop: virtual time, an order that the seed decides, and a word when nothing can go on."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headrace.runtime.simulated import (
    EPOCH_MS,
    Simulation,
    SimulationFailedError,
    SimulationStuckError,
    run_simulation,
    run_twice,
)


async def busy(simulation):
    """Tasks, timers, a queue and disk work: enough for two seeds to differ."""
    order: list[int] = []
    queue: asyncio.Queue[int] = asyncio.Queue(3)
    runtime = simulation.host().runtime

    async def produce(i):
        for j in range(5):
            await asyncio.sleep(0.01)
            await queue.put(i * 10 + j)
            await runtime.offload(order.append, i)

    async def consume():
        while True:
            order.append(await queue.get())

    consumer = asyncio.create_task(consume())
    await asyncio.gather(*[produce(i) for i in range(5)])
    consumer.cancel()
    return order


def test_the_same_seed_takes_the_same_course():
    for seed in range(5):
        run_twice(busy, seed)


def test_different_seeds_take_different_courses():
    results = [run_simulation(busy, seed) for seed in range(10)]
    assert len({result.trace_hash for result in results}) == 10
    assert len({tuple(result.value) for result in results}) > 5


def test_run_twice_notices_what_does_not_repeat():
    counter = iter(range(10))

    async def main(simulation):
        await asyncio.sleep(next(counter))

    with pytest.raises(SimulationFailedError, match=r"not deterministic; the two runs part at '0\.0"):
        run_twice(main, 1)


def test_time_jumps_and_clocks_follow():
    async def main(simulation):
        clock = simulation.host().clock
        loop = asyncio.get_running_loop()
        assert clock.now_ms() == EPOCH_MS
        await asyncio.sleep(86_400)
        assert clock.now_ms() == EPOCH_MS + 86_400_000
        assert 86_400 <= loop.time() < 86_400.001
        assert clock.monotonic() == loop.time()
        clock.jump(-5_000)
        assert clock.now_ms() == EPOCH_MS + 86_395_000
        assert clock.monotonic() >= 86_400

    started = time.monotonic()
    assert run_simulation(main, 1).virtual_s >= 86_400
    assert time.monotonic() - started < 60


def test_timers_run_in_the_order_of_their_time_and_cancelled_ones_not_at_all():
    async def main(simulation):
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        timers = [loop.call_later(i / 100, ran.append, i) for i in simulation.rng.sample(range(1000), 1000)]
        cancelled = set(simulation.rng.sample(range(1000), 700))
        for i in cancelled:
            timers[i].cancel()
        kept = sorted(timer.when() for i, timer in enumerate(timers) if i not in cancelled)
        await asyncio.sleep(11)
        assert ran == [round(when * 100) for when in kept]

    run_simulation(main, 1)


def test_call_soon_is_first_in_first_out_even_when_tasks_are_shuffled():
    async def main(simulation):
        ran: list[int] = []
        for i in range(100):
            asyncio.get_running_loop().call_soon(ran.append, i)
        await asyncio.sleep(0.001)
        return ran

    for seed in range(5):
        assert run_simulation(main, seed).value == list(range(100))


def test_ready_tasks_take_turns_in_an_order_of_the_seed():
    async def main(simulation):
        ran: list[int] = []

        async def note(i):
            ran.append(i)

        await asyncio.gather(*[note(i) for i in range(6)])
        return tuple(ran)

    assert len({run_simulation(main, seed).value for seed in range(20)}) > 10
    assert {run_simulation(main, seed, shuffle=False).value for seed in range(20)} == {tuple(range(6))}


def test_a_deadlock_is_said_with_the_place_where_each_task_waits():
    async def main(simulation):
        async def stuck_in_here():
            await asyncio.Event().wait()

        await asyncio.create_task(stuck_in_here(), name="the stuck one")

    with pytest.raises(SimulationStuckError, match=r"nothing is scheduled(.|\n)*the stuck one: .*stuck_in_here.*wait"):
        run_simulation(main, 1)


def test_an_endless_loop_meets_a_bound():
    async def spin(simulation):
        while True:
            await asyncio.sleep(0)

    async def tick(simulation):
        while True:
            await asyncio.sleep(60)

    with pytest.raises(SimulationStuckError, match="over 5000 steps"):
        run_simulation(spin, 1, steps_max=5000)
    with pytest.raises(SimulationStuckError, match=r"over 3600.0 s of virtual time"):
        run_simulation(tick, 1, time_max_s=3600.0)


def test_spinning_lets_time_pass():
    async def main(simulation):
        loop = asyncio.get_running_loop()
        done = []
        loop.call_later(0.001, done.append, 1)
        while not done:
            await asyncio.sleep(0)

    assert run_simulation(main, 1).steps < 3_000


def test_timeouts_are_virtual():
    async def main(simulation):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()

    assert 3600 <= run_simulation(main, 1).virtual_s < 3601


def test_threads_and_real_sockets_are_refused():
    async def main(simulation):
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match=r"use Runtime\.offload"):
            await asyncio.to_thread(int)
        with pytest.raises(RuntimeError, match=r"use Runtime\.network\.connect"):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(RuntimeError, match=r"use Runtime\.network\.listen"):
            await asyncio.start_server(lambda *_: None, "localhost", 0)
        errors = []

        def intrude():
            try:
                loop.call_soon_threadsafe(int)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        assert "a thread called into the simulated loop" in errors[0]

    run_simulation(main, 1)


def test_an_exception_nobody_waits_for_fails_the_simulation():
    async def in_a_task(simulation):
        async def fail():
            raise ValueError("lost")

        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task

    async def in_a_callback(simulation):
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailedError, match=r"seed 7: 1 unhandled.*ValueError"):
        run_simulation(in_a_task, 7)
    with pytest.raises(SimulationFailedError, match=r"seed 7: 1 unhandled.*ValueError"):
        run_simulation(in_a_callback, 7)


def test_tasks_left_over_are_cancelled_and_their_clean_up_runs():
    cleaned: list[int] = []

    async def main(simulation):
        async def forever(i):
            try:
                await asyncio.sleep(1e6)
            finally:
                await asyncio.sleep(1)
                cleaned.append(i)

        simulation.left = [asyncio.create_task(forever(i)) for i in range(3)]
        await asyncio.sleep(1)

    run_simulation(main, 1)
    assert sorted(cleaned) == [0, 1, 2]


def test_tasks_that_refuse_to_be_cancelled_are_named():
    async def main(simulation):
        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        simulation.left = asyncio.create_task(stubborn())
        await asyncio.sleep(1)

    with pytest.raises(SimulationStuckError, match=r"do not end when they are cancelled(.|\n)*stubborn"):
        run_simulation(main, 1)


def test_a_simulation_can_run_several_mains_one_after_the_other():
    simulation = Simulation(1)

    async def step():
        await asyncio.sleep(10)

    simulation.run(step())
    simulation.run(step())
    assert simulation.loop.time() >= 20
    simulation.loop.close()
