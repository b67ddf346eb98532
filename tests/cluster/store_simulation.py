"""Brokers that fight for the controller's seat of a store on a model of ZooKeeper where everything goes wrong.

    python -m tests.cluster.store_simulation 1000

Held to: what was acknowledged is in the log once and in order, nothing is there twice, epochs never fall along the log
and each of them is one broker's, and every reader has a prefix of the log.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass, field

from headrace.cluster.image import Image
from headrace.cluster.records import ConfigRecord
from headrace.cluster.store import OutcomeUnknownError, SessionLostError, StoreMember, StoreUnavailableError, fold
from headrace.cluster.store.batches import records_of
from headrace.cluster.store.model import Faults, ZooKeeperModel
from headrace.cluster.store.node_formats import SNAPSHOT, SnapshotPointer, decode_log_node, log_path
from headrace.cluster.store.node_store import NodeStore
from headrace.errors import DuplicateBrokerRegistrationError, StaleControllerEpochError
from headrace.runtime.simulated import Simulation

RUN_S = 30.0
TIMEOUT_S = 3.0
GIVES_UP = (StaleControllerEpochError, OutcomeUnknownError, SessionLostError, StoreUnavailableError)


@dataclass
class Story:
    """What was written, as its writers know it."""

    #: Names in the order in which their appends were acknowledged, with the epoch and the offset after them.
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    count: int = 0


class Contender:
    """A broker that becomes the controller whenever it can, and writes what nobody else writes."""

    def __init__(self, node_id: int, simulation: Simulation, model: ZooKeeperModel, story: Story) -> None:
        self.host = simulation.host(f"broker-{node_id}")
        self.is_reachable = True
        self._node_id = node_id
        self._rng = simulation.random_for(f"contender {node_id}")
        self._story = story
        self._model = model
        self._member = StoreMember(node_id, self.host.runtime.uuid())

    async def run(self) -> None:
        runtime = self.host.runtime
        store = NodeStore(
            runtime,
            lambda: self._model.session(runtime.clock, lambda: self.is_reachable),
            timeout_s=TIMEOUT_S,
            where="ZooKeeper",
            snapshot_after_nodes=25,
        )
        image = Image()
        while True:
            try:
                await store.open("a-cluster")
                await store.register(self._member)
                while True:
                    image = await self._once(store, image)
            except (*GIVES_UP, DuplicateBrokerRegistrationError):
                await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def _once(self, store: NodeStore, image: Image) -> Image:
        epoch = await store.elect(self._member)
        if epoch is None:
            image = await self._follow(store, image)
            seat = await store.seat()
            waits = [asyncio.ensure_future(store.seat(seat)), asyncio.ensure_future(store.grown_beyond(image.offset))]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=self._rng.uniform(0.1, 5))
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            return image
        assert self._story.epochs.setdefault(epoch, self._node_id) == self._node_id, f"epoch {epoch} was won twice"
        for _ in range(self._rng.randint(1, 60)):
            image = await self._write(store, epoch, image)
        return image

    async def _write(self, store: NodeStore, epoch: int, image: Image) -> Image:
        story = self._story
        story.count += 1
        name = f"{story.count}"
        size = 150_000 if self._rng.random() < 0.01 else 10
        records = [
            ConfigRecord(resource_type=2, resource_name=name, name=str(part), value="x" * size)
            for part in range(self._rng.randint(1, 4))
        ]
        story.sent[name] = len(records)
        end = await store.append_if_epoch(epoch, records)
        story.acknowledged.append((name, epoch, end))
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(0, 0.2))
        if store.snapshot_due:
            image = await self._follow(store, image)
            if image.offset == end:
                await store.take_snapshot(image, epoch)
        return image

    async def _follow(self, store: NodeStore, image: Image) -> Image:
        reading = await store.read_from(image.offset)
        fresh = Image() if reading.snapshot is not None else image
        fold(reading, fresh)
        assert fresh.offset >= image.offset, "a reader went back"
        for _, record in reading.records:
            assert isinstance(record, ConfigRecord)
            name = record.resource_name
            assert len(fresh.configs[2, name]) == self._story.sent[name], f"{name} was read in part"
        return fresh


async def trouble(model: ZooKeeperModel, contenders: list[Contender], rng: random.Random, run_s: float) -> None:
    """Until the time is over, one thing after the other goes wrong."""
    loop = asyncio.get_running_loop()
    while loop.time() < run_s:
        await asyncio.sleep(rng.expovariate(1.0))
        model.faults = Faults(
            delay_s_max=rng.choice((0.001, 0.02)),
            lag_s_max=rng.choice((0.0, 0.05, 1.0)),
            loss_before=rng.choice((0.0, 0.05, 0.3)),
            loss_after=rng.choice((0.0, 0.05, 0.3)),
            loss_reading=rng.choice((0.0, 0.05)),
        )
        what = rng.random()
        if what < 0.2 and model.sessions:
            model.expire(rng.choice(model.sessions))
        elif what < 0.4 and model.sessions:
            rng.choice(model.sessions).break_off()
        elif what < 0.55:
            model.go_away()
            await asyncio.sleep(rng.uniform(0, 10))
            model.come_back(expire_all=rng.random() < 0.4)
        elif what < 0.75:
            one = rng.choice(contenders)
            one.is_reachable = False
            await asyncio.sleep(rng.uniform(0, 2 * TIMEOUT_S))
            one.is_reachable = True


def check(model: ZooKeeperModel, story: Story, image: Image) -> int:
    """What the nodes hold is what was promised; how many appends there were."""
    pointer = SnapshotPointer.decode(node.data) if (node := model.tree.get(SNAPSHOT)) else SnapshotPointer()
    number, epoch, offset = pointer.next_number, 0, pointer.end_offset
    while (found := model.tree.get(log_path(number))) is not None:
        log_node = decode_log_node(log_path(number), found.data)
        assert log_node.epoch >= epoch, f"node {number} is of epoch {log_node.epoch}, after {epoch}"
        epoch = log_node.epoch
        for at, _ in records_of(log_node.batch, "the log"):
            assert at == offset, f"offset {at} instead of {offset}"
            offset += 1
        number += 1
    names = [name for _, name in image.configs]
    for name, written_in, end in story.acknowledged:
        assert len(image.configs.get((2, name), ())) == story.sent[name], f"{name} of epoch {written_in} is lost"
        assert end <= image.offset
    ends = [end for _, _, end in sorted(story.acknowledged, key=lambda entry: (entry[1], entry[2]))]
    assert ends == sorted(set(ends)), "two appends were acknowledged at one offset, or out of order"
    written = sum(story.sent[name] for name in names)
    assert written == image.offset, f"{written} records were read, but the log ends at {image.offset}"
    return len(story.acknowledged)


def run(seed: int, run_s: float = RUN_S) -> int:
    """One seed; how many appends were acknowledged."""
    simulation = Simulation(seed)
    rng = simulation.random_for("trouble")

    async def main() -> int:
        model = ZooKeeperModel(simulation.random_for("zookeeper"), session_timeout_s=TIMEOUT_S)
        story = Story()
        contenders = [Contender(number, simulation, model, story) for number in (1, 2, 3)]
        running = [contender.host.start(contender.run()) for contender in contenders]
        await trouble(model, contenders, rng, run_s)
        model.faults = Faults()
        before = len(story.acknowledged)
        await asyncio.sleep(10.0)
        assert len(story.acknowledged) > before, "nobody writes though all is well"
        for contender in contenders:
            contender.host.kill()
        del running
        runtime = simulation.host("reader").runtime
        reader = NodeStore(runtime, lambda: model.session(runtime.clock), timeout_s=TIMEOUT_S, where="ZooKeeper")
        await reader.open("a-cluster")
        # Whoever was in the middle of something is dead; the next controller tidies up after it.
        await asyncio.sleep(2 * TIMEOUT_S)
        assert await reader.elect(StoreMember(9, bytes(16))) is not None
        image = Image()
        fold(await reader.read_from(0), image)
        return check(model, story, image)

    count = simulation.run(main())
    simulation.check()
    return count


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    total = 0
    for seed in range(first, first + seeds):
        try:
            total += run(seed)
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{seeds} seeds, {total} appends acknowledged, nothing wrong")


if __name__ == "__main__":
    main()
