"""Until when a broker can rely on its session with the store, though nobody answers it any more."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from tests.waiting import becomes

from headrace.cluster.store import SessionLostError, Store, StoreUnavailableError
from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.kazoo_session import KazooSession
from headrace.cluster.store.model import Faults, ZooKeeperModel
from headrace.cluster.store.session import NodeMissingError, SessionState
from headrace.runtime.simulated import Simulation

from .store_homes import (
    Home,
    NodesHome,
    member,
    run_model,
    run_shared,
    run_simulated_directory,
    run_zookeeper,
    zookeeper,
)
from .test_store import opened


async def _stays_sure(home: Home) -> None:
    """Nothing is asked of the store, and it is heard of all the same."""
    assert isinstance(home, NodesHome)
    clock = home.runtime.clock
    async with opened(home) as store:
        until = clock.boottime() + 2 * home.timeout_s
        while clock.boottime() < until:
            assert clock.boottime() < store.sure_until < clock.boottime() + home.timeout_s
            await asyncio.sleep(home.timeout_s / 50)
    assert store.sure_until == float("-inf")


def test_a_session_of_the_model_is_sure_while_it_lasts() -> None:
    run_model(_stays_sure)


def test_a_session_in_a_directory_is_sure_while_it_lasts() -> None:
    run_simulated_directory(_stays_sure)


def test_a_defect_does_not_end_the_looks_of_a_session_in_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    look_around, looks = DirectorySession._look_around, itertools.count(1)
    is_seen: list[int] = []

    def fails_once(session: DirectorySession) -> list[str]:
        look = next(looks)
        if look == 1:
            raise RuntimeError("a defect")
        is_seen.append(look)
        return look_around(session)

    async def main(home: Home) -> None:
        async with opened(home) as store:
            await becomes(lambda: is_seen, "another look")
            await becomes(lambda: store.connected_since is not None, "the connection")

    monkeypatch.setattr(DirectorySession, "_look_around", fails_once)
    run_shared(main)


def test_a_defect_does_not_end_the_questions_to_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = itertools.count(1)
    answered: list[int] = []

    async def sync(session: KazooSession) -> None:
        question = next(asked)
        if question == 1:
            raise RuntimeError("a defect")
        if question == 2:
            raise NodeMissingError("/epoch")
        answered.append(question)

    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        beating = asyncio.ensure_future(KazooSession(home.runtime, "nowhere:2181", timeout_s=6.0)._beat())
        await becomes(lambda: answered, "an answer")
        beating.cancel()

    monkeypatch.setattr(KazooSession, "sync", sync)
    run_model(main)


@pytest.mark.parametrize("seed", range(20))
def test_no_session_is_over_before_what_is_sure(seed: int) -> None:
    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        assert home.model is not None
        clock, model = home.runtime.clock, home.model
        is_reached = True
        session = model.session(clock, lambda: is_reached)
        await session.start()
        await asyncio.sleep(seed)
        is_reached = False
        while model.has(session.name):
            assert session.state is not SessionState.EXPIRED
            await asyncio.sleep(0.01)
        assert clock.boottime() > session.sure_until + 1.0

    run_model(main, seed, Faults())


def test_a_session_is_not_sure_after_its_machine_was_suspended() -> None:
    """The store counts that time, though the machine's monotonic clock does not."""
    simulation = Simulation(1)
    host = simulation.host("broker")

    async def main() -> None:
        model = ZooKeeperModel(simulation.rng, session_timeout_s=6.0)
        session = host.context.run(model.session, host.clock)
        await host.start(session.start())
        assert host.clock.boottime() < session.sure_until
        host.suspend()
        await asyncio.sleep(5.0)
        host.resume()
        assert session.sure_until < host.clock.boottime()
        await becomes(lambda: host.clock.boottime() < session.sure_until, "heard of again")
        host.kill()

    simulation.run(main())


def test_zookeeper_is_asked_so_often_that_two_lost_answers_leave_it_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        clock, asked_at, timeout_s = home.runtime.clock, list[float](), 6.0

        async def sync(session: KazooSession) -> None:
            asked_at.append(clock.boottime())
            session._heard_at = asked_at[-1]

        monkeypatch.setattr(KazooSession, "sync", sync)
        session = KazooSession(home.runtime, "nowhere:2181", timeout_s=timeout_s)
        beating = asyncio.ensure_future(session._beat())
        await becomes(lambda: len(asked_at) == 10, "ten questions")
        beating.cancel()
        sure_s = session.sure_until - asked_at[-1]
        assert max(later - earlier for earlier, later in itertools.pairwise(asked_at)) < sure_s / 3

    run_model(main)


async def _register_whenever_lost(store: Store) -> None:
    """As a broker does: a session that is over by the time the server is back stays so."""
    while True:
        with contextlib.suppress(SessionLostError, StoreUnavailableError):
            await store.register(member(1))
            await store.lost()


@pytest.mark.slow
def test_a_session_with_a_real_zookeeper_is_sure_for_as_long_as_that_answers() -> None:
    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        clock = home.runtime.clock
        async with opened(home) as store:
            registering = asyncio.ensure_future(_register_whenever_lost(store))
            # Nothing more is asked of the store, and it is heard of all the same.
            first = store.sure_until
            await becomes(lambda: store.sure_until > first + 3.0, "a later time until which it is sure")
            # As long as the server gives, which is not what was asked for: ten seconds are twenty of its ticks.
            assert store.sure_until < clock.boottime() + 5.0
            process.kill()
            await becomes(lambda: store.sure_until < clock.boottime(), "the end of what is sure")
            await home.runtime.offload(process.start)
            await becomes(lambda: store.sure_until > clock.boottime(), "to be sure again")
            registering.cancel()

    with zookeeper() as process:
        run_zookeeper(main, process, timeout_s=60.0)
