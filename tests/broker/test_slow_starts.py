"""Brokers that start while the store is away, or lose their session or their controller meanwhile, go on trying."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker import startup
from headrace.broker.broker import Broker
from headrace.broker.metadata.controller_requests import ControllerRequests
from headrace.broker.metadata.store_patience import StartGivenUpError
from headrace.cluster.store import StoreUnavailableError
from headrace.cluster.store.node_formats import CONTROLLER
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import Delete, NodeMissingError
from headrace.errors import DuplicateBrokerRegistrationError, ErrorCode, HeadraceError
from headrace.log import Log
from headrace.protocol.messages.broker_registration import BrokerRegistrationResponse
from headrace.runtime.simulated import Simulation
from headrace.topics import TopicPartition

from .several import SeveralBrokers, SharingBroker, create, run_several

BOUND_S = 60.0


def simulate(work: object, seed: int = 1) -> None:
    simulation = Simulation(seed)
    simulation.run(work(simulation))  # type: ignore[operator]
    simulation.check()


def test_brokers_that_start_while_the_store_is_away_serve_when_it_is_back() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SeveralBrokers(simulation)
        cluster.model.go_away()
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(BOUND_S - 10)
        assert not starting.done()
        cluster.model.come_back()
        await starting
        assert await create(cluster, 1, "t") == ErrorCode.NONE
        for broker in cluster.brokers.values():
            await broker.stop()

    simulate(main)


def test_a_store_that_does_not_come_is_waited_for_as_long_as_the_setting_says() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SeveralBrokers(simulation, 1, {"initial.broker.registration.timeout.ms": "7000"})
        cluster.model.go_away()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailableError, match=r"for 7 s \(initial\.broker\.registration\.timeout\.ms\)"):
            await cluster.brokers[1].start()
        assert 6.5 < asyncio.get_running_loop().time() - began < 7.5

    simulate(main)


def test_the_first_connection_to_zookeeper_has_a_bound_of_its_own_where_it_is_set() -> None:
    async def main(simulation: Simulation) -> None:
        settings = {"zookeeper.connect": "host:2181", "zookeeper.connection.timeout.ms": "3000"}
        cluster = SeveralBrokers(simulation, 1, settings)
        cluster.model.go_away()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailableError, match=r"for 3 s \(zookeeper\.connection\.timeout\.ms\)"):
            await cluster.brokers[1].start()
        assert asyncio.get_running_loop().time() - began < 3.5

    simulate(main)


@pytest.mark.parametrize("seed", range(8))
def test_a_session_that_is_lost_while_a_broker_starts_is_begun_anew(seed: int) -> None:
    """At any moment of a start, and several times."""

    async def main(simulation: Simulation) -> None:
        cluster = SeveralBrokers(simulation)
        rng = simulation.random_for("faults")
        starting = asyncio.ensure_future(cluster.start())
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            for session in cluster.model.sessions:
                if rng.random() < 0.5:
                    cluster.model.expire(session)
        await starting
        assert await create(cluster, 1, "t") == ErrorCode.NONE
        for broker in cluster.brokers.values():
            await broker.stop()

    simulate(main, seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_broker_starts_through_changes_of_the_controller_and_a_store_that_comes_and_goes(seed: int) -> None:
    async def main(cluster: SeveralBrokers) -> None:
        rng = cluster.simulation.random_for("faults")
        late = cluster.other_than(cluster.controller_id())
        await cluster.brokers[late].stop()
        starting = asyncio.ensure_future(cluster.brokers[late].start())
        for _ in range(6):
            await asyncio.sleep(rng.uniform(0.0, 0.1))
            match rng.randrange(3):
                case 0:
                    cluster.model.go_away()
                    await asyncio.sleep(rng.uniform(0.0, 4.0))
                    cluster.model.come_back(expire_all=rng.random() < 0.5)
                case 1:
                    try:
                        cluster.model.change([Delete(CONTROLLER)])
                    except NodeMissingError:
                        pass  # there is none right now
                case _:
                    network = cluster.simulation.network
                    network.partition([f"broker-{late}"], [f"broker-{cluster.other_than(late)}"])
                    await asyncio.sleep(rng.uniform(0.0, 4.0))
                    network.heal()
        await starting
        await cluster.until(lambda: all(broker.image.is_active(late) for broker in cluster.alive))

    run_several(main, seed)


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, True),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, False),
    ],
)
def test_a_registration_that_may_still_succeed_is_asked_for_again(
    code: ErrorCode, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that cannot write to the store for a moment says so."""
    refused: list[object] = []

    async def main(cluster: SeveralBrokers) -> None:
        late = cluster.brokers[cluster.other_than(cluster.controller_id())]
        await late.stop()

        async def refuse(requests: ControllerRequests, request: object) -> BrokerRegistrationResponse:
            refused.append(request)
            if len(refused) == 3:
                monkeypatch.undo()
            return BrokerRegistrationResponse(error_code=code)

        monkeypatch.setattr("headrace.broker.metadata.controller_requests.ControllerRequests.register", refuse)
        if passes:
            await late.start()
            assert len(refused) == 3
        else:
            with pytest.raises(HeadraceError, match=f"refuses it .{code.name}"):
                await late.start()
            assert len(refused) == 1

    run_several(main)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_broker_that_takes_long_to_open_its_logs_is_not_the_controller_meanwhile(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nobody before they are open: others could not register, nor change anything, until then."""
    slow, quick, last = 1, 2, 3
    open_logs = startup.open_logs
    is_opening, may_open = asyncio.Event(), asyncio.Event()

    async def open_slowly(data: startup.StartData) -> dict[TopicPartition, Log]:
        if data.cluster.node_id == slow:
            is_opening.set()
            await may_open.wait()
        return await open_logs(data)

    async def main(simulation: Simulation) -> None:
        cluster = SeveralBrokers(simulation)
        if not is_first:
            await cluster.start()
            await cluster.brokers[slow].stop()
        monkeypatch.setattr(startup, "open_logs", open_slowly)
        starting = asyncio.ensure_future(cluster.brokers[slow].start())
        await is_opening.wait()
        await asyncio.sleep(1.0)
        if is_first:
            await cluster.brokers[quick].start()
            await cluster.brokers[last].start()
        else:
            # Whoever decides goes, and comes back.
            for node_id in (quick, last):
                await cluster.brokers[node_id].stop()
                await cluster.brokers[node_id].start()
        assert cluster.controller_id() in (quick, last)
        assert await create(cluster, quick, "t", replicas=2) == ErrorCode.NONE
        may_open.set()
        await starting
        await cluster.until(lambda: cluster.running(quick).image.is_active(slow))
        for broker in cluster.brokers.values():
            await broker.stop()

    simulate(main)


def test_a_number_that_another_broker_has_is_refused_after_that_time() -> None:
    async def main(cluster: SeveralBrokers) -> None:
        settings = {"initial.broker.registration.timeout.ms": "5000"}
        other = SharingBroker(cluster.simulation, cluster.model, 2, settings, "elsewhere")
        with pytest.raises(DuplicateBrokerRegistrationError, match=r"for 5 s .*Another broker with node\.id 2"):
            await other.start()

    run_several(main)


def test_a_broker_that_waits_for_its_store_can_be_stopped() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SeveralBrokers(simulation, 1)
        cluster.model.go_away()
        host = cluster.brokers[1].host
        runtime = host.runtime

        async def start() -> float:
            loop = asyncio.get_running_loop()
            store = NodeStore(runtime, lambda: cluster.model.session(runtime.clock), timeout_s=2.0, where="ZooKeeper")
            broker = Broker.from_settings(runtime, cluster.brokers[1].settings, store=store)
            loop.call_later(5.0, broker.give_up_start)
            began = loop.time()
            with pytest.raises(StartGivenUpError):
                await broker.start()
            await broker.stop()
            return loop.time() - began

        assert await host.start(start(), name="broker") < 5.5

    simulate(main)
