"""The asyncio producer, and `exactly_once` of both kinds, under seeds: see `producer_model`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headrace.client.consumer.records import ConsumerGroupMetadata
from headrace.client.errors import FatalTransactionError, UndeliveredError
from headrace.client.offsets import OffsetAndMetadata
from headrace.client.producer._core import ProducerCore
from headrace.client.producer.aio import Producer as AioProducer
from headrace.client.producer.blocking import Producer
from headrace.client.transactions.exactly_once import AsyncExactlyOnce, ExactlyOnce
from headrace.errors import HeadraceError, NetworkError
from headrace.runtime.simulated.simulation import Simulation
from headrace.topics import TopicPartition

from .fake import FakeCluster, VirtualClock
from .fake_transactions import TransactionalCluster
from .model_faults import Faults
from .producer_model import PARTITIONS, ModelWorld, Sent, settings_of

IN = TopicPartition("in", 0)
RECORDS = 30


class Bridge:
    """A fake cluster as the transport of a client on a loop: what happens there happens here a little later."""

    def __init__(self, cluster: FakeCluster, rng: random.Random, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster, self.rng, self.loop = cluster, rng, loop
        self.clients: dict[int, Any] = {}
        self.open = cluster.open_connection
        cluster.events = self  # type: ignore[assignment]  # all that it is asked for is `append`

    def append(self, work: Callable[[], Any]) -> None:
        client = self.cluster.client
        delay = self.rng.random() * 0.01

        def run() -> None:
            current, self.cluster.client = self.cluster.client, client
            try:
                work()
            finally:
                self.cluster.client = current
            for made in self.clients.values():
                made.schedule()

        # In order, as on a wire.
        self._at = max(getattr(self, "_at", 0.0), self.loop.time() + delay)
        self.loop.call_at(self._at, run)

    def later(self, seconds: float, work: Callable[[], Any]) -> None:
        self.loop.call_later(seconds, work)

    def producer(self, runtime: Any, **config: Any) -> AioProducer:
        made = AioProducer(bootstrap_servers="fake:9001,fake:9002", runtime=runtime, **config)
        client = made._sender.client
        client.core.transport = self.cluster
        self.cluster.client = client.core
        self.clients[id(made)] = client
        return made


async def _cancelled_or_done(task: asyncio.Task[Any], rng: random.Random) -> None:
    """Let it run, or stop it anywhere."""
    if rng.random() < 0.5:
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.02, 0.3, 2.0]))
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, HeadraceError, TimeoutError):
        await task


def run_aio_producer(seed: int) -> None:
    rng = random.Random(f"{seed}/asyncio")
    simulation = Simulation(seed)
    cluster = FakeCluster(VirtualClock(), brokers=2, topics={"t": PARTITIONS})

    async def main() -> None:
        bridge = Bridge(cluster, rng, simulation.loop)
        producer = bridge.producer(simulation.host("h").runtime, **settings_of(rng))
        faults = Faults(cluster, rng, rng.choice([0.05, 0.3]), bridge.later)
        cluster.script = faults
        sent, tasks = Sent(rng), []
        for _ in range(rng.randrange(5, 30)):
            for _ in range(rng.choice([1, 3, 8])):
                value, partition, extra = sent.next()
                extra.pop("timestamp", None)
                sent.deliveries[value] = delivery = producer.send("t", value, partition=partition, **extra)
            waits = [lambda d=delivery: _awaited(d), lambda: producer.flush(5), producer.room]
            tasks.append(asyncio.create_task(_cancelled_or_done(asyncio.create_task(rng.choice(waits)()), rng)))
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.5]))
        faults.is_calm = True
        if rng.random() < 0.7:
            await asyncio.wait_for(producer.flush(), 300)
        closing = asyncio.create_task(_closed(producer, rng.choice([None, 0, 1])))
        await _cancelled_or_done(closing, rng)
        await _closed(producer, None)
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
            for delivery in sent.deliveries.values():
                with contextlib.suppress(HeadraceError):
                    await delivery
        await asyncio.sleep(2)
        sent.check(cluster, once=True)

    _run(simulation, main)


async def _closed(producer: Any, timeout: float | None) -> None:
    with contextlib.suppress(UndeliveredError):
        await producer.close(timeout)


async def _awaited(delivery: Any) -> Any:
    return await delivery


def _run(simulation: Simulation, main: Callable[[], Any]) -> None:
    try:
        simulation.run(main())
    finally:
        simulation.loop.close()


# --- exactly_once -----------------------------------------------------------------------------------------------------


class Read(list[Any]):
    """As much of `ConsumerRecords` as is used."""

    def items(self) -> list[tuple[TopicPartition, list[Any]]]:
        return [(IN, list(self))]

    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {IN: OffsetAndMetadata(self[-1].offset + 1)}


class ModelConsumer:
    """A consumer of one partition, whose records are numbers; the cluster has its committed offset."""

    def __init__(self, cluster: TransactionalCluster, rng: random.Random) -> None:
        self._setup = SimpleNamespace(settings=SimpleNamespace(group_id="g", auto_commit=False, isolation=1))
        # No group is joined.
        self._core = None
        self.cluster, self.rng = cluster, rng
        self.at = 0

    def read(self, records_max: int) -> Any:
        end = min(RECORDS, self.at + self.rng.randrange(1, records_max + 1))
        found = Read(SimpleNamespace(offset=offset, value=b"%d" % offset) for offset in range(self.at, end))
        self.at = end
        return found

    def assignment(self) -> set[TopicPartition]:
        return {IN}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at = offset

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata("g")

    def stored(self) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if any(transaction.is_open for transaction in self.cluster.transactions.values()):
            raise NetworkError("offsets are not stable yet")
        found = self.cluster.offsets.get((IN.topic, IN.partition))
        return {IN: None if found is None else OffsetAndMetadata(found)}


class BlockingConsumer(ModelConsumer):
    def poll(self, timeout: float, records_max: int) -> Any:
        self.cluster.clock.now += 0.1
        return self.read(min(5, records_max))

    def committed(self, partitions: Any) -> Any:
        return self.stored()


class AsyncConsumer(ModelConsumer):
    async def poll(self, timeout: float, records_max: int) -> Any:
        await asyncio.sleep(0.01)
        return self.read(min(5, records_max))

    async def committed(self, partitions: Any) -> Any:
        await asyncio.sleep(0.01)
        return self.stored()


class StepSender:
    """As much of the blocking producer's sender as transactions need; what its thread would do is done while somebody
    waits."""

    pid = os.getpid()

    def __init__(self, world: ModelWorld, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.core: ProducerCore | None = world.producer
        self.requests: list[Callable[[], None]] = []
        self.interrupts = 0.05

    def started(self) -> ProducerCore:
        return self.world.producer

    def refuse_records(self) -> None:
        pass

    def run_soon(self, request: Callable[[], None], what: str) -> None:
        self.requests.append(request)

    def wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        if self.rng.random() < self.interrupts:
            raise KeyboardInterrupt
        while self.requests:
            self.requests.pop(0)()
        deadline = self.world.clock.now + (1000 if timeout is None else timeout)
        while True:
            due = self.world.settle()
            if condition():
                return
            if self.rng.random() < self.interrupts / 10:
                raise KeyboardInterrupt
            if self.world.clock.now >= deadline:
                raise TimeoutError(what)
            self.world.clock.now += max(0.0005, min(due, 0.5))


class StepProducer(Producer):
    """The blocking producer without its thread: its transactions alone."""

    def __init__(self, world: ModelWorld, rng: random.Random) -> None:
        self.world = world
        self._settings, self._clock = world.setup.settings, world.clock
        self._sender: Any = StepSender(world, rng)

    @property
    def interrupts(self) -> float:
        """How likely Ctrl-C is, whenever somebody waits."""
        return float(self._sender.interrupts)

    @interrupts.setter
    def interrupts(self, likely: float) -> None:
        self._sender.interrupts = likely


def check_once(cluster: TransactionalCluster) -> None:
    found = Counter(cluster.committed)
    offset = cluster.offsets.get((IN.topic, IN.partition), 0)
    twice = [value for value, count in found.items() if count > 1]
    assert not twice, f"output doubled: {twice}"
    lost = [at for at in range(offset) if not found[b"%d" % at]]
    assert not lost, f"offsets are committed to {offset}, and there is no output of {lost}"
    early = [value for value in found if int(value or b"0") >= offset]
    assert not early, f"output without its offsets: {early}"


def _settings(rng: random.Random) -> dict[str, Any]:
    made = settings_of(rng)
    return {**made, "transactional_id": "tid", "max_block_ms": rng.choice([100, 1_000, 30_000])}


def run_once(seed: int) -> None:
    rng = random.Random(f"{seed}/once")
    version = rng.choice([1, 2])
    cluster = TransactionalCluster(VirtualClock(), version, brokers=2, topics={"t": PARTITIONS})
    faults = Faults(cluster, rng, rng.choice([0.02, 0.1, 0.3]), lambda *_: None)
    faults.may_be_late = version == 2
    cluster.script = faults
    consumer = BlockingConsumer(cluster, rng)

    def make() -> StepProducer:
        world = ModelWorld(cluster, rng, **_settings(rng))
        faults.later = world.at
        return StepProducer(world, rng)

    producer = make()
    batches: Any = ExactlyOnce(consumer, producer, idle_timeout=0.5)  # type: ignore[arg-type]  # as much of both as is used
    for attempt in range(400):
        if attempt == 100:
            faults.is_calm, producer.interrupts = True, 0.0
        if cluster.offsets.get((IN.topic, IN.partition)) == RECORDS:
            break
        try:
            with batches:
                # Held, so that what ends it early is raised here, and not where garbage is collected.
                held = iter(batches)
                for batch in held:
                    for record in batch:
                        producer.world.send("t", record.value, partition=record.offset % PARTITIONS)
                    if rng.random() < 0.05:
                        raise ArithmeticError("the handler's own trouble")
                    if cluster.offsets.get((IN.topic, IN.partition)) == RECORDS:
                        break
        except FatalTransactionError:
            producer.world.producer.abort("a new one takes over")
            producer.world.core.close()
            cluster.events.clear()
            is_calm = producer.interrupts == 0
            producer = make()
            producer.interrupts = 0.0 if is_calm else producer.interrupts
            batches = ExactlyOnce(consumer, producer, idle_timeout=0.5)  # type: ignore[arg-type]  # as above
        except (HeadraceError, ArithmeticError, KeyboardInterrupt):
            pass
    else:
        raise AssertionError(f"it does not get on: {cluster.offsets}")
    check_once(cluster)


def run_aio_once(seed: int) -> None:
    rng = random.Random(f"{seed}/once asyncio")
    simulation = Simulation(seed)
    version = rng.choice([1, 2])
    cluster = TransactionalCluster(VirtualClock(), version, brokers=2, topics={"t": PARTITIONS})
    consumer = AsyncConsumer(cluster, rng)

    async def work(batches: Any, producer: AioProducer) -> None:
        async with batches:
            async for batch in batches:
                for record in batch:
                    producer.send("t", record.value, partition=record.offset % PARTITIONS)
                if rng.random() < 0.1:
                    raise ArithmeticError("the handler's own trouble")
                if cluster.offsets.get((IN.topic, IN.partition)) == RECORDS:
                    return

    async def main() -> None:
        bridge = Bridge(cluster, rng, simulation.loop)
        faults = Faults(cluster, rng, rng.choice([0.02, 0.1, 0.3]), bridge.later)
        faults.may_be_late = version == 2
        cluster.script = faults
        runtime = simulation.host("h").runtime
        producer = bridge.producer(runtime, **_settings(rng))
        batches: Any = AsyncExactlyOnce(consumer, producer, idle_timeout=0.5)  # type: ignore[arg-type]  # as much of both as is used
        for attempt in range(400):
            faults.is_calm = attempt >= 100
            if cluster.offsets.get((IN.topic, IN.partition)) == RECORDS:
                break
            task = asyncio.create_task(work(batches, producer))
            if rng.random() < 0.5 and not faults.is_calm:
                await asyncio.sleep(rng.choice([0.0, 0.02, 0.05, 0.1, 0.5]))
                task.cancel()
            try:
                await task
            except FatalTransactionError:
                await producer.close(0)
                producer = bridge.producer(runtime, **_settings(rng))
                batches = AsyncExactlyOnce(consumer, producer, idle_timeout=0.5)  # type: ignore[arg-type]  # as above
            except (HeadraceError, ArithmeticError, asyncio.CancelledError):
                pass
        else:
            raise AssertionError(f"it does not get on: {cluster.offsets}")
        await producer.close(1)
        check_once(cluster)

    _run(simulation, main)
