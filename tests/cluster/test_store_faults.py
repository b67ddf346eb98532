"""What becomes of a store when connections break, sessions end, processes die or ZooKeeper is away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.waiting import DEADLINE_S, becomes

from headrace.cluster.image import Image
from headrace.cluster.store import (
    OutcomeUnknownError,
    SessionLostError,
    Store,
    StoreRefusedError,
    StoreUnavailableError,
    WrongClusterError,
    fold,
)
from headrace.cluster.store.batches import batch_of
from headrace.cluster.store.directory_session import DirectorySession
from headrace.cluster.store.model import Faults, ModelSession, ZooKeeperModel
from headrace.cluster.store.node_formats import encode_log_node, log_path
from headrace.cluster.store.session import (
    CheckVersion,
    ConnectionBrokenError,
    Create,
    Delete,
    NodeChangedError,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    Operation,
    SessionExpiredError,
    StoreNode,
    StoreSession,
    Watch,
    Write,
)
from headrace.errors import StaleControllerEpochError
from headrace.records import assign
from headrace.runtime import real_runtime

from . import store_simulation
from .store_homes import Home, NodesHome, member, run_model, run_shared, run_zookeeper, topic, zookeeper
from .store_mutations import MUTATIONS, Mutation, found_after
from .test_store import opened, told, won

# --- a model that loses connections -----------------------------------------------------------------------------------


def of_model(home: Home) -> tuple[NodesHome, ZooKeeperModel]:
    assert isinstance(home, NodesHome)
    assert home.model is not None
    return home, home.model


@pytest.mark.parametrize("faults", [Faults(loss_before=0.4), Faults(loss_after=0.4)])
def test_an_append_whose_connection_broke_is_there_once(faults: Faults) -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as store:
            epoch = await won(store)
            model.faults = faults
            for number in range(40):
                await store.append_if_epoch(epoch, topic(number))
            model.faults = Faults()
            assert told(await store.read_from(0)) == [record for number in range(40) for record in topic(number)]

    run_model(main)


def test_one_new_record_is_read_with_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker reads each record that a controller appends: asking ahead for many costs the servers."""
    asked: list[str] = []
    get = ModelSession.get

    def count(self: ModelSession, path: str, watch: Watch | None = None) -> Awaitable[StoreNode | None]:
        asked.append(path)
        return get(self, path, watch)

    async def main(home: Home) -> None:
        home, _ = of_model(home)
        async with opened(home) as store:
            epoch = await won(store)
            offset = (await store.read_from(0)).end_offset
            await store.append_if_epoch(epoch, topic(1))
            asked.clear()
            assert told(await store.read_from(offset)) == topic(1)
            assert len(asked) <= 5

    monkeypatch.setattr(ModelSession, "get", count)
    run_model(main)


def test_whoever_was_ahead_of_its_server_reads_on_after_a_snapshot() -> None:
    """A broker has from the controller what its server does not show yet. A snapshot up to there removes what came
    next on that server."""

    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as writer, opened(home) as reader:
            epoch = await won(writer)
            await reader.read_from(0, latest=True)
            model.faults = Faults(lag_s_max=1e6)
            for number in range(10):
                end = await writer.append_if_epoch(epoch, topic(number))
            assert told(await reader.read_from(end)) == []
            image = Image()
            fold(await writer.read_from(0), image)
            await writer.take_snapshot(image, epoch)
            assert told(await asyncio.wait_for(reader.read_from(end, latest=True), 10)) == []
            await writer.append_if_epoch(epoch, topic(10))
            assert told(await asyncio.wait_for(reader.read_from(end, latest=True), 10)) == topic(10)

    for seed in range(10):
        run_model(main, seed)


@pytest.mark.parametrize("faults", [Faults(loss_before=0.5), Faults(loss_after=0.5)])
def test_an_election_whose_connection_broke_is_won_once(faults: Faults) -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as store:
            model.faults = faults
            epochs = [await won(store) for _ in range(20)]
            model.faults = Faults()
            assert epochs == sorted(set(epochs))
            await store.append_if_epoch(epochs[-1], topic(1))
            assert (await store.seat()) is not None

    run_model(main)


