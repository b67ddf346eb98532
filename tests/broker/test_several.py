"""Brokers of one cluster: they find each other, one of them decides, and the others go on when one is gone."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker import startup
from headrace.broker.broker import Broker
from headrace.cluster.broker_config import BrokerConfig
from headrace.cluster.decision import Decision
from headrace.cluster.records import PartitionChangeRecord
from headrace.cluster.store import Seat, StoreError, StoreMember, WrongClusterError
from headrace.cluster.store.model import ZooKeeperModel
from headrace.cluster.store.node_store import NodeStore
from headrace.config import ConfigError
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.runtime import real_runtime
from headrace.runtime.simulated import Simulation

from . import raw
from .several import SESSION_S, SeveralBrokers, SharingBroker, create, leaders, metadata, run_several
from .sim import INIT_PRODUCER_ID_VERSION


def test_every_broker_tells_of_all_and_of_the_same_controller() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        controllers = set()
        for node_id in cluster.brokers:
            found = await metadata(cluster, node_id, "none")
            assert {broker.node_id for broker in found.brokers} == {1, 2, 3}
            assert {broker.host for broker in found.brokers} == {"broker-1", "broker-2", "broker-3"}
            controllers.add(found.controller_id)
        assert controllers == {cluster.controller_id()}
        epochs = {broker.broker_epoch for broker in cluster.alive}
        assert len(epochs) == 3

    run_several(main)


def test_a_topic_is_created_through_any_broker_and_spread_over_all() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        for through in cluster.brokers:
            name = f"topic-{through}"
            assert await create(cluster, through, name) == ErrorCode.NONE
            # Whoever was asked knows of it when it answers.
            found = await metadata(cluster, through, name)
            assert set(leaders(found)) == {1, 2, 3}
            assert await create(cluster, through, name) == ErrorCode.TOPIC_ALREADY_EXISTS
            for index, leader in enumerate(leaders(found)):
                broker = cluster.running(leader)
                await cluster.until(lambda b=broker, n=name, i=index: (n, i) in b.replicas.partitions)  # type: ignore[misc]
                produced = raw.produced(
                    await cluster.client(leader).request(
                        raw.produce_request(name, index, raw.batch([b"x"])), raw.PRODUCE_VERSION
                    )
                )
                assert produced.error_code == ErrorCode.NONE
        request = DeleteTopicsRequest(topic_names=["topic-1"], timeout_ms=20_000)
        answer = await cluster.client(cluster.other_than(cluster.controller_id())).request(request, 3, 60.0)
        assert [(row.name, row.error_code) for row in answer.responses] == [("topic-1", 0)]
        for broker in cluster.alive:
            await cluster.until(lambda b=broker: "topic-1" not in b.image.topics)  # type: ignore[misc]
            await cluster.until(lambda b=broker: ("topic-1", 0) not in b.replicas.partitions)  # type: ignore[misc]

    run_several(main)


def test_brokers_give_out_producer_ids_that_no_other_gives() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        ids = []
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        for _ in range(3):
            for node_id in cluster.brokers:
                answer = await cluster.client(node_id).request(request, INIT_PRODUCER_ID_VERSION)
                assert answer.error_code == ErrorCode.NONE
                ids.append(answer.producer_id)
        assert len(set(ids)) == len(ids)

    run_several(main)


def test_no_producer_id_is_given_twice_whatever_becomes_of_controllers() -> None:
    """Each life of a broker has blocks of its own, from whoever was the controller then."""

    async def main(cluster: SeveralBrokers) -> None:
        ids: list[int] = []
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        async def ask(node_id: int) -> None:
            for _ in range(5):
                answer = await cluster.client(node_id).insist(request, INIT_PRODUCER_ID_VERSION, 60.0)
                if answer.error_code == ErrorCode.NONE:
                    ids.append(answer.producer_id)
                else:
                    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        for _ in range(3):
            await asyncio.gather(*map(ask, cluster.brokers))
            dead = cluster.controller_id()
            assert dead is not None
            asking = [asyncio.ensure_future(ask(node_id)) for node_id in cluster.brokers if node_id != dead]
            cluster.brokers[dead].kill()
            await cluster.until(lambda: cluster.controller_id() is not None)
            await cluster.brokers[dead].start()
            await asyncio.gather(*asking)
        assert len(ids) > 30
        assert len(set(ids)) == len(ids)
        assert len({producer_id // 1000 for producer_id in ids}) > 3

    run_several(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_when_the_controller_dies_another_takes_over_and_fences_it(seed: int) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "wide", partitions=3, replicas=3) == ErrorCode.NONE
        await asyncio.sleep(3)
        dead = cluster.controller_id()
        assert dead is not None
        first_epoch = cluster.running(dead).metadata.controller_epoch
        cluster.brokers[dead].kill()
        took_s = await cluster.until(lambda: cluster.controller_id() not in (None, dead))
        assert took_s < 2.0
        now = cluster.controller_id()
        assert now is not None
        assert cluster.running(now).metadata.controller_epoch > first_epoch
        for broker in cluster.alive:
            await cluster.until(lambda b=broker: b.image.brokers[dead].fenced)  # type: ignore[misc]
            assert dead not in [partition.leader for partition in broker.image.topics["wide"].partitions]
            assert all(dead not in partition.isr for partition in broker.image.topics["wide"].partitions)
        through = cluster.other_than(dead, now)
        found = await metadata(cluster, through, "wide")
        assert {broker.node_id for broker in found.brokers} == {1, 2, 3} - {dead}
        assert await create(cluster, through, "after", partitions=4) == ErrorCode.NONE
        # It comes back as another life of the same broker, and is unfenced.
        epoch = cluster.running(now).image.brokers[dead].epoch
        await cluster.brokers[dead].start()
        back = cluster.running(dead)
        assert back.broker_epoch > epoch
        for broker in cluster.alive:
            await cluster.until(lambda b=broker: not b.image.brokers[dead].fenced)  # type: ignore[misc]
        assert set(back.image.topics) == {"wide", "after"}

    run_several(main, seed)


def test_a_controller_that_goes_between_two_looks_is_followed_by_whoever_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One broker is left: it lost an election, and when it looked who has won, nobody was there any more."""

    async def main(cluster: SeveralBrokers) -> None:
        controller = cluster.controller_id()
        assert controller is not None
        left = cluster.other_than(controller)
        await cluster.brokers[cluster.other_than(controller, left)].stop()
        await cluster.brokers[left].stop()
        look = NodeStore.seat

        async def gone_before(store: NodeStore, *other_than: Seat | None) -> Seat | None:
            while not other_than and await look(store) is not None:
                cluster.brokers[controller].kill()
                await asyncio.sleep(0.1)
            return await look(store, *other_than)

        monkeypatch.setattr(NodeStore, "seat", gone_before)
        await cluster.brokers[left].start()
        assert cluster.controller_id() == left

    run_several(main)


