"""Many lives of a broker that loses its power: `python -m tests.broker.crash_simulation 2000 [first seed]`.

Each seed is a broker and three producers in a simulation. The broker is killed, or its machine loses its power, at
random moments, also while it starts; what was written and not synced is then lost, torn or reordered. Every life begins
with a look at all records. With `flush.messages=1` (even seeds) all that was acknowledged is there once and in order;
without it (odd seeds) what is there is a prefix of it.
"""

from __future__ import annotations

import asyncio
import sys
import traceback

from headrace.runtime.simulated import CrashModel, HostDiedError, Simulation, run_simulation

from .sim import Client, SimulatedBroker, Story, Writer, check, create_topic

LIVES = 3
WRITERS = 3
NEVER = 2**62


def story_of(seed: int) -> Story:
    return Story("durable" if seed % 2 == 0 else "prefix", partitions=3, is_durable=seed % 2 == 0)


async def main(simulation: Simulation) -> int:
    """Run one seed's course; how many records were acknowledged."""
    rng = simulation.rng
    broker = SimulatedBroker(simulation)
    await broker.start()
    story = story_of(simulation.seed)
    observer = Client(simulation, "observer")
    await create_topic(observer, story)
    writers = [Writer(simulation, f"writer-{n}", story, simulation.random_for(f"writer {n}")) for n in range(WRITERS)]
    tasks = [asyncio.ensure_future(writer.run()) for writer in writers]
    for _ in range(LIVES):
        await _end_somehow(broker, simulation)
        for writer in writers:
            writer.client.may_send.clear()
        observer.close()
        while True:
            if rng.random() < 0.3:
                broker.host.restart()
                broker.host.disk.crash_after(rng.randint(0, 150))
            try:
                await broker.start()
                broker.host.disk.crash_after(NEVER)
                break
            except HostDiedError:
                continue
        await check(observer, story)
        for writer in writers:
            writer.client.may_send.set()
    for writer in writers:
        writer.stopping = True
    await asyncio.gather(*tasks)
    await broker.stop()
    await broker.start()
    await check(observer, story)
    await broker.stop()
    return sum(map(len, story.acknowledged))


async def _end_somehow(broker: SimulatedBroker, simulation: Simulation) -> None:
    rng = simulation.rng
    way = rng.random()
    model = rng.choice((CrashModel.HARSH, CrashModel.ORDERED))
    if way < 0.4:
        await asyncio.sleep(rng.uniform(0.0, 0.6))
        broker.lose_power(model)
    elif way < 0.8:
        broker.host.disk.crash_after(rng.randint(0, 600))
        for _ in range(2_000):
            if not broker.host.alive:
                return
            await asyncio.sleep(0.01)
        broker.lose_power(model)
    elif way < 0.95:
        await asyncio.sleep(rng.uniform(0.0, 0.6))
        broker.kill()
    else:
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        await broker.stop()


def run_seed(seed: int) -> int:
    return run_simulation(main, seed, time_max_s=3_600.0).value


def run_seeds() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = []
    acknowledged = 0
    for seed in range(first, first + count):
        try:
            acknowledged += run_seed(seed)
        except Exception:  # noqa: BLE001 - every failing seed is reported, whatever it fails with
            failed.append(seed)
            print(f"seed {seed} failed:", file=sys.stderr)
            traceback.print_exc()
    passed = f"{count - len(failed)} of {count} seeds passed, {acknowledged} records acknowledged"
    print(passed + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_seeds())
