"""Where a store can be, each ready to be used by one and the same test."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from headrace.cluster.records import MetadataRecord, PartitionRecord, TopicRecord
from headrace.cluster.store import Store, StoreMember
from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.local import LocalStore
from headrace.cluster.store.metadata_log import MetadataLog
from headrace.cluster.store.model import Faults, ZooKeeperModel
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import StoreSession
from headrace.runtime import Runtime, real_runtime
from headrace.runtime.simulated import Simulation
from headrace.testing import ZooKeeperNotFoundError, ZooKeeperProcess

Main = Callable[["Home"], Coroutine[Any, Any, None]]


def member(node_id: int, life: int = 1) -> StoreMember:
    return StoreMember(node_id, bytes([node_id, life]) * 8, "127.0.0.1", 9000 + node_id)


def topic(number: int, partitions: int = 2) -> list[MetadataRecord]:
    topic_id = (number + 1).to_bytes(16, "big")
    records: list[MetadataRecord] = [TopicRecord(name=f"topic-{number}", topic_id=topic_id)]
    records += [
        PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[1],
            isr=[1],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[bytes(16)],
        )
        for index in range(partitions)
    ]
    return records


class Home(Protocol):
    """Makes stores, each as another broker has it."""

    several: bool

    def store(self, **limits: int) -> Store: ...


class LocalHome:
    several = False

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def store(self, **limits: int) -> Store:
        after = limits.get("snapshot_after_bytes", 10**9)
        return LocalStore(self._runtime, MetadataLog.open(self._runtime, "/data", snapshot_after_bytes=after))


class NodesHome:
    """Several stores over the same nodes."""

    several = True

    def __init__(self, runtime: Runtime, session: Callable[[], StoreSession], timeout_s: float) -> None:
        self.runtime = runtime
        self.session = session
        self.timeout_s = timeout_s
        self.model: ZooKeeperModel | None = None

    def store(self, **limits: int) -> NodeStore:
        return NodeStore(self.runtime, self.session, timeout_s=self.timeout_s, where="the store", **limits)


def run_local(main: Main) -> None:
    simulation = Simulation(7)
    simulation.run(main(LocalHome(simulation.host().runtime)))
    simulation.check()


def run_model(main: Main, seed: int = 7, faults: Faults | None = None) -> None:
    simulation = Simulation(seed)
    runtime = simulation.host().runtime
    model = ZooKeeperModel(random.Random(f"{seed}/zookeeper"), session_timeout_s=6.0, faults=faults)

    async def run() -> None:
        home = NodesHome(runtime, lambda: model.session(runtime.clock), 6.0)
        home.model = model
        await main(home)

    simulation.run(run())
    simulation.check()


def run_shared(main: Main, timeout_s: float = 6.0) -> None:
    async def run(directory: str) -> None:
        runtime = real_runtime()
        try:
            await main(NodesHome(runtime, lambda: DirectorySession(runtime, directory, timeout_s=timeout_s), timeout_s))
        finally:
            await runtime.close()

    with tempfile.TemporaryDirectory(prefix="headrace-store-") as directory:
        asyncio.run(run(directory))


def run_simulated_directory(main: Main, timeout_s: float = 6.0) -> None:
    """The same on a simulated disk and clock, for what is about time."""
    simulation = Simulation(7)
    runtime = simulation.host().runtime
    home = NodesHome(runtime, lambda: DirectorySession(runtime, "/store", timeout_s=timeout_s), timeout_s)
    simulation.run(main(home))
    simulation.check()


_chroots = itertools.count()


@contextmanager
def zookeeper(users: dict[str, str] | None = None) -> Iterator[ZooKeeperProcess]:
    """A real server, or the test is skipped."""
    pytest.importorskip("kazoo")
    with tempfile.TemporaryDirectory(prefix="headrace-zookeeper-") as directory:
        try:
            process = ZooKeeperProcess(directory, users=users).start()
        except ZooKeeperNotFoundError as error:
            pytest.skip(str(error))
        try:
            yield process
        finally:
            process.kill()


def run_zookeeper(main: Main, process: ZooKeeperProcess, timeout_s: float = 6.0) -> None:
    from headrace.cluster.store.kazoo_session import KazooSession

    connect = f"{process.address}/tests/{next(_chroots)}"

    async def run() -> None:
        runtime = real_runtime()
        try:
            await main(NodesHome(runtime, lambda: KazooSession(runtime, connect, timeout_s=timeout_s), timeout_s))
        finally:
            await runtime.close()

    asyncio.run(run())
