"""Brokers that fight for the controller's seat of a store on a model of ZooKeeper where everything goes wrong.

    python -m tests.cluster.store_simulation SEEDS [FIRST]

Sessions end, connections break before and after a change is made, servers lag, brokers are cut off and die in the
middle of what they do, and an operator removes the controller's node to have another one. Nodes are small, so that
decisions and snapshots take several; time-outs are short, so that much happens in little time. Held to:

- what was acknowledged is in the log once, at the offset that was told, and nothing is there twice;
- epochs never fall along the log, and each of them is one broker's;
- every reader has a prefix of the same log, whole decisions only, and never goes back;
- who asks for the latest gets all that was acknowledged before;
- once all is well, somebody is the controller and writes, everyone is registered, and those who wait to be told of
  records are told, without ever looking by themselves.

`store_mutations` says which mistakes it finds, and how soon.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

from headrace.cluster.image import Image
from headrace.cluster.records import ConfigRecord
from headrace.cluster.store import (
    OutcomeUnknownError,
    Reading,
    SessionLostError,
    StoreMember,
    StoreUnavailableError,
    fold,
    node_log,
)
from headrace.cluster.store.model import Faults, ZooKeeperModel
from headrace.cluster.store.node_formats import (
    BROKERS,
    CONTROLLER,
    SNAPSHOT,
    SnapshotPointer,
    decode_log_node,
    decode_seat,
    log_path,
)
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import Delete
from headrace.errors import DuplicateBrokerRegistrationError, StaleControllerEpochError
from headrace.runtime.simulated import Simulation

RUN_S = 4.0
CALM_S = 1.0
TIMEOUT_S = 0.4
NODE_BYTES_MAX = 420
CHUNK_BYTES = 900
SNAPSHOT_AFTER_NODES = 12
GIVES_UP = (StaleControllerEpochError, OutcomeUnknownError, SessionLostError, StoreUnavailableError)


@dataclass
class Story:
    """What was written, as its writers know it, and what was read."""

    #: Names in the order in which their appends were acknowledged, with the epoch and the offset after them.
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, object] = field(default_factory=dict)
    #: Who was found at which offset, by whoever read it first.
    found: dict[int, tuple[str, str]] = field(default_factory=dict)
    count: int = 0
    #: From then on nothing more is written.
    is_over: bool = False

    @property
    def end(self) -> int:
        """Where the log ended at the least, as far as anyone was told."""
        return max((end for _, _, end in self.acknowledged), default=0)


class Reader:
    """Follows the log, and holds what it reads against what others read."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.image = Image()

    async def read(self, store: NodeStore, *, latest: bool) -> None:
        asked_at = self._story.end
        reading = await store.read_from(self.image.offset, latest=latest)
        self._take(reading)
        assert not latest or self.image.offset >= asked_at, f"{asked_at} was acknowledged, {self.image.offset} is there"

    def _take(self, reading: Reading) -> None:
        story, fresh = self._story, Image() if reading.snapshot is not None else self.image
        before = self.image.offset
        fold(reading, fresh)
        assert fresh.offset >= before, "a reader went back"
        for offset, record in reading.records:
            assert isinstance(record, ConfigRecord)
            here = (record.resource_name, record.name)
            assert story.found.setdefault(offset, here) == here, f"{here} and {story.found[offset]} are at {offset}"
            assert len(fresh.configs[2, here[0]]) == story.sent[here[0]], f"{here[0]} was read in part"
        if reading.snapshot is not None:
            there = {name: len(parts) for (_, name), parts in fresh.configs.items()}
            assert all(count == story.sent[name] for name, count in there.items()), (
                "a snapshot has a part of a decision"
            )
            assert sum(there.values()) == fresh.offset, f"{sum(there.values())} records up to {fresh.offset}"
        self.image = fresh


