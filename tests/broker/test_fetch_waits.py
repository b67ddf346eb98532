"""A fetch that waits is answered as soon as what it waits for is there, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.log import making

from headrace.broker.partitions import fetching
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.produce_at_once import MAGIC_AT
from headrace.broker.partitions.replicas import Replicas
from headrace.broker.view import ClusterView
from headrace.errors import ErrorCode, NotLeaderOrFollowerError
from headrace.log import Origin, WouldBlockError
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.runtime.simulated import DiskFault, Simulation, run_simulation

from . import raw
from .sim import Client, SimulatedBroker

MAX_WAIT_MS = 20_000
# Far above what the simulated network takes, far below the time that the fetches here may wait.
SOON_S = 2.0
DELETE_TOPICS_VERSION, LIST_OFFSETS_VERSION = 5, 5


class World:
    """A broker, a client that fetches and one that does not."""

    def __init__(self, simulation: Simulation) -> None:
        self.broker = SimulatedBroker(simulation)
        self.client = Client(simulation, "client")
        self.other = Client(simulation, "other")

    async def start(self, *topics: str) -> None:
        await self.broker.start()
        for topic in topics:
            await self.other.insist(raw.create_topics_request({topic: 1}), raw.CREATE_TOPICS_VERSION)

    async def write(self, topic: str, size: int) -> None:
        records = raw.batch([bytes(size)], timestamp_ms=self.other.host.clock.now_ms())
        answer = await self.other.insist(raw.produce_request(topic, 0, records), raw.PRODUCE_VERSION)
        assert raw.produced(answer).error_code == 0

    async def append(self, topic: str, records: bytearray) -> None:
        """What only a coordinator may append."""

        async def inside() -> None:
            assert self.broker.broker is not None
            appended = self.broker.broker.partition(topic, 0).append(records, origin=Origin.COORDINATOR)
            if isinstance(appended, Awaitable):
                await appended

        await self.broker.host.start(inside())

    def fetch(self, request: FetchRequest) -> asyncio.Task[tuple[Any, float]]:
        """The answer and how long it took, in seconds."""

        async def timed() -> tuple[Any, float]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            return await self.client.request(request, raw.FETCH_VERSION, 60.0), loop.time() - began

        return asyncio.ensure_future(timed())


def run(*topics: str) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """Run a scenario with a broker that has these topics."""

    def decorate(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main(simulation: Simulation) -> None:
            world = World(simulation)
            await world.start(*topics)
            await scenario(world)
            await world.broker.stop()

        for seed in range(3):
            run_simulation(main, seed, time_max_s=900.0)

    return decorate


def committed(request: FetchRequest) -> FetchRequest:
    request.isolation_level = 1
    return request


def data_of(producer_id: int, size: int, sequence: int = 0) -> bytearray:
    return making.batch(bytes(size), producer=(producer_id, 0, sequence), transactional=True)


def test_the_end_of_a_transaction_gives_a_reader_of_committed_records_all_that_it_kept_back() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        request = committed(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=1000))
        waiting = world.fetch(request)
        await asyncio.sleep(1)
        await world.append("t", data_of(7, 5000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.append("t", making.marker(7, commit=True))
        answer, took_s = await waiting
        assert took_s < 2 + SOON_S
        assert len(raw.fetched(answer).records) > 5000


def test_it_also_gives_what_was_kept_back_before_the_fetch() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        await world.append("t", data_of(7, 5000))
        await world.append("t", data_of(8, 5000))
        request = committed(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=1000))
        waiting = world.fetch(request)
        await asyncio.sleep(1)
        await world.append("t", making.marker(8, commit=True))
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.append("t", making.marker(7, commit=False))
        answer, took_s = await waiting
        assert took_s < 2 + SOON_S
        assert [one.producer_id for one in raw.fetched(answer).aborted_transactions] == [7]


def test_too_few_committed_bytes_are_waited_with() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        request = committed(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=3000))
        waiting = world.fetch(request)
        for _ in range(2):
            await asyncio.sleep(1)
            await world.write("t", 1000)
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.write("t", 1000)
        answer, took_s = await waiting
        assert 3 <= took_s < 3 + SOON_S
        assert len(raw.fetched(answer).records) > 3000


def test_the_rest_of_a_segment_is_given_at_once_when_there_is_more_after_it() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        for _ in range(6):
            await world.write("t", 6000)  # three to a segment of 20,000 bytes
        answer, took_s = await world.fetch(raw.fetch_request("t", 0, 2, max_wait_ms=MAX_WAIT_MS, min_bytes=10_000))
        assert took_s < SOON_S
        assert [offset for offset, _ in raw.values_of(raw.fetched(answer).records)] == [2]


def test_the_end_of_a_segment_ends_the_wait_for_more_of_it() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.write("t", 6000)
        waiting = world.fetch(raw.fetch_request("t", 0, 2, max_wait_ms=MAX_WAIT_MS, min_bytes=15_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.write("t", 3000)  # into the next segment
        answer, took_s = await waiting
        assert took_s < 1 + SOON_S
        assert [offset for offset, _ in raw.values_of(raw.fetched(answer).records)] == [2]


def test_the_rest_of_a_segment_is_waited_with_while_what_follows_is_not_committed() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        for _ in range(2):
            await world.write("t", 6000)
        for number in range(2):  # an open transaction, of which the second batch is in another segment
            await world.append("t", data_of(7, 6000, number))
        request = committed(raw.fetch_request("t", 0, 1, max_wait_ms=3000, min_bytes=10_000))
        answer, took_s = await world.fetch(request)
        assert 3 <= took_s < 3 + SOON_S
        assert [offset for offset, _ in raw.values_of(raw.fetched(answer).records)] == [1]


@pytest.mark.parametrize("whole_max_bytes", [5000, 1 << 20])
def test_more_than_an_answer_may_hold_is_not_waited_for(whole_max_bytes: int) -> None:
    @run("t")
    async def scenario(world: World) -> None:
        for _ in range(2):
            await world.write("t", 6000)
        request = raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=10_000, max_bytes=5000)
        request.max_bytes = whole_max_bytes
        answer, took_s = await world.fetch(request)
        assert took_s < SOON_S
        assert len(raw.fetched(answer).records) > 5000


def test_more_than_a_partition_may_give_is_not_waited_for_when_that_much_comes() -> None:
    @run("t")
    async def scenario(world: World) -> None:
        request = raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=10_000, max_bytes=3000)
        request.max_bytes = 1 << 20
        waiting = world.fetch(request)
        await asyncio.sleep(1)
        await world.write("t", 1000)
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.write("t", 2500)
        answer, took_s = await waiting
        assert took_s < 2 + SOON_S
        assert len(raw.fetched(answer).records) == 3000


def test_the_bytes_of_all_partitions_count_together() -> None:
    @run("a", "b")
    async def scenario(world: World) -> None:
        await world.write("a", 1000)
        wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        topics = [FetchTopic(topic=name, partitions=wanted) for name in "ab"]
        waiting = world.fetch(FetchRequest(max_wait_ms=MAX_WAIT_MS, min_bytes=2500, max_bytes=1 << 20, topics=topics))
        await asyncio.sleep(1)
        await world.write("b", 1000)
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.write("a", 1000)
        answer, took_s = await waiting
        assert 2 <= took_s < 2 + SOON_S
        assert {topic.topic for topic in answer.responses if topic.partitions[0].records} == {"a", "b"}


def test_a_fetch_of_cold_data_waits_for_as_much_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    cold_once(monkeypatch)

    @run("t")
    async def scenario(world: World) -> None:
        await world.write("t", 1000)
        waiting = world.fetch(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS, min_bytes=1500))
        await asyncio.sleep(1)
        assert not waiting.done()
        await world.write("t", 1000)
        answer, took_s = await waiting
        assert took_s < 1 + SOON_S
        assert len(raw.fetched(answer).records) > 2000


Meanwhile = Callable[[World], Awaitable[Any]]


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        pytest.param(lambda world: world.write("t", 1000), 0, id="append"),
        pytest.param(
            lambda world: world.other.insist(
                DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), DELETE_TOPICS_VERSION
            ),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            id="delete",
        ),
    ],
)
def test_what_happens_while_a_fetch_looks_at_the_disk_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile, error: int
) -> None:
    """The look is made by a disk thread; when its result comes to the loop the partition is another already."""
    cold_once(monkeypatch)

    @run("t")
    async def scenario(world: World) -> None:
        broker = world.broker.broker
        assert broker is not None
        may_return = asyncio.Event()
        looking = asyncio.Event()
        workers = broker.runtime.workers
        offload = workers.offload

        async def slowly(look: Callable[[], Any]) -> Any:
            result = await offload(look)
            looking.set()
            await may_return.wait()
            return result

        def offload_slowly(work: Callable[..., Any], *arguments: Any) -> Any:
            called = work.func.__name__ if isinstance(work, functools.partial) else ""
            if called != fetching.Fetching.locate.__name__:
                return offload(work, *arguments)
            return asyncio.ensure_future(slowly(work))

        monkeypatch.setattr(workers, "offload", offload_slowly)
        waiting = world.fetch(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS))
        await looking.wait()
        await meanwhile(world)
        may_return.set()
        answer, took_s = await waiting
        monkeypatch.undo()
        cold_once(monkeypatch)
        assert took_s < SOON_S
        assert raw.fetched(answer).error_code == error


def cold_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first looks of each fetch, on the loop, find that they need the disk."""
    locate = fetching.Fetching.locate
    looked: dict[int, tuple[Any, int]] = {}  # with the request itself, so that no other gets its number

    def cold(self: Any, reads: list[fetching.Read], *, nowait: bool) -> None:
        _, times = looked.get(id(self.request), (None, 0))
        if nowait and times < 2:
            looked[id(self.request)] = (self.request, times + 1)
            raise WouldBlockError
        locate(self, reads, nowait=nowait)

    monkeypatch.setattr(fetching.Fetching, "locate", cold)