@pytest.mark.parametrize("verb", ["open", "register", "elect", "new_number", "append"])
@pytest.mark.parametrize(
    "refusal", [NodeExistsError("/brokers/1"), ConnectionBrokenError("lost")], ids=["node", "lost"]
)
def test_what_has_to_be_tried_again_is_tried_at_a_measured_pace(verb: str, refusal: Exception) -> None:
    """A server that answers at once, or a session that does not know yet that it is lost, is not asked without end."""

    async def main(home: Home) -> None:
        home, _ = of_model(home)
        tries: list[float] = []
        session = home.session()
        apply, is_refusing = session.apply, verb == "open"

        async def refuse(operations: Sequence[Operation]) -> None:
            if not is_refusing:
                return await apply(operations)
            tries.append(home.runtime.clock.monotonic())
            raise refusal

        session.apply = refuse  # type: ignore[method-assign]
        home.session = lambda: session
        store = home.store()
        epoch = 0
        if verb != "open":
            await store.open("a-cluster")
        if verb == "append":
            epoch = await won(store)
        is_refusing = True
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "open": lambda: store.open("a-cluster"),
            "register": lambda: store.register(member(1)),
            "elect": lambda: store.elect(member(1)),
            "new_number": lambda: store.new_number(1000),
            "append": lambda: store.append_if_epoch(epoch, topic(1)),
        }
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await verbs[verb]()
        pauses_s = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert 5 <= len(tries) <= 9, "it is tried less and less often"
        assert pauses_s[-1] > 10 * pauses_s[0] > 0.2
        await store.close()

    run_model(main, faults=Faults(delay_s_max=0.0, lag_s_max=0.0))


@pytest.mark.parametrize("verb", ["open", "register", "elect", "new_number", "append"])
def test_what_the_store_refuses_for_good_is_said_at_once(verb: str) -> None:
    """A quota that is used up does not pass by itself, and whoever asked has to hear what to do."""

    async def main(home: Home) -> None:
        home, model = of_model(home)
        store = home.store()
        epoch = 0
        if verb != "open":
            await store.open("a-cluster")
        if verb == "append":
            epoch = await won(store)
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "open": lambda: store.open("a-cluster"),
            "register": lambda: store.register(member(1)),
            "elect": lambda: store.elect(member(1)),
            "new_number": lambda: store.new_number(1000),
            "append": lambda: store.append_if_epoch(epoch, topic(1)),
        }
        model.faults.refusal = 1.0
        async with asyncio.timeout(1.0):
            with pytest.raises(StoreRefusedError, match="quota"):
                await verbs[verb]()
        model.faults.refusal = 0.0
        await verbs[verb]()
        if verb == "append":
            assert told(await store.read_from(0)) == topic(1)
        await store.close()

    run_model(main)


def test_an_append_ends_where_every_change_breaks_the_connection() -> None:
    """As where a server takes smaller requests than others do."""

    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as store:
            epoch = await won(store)
            model.faults = Faults(loss_before=1.0)
            async with asyncio.timeout(2 * home.timeout_s):
                with pytest.raises(StoreUnavailableError, match="does not take"):
                    await store.append_if_epoch(epoch, topic(1))
            model.faults = Faults()
            await store.append_if_epoch(epoch, topic(2))
            assert told(await store.read_from(0)) == topic(2)

    run_model(main)


async def half_written(home: NodesHome, model: ZooKeeperModel) -> Store:
    """A store that has read up to a group of which only the first node is there."""
    writer, reader = home.store(), home.store()
    await writer.open("a-cluster")
    await reader.open("a-cluster")
    epoch = await won(writer)
    await writer.append_if_epoch(epoch, topic(1))
    end = (await reader.read_from(0, latest=True)).end_offset
    batch = batch_of(topic(2), 0)
    assign(batch, end, epoch)
    model.change([Create(log_path(1), encode_log_node(epoch, b"n" * 16, False, batch))])
    await writer.close()
    return reader


