"""Three brokers in a simulation that copy one another's partitions, with one controller that the test has in hand.

Each has metadata of its own; what the controller decides is put into all of them (or into those that the test names),
as a metadata log that they fetch would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.broker.raw import AsyncRawClient
from tests.broker.sim import PORT, SimulatedBroker

from headrace.broker.broker import Broker
from headrace.broker.partition import Partition
from headrace.cluster import brokers as registrations
from headrace.cluster import leadership
from headrace.cluster.decision import Decision
from headrace.cluster.image import PartitionImage, partition_record, registration
from headrace.cluster.records import MetadataRecord, PartitionRecord, TopicRecord
from headrace.errors import NetworkError
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.runtime.simulated import Simulation, run_simulation

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
        #: Brokers that do not hear of what the controller decides.
        self.deaf: set[int] = set()
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

    def broker(self, node_id: int) -> Broker:
        broker = self.machines[node_id].broker
        assert broker is not None
        return broker

    def partition(self, node_id: int, index: int = 0) -> Partition:
        return self.broker(node_id).partition(TOPIC, index)

    @property
    def state(self) -> PartitionImage:
        """The partition as the controller has it."""
        return self.broker(1).image.topics[TOPIC].partitions[0]

    async def tell(self, records: list[MetadataRecord]) -> None:
        for node_id, machine in self.machines.items():
            if machine.broker is not None and (node_id not in self.deaf or node_id == 1):
                await self._put(machine.broker, records)

    async def catch_up(self, node_id: int) -> None:
        """Tell a broker how the partition is, after decisions that it has not heard of."""
        await self._put(self.broker(node_id), [partition_record(TOPIC_ID, 0, self.state)])

    async def _put(self, broker: Broker, records: list[MetadataRecord]) -> None:
        await self.on(broker, broker.metadata.change(lambda: Decision(None, records)))

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
        await self.tell(records)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if not self.controller_is_reached:
            raise NetworkError("the controller cannot be reached")
        decision = leadership.alter_partition(self.broker(1).image, request)
        if decision.records:
            await self.tell(decision.records)
        return decision.response

    async def fence(self, node_id: int) -> None:
        await self.tell(registrations.fence(self.broker(1).image, node_id).records)

    async def unfence(self, node_id: int) -> None:
        await self.tell(registrations.unfence(self.broker(1).image, node_id).records)

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
