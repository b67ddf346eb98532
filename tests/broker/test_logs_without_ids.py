"""Logs whose topic's id is lost with a crash: they get it again before anything else is done with them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.log.making import batch
from tests.waiting import becomes

from headrace.broker.broker import Broker
from headrace.broker.partitions.replicas import Replicas
from headrace.log import Log, LogDirectories, partition_metadata
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.runtime import Disk, DiskError, real_runtime
from headrace.runtime.simulated import HostDiedError, Simulation, run_simulation

from .several import SeveralBrokers, create, run_several
from .sim import SimulatedBroker
from .topic_crashes import Crash, Story, crash_after

DAMAGED, TOPIC, PARTITIONS = 2, "t", 6


def test_a_log_without_an_id_is_fetched_by_its_id_though_its_leader_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, TOPIC, PARTITIONS, replicas=3) == 0
        states = cluster.running(1).image.topics

        def in_sync(count: int) -> bool:
            return all(len(state.isr) == count for state in states[TOPIC].partitions)

        await cluster.until(lambda: TOPIC in states and in_sync(3))
        damaged = cluster.brokers[DAMAGED]
        damaged.kill()
        await cluster.until(lambda: in_sync(2))
        disk = damaged.host.restart().disk
        for partition in range(PARTITIONS):
            disk.open(f"{_path(partition)}/partition.metadata").pwrite(0, b"torn")

        # Its disk takes long, and leaders change.
        identifying = asyncio.Event()
        change = Replicas.change_directories

        def change_slowly(replicas: Replicas, what: Callable[..., Any], *arguments: Any) -> Any:
            if what.__name__ != "_make_logs":
                return change(replicas, what, *arguments)

            async def later() -> Any:
                identifying.set()
                await asyncio.sleep(1.0)
                return await change(replicas, what, *arguments)

            return asyncio.ensure_future(later())

        monkeypatch.setattr(Replicas, "change_directories", change_slowly)
        starting = asyncio.ensure_future(damaged.start())
        await identifying.wait()
        await cluster.brokers[3].stop()
        await starting
        await cluster.brokers[3].start()
        await cluster.until(lambda: in_sync(3), 60.0)
        for partition in cluster.running(DAMAGED).replicas.partitions.values():
            assert partition.log.topic_id is not None

    run_several(main)


def test_a_log_that_could_not_be_given_its_id_for_want_of_descriptors_is_given_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stayed offline until the next start."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, TOPIC, 1, replicas=3) == 0
        states = cluster.running(1).image.topics
        await cluster.until(lambda: TOPIC in states and len(states[TOPIC].partitions[0].isr) == 3)
        damaged = cluster.brokers[DAMAGED]
        damaged.kill()
        await cluster.until(lambda: len(states[TOPIC].partitions[0].isr) == 2)
        disk = damaged.host.restart().disk
        disk.open(f"{_path(0)}/partition.metadata").pwrite(0, b"torn")
        identify, short = LogDirectories.identify, [True, True]

        def run_short(directories: LogDirectories, log: Log, topic_id: bytes) -> None:
            if short:
                short.pop()
                raise DiskError("open", log.directory, errno.EMFILE)
            identify(directories, log, topic_id)

        monkeypatch.setattr(LogDirectories, "identify", run_short)
        await damaged.start()
        await cluster.until(lambda: len(states[TOPIC].partitions[0].isr) == 3, 60.0)
        assert cluster.running(DAMAGED).partition(TOPIC, 0).log.topic_id == states[TOPIC].topic_id
        assert not short

    run_several(main)


@pytest.mark.parametrize("is_killed_first", [False, True], ids=["made before", "found by the process before"])
def test_no_power_loss_leaves_records_without_the_id_of_their_topic(is_killed_first: bool) -> None:
    """Or a later topic of the name would have them: a follower that was without power kept them, and was in sync."""

    async def main(simulation: Simulation) -> int:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        making = Story(machine.broker).create(TOPIC, PARTITIONS)
        if is_killed_first:
            crash_after(machine, simulation.rng.randint(1, 40), Crash.PROCESS)
        with contextlib.suppress(HostDiedError):
            await machine.host.start(making)
        if is_killed_first:
            machine.kill()
            await machine.start()
        for (topic, _), partition in machine.broker.replicas.partitions.items():
            if topic == TOPIC:
                partition.append(batch(b"kept or not"))
        machine.lose_power()
        disk = machine.host.restart().disk
        with_records = [path for path in map(_path, range(PARTITIONS)) if _has_records(disk, path)]
        assert None not in [partition_metadata.read(disk, path) for path in with_records]
        return len(with_records)

    assert sum(run_simulation(main, seed).value for seed in range(20)) > 20


def test_whoever_reads_does_not_wait_until_the_ids_of_many_new_logs_are_synced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a slow disk the ids of a topic of thousands of partitions take seconds, and had all disk threads meanwhile."""
    syncing, may_sync = threading.Event(), threading.Event()
    sync_id = Log.sync_id

    def sync_late(log: Log) -> None:
        syncing.set()
        assert may_sync.wait(60)
        sync_id(log)

    async def main() -> None:
        runtime = real_runtime(io_threads=8)
        broker = Broker.from_settings(runtime, {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        await broker.start()
        try:
            monkeypatch.setattr(Log, "sync_id", sync_late)
            topic = CreatableTopic(name=TOPIC, num_partitions=100, replication_factor=1)
            creating = asyncio.ensure_future(broker.metadata.create(topic))
            await becomes(syncing.is_set)
            try:
                assert await asyncio.wait_for(runtime.offload(lambda: "read"), 20) == "read"
            finally:
                may_sync.set()
            assert (await creating).topics[0].error_code == 0
        finally:
            await broker.stop()
            await runtime.close()

    asyncio.run(main())


def _path(index: int) -> str:
    return f"/data/one/{TOPIC}-{index}"


def _has_records(disk: Disk, path: str) -> bool:
    segment = f"{path}/{'0' * 20}.log"
    return disk.exists(segment) and disk.size(segment) > 0