def test_whoever_reads_behind_a_half_written_group_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    get = ModelSession.get

    def count(self: ModelSession, path: str, watch: Watch | None = None) -> Awaitable[StoreNode | None]:
        asked.append(path)
        return get(self, path, watch)

    async def main(home: Home) -> None:
        home, model = of_model(home)
        reader = await half_written(home, model)
        asked.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:
                    reading = await reader.read_from(3, latest=True)
                    assert not reading.records
                    await reader.grown_beyond(3)
        assert len(asked) < 15
        await reader.close()

    monkeypatch.setattr(ModelSession, "get", count)
    run_model(main)


@pytest.mark.parametrize("is_finished", [True, False])
def test_whoever_waits_behind_a_half_written_group_hears_what_becomes_of_it(is_finished: bool) -> None:
    """It is finished, or the next controller writes another in its place."""

    async def main(home: Home) -> None:
        home, model = of_model(home)
        reader = await half_written(home, model)
        await reader.read_from(3, latest=True)
        waiting = asyncio.ensure_future(reader.grown_beyond(3))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        if is_finished:
            batch = batch_of(topic(3), 0)
            assign(batch, 6, 1)
            model.change([Create(log_path(2), encode_log_node(1, b"n" * 16, True, batch))])
        else:
            other = home.store()
            await other.open("a-cluster")
            await other.append_if_epoch(await won(other, 2), topic(4))
            await other.close()
        async with asyncio.timeout(1.0):
            expected = [*topic(2), *topic(3)] if is_finished else topic(4)
            while told(reading := await reader.read_from(3, latest=True)) != expected:
                await reader.grown_beyond(reading.end_offset)
            await waiting
        await reader.close()

    run_model(main)


def test_an_append_that_fails_after_its_controller_was_elected_again_ends_only_its_own_epoch() -> None:
    async def main(home: Home) -> None:
        home, _ = of_model(home)
        session = home.session()
        apply, may_fail = session.apply, asyncio.Event()

        async def lose(operations: Sequence[Operation]) -> None:
            session.apply = apply  # type: ignore[method-assign]  # only this one
            await may_fail.wait()
            raise ConnectionBrokenError("lost")

        home.session = lambda: session
        store = home.store()
        await store.open("a-cluster")
        first = await won(store)
        session.apply = lose  # type: ignore[method-assign]
        appending = asyncio.ensure_future(store.append_if_epoch(first, topic(1)))
        await asyncio.sleep(0.1)
        second = await won(store)
        may_fail.set()
        with pytest.raises(StaleControllerEpochError):
            await appending
        await store.append_if_epoch(second, topic(2))
        assert told(await store.read_from(0)) == topic(2)
        await store.close()

    run_model(main)


def test_a_session_that_ended_while_its_process_stood_still_learns_of_it_from_a_file_that_was_begun_anew() -> None:
    """Else its broker would not register again, and stay fenced as long as it lives."""

    async def main(directory: str) -> None:
        runtime = real_runtime()
        still = DirectorySession(runtime, directory, timeout_s=30.0, poll_s=3600.0)
        other = DirectorySession(runtime, directory, timeout_s=30.0, rewrite_after_bytes=1000)
        try:
            await still.start()
            await other.start()
            await still.apply([Create("/brokers", b""), Create("/brokers/1", b"", is_ephemeral=True)])
            still._until_due = asyncio.Event().wait  # type: ignore[method-assign, assignment]  # it looks at nothing
            await other._locked(lambda: other._tree.expire(still.name))
            await other.apply([Create("/large", bytes(2000))])
            assert other._tree._generation == 1
            with pytest.raises(SessionExpiredError):
                await still.get("/brokers/1")
        finally:
            await still.close()
            await other.close()
            await runtime.close()

    with tempfile.TemporaryDirectory(prefix="headrace-store-") as directory:
        asyncio.run(main(directory))


def test_a_store_that_was_emptied_is_said_to_whoever_registers() -> None:
    async def main(home: Home) -> None:
        home, _ = of_model(home)
        async with opened(home) as store:
            session = home.session()
            await session.start()
            await session.apply([Delete("/brokers")])
            async with asyncio.timeout(10):
                with pytest.raises(WrongClusterError, match="emptied"):
                    await store.register(member(1))
            await session.close()

    run_model(main)


