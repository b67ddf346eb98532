"""Fetches of a whole broker in a simulation, against a model that knows when each is due and what it has to bring.

Consumers with and without sessions, of committed records or of all, fetch from partitions that are written to, in and
out of transactions, cut at their start, deleted and made again. A second pair of eyes looks at every fetch under way
from time to time and notes since when it is due, from the files themselves. `python -m tests.broker.fetch_model FIRST
COUNT` runs many seeds.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.broker.broker import Broker
from headrace.broker.partitions.partition import Partition
from headrace.errors import ErrorCode
from headrace.log import Log, Origin
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from headrace.records import Batch, ControlType, build_batch, control_batch, read_records, split
from headrace.records.batch import HEADER_BYTES, PREFIX_BYTES
from headrace.runtime.simulated import Simulation, run_simulation

from . import raw
from .sim import Client, SimulatedBroker, SmallSegmentsBroker

# What the simulated network, its slow moments and the disk may take, and how often the model looks.
SLACK_S = 1.5
LOOK_S = 0.1
FETCHES_PER_CONSUMER = 80
VERSIONS = (7, 9, 11, 12, 13, 15, 17, 18)
TOPIC_IDS_SINCE_VERSION = 13
DELETE_RECORDS_VERSION, DELETE_TOPICS_VERSION = 1, 5
NO_ID = bytes(16)

Key = tuple[str, bytes, int]  # topic name, its id where fetched by id, partition


@dataclass
class Wanted:
    offset: int
    bytes_max: int


@dataclass(eq=False)  # two consumers may ask for the same
class UnderWay:
    """A fetch that has been sent, with all that it is about: what it names and what its session remembers."""

    request: FetchRequest
    wanted: dict[Key, Wanted]
    began: float
    due_since: float | None = None
    may_have_been_due: bool = False
    was_steady: bool = True
    seen: dict[Key, tuple[int, ...] | None] = field(default_factory=dict)


class World:
    """The broker, what was written to it, and the fetches under way."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng = simulation.rng
        self.broker = SimulatedBroker(simulation, {"log.retention.check.interval.ms": "1000000"})
        self.topics: dict[str, tuple[int, dict[str, str]]] = {}
        #: How every partition was when it was last looked at, and since when it was seen so.
        self.since: dict[Key, tuple[tuple[int, ...], float]] = {}
        self.values: dict[tuple[bytes, int], dict[int, bytes]] = {}
        self.under_way: list[UnderWay] = []
        self.over = False
        self.counts: Counter[str] = Counter()

    @property
    def inside(self) -> Broker:
        assert self.broker.broker is not None
        return self.broker.broker

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def partition(self, key: Key) -> Partition | None:
        name, topic_id, index = key
        if topic_id != NO_ID:
            found = self.inside.image.topics_by_id.get(topic_id)
            if found is None:
                return None
            name = found.name
        return self.inside.replicas.partitions.get((name, index))

    def state(self, key: Key) -> tuple[int, ...] | None:
        partition = self.partition(key)
        if partition is None:
            return None
        log = partition.log
        state = id(partition), log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset
        if key not in self.since or self.since[key][0] != state:
            self.since[key] = (state, self.now())
        return state

    # --- when a fetch is due

    async def watch(self) -> None:
        """Look at the fetches under way from time to time."""
        while not self.over:
            for fetch in self.under_way:
                self.look_at(fetch)
            await asyncio.sleep(LOOK_S)

    def look_at(self, fetch: UnderWay) -> None:
        seen = {key: self.state(key) for key in fetch.wanted}
        if fetch.seen and seen != fetch.seen:
            fetch.was_steady = False
        if seen != fetch.seen or not fetch.seen:
            fetch.seen = seen
            is_due, may_be_due = self.is_due(fetch)
            fetch.may_have_been_due |= may_be_due
            if not is_due:
                fetch.due_since = None
            elif fetch.due_since is None:
                fetch.due_since = self.now()

    def is_due(self, fetch: UnderWay) -> tuple[bool, bool]:
        """Whether it is due for sure, and whether it may be: which partition of a session comes first, and gives a
        whole batch whatever its limit, is the broker's to choose."""
        request = fetch.request
        if request.max_wait_ms <= 0:
            return True, True
        available, extra, may_grow = 0, [0], False
        for key, wanted in fetch.wanted.items():
            partition = self.partition(key)
            if partition is None or not partition.log.start_offset <= wanted.offset <= partition.log.end_offset:
                return True, True
            end = partition.log.last_stable_offset if request.isolation_level else partition.log.high_watermark
            size, first_size, goes_on = readable(partition.log, wanted.offset, end)
            if goes_on:
                return True, True
            given = min(size, wanted.bytes_max, request.max_bytes)
            available += given
            extra.append(max(0, first_size - given))
            may_grow = may_grow or not size or size < wanted.bytes_max
        needed = min(request.min_bytes, request.max_bytes)
        is_due = available >= needed or not may_grow
        return is_due, is_due or available + max(extra) >= needed