class Contender:
    """A broker that becomes the controller whenever it can, and writes what nobody else writes."""

    def __init__(self, node_id: int, simulation: Simulation, model: ZooKeeperModel, story: Story) -> None:
        self.host = simulation.host(f"broker-{node_id}")
        self.is_reachable = True
        self.node_id = node_id
        self._rng = simulation.random_for(f"contender {node_id}")
        self._story = story
        self._model = model
        self.reader = Reader(story)
        self.member = StoreMember(node_id, bytes(16))

    def start(self) -> None:
        runtime = self.host.runtime if self.host.alive else self.host.restart()
        self.member = StoreMember(self.node_id, runtime.uuid())
        self.reader = Reader(self._story)
        self.host.start(self._run(self.reader, self.member))

    async def _run(self, reader: Reader, member: StoreMember) -> None:
        runtime, host, life = self.host.runtime, self.host, self.host.life

        def reaches() -> bool:
            return self.is_reachable and life.alive and host.life is life

        store = NodeStore(
            runtime,
            lambda: self._model.session(runtime.clock, reaches),
            timeout_s=TIMEOUT_S,
            where="ZooKeeper",
            snapshot_after_nodes=SNAPSHOT_AFTER_NODES,
            node_bytes_max=NODE_BYTES_MAX,
        )
        while True:
            try:
                await store.open("a-cluster")
                await store.register(member)
                while True:
                    await self._once(store, reader, member)
            except (*GIVES_UP, DuplicateBrokerRegistrationError):
                await asyncio.sleep(self._rng.uniform(0, 0.1))

    async def _once(self, store: NodeStore, reader: Reader, member: StoreMember) -> None:
        epoch = await store.elect(member)
        if epoch is None:
            await reader.read(store, latest=self._rng.random() < 0.5)
            await self._until_changed(store, reader)
            return
        assert self._story.epochs.setdefault(epoch, member) == member, f"epoch {epoch} was won twice"
        for _ in range(self._rng.randint(1, 25)):
            if self._story.is_over:
                await asyncio.sleep(1.0)
            else:
                await self._write(store, epoch, reader)

    async def _until_changed(self, store: NodeStore, reader: Reader) -> None:
        """Wait to be told of another controller, the end of the session or more records; never look by itself."""
        seat = await store.seat()
        waits = [
            asyncio.ensure_future(store.seat(seat)),
            asyncio.ensure_future(store.lost()),
            asyncio.ensure_future(store.grown_beyond(reader.image.offset)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, GIVES_UP):
                raise outcome

    async def _write(self, store: NodeStore, epoch: int, reader: Reader) -> None:
        story = self._story
        story.count += 1
        name = f"{story.count}"
        records = [
            ConfigRecord(resource_type=2, resource_name=name, name=str(part), value="x" * 90)
            for part in range(self._rng.choice((1, 1, 2, 3, 6)))
        ]
        story.sent[name] = len(records)
        end = await store.append_if_epoch(epoch, records)
        story.acknowledged.append((name, epoch, end))
        await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1)))
        if store.snapshot_due:
            await reader.read(store, latest=True)
            if reader.image.offset == end:
                await store.take_snapshot(reader.image, epoch)


async def trouble(model: ZooKeeperModel, contenders: list[Contender], rng: random.Random, run_s: float) -> None:
    """Until the time is over, one thing after the other goes wrong."""
    loop = asyncio.get_running_loop()
    until = loop.time() + run_s
    while loop.time() < until:
        await asyncio.sleep(rng.expovariate(8.0))
        check_nodes(model)
        model.faults = Faults(
            delay_s_max=rng.choice((0.002, 0.02)),
            lag_s_max=rng.choice((0.0, 0.05, 0.3)),
            loss_before=rng.choice((0.0, 0.05, 0.2)),
            loss_after=rng.choice((0.0, 0.05, 0.2)),
            loss_reading=rng.choice((0.0, 0.05)),
        )
        what = rng.random()
        one = rng.choice(contenders)
        if what < 0.2 and model.sessions:
            model.expire(rng.choice(model.sessions))
        elif what < 0.35 and model.sessions:
            rng.choice(model.sessions).break_off()
        elif what < 0.45:
            model.go_away()
            await asyncio.sleep(rng.uniform(0, 2 * TIMEOUT_S))
            model.come_back(expire_all=rng.random() < 0.4)
        elif what < 0.65:
            one.is_reachable = False
            await asyncio.sleep(rng.uniform(0, 2.5 * TIMEOUT_S))
            one.is_reachable = True
        elif what < 0.8 and one.host.alive:
            one.host.kill()
            await asyncio.sleep(rng.uniform(0, TIMEOUT_S))
            one.start()
        else:
            await _depose(model, rng)


async def _depose(model: ZooKeeperModel, rng: random.Random) -> None:
    """Another controller is wanted, perhaps one after the other, while servers lag and answers are lost."""
    model.faults = replace(model.faults, lag_s_max=rng.choice((0.05, 0.3)), loss_before=rng.choice((0.0, 0.3, 0.6)))
    for _ in range(rng.choice((1, 3, 6))):
        if model.tree.get(CONTROLLER) is not None:
            if rng.random() < 0.5:
                for session in model.sessions:
                    session.break_off()
            model.change([Delete(CONTROLLER)])
        await asyncio.sleep(rng.uniform(0, 0.1))