def test_a_controller_that_has_just_started_fences_whoever_died_before_without_waiting_another_time_out() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        await asyncio.sleep(3)
        fresh = cluster.other_than(cluster.controller_id())
        others = [node_id for node_id in cluster.brokers if node_id != fresh]
        await cluster.brokers[fresh].stop()
        await cluster.brokers[fresh].start()
        for node_id in others:
            cluster.brokers[node_id].kill()
        took_s = await cluster.until(lambda: cluster.controller_id() == fresh)
        # As soon as their sessions are over, though the store is known to this broker for less than a time-out.
        image = cluster.running(fresh).image
        took_s += await cluster.until(lambda: all(image.brokers[node_id].fenced for node_id in others))
        assert took_s < SESSION_S + 0.5

    run_several(main)


def test_a_broker_that_stops_hands_over_what_it_leads_first() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "wide", partitions=3, replicas=3) == ErrorCode.NONE
        stopping = cluster.other_than(cluster.controller_id())
        watcher = cluster.running(cluster.other_than(stopping))
        led: list[int] = []

        def note(changes: object) -> None:
            partitions = watcher.image.topics["wide"].partitions
            led.append(sum(partition.leader == stopping for partition in partitions))

        watcher.metadata.follow(note)
        await cluster.brokers[stopping].stop()
        # While it was still there: it is not fenced, only stopping.
        assert led[-1] == 0
        await cluster.until(lambda: watcher.image.brokers[stopping].fenced)
        assert len(cluster.alive) == 2

    run_several(main)


