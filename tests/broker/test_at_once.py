"""Requests of the common shapes are answered in one go, with the very bytes that the long way gives."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.broker.requests.dispatch import RequestContext
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.error_codes import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.records import Codec, TimestampType
from headrace.runtime import DiskError, OverloadedError

from . import raw
from .played import World, run

pytestmark = pytest.mark.usefixtures("large_segments")

NO_ID = bytes(16)
Messages = list[tuple[Any, int]]


@pytest.fixture
def taken_the_long_way(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """Which requests went through all steps, in order."""
    seen: list[ApiKey] = []
    begin = RequestPipeline.begin

    def noting(self: RequestPipeline, *args: Any) -> RequestContext:
        context = begin(self, *args)
        seen.append(context.api_key)
        return context

    monkeypatch.setattr(RequestPipeline, "begin", noting)
    return seen


def topic_id(world: World) -> bytes:
    found = world.broker.cluster.topic_id("t")
    assert found is not None
    return found


def produce(
    records: Any, *, topic: str = "t", topic_id: bytes = NO_ID, index: int = 0, **fields: Any
) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=records)
    topics = [TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])]
    return ProduceRequest(**{"acks": -1, "timeout_ms": 30_000, "topic_data": topics, **fields})


def fetch(offset: int, *, topic: str = "t", topic_id: bytes = NO_ID, index: int = 0, **fields: Any) -> FetchRequest:
    most, epoch = fields.pop("partition_max_bytes", 1 << 20), fields.pop("current_leader_epoch", -1)
    part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=most, current_leader_epoch=epoch)
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=[part])]
    return FetchRequest(**{"max_wait_ms": 0, "session_epoch": -1, "topics": topics, **fields})


def damaged() -> bytearray:
    records = raw.batch([b"damaged"])
    records[-1] ^= 1
    return records


def produces(topic_id: bytes) -> Iterator[tuple[ProduceRequest, int]]:
    for version in (3, 7, 8, 9, 12, 13):
        yield produce(raw.batch([b"one"]), topic_id=topic_id), version
        yield produce(raw.batch([b"two"]), topic_id=topic_id, acks=1), version
        yield produce(raw.batch([b"three", b"four"]), topic_id=topic_id), version
        yield produce(raw.batch([bytes(3_000)]), topic_id=topic_id), version
        yield produce(damaged(), topic_id=topic_id), version
        yield produce(raw.batch([b"acks"]), topic_id=topic_id, acks=7), version
        yield produce(raw.batch([b"nowhere"]), topic="u", topic_id=bytes(15) + b"u"), version
        yield produce(raw.batch([b"no such"]), topic_id=topic_id, index=5), version
        yield produce(b"no batch", topic_id=topic_id), version
        yield produce(raw.batch([b"zstd"], codec=Codec.ZSTD), topic_id=topic_id), version
        yield (
            produce(raw.batch([b"numbered"], producer_id=7, producer_epoch=0, base_sequence=0), topic_id=topic_id),
            version,
        )
        yield produce(raw.batch([b"gap"], producer_id=7, producer_epoch=0, base_sequence=9), topic_id=topic_id), version
        yield (
            produce(
                raw.batch([b"lost"], producer_id=8, producer_epoch=0, base_sequence=0, transactional=True),
                topic_id=topic_id,
            ),
            version,
        )


def fetches(topic_id: bytes) -> Iterator[tuple[FetchRequest, int]]:
    for version in (4, 6, 7, 11, 12, 13, 16, 18):
        for isolation in (0, 1, 2):
            yield fetch(0, topic_id=topic_id, isolation_level=isolation), version
            yield fetch(1, topic_id=topic_id, isolation_level=isolation), version
            yield fetch(1, topic_id=topic_id, isolation_level=isolation, max_wait_ms=100), version
            yield fetch(1, topic_id=topic_id, isolation_level=isolation, partition_max_bytes=1), version
            yield fetch(2, topic_id=topic_id, isolation_level=isolation, max_bytes=-1), version
        yield fetch(10_000, topic_id=topic_id), version
        yield fetch(-1, topic_id=topic_id), version
        yield fetch(1, topic_id=topic_id, current_leader_epoch=99), version
        yield fetch(1, topic_id=topic_id, current_leader_epoch=-7), version
        yield fetch(1, topic="u", topic_id=bytes(15) + b"u"), version
        yield fetch(1, topic_id=topic_id, index=9), version


def answers_to_all(monkeypatch: pytest.MonkeyPatch, *, at_once: bool) -> tuple[list[bytes], dict[Any, Any]]:
    found: list[bytes] = []
    counted: dict[Any, Any] = {}
    if not at_once:
        monkeypatch.setattr(RequestPipeline, "at_once", lambda self, connection, frame, may_put_off: None)

    async def scenario(world: World) -> None:
        every = [*produces(topic_id(world)), *fetches(topic_id(world))]
        # Three times: the first makes the route, the second is read, the third may be compared with it.
        for message, version in (one for one in every for _ in range(3)):
            world.transport.written.clear()
            world.send((message, version))
            written = world.transport.written
            for _ in range(1000):
                # Of records that are not in memory the head comes first.
                if world.transport.closed or (written and len(written) == 4 + struct.unpack_from(">i", written)[0]):
                    break
                await asyncio.sleep(0.01)
            found.append(bytes(world.transport.written))
        for key in (ApiKey.PRODUCE, ApiKey.FETCH):
            one = world.broker.pipeline.metrics[key]
            counted[key] = (one.count, one.errors, one.request_bytes, one.response_bytes)

    run(scenario)
    return found, counted


def test_every_answer_has_the_bytes_of_the_long_way(
    monkeypatch: pytest.MonkeyPatch, taken_the_long_way: list[ApiKey]
) -> None:
    quick = answers_to_all(monkeypatch, at_once=True)
    left = len(taken_the_long_way)
    assert all(quick[0])
    slow = answers_to_all(monkeypatch, at_once=False)
    assert quick == slow
    assert left < len(taken_the_long_way) - left - 60, "most of what can be answered in one go is"


def test_the_common_shapes_are_answered_in_one_go(taken_the_long_way: list[ApiKey]) -> None:
    async def scenario(world: World) -> None:
        identity = topic_id(world)
        everyday: Messages = [(MetadataRequest(topics=None), 12)]
        for version in (3, 7, 9, 12, 13):
            everyday.append((produce(raw.batch([b"x"]), topic_id=identity), version))
        for version in (4, 7, 12, 13, 16, 18):
            everyday += [
                (fetch(1, topic_id=identity, max_wait_ms=500, isolation_level=level), version) for level in (0, 1)
            ]
        world.send(*everyday)  # the first of its kind makes the route
        taken_the_long_way.clear()
        world.send(*everyday)
        assert taken_the_long_way == []
        # Also where several come with one read.
        world.send_bytes(b"".join(raw.frame(message, version) for message, version in everyday[:3]))
        assert taken_the_long_way == []

    run(scenario)


def test_a_long_request_is_not_copied_to_look_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes | None] = []
    begin = RequestPipeline.begin

    def noting(self: RequestPipeline, *args: Any) -> RequestContext:
        context = begin(self, *args)
        kept.append(context.to_keep)
        return context

    async def scenario(world: World) -> None:
        monkeypatch.setattr(RequestPipeline, "begin", noting)
        topics = [MetadataRequestTopic(name=f"{number:0200d}") for number in range(50)]
        world.send((MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12))
        world.send((MetadataRequest(topics=topics[:1], allow_auto_topic_creation=False), 12))
        assert [found is not None for found in kept] == [False, True]

    run(scenario)


def test_what_is_allowed_is_answered_in_one_go_and_nothing_of_who_is_unknown(
    taken_the_long_way: list[ApiKey],
) -> None:
    class OfReaders:
        rules_version = 1

        def verdict(self, principal: str, *asked: Any) -> bool:
            return principal == "User:reader"

    async def scenario(world: World) -> None:
        message = (fetch(1), 12)
        world.broker.pipeline.access.authorizer = OfReaders()
        world.connection.identify("User:reader")
        world.send(message, message)
        taken_the_long_way.clear()
        world.send(message)
        assert not taken_the_long_way
        world.connection.identify("User:writer")
        world.send(message)
        assert taken_the_long_way == [ApiKey.FETCH]
        assert not world.transport.closed
        world.connection.identify(None)
        world.send(message)
        assert taken_the_long_way == [ApiKey.FETCH]
        assert world.transport.closed

    run(scenario)


def fetched(world: World, message: FetchRequest, version: int) -> list[Any]:
    """Error, high watermark and values that one fetch is answered with."""
    world.transport.written.clear()
    world.send((message, version))
    (answer,) = answers(world, FetchResponse, version)
    result = raw.fetched(answer)
    return [result.error_code, result.high_watermark, [value for _, value in raw.values_of(result.records or b"")]]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_fetches_of_one_connection_are_each_answered_for_themselves(
    version: int, taken_the_long_way: list[ApiKey]
) -> None:
    async def scenario(world: World) -> None:
        identity = topic_id(world)
        for value in (b"a", b"b"):
            world.send((produce(raw.batch([value])), 12))
        assert fetched(world, fetch(1, topic_id=identity), version) == [0, 3, [b"a", b"b"]]  # which makes the route
        taken_the_long_way.clear()
        assert fetched(world, fetch(2, topic_id=identity), version) == [0, 3, [b"b"]]
        world.send((produce(raw.batch([b"c"])), 12))
        assert fetched(world, fetch(1, topic_id=identity), version) == [0, 4, [b"a", b"b", b"c"]]
        assert fetched(world, fetch(4, topic_id=identity), version) == [0, 4, []]
        assert not taken_the_long_way
        assert fetched(world, fetch(5, topic_id=identity), version)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetched(world, fetch(2, topic_id=identity), version) == [0, 4, [b"b", b"c"]]
        metrics = world.broker.pipeline.metrics[ApiKey.FETCH]
        assert metrics.count == sum(metrics.local.buckets) == sum(metrics.send.buckets)

    run(scenario)


def test_what_a_fetch_depends_on_may_change_between_two_of_them(
    monkeypatch: pytest.MonkeyPatch, taken_the_long_way: list[ApiKey]
) -> None:
    async def scenario(world: World) -> None:
        broker, identity = world.broker, topic_id(world)
        for value in (b"a", b"b" * 200):
            world.send((produce(raw.batch([value])), 12))
        for version in (12, 13):
            message = fetch(1, topic_id=identity)
            for _ in range(3):
                assert fetched(world, message, version)[2] == [b"a", b"b" * 200]
            taken_the_long_way.clear()
            with monkeypatch.context() as patch:
                patch.setattr(broker.replicas, "partitions", {})
                assert fetched(world, message, version)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            with monkeypatch.context() as patch:
                patch.setattr(broker.replicas.partitions["t", 0], "_refusal", "it counts as dead")
                assert fetched(world, message, version)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert taken_the_long_way == [ApiKey.FETCH] * 2
            with monkeypatch.context() as patch:  # as another configuration of this broker does
                values = {**broker.config.values, "fetch.max.bytes": 10}
                patch.setattr(broker.cluster, "_config", replace(broker.config, values=values))
                assert fetched(world, message, version)[2] == [b"a"]
            assert fetched(world, message, version)[2] == [b"a", b"b" * 200]
            assert len(taken_the_long_way) == 2
        monkeypatch.setattr(broker.cluster, "topic_name", lambda topic_id: None)
        assert fetched(world, fetch(1, topic_id=identity), 13)[0] == ErrorCode.UNKNOWN_TOPIC_ID

    run(scenario)


def test_a_batch_that_waits_for_the_disk_is_not_changed_by_what_comes_after_it() -> None:
    """It lay in the connection's buffer, which is filled again while the disk is busy."""

    async def scenario(world: World) -> None:
        world.send((produce(raw.batch([b"a" * 90])), 12))
        partition = world.broker.partition("t", 0)
        syncing = partition.writer.sync((partition.log,))
        world.send((produce(raw.batch([b"b" * 90])), 12))
        assert partition.log.end_offset == 2, "it waits its turn"
        world.connection.get_buffer(-1)[:400] = b"z" * 400
        await syncing
        await asyncio.sleep(1)
        world.transport.written.clear()
        world.send((fetch(1), 12))
        (answer,) = answers(world, FetchResponse, 12)
        values = [value for _, value in raw.values_of(raw.fetched(answer).records)]
        assert values == [b"a" * 90, b"b" * 90]

    run(scenario)


