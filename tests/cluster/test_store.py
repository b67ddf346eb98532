"""What every store does alike: a cluster of one's, a shared directory, ZooKeeper, and the model of ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tests.waiting import DEADLINE_S

from headrace.cluster.image import Image
from headrace.cluster.records import ConfigRecord, MetadataRecord, NoOpRecord, encode_record
from headrace.cluster.store import DecisionTooLargeError, Reading, Seat, Store, WrongClusterError, fold
from headrace.cluster.store.node_formats import EPOCH, ElectionData, encode_election, encode_log_node, log_path
from headrace.cluster.store.node_store import NodeStore
from headrace.cluster.store.session import NODE_BYTES_MAX, Create, Write
from headrace.errors import DuplicateBrokerRegistrationError, StaleControllerEpochError
from headrace.records import build_batch_of
from headrace.testing import ZooKeeperProcess

from .store_homes import (
    Home,
    Main,
    NodesHome,
    member,
    run_local,
    run_model,
    run_shared,
    run_zookeeper,
    topic,
    zookeeper,
)
from .test_image import state

Run = Callable[[Main], None]


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperProcess]:
    with zookeeper() as process:
        yield process


@pytest.fixture(params=["local", "model", "shared", pytest.param("zookeeper", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "zookeeper":
        process: ZooKeeperProcess = request.getfixturevalue("server")
        return lambda main: run_zookeeper(main, process)
    return {"local": run_local, "model": run_model, "shared": run_shared}[request.param]


@pytest.fixture(params=["model", "shared", pytest.param("zookeeper", marks=pytest.mark.slow)])
def run_several(request: pytest.FixtureRequest) -> Run:
    if request.param == "zookeeper":
        process: ZooKeeperProcess = request.getfixturevalue("server")
        return lambda main: run_zookeeper(main, process)
    return {"model": run_model, "shared": run_shared}[request.param]


@contextlib.asynccontextmanager
async def opened(home: Home, **limits: int) -> AsyncIterator[Store]:
    store = home.store(**limits)
    await store.open("a-cluster")
    try:
        yield store
    finally:
        await store.close()


async def won(store: Store, node_id: int = 1) -> int:
    """Register and be elected."""
    await store.register(member(node_id))
    epoch = await store.elect(member(node_id))
    assert epoch is not None
    return epoch


def told(reading: Reading) -> list[MetadataRecord]:
    """The records, but for those that only say that a controller was there."""
    return [record for _, record in reading.records if not isinstance(record, NoOpRecord)]


async def image_of(store: Store) -> Image:
    image = Image()
    fold(await store.read_from(0), image)
    return image


# --- the log ----------------------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_again_with_its_offsets(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store:
            epoch = await won(store)
            start = (await store.read_from(0)).end_offset
            assert await store.append_if_epoch(epoch, topic(1)) == start + 3
            assert await store.append_if_epoch(epoch, topic(2)) == start + 6
            assert await store.append_if_epoch(epoch, []) == start + 6
            reading = await store.read_from(0)
            assert told(reading) == topic(1) + topic(2)
            assert reading.end_offset == start + 6
            offsets = [offset for offset, _ in reading.records]
            assert offsets == list(range(start + 6))
            rest = await store.read_from(start + 3)
            assert (rest.records, rest.snapshot) == (reading.records[-3:], None)
            middle = await store.read_from(start + 4)
            assert middle.records == reading.records[-2:]
            at_end = await store.read_from(start + 6)
            assert (at_end.records, at_end.end_offset) == ([], start + 6)

    run(main)


def test_it_is_there_after_it_was_closed(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store:
            epoch = await won(store)
            await store.append_if_epoch(epoch, topic(1))
        async with opened(home) as store:
            assert told(await store.read_from(0)) == topic(1)
            later = await won(store)
            assert later > epoch
            await store.append_if_epoch(later, topic(2))
            assert told(await store.read_from(0)) == topic(1) + topic(2)

    run(main)


def test_an_older_controller_can_append_no_more(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store:
            old = await won(store)
            new = await store.elect(member(1))
            assert new is not None
            assert new > old
            with pytest.raises(StaleControllerEpochError):
                await store.append_if_epoch(old, topic(1))
            await store.append_if_epoch(new, topic(2))
            assert told(await store.read_from(0)) == topic(2)

    run(main)


def test_a_decision_of_many_bytes_is_read_as_a_whole(run: Run) -> None:
    async def main(home: Home) -> None:
        big = [
            ConfigRecord(resource_type=2, resource_name="t", name=f"key-{number}", value="x" * 50_000)
            for number in range(20)
        ]
        async with opened(home) as store:
            epoch = await won(store)
            end = await store.append_if_epoch(epoch, [*topic(1), *big])
            assert told(await store.read_from(0)) == [*topic(1), *big]
            assert (await store.read_from(0)).end_offset == end

    run(main)


def test_a_record_that_no_node_can_hold_is_refused_and_others_go_on(run_several: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store:
            epoch = await won(store)
            huge = ConfigRecord(resource_type=2, resource_name="t", name="k", value="x" * NODE_BYTES_MAX)
            with pytest.raises(DecisionTooLargeError):
                await store.append_if_epoch(epoch, [huge])
            await store.append_if_epoch(epoch, topic(1))
            assert told(await store.read_from(0)) == topic(1)

    run_several(main)


def test_whoever_waits_for_records_is_told_of_them(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store, contextlib.AsyncExitStack() as stack:
            reader = await stack.enter_async_context(opened(home)) if home.several else store
            epoch = await won(store)
            end = (await reader.read_from(0)).end_offset
            for number in range(3):
                waiting = asyncio.ensure_future(reader.grown_beyond(end))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                await store.append_if_epoch(epoch, topic(number))
                await asyncio.wait_for(waiting, DEADLINE_S)
                reading = await reader.read_from(end)
                assert told(reading) == topic(number)
                end = reading.end_offset

    run(main)


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_takes_the_place_of_old_records(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home, snapshot_after_bytes=20_000) as store:
            epoch = await won(store)
            taken = 0
            for number in range(150):
                await store.append_if_epoch(epoch, topic(number))
                if store.snapshot_due:
                    await store.take_snapshot(await image_of(store), epoch)
                    assert not store.snapshot_due
                    taken += 1
            assert taken >= 1
            reading = await store.read_from(0)
            assert reading.snapshot is not None
            assert 0 < reading.snapshot_end <= reading.end_offset
            image = await image_of(store)
            assert set(image.topics) == {f"topic-{number}" for number in range(150)}
            # Whoever is at the end already gets no snapshot.
            assert (await store.read_from(image.offset)).snapshot is None
            await store.append_if_epoch(epoch, topic(150))
            assert told(await store.read_from(image.offset)) == topic(150)
        async with opened(home) as store:
            again = await image_of(store)
            assert set(again.topics) == {f"topic-{number}" for number in range(151)}
            epoch = await won(store)
            await store.append_if_epoch(epoch, topic(151))
            assert "topic-151" in (await image_of(store)).topics

    run(main)


@pytest.mark.slow
def test_a_large_snapshot_has_parts_and_its_reader_may_lag_behind(run_several: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store, opened(home) as reader:
            epoch = await won(store)
            await store.append_if_epoch(epoch, topic(0, 1200))
            behind = await image_of(reader)
            for number in range(1, 4):
                await store.append_if_epoch(epoch, topic(number, 1200))
            image = await image_of(store)
            await store.take_snapshot(image, epoch)
            assert isinstance(store, NodeStore)
            [name] = await store._link.read(lambda session: session.children("/snapshots"))
            parts = await store._link.read(lambda session: session.children(f"/snapshots/{name}"))
            assert len(parts) > 1
            # All that is left of the log is its last node.
            assert len(await store._link.read(lambda session: session.children("/log"))) == 1
            await store.append_if_epoch(epoch, topic(4))
            await reader.grown_beyond(behind.offset)
            reading = await reader.read_from(behind.offset)
            while reading.end_offset < image.offset + 3:
                reading = await reader.read_from(behind.offset)
            assert reading.snapshot is not None
            fresh = Image()
            fold(reading, fresh)
            assert state(fresh) == state(await image_of(store))

    run_several(main)


def test_a_snapshot_needs_an_image_that_is_up_to_date(run: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as store:
            epoch = await won(store)
            image = await image_of(store)
            await store.append_if_epoch(epoch, topic(1))
            with pytest.raises(ValueError, match="the log ends at"):
                await store.take_snapshot(image, epoch)

    run(main)


# --- several brokers --------------------------------------------------------------------------------------------------


def test_brokers_see_each_other_come_and_go(run_several: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home) as one:
            await one.register(member(1))
            other = home.store()
            await other.open("a-cluster")
            waiting = asyncio.ensure_future(one.members({1: member(1)}))
            await other.register(member(2))
            assert await asyncio.wait_for(waiting, DEADLINE_S) == {1: member(1), 2: member(2)}
            await other.register(member(2))
            waiting = asyncio.ensure_future(one.members({1: member(1), 2: member(2)}))
            await other.close()
            assert await asyncio.wait_for(waiting, DEADLINE_S) == {1: member(1)}
            assert await one.members() == {1: member(1)}

    run_several(main)


def test_a_number_is_taken_as_long_as_its_session_lives(run_several: Run) -> None:
    async def main(home: Home) -> None:
        first, second = home.store(), home.store()
        await first.open("a-cluster")
        await second.open("a-cluster")
        await first.register(member(1))
        with pytest.raises(DuplicateBrokerRegistrationError, match=r"node\.id 1"):
            await second.register(member(1, life=2))
        # The same life may register again, also in another session.
        await second.register(member(1))
        await first.close()
        assert await second.members() == {1: member(1)}
        await second.close()

    run_several(main)


def test_there_is_one_controller_and_the_next_when_it_goes(run_several: Run) -> None:
    async def main(home: Home) -> None:
        one, two = home.store(), home.store()
        await one.open("a-cluster")
        await two.open("a-cluster")
        assert await two.seat() is None
        first = await won(one, 1)
        await two.register(member(2))
        seat = await two.seat(None)
        assert seat == Seat(first, member(1))
        assert await two.elect(member(2)) is None
        await one.append_if_epoch(first, topic(1))
        waiting = asyncio.ensure_future(two.seat(seat))
        await one.close()
        assert await asyncio.wait_for(waiting, DEADLINE_S) is None
        second = await two.elect(member(2))
        assert second is not None
        assert second > first
        await two.append_if_epoch(second, topic(2))
        assert told(await two.read_from(0)) == topic(1) + topic(2)
        with pytest.raises(StaleControllerEpochError):
            await one.append_if_epoch(first, topic(3))
        await two.close()

    run_several(main)


def test_a_store_of_another_cluster_is_refused(run_several: Run) -> None:
    async def main(home: Home) -> None:
        async with opened(home):
            other = home.store()
            with pytest.raises(WrongClusterError, match="another-cluster"):
                await other.open("another-cluster")
            await other.close()
            new = home.store()
            assert await new.open(None) == "a-cluster"
            await new.close()

    run_several(main)


def test_an_append_is_fenced_by_the_epoch_alone(run_several: Run) -> None:
    """Whatever becomes of sessions and seats: once the epoch is another one, its predecessor writes nothing."""

    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        async with opened(home) as store, opened(home) as other:
            epoch = await won(store)
            await store.append_if_epoch(epoch, topic(1))
            assert isinstance(other, NodeStore)
            await other._link.change([Write(EPOCH, encode_election(ElectionData(epoch + 1, 2, bytes(16))))])
            with pytest.raises(StaleControllerEpochError):
                await store.append_if_epoch(epoch, topic(2))
            with pytest.raises(StaleControllerEpochError):
                await store.take_snapshot(await image_of(store), epoch)
            assert told(await store.read_from(0, latest=True)) == topic(1)

    run_several(main)


def test_a_decision_that_was_not_finished_is_removed_by_the_next_controller(run_several: Run) -> None:
    async def main(home: Home) -> None:
        assert isinstance(home, NodesHome)
        one = home.store()
        await one.open("a-cluster")
        epoch = await won(one)
        end = await one.append_if_epoch(epoch, topic(1))
        batch = build_batch_of([0], [None], [encode_record(NoOpRecord())], base_offset=end)
        await one._link.change([Create(log_path(1), encode_log_node(epoch, bytes(16), False, batch))])
        async with opened(home) as two:
            assert told(await two.read_from(0)) == topic(1)
            await one.close()
            await two.register(member(2))
            later = await two.elect(member(2))
            assert later is not None
            assert await two.append_if_epoch(later, topic(2)) == end + 3
            assert told(await two.read_from(0)) == topic(1) + topic(2)

    run_several(main)