def test_a_disk_thread_reads_nothing_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads and what is configured changes on the event loop, so only there it is read."""
    cold_once(monkeypatch)
    off_loop: list[str] = []
    reads = False
    locate = fetching.Fetching.locate

    def noting(self: Any, found: list[fetching.Read], *, nowait: bool) -> None:
        nonlocal reads
        reads = not nowait
        try:
            locate(self, found, nowait=nowait)
        finally:
            reads = False

    def watched(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def look(*args: Any, **options: Any) -> Any:
            if reads:
                off_loop.append(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, look)

    monkeypatch.setattr(fetching.Fetching, "locate", noting)
    watched(Replicas, "get")
    watched(Partition, "check_leader")
    watched(ClusterView, "log_config")

    @run("t")
    async def scenario(world: World) -> None:
        await world.write("t", 100)
        answer, _ = await world.fetch(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS))
        assert raw.fetched(answer).error_code == 0
        assert off_loop == []


def test_a_partition_that_is_led_elsewhere_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: Any) -> Any:
        raise NotLeaderOrFollowerError("another broker leads it, and there is no replica here")

    @run("t")
    async def scenario(world: World) -> None:
        assert world.broker.broker is not None
        monkeypatch.setattr(world.broker.broker.replicas, "get", elsewhere)
        answer, _ = await world.fetch(raw.fetch_request("t", 0, 0, max_wait_ms=MAX_WAIT_MS))
        assert raw.fetched(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_damaged_records_are_an_error_of_their_partition(failures: list[str]) -> None:
    @run("a")
    async def scenario(world: World) -> None:
        for _ in range(4):
            await world.write("a", 6000)  # the first three are in a segment that has ended
        assert world.broker.broker is not None
        first = world.broker.broker.partition("a", 0).log.segments[0]
        file = world.broker.host.disk.open(first.path(".log"))
        file.pwrite(first.size // 3 + MAGIC_AT, b"?")
        file.close()
        wanted = [FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)]
        topics = [FetchTopic(topic="a", partitions=wanted)]
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics)
        assert raw.fetched((await world.fetch(request))[0]).error_code == ErrorCode.CORRUPT_MESSAGE
        at = ListOffsetsPartition(partition_index=0, timestamp=first.first_timestamp() + 1)
        times = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=[at])])
        answer = await world.other.request(times, LIST_OFFSETS_VERSION)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert all("cannot be read at offset 1" in text for text in failures)
        failures.clear()


@pytest.mark.parametrize("operation", ["read", "open"])
def test_a_partition_that_cannot_be_read_is_an_error_of_its_own(failures: list[str], operation: str) -> None:
    @run("a", "b")
    async def scenario(world: World) -> None:
        for name in "ab":
            await world.write(name, 1000)
        broker = world.broker.broker
        assert broker is not None
        broker.partition("a", 0).log.active.file.close()
        world.broker.host.disk.inject(DiskFault(operation, errno.EIO, under=broker.partition("a", 0).log.directory))
        wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        topics = [FetchTopic(topic=name, partitions=wanted) for name in "ab"]
        answer, _ = await world.fetch(FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics))
        told = {topic.topic: topic.partitions[0] for topic in answer.responses}
        assert told["a"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told["b"].error_code == 0
        assert told["b"].records
        assert len(failures) == 1
        assert "a-0 cannot be read at offset 0" in failures.pop()