def test_an_expired_session_ends_the_controllers_time_for_good() -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        store = home.store()
        await store.open("a-cluster")
        epoch = await won(store)
        losing = asyncio.ensure_future(store.lost())
        model.expire(model.sessions[0])
        await asyncio.wait_for(losing, 10)
        with pytest.raises(StaleControllerEpochError):
            await store.append_if_epoch(epoch, topic(1))
        with pytest.raises(SessionLostError):
            await store.read_from(0)
        await store.register(member(1))
        with pytest.raises(StaleControllerEpochError):
            await store.append_if_epoch(epoch, topic(1))
        later = await store.elect(member(1))
        assert later is not None
        assert later > epoch
        await store.append_if_epoch(later, topic(2))
        assert told(await store.read_from(0)) == topic(2)
        await store.close()

    run_model(main)


def test_while_zookeeper_is_away_it_says_so_and_goes_on_after_it() -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as store, opened(home) as other:
            epoch = await won(store)
            await store.append_if_epoch(epoch, topic(1))
            model.go_away()
            assert store.connected_since is None
            with pytest.raises(StoreUnavailableError):
                await store.append_if_epoch(epoch, topic(2))
            with pytest.raises(StoreUnavailableError):
                await other.read_from(0)
            await asyncio.sleep(60)
            model.come_back()
            # It was not even sent, so nothing is in doubt and the session has lived on.
            await store.append_if_epoch(epoch, topic(3))
            assert told(await other.read_from(0)) in (topic(1), topic(1) + topic(3))

    run_model(main)


def test_an_append_that_zookeeper_took_along_is_of_unknown_outcome() -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        async with opened(home) as store:
            epoch = await won(store)
            model.faults = Faults(delay_s_max=0.02, loss_after=1.0)
            appending = asyncio.ensure_future(store.append_if_epoch(epoch, topic(1)))
            await becomes(lambda: store.connected_since is None, every_s=0.001)
            model.go_away()
            with pytest.raises(OutcomeUnknownError):
                await appending
            with pytest.raises(StaleControllerEpochError):
                await store.append_if_epoch(epoch, topic(2))
            model.faults = Faults()
            model.come_back()
            later = await store.elect(member(1))
            assert later is not None
            await store.append_if_epoch(later, topic(3))
            assert told(await store.read_from(0)) == topic(1) + topic(3)

    run_model(main)


def test_all_sessions_may_expire_at_once_and_everyone_comes_back() -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        stores = [home.store() for _ in range(3)]
        for number, store in enumerate(stores, 1):
            await store.open("a-cluster")
            await store.register(member(number))
        model.go_away()
        await asyncio.sleep(5)
        model.come_back(expire_all=True)
        for number, store in enumerate(stores, 1):
            await asyncio.wait_for(store.lost(), 10)
            await store.register(member(number))
        seen = await stores[0].members()
        while list(seen) != [1, 2, 3]:
            seen = await asyncio.wait_for(stores[0].members(seen), 10)
        for store in stores:
            await store.close()

    run_model(main)


