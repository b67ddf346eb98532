"""A proposal of a leader that arrives after others that were sent later: it must not be carried out any more."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.broker.peers import PeerConnection
from headrace.cluster.image import PartitionImage
from headrace.cluster.store import Seat
from headrace.errors import ErrorCode, NetworkError
from headrace.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

from .. import raw
from ..several import SeveralBrokers, run_several

TOPIC = "t"


def test_nobody_is_let_in_by_a_proposal_that_was_sent_again_and_then_refused() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controller = cluster.controller_id()
        assert controller is not None
        leader = cluster.other_than(controller)
        third = cluster.other_than(controller, leader)
        await _create(cluster, leader, [leader, controller, third])
        await cluster.until(lambda: set(_state(cluster, controller).isr) == {1, 2, 3})
        late = _lose_the_first_that_names(cluster, controller, leader, third)
        # It leaves, comes back, and is about to be let in when it leaves again.
        cluster.brokers[third].is_reachable = False
        await cluster.until(lambda: third not in _state(cluster, controller).isr)
        cluster.brokers[third].is_reachable = True
        await asyncio.wait_for(late.is_refused.wait(), 30)
        await asyncio.sleep(2)
        cluster.brokers[third].is_reachable = True
        await cluster.until(lambda: cluster.running(controller).image.is_active(third))
        assert late.request is not None
        data = (await _arrives(cluster, controller, late.request)).topics[0].partitions[0]
        assert data.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert third not in _state(cluster, controller).isr
        late.may_ask.set()
        await cluster.until(lambda: set(_state(cluster, controller).isr) == {1, 2, 3})

    run_several(main)


class _Late:
    """A request that is on its way for long."""

    def __init__(self) -> None:
        self.request: AlterPartitionRequest | None = None
        #: Its second copy was answered; and whether anything may be asked after that.
        self.is_refused = asyncio.Event()
        self.may_ask = asyncio.Event()


def _lose_the_first_that_names(cluster: SeveralBrokers, controller: int, leader: int, third: int) -> _Late:
    late = _Late()
    membership = cluster.running(leader).membership
    assert membership is not None
    ask = membership.ask_seat

    async def ask_seat(
        seat: Seat, lane: PeerConnection, request: Any, timeout_s: float, version: int | None = None
    ) -> Any:
        if not isinstance(request, AlterPartitionRequest) or third not in _named(request):
            return await ask(seat, lane, request, timeout_s, version)
        if late.request is None:
            late.request = request
            cluster.brokers[third].is_reachable = False
            await cluster.until(lambda: not cluster.running(controller).image.is_active(third))
            raise NetworkError("its connection broke")
        if late.is_refused.is_set():
            await late.may_ask.wait()
        answer = await ask(seat, lane, request, timeout_s, version)
        if not late.is_refused.is_set():
            assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
            late.is_refused.set()
        return answer

    membership.ask_seat = ask_seat  # type: ignore[method-assign]
    return late


def _named(request: AlterPartitionRequest) -> set[int]:
    return {one.broker_id for topic in request.topics for part in topic.partitions for one in part.new_isr_with_epochs}


async def _create(cluster: SeveralBrokers, through: int, replicas: list[int]) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment])
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    answer = await cluster.client(through).request(request, raw.CREATE_TOPICS_VERSION, 60.0)
    assert answer.topics[0].error_code == ErrorCode.NONE


def _state(cluster: SeveralBrokers, node_id: int) -> PartitionImage:
    return cluster.running(node_id).image.topics[TOPIC].partitions[0]


async def _arrives(cluster: SeveralBrokers, controller: int, request: AlterPartitionRequest) -> AlterPartitionResponse:
    broker = cluster.running(controller)

    async def change() -> AlterPartitionResponse:
        return await broker.metadata.change(lambda image: broker.controller.alter_partition(image, request))

    answer: AlterPartitionResponse = await cluster.brokers[controller].host.start(change())
    return answer
