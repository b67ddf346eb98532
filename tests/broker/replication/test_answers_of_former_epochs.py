"""The controller's answers to what a leader proposed in an earlier epoch, and to what it proposed since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

from tests.broker import raw
from tests.broker.sim import SimulatedBroker

from headrace.broker.broker import Broker
from headrace.broker.partitions.leadership import Leadership
from headrace.errors import ErrorCode
from headrace.log import Appended
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from headrace.protocol.messages.create_topics import CreatableTopic
from headrace.runtime.simulated import Simulation, run_simulation

OWN, SECOND = 1, 2


class SlowController:
    """Its answers are given by the test."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]] = (
            asyncio.Queue()
        )

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        answer: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer


def answer(request: AlterPartitionRequest, **said: object) -> AlterPartitionResponse:
    data = AlterPartitionResponsePartitionData(partition_index=0, **said)  # type: ignore[arg-type]
    return AlterPartitionResponse(
        topics=[AlterPartitionResponseTopicData(topic_id=request.topics[0].topic_id, partitions=[data])]
    )


def test_what_a_proposal_lets_be_committed_is_acknowledged_though_one_of_an_earlier_epoch_is_answered_first() -> None:
    async def inside(broker: Broker) -> None:
        await broker.metadata.create(CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        partition, controller = broker.partition("t", 0), SlowController()
        broker.replication.ask_controller = controller.ask
        too_long_s = broker.replication.lag_time_max_ms / 1000 + 1

        def lead(epoch: int) -> None:
            partition.lead(Leadership(OWN, epoch, [OWN, SECOND], [OWN, SECOND], 10 + epoch))

        lead(1)
        await asyncio.sleep(too_long_s)
        partition.check_in_sync()
        request, first = await controller.asked.get()
        lead(2)
        waiting = asyncio.ensure_future(cast(Awaitable[Appended], partition.append(raw.batch([b"one"]))))
        await asyncio.sleep(too_long_s)
        partition.check_in_sync()
        first.set_result(answer(request, error_code=ErrorCode.FENCED_LEADER_EPOCH))
        request, second = await controller.asked.get()
        assert request.topics[0].partitions[0].leader_epoch == 2
        second.set_result(answer(request, leader_id=OWN, leader_epoch=2, isr=[OWN], partition_epoch=13))
        async with asyncio.timeout(10):
            assert (await waiting).base_offset == 0
        assert partition.high_watermark == 1
        assert partition.leadership.isr == [OWN]

    async def main(simulation: Simulation) -> None:
        machine = SimulatedBroker(simulation)
        await machine.start()
        assert machine.broker is not None
        await machine.host.start(inside(machine.broker))
        await machine.stop()

    run_simulation(main, 1, time_max_s=600.0)
