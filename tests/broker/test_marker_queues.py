"""Markers and questions for other brokers: one request in flight each, and no waiting for a broker that went away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.coordinators.marker_queues import MarkerQueues
from headrace.broker.coordinators.verification_queues import VerificationQueues
from headrace.broker.peers import PeerConnection
from headrace.broker.requests.element_bound import ELEMENTS_ALWAYS
from headrace.cluster.records import NO_LEADER
from headrace.cluster.topic_names import TRANSACTION_STATE
from headrace.errors import ErrorCode, NetworkError
from headrace.protocol.codec import encode
from headrace.protocol.codegen import decoder
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.topics import TopicPartition
from headrace.transactions import ADD_VERSION, MarkerRequest, between_brokers

from .coordinators import turns

A, B, C = (TopicPartition("t", index) for index in range(3))


class FakePeers:
    """Requests that are answered when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, Any, asyncio.Future[Any]]] = []

    async def request(self, node_id: int, lane: int, message: Any, **_: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((node_id, lane, message, answer))
        return await answer

    @property
    def nodes(self) -> list[int]:
        return [node_id for node_id, *_ in self.asked]

    def answer_markers(self, number: int, error: ErrorCode = ErrorCode.NONE) -> None:
        _, lane, message, answer = self.asked[number]
        assert lane == PeerConnection.MARKERS
        results = [
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in message.markers
        ]
        answer.set_result(WriteTxnMarkersResponse(markers=results))


class World:
    def __init__(self) -> None:
        self.peers = FakePeers()
        self.leaders: dict[TopicPartition, int] = {}
        self.is_current = True
        self.told: list[tuple[int, dict[TopicPartition, ErrorCode]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        image: Any = SimpleNamespace(partition=self.state)
        peers: Any = self.peers
        self.markers = MarkerQueues(
            image,
            peers,
            is_current=lambda request: self.is_current,
            tell=lambda request, errors: self.told.append((request.producer_id, errors)),
            keep=self.keep,
        )
        self.questions = VerificationQueues(image, peers, self.keep)

    def keep(self, work: Coroutine[object, object, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def state(self, topic: str, index: int) -> Any:
        leader = self.leaders.get(TopicPartition(topic, index))
        return None if leader is None else SimpleNamespace(leader=leader)

    def send(self, producer_id: int, *partitions: TopicPartition) -> None:
        request = MarkerRequest(f"id-{producer_id}", producer_id, 0, 7, True, 2, partitions, producer_id, 0)
        self.markers.send(request, list(partitions))

    async def verify(self, name: str, node_id: int = 2) -> dict[TopicPartition, ErrorCode]:
        transaction = between_brokers(name, 1, 0, [A], verify_only=True).transactions[0]
        return await self.questions.ask(node_id, 0, transaction)


def on_a_world(test: Any) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        await asyncio.gather(*world.tasks)

    asyncio.run(main())


def test_what_comes_while_a_request_is_in_flight_goes_with_the_next() -> None:
    async def test(world: World) -> None:
        world.leaders = {A: 2, B: 2, C: 3}
        world.send(1, A, B, C)
        await turns()
        assert world.peers.nodes == [2, 3]
        for producer_id in (2, 3, 3):
            world.send(producer_id, A)
        await turns()
        assert world.peers.nodes == [2, 3]
        world.peers.answer_markers(0)
        world.peers.answer_markers(1)
        await turns()
        assert world.told == [(1, {A: ErrorCode.NONE, B: ErrorCode.NONE}), (1, {C: ErrorCode.NONE})]
        # Answers are told by the producer's id: two requests of one producer do not go together.
        assert [marker.producer_id for marker in world.peers.asked[2][2].markers] == [2, 3]
        marker = world.peers.asked[2][2].markers[0]
        assert (marker.coordinator_epoch, marker.transaction_version, marker.transaction_result) == (7, 2, True)
        world.peers.answer_markers(2)
        await turns()
        world.peers.answer_markers(3)
        await turns()
        assert [producer_id for producer_id, _ in world.told] == [1, 1, 2, 3, 3]

    on_a_world(test)


@pytest.mark.parametrize("leader", [3, NO_LEADER, None])
def test_markers_in_flight_to_a_broker_that_leads_no_more_are_asked_for_again_at_once(leader: int | None) -> None:
    """It may be silent: its request would be waited for for half a minute."""

    async def test(world: World) -> None:
        world.leaders = {A: 2, B: 2}
        world.send(1, A, B)
        await turns()
        world.send(2, A)  # which waits behind it
        world.leaders = {B: 2} if leader is None else {A: leader, B: 2}
        world.markers.retry_now()
        assert sorted(world.told) == [
            (1, {A: ErrorCode.NOT_LEADER_OR_FOLLOWER}),
            (2, {A: ErrorCode.NOT_LEADER_OR_FOLLOWER}),
        ]
        world.peers.answer_markers(0)
        await turns()
        assert world.told[-1] == (1, {B: ErrorCode.NONE})
        world.send(3, B)
        await turns()
        world.leaders[B] = 3
        world.markers.retry_now()
        await turns()
        assert world.told[-1] == (3, {B: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        world.leaders[B] = 2
        world.send(4, B)
        await turns()
        assert len(world.peers.asked) == 3, "the request that nobody waits for holds up the next"
        world.peers.answer_markers(2)

    on_a_world(test)


def test_a_marker_for_a_partition_without_a_leader_waits_for_one() -> None:
    async def test(world: World) -> None:
        world.leaders = {A: NO_LEADER, B: NO_LEADER}
        world.send(1, A, B)
        await turns()
        world.markers.retry_now()
        assert not world.peers.asked
        assert not world.told
        world.leaders[B] = 2
        world.markers.retry_now()
        assert world.told == [(1, {B: ErrorCode.NOT_LEADER_OR_FOLLOWER})]
        del world.leaders[A]  # its topic is deleted
        world.markers.retry_now()
        assert world.told[1:] == [(1, {A: ErrorCode.NOT_LEADER_OR_FOLLOWER})]

    on_a_world(test)


def test_a_coordinator_that_lost_its_partition_sends_nothing_more() -> None:
    async def test(world: World) -> None:
        world.leaders = {A: 2, B: NO_LEADER}
        world.send(1, A)
        world.send(1, B)
        await turns()
        world.send(2, A)
        world.is_current = False
        world.markers.retry_now()
        await turns()
        world.leaders[B] = 3
        world.markers.retry_now()
        await turns()
        assert world.peers.nodes == [2]
        assert not world.told

    on_a_world(test)


def test_what_a_leader_does_not_answer_is_told_as_such() -> None:
    async def test(world: World) -> None:
        world.leaders = {A: 2}
        world.send(1, A)
        await turns()
        world.peers.asked[0][3].set_exception(NetworkError("gone"))
        await turns()
        world.send(2, A)
        await turns()
        world.peers.asked[1][3].set_result(WriteTxnMarkersResponse(markers=[]))
        await turns()
        world.send(3, A)
        await turns()
        world.peers.asked[2][3].set_result(object())  # a defect of that broker, or of this one
        await turns()
        world.send(4, A)
        await turns()
        world.peers.answer_markers(3, ErrorCode.NOT_ENOUGH_REPLICAS)
        await turns()
        told = [errors[A] for _, errors in world.told]
        assert told == [ErrorCode.NETWORK_EXCEPTION] * 3 + [ErrorCode.NOT_ENOUGH_REPLICAS]

    on_a_world(test)


def test_questions_go_together_and_are_given_up_when_another_coordinates() -> None:
    async def test(world: World) -> None:
        state = TopicPartition(TRANSACTION_STATE, 0)
        world.leaders = {state: 2}
        first = asyncio.ensure_future(world.verify("one"))
        await turns()
        others = [asyncio.ensure_future(world.verify(name)) for name in ("two", "three", "three")]
        await turns()
        (asked,) = world.peers.asked
        assert asked[:2] == (2, PeerConnection.VERIFICATION)
        results = [
            AddPartitionsToTxnResult(
                transactional_id="one",
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name="t",
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=0, partition_error_code=ErrorCode.TRANSACTION_ABORTABLE
                            )
                        ],
                    )
                ],
            )
        ]
        asked[3].set_result(AddPartitionsToTxnResponse(results_by_transaction=results))
        assert await first == {A: ErrorCode.TRANSACTION_ABORTABLE}
        await turns()
        assert [one.transactional_id for one in world.peers.asked[1][2].transactions] == ["two", "three"]
        world.leaders = {state: 3}
        world.questions.retry_now()
        assert await asyncio.gather(*others) == [{A: ErrorCode.NETWORK_EXCEPTION}] * 3

    on_a_world(test)


def test_no_request_has_more_than_a_broker_takes() -> None:
    """It would be refused for its size, and so would the next: no transaction would ever come to its end."""
    many = [TopicPartition("t", index) for index in range(200)]

    async def test(world: World) -> None:
        world.leaders = dict.fromkeys(many, 2)
        for producer_id in range(100):
            world.send(producer_id, *many)
        await turns()
        ended: list[int] = []
        while len(world.peers.asked) > len(ended):
            request = world.peers.asked[-1][2]
            version = WriteTxnMarkersRequest.SCHEMA.versions.high
            decoder(WriteTxnMarkersRequest, version)(encode(request, version), 0, ELEMENTS_ALWAYS)
            ended.append(len(request.markers))
            world.peers.answer_markers(-1)
            await turns()
        assert sum(ended) == 100
        assert max(ended) > 1
        assert [producer_id for producer_id, _ in world.told] == list(range(100))
        # One that is larger goes alone: there are as many partitions at least, and so many more are taken.
        world.leaders = dict.fromkeys((TopicPartition("t", index) for index in range(5000)), 2)
        for producer_id in (1000, 1001):
            world.send(producer_id, *world.leaders)
        await turns()
        assert [marker.producer_id for marker in world.peers.asked[-1][2].markers] == [1000]
        world.peers.answer_markers(-1)
        await turns()
        assert [marker.producer_id for marker in world.peers.asked[-1][2].markers] == [1001]
        world.peers.answer_markers(-1)

    on_a_world(test)


def test_no_request_asks_about_more_than_a_broker_takes() -> None:
    many = [TopicPartition("t", index) for index in range(200)]

    async def test(world: World) -> None:
        state = TopicPartition(TRANSACTION_STATE, 0)
        world.leaders = {state: 2}
        asking = []
        for number in range(100):
            transaction = between_brokers(f"id-{number}", 1, 0, many, verify_only=True).transactions[0]
            asking.append(asyncio.ensure_future(world.questions.ask(2, 0, transaction)))
        await turns()
        asked = 0
        while asked < 100:
            request, answer = world.peers.asked[-1][2:]
            decoder(AddPartitionsToTxnRequest, ADD_VERSION)(encode(request, ADD_VERSION), 0, ELEMENTS_ALWAYS)
            asked += len(request.transactions)
            answer.set_result(AddPartitionsToTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            await turns()
        assert 100 > len(world.peers.asked) > 1
        refused = dict.fromkeys(many, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert await asyncio.gather(*asking) == [refused] * 100

    on_a_world(test)


def test_an_item_that_cannot_be_looked_at_is_given_up_alone() -> None:
    """A defect may cost one item, but not all that is ever to be sent to that broker."""

    async def test(world: World) -> None:
        world.leaders = {A: 2}
        is_current = world.markers._is_current
        world.markers._is_current = lambda request: (is_current(request) and request.producer_id != 1) or 1 // 0 == 1
        world.send(1, A)
        world.send(2, A)
        await turns()
        assert world.told == [(1, {A: ErrorCode.NETWORK_EXCEPTION})]
        assert [marker.producer_id for marker in world.peers.asked[0][2].markers] == [2]
        world.send(1, A)
        world.markers.retry_now()
        world.peers.answer_markers(0)
        await turns()
        world.send(3, A)
        await turns()
        assert [marker.producer_id for marker in world.peers.asked[1][2].markers] == [3]
        world.peers.answer_markers(1)
        await turns()
        assert world.told[1:] == [
            (1, {A: ErrorCode.NETWORK_EXCEPTION}),
            (2, {A: ErrorCode.NONE}),
            (3, {A: ErrorCode.NONE}),
        ]

    on_a_world(test)