def test_a_reader_may_lag_but_never_sees_a_part_or_goes_back() -> None:
    async def main(home: Home) -> None:
        home, model = of_model(home)
        model.faults = Faults(lag_s_max=2.0)
        async with opened(home) as store, opened(home) as reader:
            epoch = await won(store)
            seen = [0]
            for number in range(30):
                await store.append_if_epoch(epoch, topic(number))
                reading = await reader.read_from(0)
                assert reading.end_offset % 3 == 0
                seen.append(reading.end_offset)
            assert seen == sorted(seen)
            assert min(seen[5:]) < 30 * 3

    run_model(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_brokers_that_fight_for_the_seat_lose_and_double_nothing(seed: int) -> None:
    assert store_simulation.run(seed) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_finds_a_mistake(mutation: Mutation) -> None:
    assert found_after(mutation, mutation.seeds) is not None


# --- the rules of nodes, on the model, a directory and the real one ---------------------------------------------------


async def follow_rules(home: Home) -> None:
    assert isinstance(home, NodesHome)
    one, two = home.session(), home.session()
    await one.start()
    await two.start()
    await one.apply([Create("/a", b"1"), Create("/a/b", b"2", is_ephemeral=True)])
    with pytest.raises(NodeExistsError):
        await one.apply([Write("/a", b"changed"), Create("/a/b", b"3")])
    with pytest.raises(NodeMissingError):
        await one.apply([Write("/a", b"changed"), CheckVersion("/c")])
    with pytest.raises(NodeChangedError):
        await one.apply([CheckVersion("/a", 7), Write("/a", b"changed")])
    with pytest.raises(NodeNotEmptyError):
        await one.apply([Delete("/a")])
    found = await one.get("/a")
    assert found == (b"1", 0), "a change that was refused has changed something"
    await one.apply([Write("/a", b"2", 0), CheckVersion("/a", 1)])
    await two.sync()
    assert await two.get("/a") == (b"2", 1)
    assert await two.get("/missing") is None
    assert list(await two.children("/a")) == ["b"]
    await watches(one, two)
    gone = asyncio.Event()
    assert await two.get("/a/b", gone.set) is not None
    await one.close()
    await asyncio.wait_for(gone.wait(), DEADLINE_S)
    assert await two.get("/a/b") is None
    await two.apply([Delete("/a")])
    await two.close()


async def watches(one: StoreSession, two: StoreSession) -> None:
    made, named = asyncio.Event(), asyncio.Event()
    assert await two.get("/a/new", made.set) is None
    assert await two.children("/a", named.set) == ["b"]
    await one.apply([Create("/a/new", b"")])
    await asyncio.wait_for(made.wait(), DEADLINE_S)
    await asyncio.wait_for(named.wait(), DEADLINE_S)
    changed = asyncio.Event()
    assert await two.get("/a/new", changed.set) == (b"", 0)
    await one.apply([Write("/a/new", b"other")])
    await asyncio.wait_for(changed.wait(), DEADLINE_S)
    assert await two.get("/a/new") == (b"other", 1)
    await one.apply([Delete("/a/new")])


def test_nodes_of_the_model_follow_the_rules() -> None:
    run_model(follow_rules)


def test_nodes_in_a_directory_follow_the_rules() -> None:
    run_shared(follow_rules)


def test_a_change_that_is_too_large_breaks_the_models_connection() -> None:
    async def main(home: Home) -> None:
        home, _ = of_model(home)
        session = home.session()
        await session.start()
        with pytest.raises(ConnectionBrokenError):
            await session.apply([Create("/a", bytes(2_000_000))])
        await session.close()

    run_model(main)


# --- a real ZooKeeper -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_zookeeper_follows_the_rules_and_may_be_killed_and_come_back() -> None:
    with zookeeper() as process:
        run_zookeeper(follow_rules, process)

        async def main(home: Home) -> None:
            assert isinstance(home, NodesHome)
            async with opened(home) as store, opened(home) as other:
                epoch = await won(store)
                await store.append_if_epoch(epoch, topic(1))
                await other.read_from(0)
                process.kill()
                asked = store.append_if_epoch(epoch, topic(2)), other.read_from(0)
                appended, read = await asyncio.gather(*asked, return_exceptions=True)
                assert isinstance(appended, (StoreUnavailableError, OutcomeUnknownError))
                assert isinstance(read, StoreUnavailableError)
                await home.runtime.offload(process.start)
                # The session may have outlived it, or not.
                while True:
                    with contextlib.suppress(SessionLostError, StoreUnavailableError):
                        await store.register(member(1))
                        later = await store.elect(member(1))
                        break
                assert later is not None
                assert later > epoch
                await store.append_if_epoch(later, topic(3))
                assert told(await store.read_from(0)) in (topic(1) + topic(3), topic(1) + topic(2) + topic(3))

        run_zookeeper(main, process, timeout_s=5.0)
