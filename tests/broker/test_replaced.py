"""A number that a new machine was given, while the process that had it lives on: that leads nothing any more, and ends.

Others ask the new machine, whatever connections they had.
"""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.broker import Broker
from headrace.broker.metadata.identity import ReplacedError
from headrace.broker.peers import PeerConnection, Peers
from headrace.client.admin.types import NewTopic
from headrace.client.producer.aio import Producer
from headrace.cluster.store.session import Delete
from headrace.errors import ErrorCode, HeadraceError, NetworkError, NotLeaderOrFollowerError
from headrace.net.node import Node
from headrace.net.security import PLAINTEXT
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.testing.simulated.cluster import SimulatedBroker, SimulatedCluster, simulated_cluster
from headrace.topics import TopicPartition

T = TopicPartition("t", 0)
WAIT_S = 60.0


async def _make_topic(cluster: SimulatedCluster) -> int:
    """A broker that leads the topic's partition, and is not the controller."""
    first, *rest = sorted(cluster.brokers, key=lambda number: number == cluster.controller_id)
    async with cluster.admin() as admin:
        topic = NewTopic("t", replicas_assignments={0: [first, *rest]}, configs={"min.insync.replicas": "2"})
        (await admin.create_topics([topic])).all()
    return first


def _producer(cluster: SimulatedCluster) -> Producer:
    return cluster.producer(delivery_timeout_ms=20_000, request_timeout_ms=3_000, acks="all")


async def _until_fenced(cluster: SimulatedCluster, node_id: int) -> None:
    others = [one.broker for number, one in cluster.brokers.items() if number != node_id]

    def is_fenced() -> bool:
        return all(other is not None and other.image.brokers[node_id].fenced for other in others)

    await cluster.until(is_fenced, WAIT_S, "it is not fenced")


async def _elect(cluster: SimulatedCluster) -> None:
    async with cluster.admin() as admin:
        await admin.elect_leaders([T])


async def _replaced(cluster: SimulatedCluster, node_id: int) -> SimulatedBroker:
    """A new machine that has the number and all records, and leads where it is named first."""
    new = cluster.replace(node_id)
    await new.start()
    image = (broker.image for broker in cluster.alive if broker.node_id != node_id).__next__()
    await cluster.until(lambda: node_id in image.topics["t"].partitions[0].isr, WAIT_S, "it does not come into sync")
    return new


def _process(one: SimulatedBroker) -> Broker:
    assert one.broker is not None
    return one.broker