def test_a_store_that_refuses_a_broker_is_asked_again_at_a_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its password was changed, say: every try is a connection and a login."""

    async def main(cluster: SeveralBrokers) -> None:
        refused = cluster.other_than(cluster.controller_id())
        tries: list[StoreMember] = []
        register = NodeStore.register

        async def refuse(store: NodeStore, member: StoreMember) -> None:
            if member.node_id == refused and len(tries) < 20:
                tries.append(member)
                raise StoreError("this broker is not let in")
            await register(store, member)

        monkeypatch.setattr(NodeStore, "register", refuse)
        for session in cluster.model.sessions:
            if session._clock is cluster.running(refused).runtime.clock:
                cluster.model.expire(session)
        took_s = await cluster.until(lambda: len(tries) == 20, 60.0)
        assert took_s > 20
        await cluster.until(lambda: all(broker.image.is_active(refused) for broker in cluster.alive))

    run_several(main)


def test_the_controller_may_stop_too() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        first = cluster.controller_id()
        assert first is not None
        await cluster.brokers[first].stop()
        await cluster.until(lambda: cluster.controller_id() is not None)
        assert await create(cluster, cluster.other_than(first), "later", partitions=2) == ErrorCode.NONE

    run_several(main)


@pytest.mark.slow
def test_while_zookeeper_is_away_nothing_is_decided_and_nobody_is_fenced_when_it_is_back() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "before", partitions=3) == ErrorCode.NONE
        epochs = {broker.node_id: broker.broker_epoch for broker in cluster.alive}
        for broker in cluster.alive:
            await cluster.until(lambda b=broker: "before" in b.image.topics)  # type: ignore[misc]
        cluster.model.go_away()
        await asyncio.sleep(30)
        for through in cluster.brokers:
            code = await create(cluster, through, "meanwhile", partitions=1)
            assert code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
        for index, leader in enumerate(leaders(await metadata(cluster, 2, "before"))):
            produced = raw.produced(
                await cluster.client(leader).request(
                    raw.produce_request("before", index, raw.batch([b"x"])), raw.PRODUCE_VERSION
                )
            )
            assert produced.error_code == ErrorCode.NONE
        cluster.model.come_back(expire_all=True)
        await cluster.until(lambda: cluster.controller_id() is not None)
        await asyncio.sleep(10)
        assert await create(cluster, 1, "after", partitions=1) == ErrorCode.NONE
        for broker in cluster.alive:
            assert not any(known.fenced for known in broker.image.brokers.values())
            known_epochs = {known.node_id: known.epoch for known in broker.image.brokers.values()}
            assert known_epochs == epochs, "a broker that went on was taken for another"

    run_several(main)


def test_what_the_old_controller_does_not_answer_the_next_one_does() -> None:
    """A broker that is cut off is silent: its connections end in nothing, not in an error."""

    async def main(cluster: SeveralBrokers) -> None:
        await asyncio.sleep(3)
        silent = cluster.controller_id()
        assert silent is not None
        others = [node_id for node_id in cluster.brokers if node_id != silent]
        names = [f"broker-{node_id}" for node_id in others]
        cluster.simulation.network.partition([f"broker-{silent}"], [*names])
        cluster.brokers[silent].is_reachable = False
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await create(cluster, others[0], "meanwhile", partitions=2) == ErrorCode.NONE
        assert loop.time() - began < 5.0
        assert cluster.controller_id() is not None
        # The one that was cut off could write nothing, and follows when it is back.
        cluster.simulation.network.heal()
        cluster.brokers[silent].is_reachable = True
        back = cluster.running(silent)
        await cluster.until(lambda: "meanwhile" in back.image.topics)
        await cluster.until(lambda: not back.image.brokers[silent].fenced)
        assert sum(broker.metadata.active.is_active for broker in cluster.alive) == 1

    run_several(main)


def test_clients_are_told_of_the_next_controller_though_nothing_else_has_changed() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        seen = set()
        for _ in range(6):
            for node_id in cluster.brokers:
                membership = cluster.running(node_id).membership
                assert membership is not None
                await cluster.until(
                    lambda m=membership: m.controller_id == cluster.controller_id() is not None  # type: ignore[misc]
                )
                assert (await metadata(cluster, node_id)).controller_id == cluster.controller_id()
            seen.add(cluster.controller_id())
            cluster.model.go_away()
            await asyncio.sleep(1)
            cluster.model.come_back(expire_all=True)
            await asyncio.sleep(1)
        assert len(seen) > 1

    run_several(main)


def test_a_request_waits_for_the_controller_that_this_broker_becomes_itself() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        through = cluster.controller_id()
        assert through is not None
        others = [node_id for node_id in cluster.brokers if node_id != through]
        for node_id in others:
            await cluster.brokers[node_id].stop()
        cluster.model.go_away()
        broker = cluster.running(through)
        broker.metadata.active.resign("a test wants it to")
        creating = asyncio.ensure_future(create(cluster, through, "later", partitions=1))
        await asyncio.sleep(5)
        assert not creating.done()
        cluster.model.come_back(expire_all=True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await creating == ErrorCode.NONE
        assert loop.time() - began < 5.0

    run_several(main)


def test_leadership_goes_back_to_the_preferred_replicas() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "wide", partitions=3, replicas=3) == ErrorCode.NONE
        controller_id = cluster.controller_id()
        assert controller_id is not None
        broker = cluster.running(controller_id)
        preferred = [partition.replicas[0] for partition in broker.image.topics["wide"].partitions]
        topic_id = broker.image.topics["wide"].topic_id
        moved = [
            PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=partition.replicas[1])
            for index, partition in enumerate(broker.image.topics["wide"].partitions)
        ]
        await broker.metadata.change(lambda image: Decision(None, moved))
        assert led(broker) != preferred
        await cluster.until(lambda: led(broker) == preferred, timeout_s=15)

    run_several(main, settings={"leader.imbalance.check.interval.seconds": "5"})


def test_a_broker_whose_session_is_over_leads_nothing_until_it_is_registered_again() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=3, replicas=3) == ErrorCode.NONE
        leader = cluster.other_than(cluster.controller_id())
        broker = cluster.running(leader)
        await cluster.until(lambda: len(broker.replicas.partitions) == 3)
        index = next(index for (_, index), found in broker.replicas.partitions.items() if found.is_leader)
        assert broker.membership is not None
        store = broker.membership._store
        register, may_register = store.register, asyncio.Event()

        async def register_later(member: StoreMember) -> None:
            await may_register.wait()
            await register(member)

        store.register = register_later  # type: ignore[method-assign]

        async def produce() -> int:
            request = raw.produce_request("t", index, raw.batch([b"x"]))
            return raw.produced(await cluster.client(leader).request(request, raw.PRODUCE_VERSION)).error_code

        assert await produce() == ErrorCode.NONE
        for session in cluster.model.sessions:
            if session is store._link.session:  # type: ignore[attr-defined]
                cluster.model.expire(session)
        await cluster.until(lambda: broker.membership is not None and broker.membership.seat is None)
        assert await produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert raw.fetched(
            await cluster.client(leader).request(raw.fetch_request("t", index, 0), raw.FETCH_VERSION)
        ).error_code == (ErrorCode.NOT_LEADER_OR_FOLLOWER)
        may_register.set()
        await cluster.until(lambda: broker.membership is not None and broker.membership.seat is not None)
        # Nobody took its place meanwhile, so it goes on.
        assert broker.image.topics["t"].partitions[index].leader == leader
        assert await produce() == ErrorCode.NONE

    run_several(main)


def test_a_broker_that_is_registered_anew_comes_in_sync_also_where_nothing_is_written() -> None:
    """Its leaders have to hear in which epoch it fetches, and of partitions without news a session says nothing."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=3, replicas=3) == ErrorCode.NONE
        other = cluster.other_than(cluster.controller_id())
        broker = cluster.running(other)

        def in_sync() -> bool:
            return all(len(partition.isr) == 3 for partition in broker.image.topics["t"].partitions)

        for number in range(3):
            await cluster.until(lambda: "t" in broker.image.topics and in_sync())
            await asyncio.sleep(2 * number)  # its fetches have nothing to tell for a while
            epoch = broker.broker_epoch
            request = UnregisterBrokerRequest(broker_id=other)
            answer = await cluster.client(cluster.other_than(other)).request(request, 0)
            assert answer.error_code == ErrorCode.NONE
            await cluster.until(lambda: not in_sync() and broker.broker_epoch > epoch)  # noqa: B023 - waited for here
        await cluster.until(in_sync)

    run_several(main)