def test_what_a_broker_may_not_do_while_it_counts_as_dead_it_does_not_do_in_one_go_either() -> None:
    async def scenario(world: World) -> None:
        message = (produce(raw.batch([b"x"])), 12)
        world.send(message)
        partition = world.broker.partition("t", 0)
        end_offset = partition.log.end_offset
        world.broker.replicas.suspend("its session is over")
        world.transport.written.clear()
        world.send(message)
        (answer,) = answers(world, ProduceResponse, 12)
        assert raw.produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.end_offset == end_offset
        world.broker.replicas.resume()
        world.transport.written.clear()
        world.send(message)
        (answer,) = answers(world, ProduceResponse, 12)
        assert raw.produced(answer).base_offset == end_offset

    run(scenario)


def test_a_batch_that_waits_for_the_disk_is_stamped_once() -> None:
    """A broker's stamp in a batch that a client sends is refused: none may be written into what is tried again."""

    async def scenario(world: World) -> None:
        partition = world.broker.partition("t", 0)
        partition.reconfigure(replace(partition.log.config, timestamp_type=TimestampType.LOG_APPEND_TIME))
        message = (produce(raw.batch([b"x"])), 12)
        world.send(message)
        world.transport.written.clear()
        syncing = partition.writer.sync((partition.log,))
        world.send(message)
        # Also one that came with others, and lies in no buffer that is filled again.
        world.send_bytes(raw.frame(*message) + raw.frame(*message))
        await syncing
        await asyncio.sleep(1)
        codes = [raw.produced(answer).error_code for answer in answers(world, ProduceResponse, 12)]
        assert codes == [ErrorCode.NONE] * 3

    run(scenario)