def readable(log: Log, offset: int, end: int) -> tuple[int, int, bool]:
    """Bytes from an offset on below `end` in one segment, those of the first batch, whether more is in the next."""
    total = first = 0
    in_segment: int | None = None
    for segment in log.segments:
        for _, header in segment.headers():
            if header.last_offset < offset:
                continue
            if header.base_offset >= end:
                return total, first, False
            if in_segment is not None and segment.base_offset != in_segment:
                return total, first, True
            in_segment = segment.base_offset
            first = first or header.size
            total += header.size
    return total, first, False


# --- those who write and change ---------------------------------------------------------------------------------------


async def produce(world: World, name: str) -> None:
    client, rng = Client(world.simulation, name), world.simulation.random_for(name)
    number = 0
    while not world.over:
        topic = world.inside.image.topics.get(rng.choice(list(world.topics)))
        if topic is None:
            await asyncio.sleep(0.01)
            continue
        index = rng.randrange(len(topic.partitions))
        values = []
        for _ in range(rng.choice((1, 1, 2, 10))):
            number += 1
            values.append(f"{name}:{number}:".encode() + bytes(rng.choice((5, 5, 100, 1000))))
        records = raw.batch(values, timestamp_ms=client.host.clock.now_ms())
        request = raw.produce_request(topic.name, index, records, acks=rng.choice((-1, 1)))
        answer = raw.produced(await client.insist(request, raw.PRODUCE_VERSION, 20.0))
        if answer.error_code == 0:
            written = world.values.setdefault((topic.topic_id, index), {})
            written.update({answer.base_offset + at: value for at, value in enumerate(values)})
        await asyncio.sleep(rng.choice((0, 0.001, 0.05, 0.3, 1.0)))