def test_the_controller_is_described_as_leader_and_the_others_as_observers() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=1) == ErrorCode.NONE
        await asyncio.sleep(2)
        controller = cluster.controller_id()
        asked = [
            QuorumTopic(topic_name=name, partitions=[QuorumPartition(partition_index=0)])
            for name in ("__cluster_metadata", "other")
        ]
        for through in cluster.brokers:
            answer = await cluster.client(through).request(DescribeQuorumRequest(topics=asked), 2, 60.0)
            # As in Kafka, who asks for anything beside the metadata is told of nothing.
            errors = [topic.partitions[0].error_code for topic in answer.topics]
            assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
            assert not answer.nodes
            answer = await cluster.client(through).request(DescribeQuorumRequest(topics=asked[:1]), 2, 60.0)
            assert answer.error_code == ErrorCode.NONE
            (state,) = answer.topics[0].partitions
            assert (state.error_code, state.leader_id) == (ErrorCode.NONE, controller)
            end = cluster.running(through).image.offset
            assert state.high_watermark == end
            assert [(voter.replica_id, voter.log_end_offset) for voter in state.current_voters] == [(controller, end)]
            others = sorted(set(cluster.brokers) - {controller})
            assert [(one.replica_id, one.log_end_offset) for one in state.observers] == [(o, end) for o in others]
            assert [node.node_id for node in answer.nodes] == [controller]

    run_several(main)