def test_what_cannot_be_looked_into_for_now_costs_its_answer_and_not_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        def is_full(*args: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(OverloadedError("no thread can be started"))
            return future

        monkeypatch.setattr(world.broker.checks, "submit", is_full)
        world.send((produce(raw.batch([b"x" * (number % 50) for number in range(2000)])), 12))
        await asyncio.sleep(1)
        (answer,) = answers(world, ProduceResponse, 12)
        assert raw.produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        world.transport.written.clear()
        wanted = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=1)])
        world.send((ListOffsetsRequest(topics=[wanted]), 7))
        await asyncio.sleep(1)
        (answer,) = answers(world, ListOffsetsResponse, 7)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not world.transport.closed

    run(scenario)


@pytest.mark.parametrize("full", ["submit", "sync"])
def test_a_disk_that_is_asked_for_too_much_costs_a_batch_and_not_the_connection(
    monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    async def scenario(world: World) -> None:
        partition = world.broker.partition("t", 0)
        if full == "sync":
            partition.reconfigure(replace(partition.log.config, flush_messages=1))
        world.send((produce(raw.batch([b"one"])), 12))
        await asyncio.sleep(1)
        syncing = partition.writer.sync((partition.log,))

        def is_full(*args: Any) -> Any:
            raise OverloadedError("too much waits")

        with monkeypatch.context() as patch:
            patch.setattr(partition.writer, full, is_full)
            world.transport.written.clear()
            world.send((produce(raw.batch([b"two"])), 12))
            await syncing
            await asyncio.sleep(1)
        (answer,) = answers(world, ProduceResponse, 12)
        assert raw.produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not world.transport.closed
        assert not partition.is_offline

    run(scenario)


def test_a_disk_that_fails_is_told_and_takes_the_partition_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        message = (produce(raw.batch([b"x"])), 12)
        world.send(message)
        partition = world.broker.partition("t", 0)

        def failing(parts: Any) -> int:
            raise DiskError("append", "t-0", 5)

        monkeypatch.setattr(type(partition.log.files.active.file), "append", lambda self, parts: failing(parts))
        world.transport.written.clear()
        world.send(message)
        (answer,) = answers(world, ProduceResponse, 12)
        assert raw.produced(answer).error_code == 56
        assert partition.is_offline

    run(scenario)


def test_a_client_that_does_not_read_is_not_served_further(taken_the_long_way: list[ApiKey]) -> None:
    async def scenario(world: World) -> None:
        message = (fetch(1, max_wait_ms=0), 12)
        world.send(message)
        world.transport.written.clear()
        before = world.broker.pipeline.metrics[ApiKey.FETCH].count
        world.transport.is_full = True
        world.send(message, message, message)
        assert len(answers(world, FetchResponse, 12)) == 1
        assert world.connection.is_backed_up
        assert world.broker.pipeline.metrics[ApiKey.FETCH].count == before
        world.transport.is_full = False
        world.connection.resume_writing()
        assert len(answers(world, FetchResponse, 12)) == 3
        assert world.broker.pipeline.metrics[ApiKey.FETCH].count == before + 3

    run(scenario)


def answers(world: World, cls: type, version: int) -> list[Any]:
    found = []
    data = bytes(world.transport.written)
    while data:
        size = struct.unpack_from(">i", data)[0]
        found.append(codec.decode_response(cls, version, data[4 : 4 + size])[1])
        data = data[4 + size :]
    return found
