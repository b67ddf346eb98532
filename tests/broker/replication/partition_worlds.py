"""A broker in a simulation and one partition of it, which is given other replicas: two neighbours that do as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

from tests.broker import raw
from tests.broker.sim import SimulatedBroker

from headrace.broker.broker import Broker
from headrace.broker.partitions.leadership import Leadership
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication import copying
from headrace.broker.replication.follower import Answer, Position
from headrace.broker.replication.leader import LeaderState, Proposal
from headrace.log import Appended
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.records import assign
from headrace.runtime import Buffer
from headrace.runtime.simulated import Simulation, run_simulation

OWN = 1  # the id that a broker has without any setting
SECOND, THIRD = 2, 3


class Neighbours:
    """Two other brokers, both active with the epoch 7, and a controller that does what it is told to."""

    lag_time_max_ms = 1000.0

    def __init__(self) -> None:
        self.time_ms = 0.0
        self.proposals: list[tuple[LeaderState, Proposal]] = []
        self.dead: set[int] = set()
        #: Where logs were cut, as it was said before.
        self.cuts: list[int] = []

    def now_ms(self) -> float:
        return self.time_ms

    def broker_epoch(self, node_id: int) -> int | None:
        return 7

    def is_alive(self, node_id: int) -> bool:
        return node_id not in self.dead

    def propose(self, partition: Partition, leader: LeaderState, proposal: Proposal) -> None:
        self.proposals.append((leader, proposal))

    def role_changed(self, partition: Partition) -> None:
        pass

    def cutting(self, partition: Partition, offset: int) -> AbstractAsyncContextManager[None]:
        self.cuts.append(offset)
        return nullcontext()


Test = Callable[[Broker, Partition, Neighbours], Awaitable[None]]


def simulated(test: Test, settings: Mapping[str, str] | None = None) -> None:
    """Run it with a broker in a simulation, and one partition that the test gives other replicas."""

    async def inside(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition, neighbours = broker.partition("t", 0), Neighbours()
        assert partition.leadership.leader_id == OWN
        partition._surroundings = neighbours
        await test(broker, partition, neighbours)

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation, settings)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(inside(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)


def leads(epoch: int, isr: tuple[int, ...] = (OWN, SECOND, THIRD), partition_epoch: int = 10) -> Leadership:
    return Leadership(OWN, epoch, [OWN, SECOND, THIRD], list(isr), partition_epoch)


def follows(epoch: int, leader: int = SECOND, partition_epoch: int = 10) -> Leadership:
    return Leadership(leader, epoch, [OWN, SECOND, THIRD], [OWN, SECOND, THIRD], partition_epoch)


def append(partition: Partition, value: bytes, **more: object) -> asyncio.Future[Appended]:
    return asyncio.ensure_future(cast(Awaitable[Appended], partition.append(raw.batch([value]), **more)))  # type: ignore[arg-type]


def from_leader(value: bytes, offset: int, epoch: int) -> bytes:
    batch = bytearray(raw.batch([value]))
    assign(batch, offset, epoch)
    return bytes(batch)


async def copy(partition: Partition, asked: Position, answer: Answer, records: Buffer) -> None:
    """As a fetcher does, with one partition."""
    copied = await copying.append(partition, asked, answer, records)
    if copied.sync_due:
        await partition.sync()
    await copying.take_over(copied)