def test_a_machine_that_takes_over_a_number_keeps_it_though_the_former_one_goes_on() -> None:
    """The former one is cut off from the store alone: it goes on telling the controller that it is there."""

    async def main(cluster: SeveralBrokers) -> None:
        assert await create(cluster, 1, "t", partitions=3, replicas=3) == ErrorCode.NONE
        taken = cluster.other_than(cluster.controller_id())
        former = cluster.brokers[taken]
        former.is_reachable = False
        watcher = cluster.running(cluster.other_than(taken))
        await cluster.until(lambda: watcher.image.brokers[taken].fenced)
        settings = {"broker.heartbeat.interval.ms": "500"}
        newcomer = SharingBroker(cluster.simulation, cluster.model, taken, settings, name="another-machine")
        await newcomer.start()
        assert newcomer.broker is not None
        await asyncio.sleep(20)
        known = watcher.image.brokers[taken]
        assert (known.host, known.epoch, known.fenced) == ("another-machine", newcomer.broker.broker_epoch, False)
        # It has no data of the former one, and copies what it has to have.
        for state in watcher.image.topics["t"].partitions:
            assert set(state.isr) == {1, 2, 3}
        # When it reaches the store again, it learns that its number is another's: it leads nothing.
        former.is_reachable = True
        await asyncio.sleep(10)
        assert watcher.image.brokers[taken].host == "another-machine"
        former.kill()
        await newcomer.stop()

    run_several(main)


def test_brokers_without_a_number_are_given_one_and_keep_it() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        model = ZooKeeperModel(simulation.random_for("zookeeper"), session_timeout_s=1.0)
        machines = [SharingBroker(simulation, model, -1, {}, name=f"machine-{number}") for number in range(3)]
        await asyncio.gather(*(machine.start() for machine in machines))
        given = [machine.broker.node_id for machine in machines if machine.broker is not None]
        assert sorted(given) == [1001, 1002, 1003]
        await machines[0].stop()
        await machines[0].start()
        assert machines[0].broker is not None
        assert machines[0].broker.node_id == given[0]
        for machine in machines:
            await machine.stop()

    simulation.run(main())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"node.id": "1001"}, "above reserved.broker.max.id"),
        ({"node.id": "-1", "broker.id.generation.enable": "false"}, "needs a number of its own"),
    ],
)
def test_a_number_that_may_be_anothers_is_refused(settings: dict[str, str], problem: str) -> None:
    config = BrokerConfig.parse({"zookeeper.connect": "localhost:1", **settings})
    with pytest.raises(ConfigError, match=problem):
        startup.shared_store(real_runtime(), config)


def led(broker: Broker) -> list[int]:
    return [partition.leader for partition in broker.image.topics["wide"].partitions]


def test_a_broker_with_the_data_of_another_cluster_is_refused() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        stranger = SharingBroker(
            cluster.simulation, ZooKeeperModel(cluster.simulation.random_for("another")), 4, settings={}
        )
        await stranger.start()
        assert stranger.broker is not None
        other_id = stranger.broker.cluster_id
        assert other_id != cluster.running(1).cluster_id
        await stranger.stop()
        stranger = SharingBroker(cluster.simulation, cluster.model, 4, settings={})
        with pytest.raises(WrongClusterError, match=other_id):
            await stranger.start()
        assert len(await_brokers(cluster)) == 3

    run_several(main)


def await_brokers(cluster: SeveralBrokers) -> list[int]:
    return list(cluster.running(1).image.brokers)