def check_nodes(model: ZooKeeperModel) -> None:
    """Epochs never fall along the log, and each offset is there once."""
    pointer = SnapshotPointer.decode(node.data) if (node := model.tree.get(SNAPSHOT)) else SnapshotPointer()
    number, epoch, offset = pointer.next_number, 0, pointer.end_offset
    while (found := model.tree.get(log_path(number))) is not None:
        log_node = decode_log_node(log_path(number), found.data)
        assert log_node.epoch >= epoch, f"node {number} is of epoch {log_node.epoch}, after {epoch}"
        epoch = log_node.epoch
        header = log_node.batch.header()
        assert header.base_offset == offset, f"offset {header.base_offset} instead of {offset}"
        offset = header.next_offset
        number += 1


def check(model: ZooKeeperModel, story: Story, image: Image) -> int:
    """What the nodes hold is what was promised; how many appends there were."""
    check_nodes(model)
    names = [name for _, name in image.configs]
    for name, written_in, end in story.acknowledged:
        assert len(image.configs.get((2, name), ())) == story.sent[name], f"{name} of epoch {written_in} is lost"
        assert story.found.get(end - 1, (name, ""))[0] == name, f"{name} is not where it was acknowledged"
        assert end <= image.offset
    ends = [end for _, _, end in sorted(story.acknowledged, key=lambda entry: (entry[1], entry[2]))]
    assert ends == sorted(set(ends)), "two appends were acknowledged at one offset, or out of order"
    written = sum(story.sent[name] for name in names)
    assert written == image.offset, f"{written} records were read, but the log ends at {image.offset}"
    return len(story.acknowledged)


async def _be_calm(model: ZooKeeperModel, contenders: list[Contender], story: Story) -> None:
    """All is well: somebody writes, everyone is registered and hears of what is written."""
    model.faults = Faults()
    for contender in contenders:
        contender.is_reachable = True
        if not contender.host.alive:
            contender.start()
    await asyncio.sleep(CALM_S)
    before = len(story.acknowledged)
    await asyncio.sleep(CALM_S)
    assert len(story.acknowledged) > before, "nobody writes though all is well"
    story.is_over = True
    await asyncio.sleep(CALM_S / 2)
    for contender in contenders:
        node = model.tree.get(f"{BROKERS}/{contender.node_id}")
        assert node is not None, f"{contender.node_id} is not registered though all is well"
        assert contender.reader.image.offset >= story.end or _is_seated(model, contender), (
            f"{contender.node_id} is at {contender.reader.image.offset} and was not told of {story.end}"
        )


def _is_seated(model: ZooKeeperModel, contender: Contender) -> bool:
    node = model.tree.get(CONTROLLER)
    return node is not None and decode_seat(node.data).member == contender.member


@contextmanager
def small_nodes() -> Iterator[None]:
    with (
        mock.patch.object(node_log, "_CHUNK_BYTES", CHUNK_BYTES),
        mock.patch.object(node_log, "_DELETED_AT_ONCE", 5),
        mock.patch.object(node_log, "_READ_AT_ONCE", 4),
    ):
        yield


def run(seed: int, run_s: float = RUN_S) -> int:
    """One seed; how many appends were acknowledged."""
    simulation = Simulation(seed)
    rng = simulation.random_for("trouble")

    async def main() -> int:
        model = ZooKeeperModel(simulation.random_for("zookeeper"), session_timeout_s=TIMEOUT_S)
        story = Story()
        contenders = [Contender(number, simulation, model, story) for number in (1, 2, 3)]
        for contender in contenders:
            contender.start()
        await trouble(model, contenders, rng, run_s)
        await _be_calm(model, contenders, story)
        for contender in contenders:
            contender.host.kill()
        runtime = simulation.host("reader").runtime
        reader = NodeStore(runtime, lambda: model.session(runtime.clock), timeout_s=TIMEOUT_S, where="ZooKeeper")
        await reader.open("a-cluster")
        # Whoever was in the middle of something is dead; the next controller tidies up after it.
        await asyncio.sleep(2 * TIMEOUT_S)
        assert await reader.elect(StoreMember(9, bytes(16))) is not None
        image = Image()
        fold(await reader.read_from(0, latest=True), image)
        return check(model, story, image)

    with small_nodes():
        count = simulation.run(main())
    simulation.check()
    return count


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    total, began = 0, time.perf_counter()
    for seed in range(first, first + seeds):
        try:
            total += run(seed)
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{seeds} seeds in {time.perf_counter() - began:.1f} s, {total} appends acknowledged, nothing wrong")


if __name__ == "__main__":
    main()
