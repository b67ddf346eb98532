"""Several brokers of one cluster inside a simulation, with a model of ZooKeeper between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.cluster.store.model import ZooKeeperModel
from headrace.cluster.store.node_store import NodeStore
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.runtime.simulated import Simulation

from . import raw
from .sim import METADATA_VERSION, PORT, Client, SimulatedBroker

SESSION_S = 1.0


class SharingBroker(SimulatedBroker):
    """A broker whose store is the model."""

    def __init__(
        self,
        simulation: Simulation,
        model: ZooKeeperModel,
        node_id: int,
        settings: Mapping[str, str],
        name: str = "",
    ) -> None:
        name = name or f"broker-{node_id}"
        own = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{name}:{PORT}",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            **settings,
        }
        super().__init__(simulation, own, name)
        self.node_id = node_id
        self._model = model
        self.is_reachable = True

    async def start(self) -> None:
        runtime = self.host.runtime if self.host.alive else self.host.restart()
        host, life = self.host, self.host.life

        def reaches() -> bool:
            return self.is_reachable and life.alive and host.life is life

        async def start() -> Broker:
            store = NodeStore(
                runtime,
                lambda: self._model.session(runtime.clock, reaches),
                timeout_s=2.0,
                where="ZooKeeper",
            )
            broker = Broker.from_settings(runtime, self.settings, store=store)
            await broker.start()
            return broker

        self.broker = await self.host.start(start(), name="broker")


class SeveralBrokers:
    """A cluster: brokers 1 to `count`."""

    def __init__(self, simulation: Simulation, count: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.simulation = simulation
        self.model = ZooKeeperModel(simulation.random_for("zookeeper"), session_timeout_s=SESSION_S)
        self.brokers = {
            node_id: SharingBroker(simulation, self.model, node_id, settings or {}) for node_id in range(1, count + 1)
        }
        self._clients: dict[int, Client] = {}

    async def start(self) -> None:
        """Return once every broker knows of all others."""
        await asyncio.gather(*(broker.start() for broker in self.brokers.values()))
        count = len(self.brokers)
        for broker in self.alive:
            await self.until(lambda b=broker: sum(map(b.image.is_active, self.brokers)) == count)  # type: ignore[misc]

    def client(self, node_id: int) -> Client:
        """A client of that broker."""
        if node_id not in self._clients:
            self._clients[node_id] = Client(self.simulation, f"client-of-{node_id}", f"broker-{node_id}")
        return self._clients[node_id]

    def running(self, node_id: int) -> Broker:
        broker = self.brokers[node_id].broker
        assert broker is not None
        return broker

    @property
    def alive(self) -> list[Broker]:
        return [broker.broker for broker in self.brokers.values() if broker.broker is not None]

    def controller_id(self) -> int | None:
        """The broker that decides, if there is one."""
        found = [broker.node_id for broker in self.alive if broker.metadata.active.is_active]
        return found[0] if found else None

    def other_than(self, *node_ids: int | None) -> int:
        return next(node_id for node_id in self.brokers if node_id not in node_ids)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> float:
        """Wait for something to be so; how long that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() - began < timeout_s, "it did not come to that"
            await asyncio.sleep(0.005)
        return loop.time() - began


def run_several(
    main: Callable[[SeveralBrokers], Coroutine[Any, Any, None]],
    seed: int = 1,
    settings: Mapping[str, str] | None = None,
    count: int = 3,
) -> None:
    simulation = Simulation(seed)

    async def run() -> None:
        cluster = SeveralBrokers(simulation, count, settings)
        await cluster.start()
        await main(cluster)
        for broker in cluster.brokers.values():
            if broker.broker is not None:
                await broker.stop()

    simulation.run(run())
    simulation.check()


async def create(cluster: SeveralBrokers, through: int, name: str, partitions: int = 6, replicas: int = 1) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    answer = await cluster.client(through).request(request, raw.CREATE_TOPICS_VERSION, 60.0)
    code: int = answer.topics[0].error_code
    return code


async def metadata(cluster: SeveralBrokers, through: int, *names: str) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    found: MetadataResponse = await cluster.client(through).request(MetadataRequest(topics=topics), METADATA_VERSION)
    return found


def leaders(found: MetadataResponse) -> list[int]:
    return [partition.leader_id for partition in found.topics[0].partitions]