async def transact(world: World, producer_id: int) -> None:
    """Transactions of one partition at a time, as a coordinator would write them."""
    rng = world.simulation.random_for(f"transactions-{producer_id}")
    while not world.over:
        await asyncio.sleep(rng.choice((0.01, 0.2, 1.0)))
        topic = world.inside.image.topics.get(rng.choice(list(world.topics)))
        if topic is None:
            continue
        partition = world.inside.replicas.partitions.get((topic.name, rng.randrange(len(topic.partitions))))
        if partition is None:
            continue
        is_commit = rng.random() < 0.6
        fate = b"committed" if is_commit else b"aborted"
        for sequence in range(rng.choice((1, 2, 4))):
            now_ms = world.inside.runtime.clock.now_ms()
            records = build_batch(
                [(now_ms, None, fate + bytes(rng.choice((5, 800))), ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            await append(partition, records)
            await asyncio.sleep(rng.choice((0, 0.1, 0.5)))
        kind = ControlType.COMMIT if is_commit else ControlType.ABORT
        await append(
            partition,
            control_batch(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=now_ms),
        )
        # Sequences begin anew with the next transaction.
        partition.log.producers.producers.pop(producer_id, None)


async def append(partition: Partition, records: bytearray) -> None:
    try:
        appended = partition.append(records, origin=Origin.COORDINATOR)
        if asyncio.isfuture(appended):
            await appended
    except Exception:
        if not partition.is_offline:  # otherwise its topic was deleted meanwhile
            raise


async def meddle(world: World) -> None:
    """Records are deleted, and topics, which are made again."""
    client, rng = Client(world.simulation, "meddler"), world.simulation.random_for("meddler")
    deletes_topics = rng.random() < 0.4
    while not world.over:
        await asyncio.sleep(rng.choice((0.05, 0.3, 1.0)))
        name = rng.choice(list(world.topics))
        topic = world.inside.image.topics.get(name)
        if topic is None:
            continue
        if deletes_topics and rng.random() < 0.15:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=1000)
            await client.insist(request, DELETE_TOPICS_VERSION, 20.0)
            await asyncio.sleep(rng.choice((0, 0.2)))
            partitions, configs = world.topics[name]
            again = raw.create_topics_request({name: partitions}, **configs)
            await client.insist(again, raw.CREATE_TOPICS_VERSION, 20.0)
            world.counts["topics deleted"] += 1
        else:
            index = rng.randrange(len(topic.partitions))
            log = world.inside.partition(name, index).log
            before = min(log.high_watermark, log.start_offset + rng.choice((1, 3, 30)))
            part = DeleteRecordsPartition(partition_index=index, offset=before)
            cut = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[part])], timeout_ms=1000)
            await client.insist(cut, DELETE_RECORDS_VERSION, 20.0)
            if rng.random() < 0.3:
                await world.broker.host.start(world.inside.maintenance._retain())


# --- those who fetch --------------------------------------------------------------------------------------------------


