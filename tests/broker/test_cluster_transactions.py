"""Transactions whose coordinator, partitions and offsets are at different brokers, some of which go away."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.peers import PeerConnection
from headrace.cluster.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.errors import ErrorCode, NetworkError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.write_txn_markers import WritableTxnMarker, WriteTxnMarkersRequest
from headrace.topics import partition_for_group

from . import raw
from .cluster_transactions import SETTINGS, Outcome, play
from .raw import AsyncRawClient
from .several import SeveralBrokers, run_several
from .sim import INIT_PRODUCER_ID_VERSION, PORT


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "transaction_version"), [(1, 0), (2, 2)])  # more: `cluster_transactions`
def test_a_transaction_has_one_outcome_in_all_partitions(seed: int, transaction_version: int) -> None:
    writers = play(seed, transaction_version)
    outcomes = [transaction.outcome for writer in writers for transaction in writer.transactions]
    assert outcomes.count(Outcome.COMMITTED) > 20
    assert outcomes.count(Outcome.ABORTED) > 5


async def find(cluster: SeveralBrokers, through: int, key_type: int, key: str) -> Coordinator:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    answer: FindCoordinatorResponse = await cluster.client(through).request(request, 4, 30.0)
    return answer.coordinators[0]


async def coordinator_of(cluster: SeveralBrokers, through: int, key_type: int, key: str) -> int:
    """Ask until there is one."""
    while (found := await find(cluster, through, key_type, key)).error_code:
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert found.node_id == -1
        await asyncio.sleep(0.05)
    return found.node_id


@pytest.mark.slow
@pytest.mark.parametrize(("key_type", "topic"), [(0, CONSUMER_OFFSETS), (1, TRANSACTION_STATE)])
def test_every_broker_finds_the_same_coordinator_and_another_when_that_is_gone(key_type: int, topic: str) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        keys = [f"key-{number}" for number in range(6)]
        for key in keys:
            told = {await coordinator_of(cluster, through, key_type, key) for through in cluster.brokers}
            assert len(told) == 1
        partitions = cluster.running(1).image.topics[topic].partitions
        assert [len(partition.replicas) for partition in partitions] == [3, 3, 3]
        dead = cluster.other_than(cluster.controller_id())
        through = cluster.other_than(dead)
        index = next(index for index, partition in enumerate(partitions) if partition.leader == dead)
        key = next(f"k{n}" for n in range(1000) if partition_for_group(f"k{n}", len(partitions)) == index)
        assert await coordinator_of(cluster, through, key_type, key) == dead
        await asyncio.sleep(3)
        cluster.brokers[dead].kill()
        await cluster.until(lambda: cluster.running(through).image.brokers[dead].fenced)
        for asked in set(cluster.brokers) - {dead}:
            await cluster.until(lambda a=asked: cluster.running(a).image.brokers[dead].fenced)  # type: ignore[misc]
            assert await coordinator_of(cluster, asked, key_type, key) != dead

    run_several(main, settings=SETTINGS)


def test_there_is_no_coordinator_while_its_partition_has_no_leader() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        dead = await coordinator_of(cluster, 1, 1, "id")
        through = cluster.other_than(dead)
        await asyncio.sleep(3)
        cluster.brokers[dead].kill()
        await cluster.until(lambda: cluster.running(through).image.brokers[dead].fenced)
        found = await find(cluster, through, 1, "id")
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        await cluster.brokers[dead].start()
        assert await coordinator_of(cluster, through, 1, "id") == dead

    run_several(main, settings=SETTINGS | {"transaction.state.log.replication.factor": "1"})


def test_the_topic_counts_whatever_the_settings_of_a_broker_say() -> None:
    """The one that was asked first created it, with its own."""

    async def main(cluster: SeveralBrokers) -> None:
        await cluster.brokers[2].stop()
        cluster.brokers[2].settings["transaction.state.log.num.partitions"] = "7"
        await cluster.brokers[2].start()
        await coordinator_of(cluster, 2, 1, "id")
        for broker in cluster.alive:
            await cluster.until(lambda b=broker: TRANSACTION_STATE in b.image.topics)  # type: ignore[misc]
            await cluster.until(lambda b=broker: b.transactions.coordinator.partition_count == 7)  # type: ignore[misc]
        for number in range(8):
            name = f"id-{number}"
            told = {await coordinator_of(cluster, through, 1, name) for through in cluster.brokers}
            assert len(told) == 1
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            answer = await cluster.client(told.pop()).request(request, INIT_PRODUCER_ID_VERSION)
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    run_several(main, settings=SETTINGS)


def test_a_marker_that_was_given_up_before_it_was_sent_never_is() -> None:
    """By then it could end the next transaction of its producer, which in the older protocol has the same epoch."""

    async def main(cluster: SeveralBrokers) -> None:
        broker, other = cluster.running(1), cluster.running(2)
        marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, coordinator_epoch=0)

        async def ask() -> None:
            await broker.replication.peers.request(2, PeerConnection.MARKERS, WriteTxnMarkersRequest(markers=[marker]))

        cluster.simulation.network.partition(["broker-1"], ["broker-2"])
        with pytest.raises(NetworkError):
            await cluster.brokers[1].host.start(ask())
        cluster.simulation.network.heal()

        async def ask_in_vain() -> None:
            asking = asyncio.ensure_future(ask())  # which waits until the next attempt to connect
            await asyncio.sleep(0.001)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        await cluster.brokers[1].host.start(ask_in_vain())
        await asyncio.sleep(5)
        assert other.pipeline.metrics[ApiKey.WRITE_TXN_MARKERS].count == 0
        await cluster.brokers[1].host.start(ask())
        assert other.pipeline.metrics[ApiKey.WRITE_TXN_MARKERS].count == 1

    run_several(main, settings=SETTINGS)


@pytest.mark.slow
def test_many_large_transactions_that_end_at_once_come_to_their_end() -> None:
    """Their markers do not all fit into what a broker takes in one request."""
    topic, partitions, count, leader = "large", 100, 60, 1

    async def main(cluster: SeveralBrokers) -> None:
        placed = [CreatableReplicaAssignment(partition_index=index, broker_ids=[leader]) for index in range(partitions)]
        wanted = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=placed)
        creation = CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
        answer = await cluster.client(leader).request(creation, raw.CREATE_TOPICS_VERSION)
        assert answer.topics[0].error_code == ErrorCode.NONE
        names: list[str] = []
        coordinator = 0
        for number in range(10 * count):
            found = await coordinator_of(cluster, leader, 1, f"id-{number}")
            coordinator = coordinator or (0 if found == leader else found)
            if found == coordinator and len(names) < count:
                names.append(f"id-{number}")
        client = cluster.client(coordinator)

        async def begin(name: str) -> EndTxnRequest:
            introduction = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            while (producer := await client.request(introduction, INIT_PRODUCER_ID_VERSION)).error_code:
                await asyncio.sleep(0.05)
            addition = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(range(partitions)))],
            )
            (added,) = (await client.request(addition, 3)).results_by_topic_v3_and_below
            assert {one.partition_error_code for one in added.results_by_partition} == {ErrorCode.NONE}
            return EndTxnRequest(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=True,
            )

        async def end(request: EndTxnRequest) -> None:
            connection = await AsyncRawClient.connect(client.host.runtime, f"broker-{coordinator}", PORT)
            assert (await connection.request(request, 3)).error_code == ErrorCode.NONE
            connection.close()

        ends = [await begin(name) for name in names]
        await asyncio.gather(*map(end, ends))
        logs = [cluster.running(leader).partition(topic, index).log for index in range(partitions)]
        await cluster.until(lambda: {log.end_offset for log in logs} == {count})

    run_several(main, settings=SETTINGS)