def _leads(broker: Broker) -> bool:
    found = broker.replicas.partitions.get(T)
    return found is not None and found.is_leader


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_former_machine_that_reaches_the_controller_and_not_the_store_ends(seed: int) -> None:
    """It hears of what the new machine of its number leads, which is not about itself."""

    async def story(cluster: SimulatedCluster) -> None:
        number = await _make_topic(cluster)
        former = cluster.brokers[number]
        process = _process(former)
        async with _producer(cluster) as producer:
            await producer.send("t", b"before", partition=0)
            former.reaches_store = False
            await _until_fenced(cluster, number)
            new = await _replaced(cluster, number)
            await _elect(cluster)
            await cluster.until(lambda: _leads(_process(new)), WAIT_S, "the new machine does not lead")
            is_of_same_epoch = process.partition(*T).leader_epoch == _process(new).partition(*T).leader_epoch
            assert not (_leads(process) and is_of_same_epoch), "two lead in one epoch"
            await cluster.until(lambda: former.broker is None, 5.0, "the former process does not end")
            assert process.identity.replaced is not None
            assert process.out_of_touch is not None
            assert (await producer.send("t", b"after", partition=0)).offset == 1

        def ends() -> set[int]:
            return {broker.partition(*T).log.end_offset for broker in cluster.alive}

        await cluster.until(lambda: ends() == {2}, WAIT_S, "replicas differ")

    simulated_cluster(seed).run(story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_former_machine_that_was_paused_never_leads_in_an_epoch_of_the_new_one(seed: int) -> None:
    async def story(cluster: SimulatedCluster) -> None:
        number = await _make_topic(cluster)
        former = cluster.brokers[number]
        process = _process(former)
        async with _producer(cluster) as producer:
            await producer.send("t", b"before", partition=0)
            former.reaches_store = False
            former.host.pause()
            await _until_fenced(cluster, number)
            new = await _replaced(cluster, number)
            await _elect(cluster)
            await cluster.until(lambda: _leads(_process(new)), WAIT_S, "the new machine does not lead")
            former.host.resume()
            epoch = _process(new).partition(*T).leader_epoch
            loop = asyncio.get_running_loop()
            until = loop.time() + 1.0
            while loop.time() < until and former.broker is not None:
                assert not (_leads(process) and process.partition(*T).leader_epoch == epoch), "two lead in one epoch"
                await asyncio.sleep(0.002)
            former.reaches_store = True
            await cluster.until(lambda: former.broker is None, 10.0, "the former process does not end")
            assert (await producer.send("t", b"after", partition=0)).offset == 1

    simulated_cluster(seed).run(story)


def test_followers_ask_the_new_machine_while_the_former_hangs() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        number = await _make_topic(cluster)
        async with _producer(cluster) as producer:
            await producer.send("t", b"before", partition=0)
            cluster.brokers[number].host.pause()
            await _until_fenced(cluster, number)
            await _replaced(cluster, number)
            await _elect(cluster)
        async with _producer(cluster) as producer:
            # It hangs for ever: nothing ends but what others began.
            assert (await producer.send("t", b"after", partition=0)).offset == 1

    simulated_cluster(1).run(story)


def test_others_ask_the_new_machine_that_is_the_controller() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        number = cluster.controller_id
        assert number is not None
        former, others = cluster.brokers[number], [one for key, one in cluster.brokers.items() if key != number]
        for other in others:
            membership = _process(other).membership
            assert membership is not None
            # On the connection for requests, which is open from then on.
            heartbeat = BrokerHeartbeatRequest(broker_id=other.node_id, broker_epoch=_process(other).broker_epoch)
            await other.host.start(membership.ask_controller(heartbeat))
        former.host.pause()
        await _until_fenced(cluster, number)
        new = cluster.replace(number)
        await new.start()
        for _ in range(100):
            if _process(new).metadata.active.is_active:
                break
            try:
                cluster.store.change([Delete("/controller")])
            except HeadraceError:
                pass  # nobody has taken it yet
            await asyncio.sleep(0.3)
        assert _process(new).metadata.active.is_active, "the new machine was not elected"
        for other in others:
            membership = _process(other).membership
            assert membership is not None
            heartbeat = BrokerHeartbeatRequest(broker_id=other.node_id, broker_epoch=_process(other).broker_epoch)
            asked = membership.ask_controller(heartbeat, timeout_s=5.0)
            assert (await other.host.start(asked)).error_code == ErrorCode.NONE

    simulated_cluster(1).run(story)


def test_the_controller_refuses_metadata_and_heartbeats_of_a_stale_epoch() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        number = cluster.controller_id
        assert number is not None
        stale = next(key for key in cluster.brokers if key != number)
        membership = _process(cluster.brokers[stale]).membership
        assert membership is not None
        epoch = _process(cluster.brokers[stale]).broker_epoch
        seat = membership.seat
        assert seat is not None
        request = membership.fetcher.request_from(0, seat.epoch)
        host = cluster.brokers[stale].host

        async def fetch(broker_epoch: int) -> int:
            request.replica_state.replica_epoch = broker_epoch
            answer = await host.start(membership.peers.request(number, PeerConnection.OUTCOMES, request))
            return int(answer.responses[0].partitions[0].error_code)

        assert await fetch(epoch - 1) == ErrorCode.STALE_BROKER_EPOCH
        assert await fetch(epoch) == ErrorCode.NONE
        assert await fetch(-1) == ErrorCode.NONE  # as of a broker that starts
        heartbeat = BrokerHeartbeatRequest(broker_id=stale, broker_epoch=epoch - 1)
        answer = await host.start(membership.peers.request(number, PeerConnection.OUTCOMES, heartbeat))
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH

    simulated_cluster(1).run(story)


def test_a_process_without_a_session_is_not_registered_under_a_number_that_another_has() -> None:
    """The one that has it may be without a session for a moment as well."""

    async def story(cluster: SimulatedCluster) -> None:
        controller = cluster.controller_id
        assert controller is not None
        number, asking = (key for key in cluster.brokers if key != controller)
        cluster.brokers[number].reaches_store = False
        await _until_fenced(cluster, number)
        membership = _process(cluster.brokers[asking]).membership
        assert membership is not None
        request = BrokerRegistrationRequest(
            broker_id=number, cluster_id=_process(cluster.brokers[asking]).cluster_id, incarnation_id=bytes(15) + b"x"
        )
        host = cluster.brokers[asking].host
        answer = await host.start(membership.peers.request(controller, PeerConnection.OUTCOMES, request))
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        known = _process(cluster.brokers[controller]).image.brokers[number]
        assert known.incarnation_id == _process(cluster.brokers[number]).incarnation

    simulated_cluster(1).run(story)


def test_what_is_said_of_another_life_of_a_broker_is_not_done_by_it() -> None:
    """As of one that starts, before the metadata here has its own registration."""

    async def story(cluster: SimulatedCluster) -> None:
        number = await _make_topic(cluster)
        second = cluster.brokers[number % 3 + 1]
        _process(second).replicas.holds_number = lambda: False
        async with cluster.admin() as admin:
            rest = [key for key in cluster.brokers if key != second.node_id]
            await admin.alter_partition_reassignments({T: [second.node_id, *rest]})
        await _elect(cluster)
        partition = _process(second).partition(*T)
        await cluster.until(lambda: partition.leader_epoch == 1, WAIT_S, "it does not hear of the election")
        assert not partition.is_leader
        with pytest.raises(NotLeaderOrFollowerError):
            partition.check_leader()

    simulated_cluster(1).run(story)


def test_a_broker_refuses_a_connection_that_is_meant_for_another_life_of_it() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        process = _process(cluster.brokers[2])
        meant = [process.incarnation]
        runtime = cluster.client_host("peer").runtime
        peers = Peers(
            runtime,
            lambda node_id: Node(node_id, "broker-2", 9092, incarnation=meant[0]),
            client_id="broker-9-test",
            request_timeout_ms=2_000,
            security=PLAINTEXT,
        )
        request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0)
        assert (await peers.request(2, PeerConnection.CONTROL, request)).error_code == ErrorCode.NONE
        meant[0] = bytes(15) + b"x"
        with pytest.raises(NetworkError, match="another life"):
            await peers.request(2, PeerConnection.CONTROL, request)
        meant[0] = process.incarnation
        assert (await peers.request(2, PeerConnection.CONTROL, request)).error_code == ErrorCode.NONE
        await peers.close()

    simulated_cluster(1).run(story)


def test_what_waits_for_another_life_of_a_broker_ends_when_its_number_is_given_away() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        meant = [Node(2, "broker-2", 9092, incarnation=_process(cluster.brokers[2]).incarnation)]
        runtime = cluster.client_host("peer").runtime
        peers = Peers(
            runtime, lambda _: meant[0], client_id="broker-9-test", request_timeout_ms=60_000, security=PLAINTEXT
        )
        cluster.pause(2)
        waiting = asyncio.ensure_future(
            peers.request(2, PeerConnection.CONTROL, FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0))
        )
        await asyncio.sleep(0.5)
        assert not waiting.done()
        meant[0] = Node(2, "broker-2b", 9092, incarnation=bytes(15) + b"x")
        peers.look_again()
        with pytest.raises(NetworkError):
            await waiting
        await peers.close()

    simulated_cluster(1).run(story)


def test_the_error_of_a_process_that_was_replaced_says_what_to_do() -> None:
    async def story(cluster: SimulatedCluster) -> str:
        process = _process(cluster.brokers[1])
        process.identity.give_up("another has it")
        assert isinstance(process.identity.replaced, str)
        return str(ReplacedError(process.identity.replaced))

    assert "node.id" in simulated_cluster(1, brokers=1).run(story)