class Consumer:
    """Fetches at random offsets, with a session that it changes now and then, and checks each answer."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.client = Client(world.simulation, name)
        self.rng = world.simulation.random_for(name)
        self.version = self.rng.choice(VERSIONS)
        self.by_id = self.version >= TOPIC_IDS_SINCE_VERSION
        self.isolation = self.rng.randrange(2)
        self.wanted: dict[Key, Wanted] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        self.session = self.epoch = 0
        self.sent: dict[Key, Wanted] = {}
        self.told: dict[Key, tuple[int, int]] = {}

    async def run(self) -> None:
        for _ in range(FETCHES_PER_CONSUMER):
            self.change_wishes()
            if self.wanted:
                await self.fetch()
            if self.rng.random() < 0.03:
                self.begin_anew()  # and the session is left to itself
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.choice((0.001, 0.05, 0.5)))

    def change_wishes(self) -> None:
        rng, topics = self.rng, self.world.inside.image.topics
        for key in [key for key in self.wanted if self.world.partition(key) is None and rng.random() < 0.7]:
            del self.wanted[key]
        everything = [
            (name, topics[name].topic_id if self.by_id else NO_ID, index)
            for name in self.world.topics
            if name in topics
            for index in range(len(topics[name].partitions))
        ]
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            if not everything:
                return
            key = rng.choice(everything)
            if key in self.wanted and rng.random() < 0.2:
                del self.wanted[key]
            else:
                # Put at the end where it is new, as a session does.
                self.wanted[key] = Wanted(self.some_offset(key), rng.choice((1 << 20, 1 << 20, 1000, 100)))

    def some_offset(self, key: Key) -> int:
        partition, rng = self.world.partition(key), self.rng
        if partition is None:
            return 0
        log, kind = partition.log, self.rng.random()
        if kind < 0.03:
            return log.end_offset + 7
        if kind < 0.5:
            return log.high_watermark
        return rng.randint(log.start_offset, max(log.start_offset, log.high_watermark))

    def request(self) -> FetchRequest:
        rng, is_full = self.rng, self.session == 0
        named = self.wanted if is_full else {k: v for k, v in self.wanted.items() if self.sent.get(k) != v}
        gone = [] if is_full else [key for key in self.sent if key not in self.wanted]
        request = FetchRequest(
            max_wait_ms=rng.choice((0, 20, 500, 5000, 20_000)),
            min_bytes=rng.choice((1, 1, 1, 0, 500, 5000)),
            max_bytes=rng.choice((1 << 25, 1 << 25, 3000, 300)),
            isolation_level=self.isolation,
            session_id=self.session,
            session_epoch=self.epoch,
        )
        for (name, topic_id, index), wish in named.items():
            part = FetchPartition(partition=index, fetch_offset=wish.offset, partition_max_bytes=wish.bytes_max)
            topic = "" if self.by_id else name
            request.topics.append(FetchTopic(topic=topic, topic_id=topic_id, partitions=[part]))
        for name, topic_id, index in gone:
            topic = "" if self.by_id else name
            request.forgotten_topics_data.append(ForgottenTopic(topic=topic, topic_id=topic_id, partitions=[index]))
        return request

    async def fetch(self) -> None:
        world, request = self.world, self.request()
        is_full = self.session == 0
        fetch = UnderWay(request, dict(self.wanted), world.now())
        world.under_way.append(fetch)
        world.look_at(fetch)
        answer: FetchResponse = await self.client.request(request, self.version, 60.0)
        world.under_way.remove(fetch)
        was_due_since = fetch.due_since
        world.look_at(fetch)
        took_s = world.now() - fetch.began
        where = f"{self.name}, version {self.version}, at {fetch.began:.3f}: {request} answered by {answer}"
        assert answer.error_code == 0, where
        if is_full:
            self.begin_anew()
            self.session, self.epoch = answer.session_id, 1
        else:
            assert answer.session_id == self.session, where
            self.epoch += 1
        self.sent = dict(self.wanted)
        self.check_time(fetch, answer, was_due_since, took_s, where)
        self.check_data(fetch, answer, is_full, where)
        world.counts["fetches"] += 1

    def check_time(
        self, fetch: UnderWay, answer: FetchResponse, due_since: float | None, took_s: float, where: str
    ) -> None:
        wait_s = fetch.request.max_wait_ms / 1000
        assert took_s <= wait_s + SLACK_S, f"answered after {took_s:.2f} s: {where}"
        if due_since is not None:
            late_s = self.world.now() - max(due_since, fetch.began)
            assert late_s <= SLACK_S, f"due for {late_s:.2f} s: {where}"
        elif fetch.was_steady and not fetch.may_have_been_due:
            self.world.counts["waited"] += 1
            assert took_s >= wait_s, f"answered after {took_s:.2f} s though nothing came: {where}"

    def check_data(self, fetch: UnderWay, answer: FetchResponse, is_full: bool, where: str) -> None:
        got: dict[Key, PartitionData] = {}
        by_place = {(key[1] if self.by_id else key[0], key[2]): key for key in fetch.wanted}
        for topic in answer.responses:
            for data in topic.partitions:
                key = by_place[topic.topic_id if self.by_id else topic.topic, data.partition_index]
                assert key not in got, f"{key} twice: {where}"
                got[key] = data
        assert not is_full or set(got) == set(fetch.wanted), f"partitions are missing: {where}"
        for key, wish in fetch.wanted.items():
            data, steady = got.get(key), fetch.was_steady and fetch.seen[key] is not None
            if data is None:
                state = fetch.seen[key]
                # A session hears of a change when the disk has done with it, a moment after it can be seen in the log.
                is_old = state is not None and fetch.began - self.world.since[key][1] > SLACK_S
                if steady and state is not None and is_old:
                    assert self.told.get(key) == (state[3], state[1]), f"{key} was not told {state}: {where}"
                continue
            if data.error_code:
                self.told.pop(key, None)
                self.check_error(fetch, key, wish, data, where)
                continue
            self.told[key] = (data.high_watermark, data.log_start_offset)
            self.check_records(fetch, key, wish, data, f"{key}: {where}")

    def check_error(self, fetch: UnderWay, key: Key, wish: Wanted, data: PartitionData, where: str) -> None:
        expected = (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        assert data.error_code in expected, f"{key}: {where}"
        state = fetch.seen[key]
        if fetch.was_steady and state is not None:
            assert not state[1] <= wish.offset <= state[4], f"{key} has an error: {where}"
        self.world.counts[ErrorCode(data.error_code).name] += 1
        self.wanted[key] = Wanted(self.some_offset(key), wish.bytes_max)

    def check_records(self, fetch: UnderWay, key: Key, wish: Wanted, data: PartitionData, where: str) -> None:
        batches = list(whole_batches(bytes(data.records or b"")))
        if not batches:
            return
        end = data.last_stable_offset if self.isolation else data.high_watermark
        first = batches[0].header()
        assert first.base_offset <= wish.offset <= first.last_offset, where
        coming = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
        aborted: set[int] = set()
        expected = first.base_offset
        for batch in batches:
            header = batch.header()
            assert header.base_offset == expected, f"a gap: {where}"
            assert header.last_offset < end, f"beyond what may be read: {where}"
            expected = header.last_offset + 1
            while coming and coming[0][0] <= header.base_offset:
                aborted.add(coming.pop(0)[1])
            self.check_batch(fetch, key, batch, aborted, where)
        if self.rng.random() < 0.85:
            self.wanted[key] = Wanted(expected, wish.bytes_max)

    def check_batch(self, fetch: UnderWay, key: Key, batch: Batch, aborted: set[int], where: str) -> None:
        header = batch.header()
        self.world.counts["batches"] += 1
        if header.is_control:
            aborted.discard(header.producer_id)
            return
        is_dropped = header.producer_id in aborted
        partition = self.world.partition(key)
        topic_id = None if partition is None else partition.log.topic_id
        known = self.world.values.get((topic_id or b"", key[2]), {}) if fetch.was_steady else {}
        for record in read_records(batch):
            value = bytes(record.value or b"")
            if header.is_transactional and self.isolation:
                assert value.startswith(b"aborted" if is_dropped else b"committed"), where
            elif not header.is_transactional:
                assert known.get(record.offset, value) == value, f"another value at {record.offset}: {where}"


def whole_batches(data: bytes) -> Iterator[Batch]:
    """The batches of an answer without the one that its limit has cut."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + PREFIX_BYTES
        if at + size > len(data):
            return
        yield from split(data[at : at + size])
        at += size


