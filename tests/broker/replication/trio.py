"""Three brokers in a simulation that copy one another's partitions, with one controller that the test has in hand.

Each has metadata of its own; what the controller decides is put into all of them in its order, as a metadata log that
they fetch would, and later into those that are deaf for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from tests.broker.raw import AsyncRawClient
from tests.broker.sim import PORT, SimulatedBroker

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.cluster import brokers as registrations
from headrace.cluster import leadership
from headrace.cluster.decision import Decision
from headrace.cluster.image import Image, PartitionImage, registration
from headrace.cluster.records import MetadataRecord, PartitionRecord, TopicRecord
from headrace.errors import NetworkError
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.runtime.simulated import Simulation, run_simulation

R = TypeVar("R")

TOPIC = "t"
TOPIC_ID = bytes(range(16))
NODES = (1, 2, 3)
SETTINGS = {"replica.lag.time.max.ms": "2000", "replica.fetch.wait.max.ms": "100"}


class Trio:
    def __init__(self, simulation: Simulation, settings: Mapping[str, str]) -> None:
        self.simulation = simulation
        self.machines = {
            node_id: SimulatedBroker(
                simulation,
                {"node.id": str(node_id), "broker.rack": f"r{node_id}", **SETTINGS, **settings},
                f"b{node_id}",
            )
            for node_id in NODES
        }
        #: The cluster as the controller has it, and what it has decided; how much of it each broker has heard.
        self.image = Image()
        self.decisions: list[list[MetadataRecord]] = []
        self.heard = dict.fromkeys(NODES, 0)
        #: Brokers that do not hear of it now.
        self.deaf: set[int] = set()
        self._telling = asyncio.Lock()
        self.controller_is_reached = True

    async def start(self) -> None:
        for machine in self.machines.values():
            await machine.start()
        await self.join()

    async def join(self) -> None:
        """Let every broker know of the others."""
        known = [(node_id, registration(self.broker(node_id).image.brokers[node_id])) for node_id in NODES]
        for node_id in NODES:
            broker = self.broker(node_id)
            records: list[MetadataRecord] = [record for other, record in known if other != node_id]
            await self._put(broker, records)
            broker.replication.ask_controller = self.alter_partition
        for _, record in known:
            self.image.apply(record)

    def broker(self, node_id: int) -> Broker:
        broker = self.machines[node_id].broker
        assert broker is not None
        return broker

    def partition(self, node_id: int, index: int = 0) -> Partition:
        return self.broker(node_id).partition(TOPIC, index)

    @property
    def state(self) -> PartitionImage:
        """The partition as the controller has it."""
        return self.image.topics[TOPIC].partitions[0]

    async def decide(self, decision: Decision[R]) -> R:
        """What the controller says is so at once; brokers hear of it."""
        if decision.records:
            for record in decision.records:
                self.image.apply(record)
            self.decisions.append(decision.records)
            await self.tell()
        return decision.response

    async def tell(self) -> None:
        """Let every broker that is not deaf hear of all that was decided, one decision after the other."""
        async with self._telling:
            for node_id in NODES:
                while node_id not in self.deaf and self.heard[node_id] < len(self.decisions):
                    self.heard[node_id] += 1
                    await self._put(self.broker(node_id), self.decisions[self.heard[node_id] - 1])

    async def _put(self, broker: Broker, records: list[MetadataRecord]) -> None:
        await self.on(broker, broker.metadata.change(lambda _: Decision(None, records)))

    async def on(self, broker: Broker, work: Awaitable[Any]) -> Any:
        """Do something as the broker's own process."""
        for machine in self.machines.values():
            if machine.broker is broker:

                async def run() -> Any:
                    return await work

                return await machine.host.start(run())
        raise AssertionError("that broker is not running")

    async def create_topic(self, replicas: tuple[int, ...] = NODES, partitions: int = 1) -> None:
        records: list[MetadataRecord] = [TopicRecord(name=TOPIC, topic_id=TOPIC_ID)]
        for index in range(partitions):
            records.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=TOPIC_ID,
                    replicas=list(replicas),
                    isr=list(replicas),
                    leader=replicas[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
        await self.decide(Decision(None, records))

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if not self.controller_is_reached:
            raise NetworkError("the controller cannot be reached")
        return await self.decide(leadership.alter_partition(self.image, request))

    async def fence(self, node_id: int) -> None:
        await self.decide(registrations.fence(self.image, node_id))

    async def unfence(self, node_id: int) -> None:
        await self.decide(registrations.unfence(self.image, node_id))

    async def elect_preferred(self) -> None:
        wanted = [TopicPartitions(topic=TOPIC, partitions=[0])]
        await self.decide(leadership.elect_leaders(self.image, ElectLeadersRequest(topic_partitions=wanted)))

    async def client(self, node_id: int) -> AsyncRawClient:
        runtime = self.simulation.host("client").runtime
        return await AsyncRawClient.connect(runtime, f"b{node_id}", PORT)


def simulated(
    test: Callable[[Trio], Awaitable[None]], seed: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    async def main(simulation: Simulation) -> None:
        trio = Trio(simulation, settings or {})
        await trio.start()
        await test(trio)
        for machine in trio.machines.values():
            if machine.broker is not None:
                await machine.stop()

    run_simulation(main, seed, time_max_s=600.0)