async def play(simulation: Simulation) -> Counter[str]:
    """One story, from a seed; what was checked."""
    world, rng = World(simulation), simulation.rng
    SmallSegmentsBroker.segment_bytes = rng.choice((3000, 10_000, 20_000, 1 << 20))
    await world.broker.start()
    creator = Client(simulation, "creator")
    for number in range(rng.choice((1, 2, 3))):
        configs = {"flush_messages": str(rng.choice((1, 3)))} if rng.random() < 0.4 else {}
        world.topics[f"t{number}"] = (rng.choice((1, 1, 2, 4)), configs)
        request = raw.create_topics_request({f"t{number}": world.topics[f"t{number}"][0]}, **configs)
        await creator.insist(request, raw.CREATE_TOPICS_VERSION)
    others = [produce(world, f"producer-{number}") for number in range(rng.choice((1, 2)))]
    others += [meddle(world), world.watch()]
    tasks = [asyncio.ensure_future(other) for other in others]
    tasks += [
        asyncio.ensure_future(world.broker.host.start(transact(world, 1000 + number)))
        for number in range(rng.choice((0, 1, 2)))
    ]
    try:
        await asyncio.gather(*(Consumer(world, f"consumer-{number}").run() for number in range(rng.choice((1, 2, 3)))))
    finally:
        world.over = True
        await asyncio.gather(*tasks)
    await world.broker.stop()
    return world.counts


def run(seed: int) -> Counter[str]:
    found: list[Counter[str]] = []

    async def main(simulation: Simulation) -> None:
        found.append(await play(simulation))

    before = SmallSegmentsBroker.segment_bytes
    try:
        run_simulation(main, seed, time_max_s=36_000.0)
    finally:
        SmallSegmentsBroker.segment_bytes = before
    return found[0]


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            total += run(seed)
        except BaseException:
            print(f"seed {seed} failed", file=sys.stderr)
            raise
    print(f"{count} seeds: {dict(total)}")
