"""Small Produce requests of one turn of the loop are appended together, and each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.broker.partitions.produce_at_once import TOGETHER_MAX
from headrace.broker.requests.pipeline import RequestPipeline
from headrace.error_codes import ErrorCode
from headrace.log import Log
from headrace.log.files import LogFile
from headrace.net.frames import CHUNK_BYTES
from headrace.protocol import codec
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.runtime import BUSY, DiskError

from . import raw
from .played import Transport, World, run

pytestmark = pytest.mark.usefixtures("large_segments")

VERSION = 12
Ends = list[Callable[[], None]]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches were written with each call."""
    seen: list[int] = []
    append = Log.append

    def noting(self: Log, batches: Any, leader_epoch: int = -1, now_ms: int | None = None) -> Any:
        seen.append(len(batches))
        return append(self, batches, leader_epoch, now_ms)

    monkeypatch.setattr(Log, "append", noting)
    return seen


class AllowsNothing:
    rules_version = 1

    def verdict(self, *asked: Any) -> bool:
        return False


class Turn:
    """Several connections that are read one after the other, then the end of the turn."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.ends: Ends = []
        self.connections: list[tuple[Any, Transport]] = []

        def at_turn_end(transport: Transport, finish: Callable[[], None]) -> bool:
            self.ends.append(finish)
            return True

        monkeypatch.setattr(Transport, "at_turn_end", at_turn_end, raising=False)

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.world.connect()
            self.connections.append((self.world.connection, self.world.transport))
            self.world.send((message, VERSION))

    def end(self) -> list[ProduceResponse | None]:
        for finish in self.ends:
            finish()
        return [self.answer(transport) for _, transport in self.connections]

    def answer(self, transport: Transport) -> ProduceResponse | None:
        if not transport.written:
            return None
        return codec.decode_response(ProduceResponse, VERSION, memoryview(transport.written)[4:])[1]

    def lose(self) -> None:
        for connection, transport in self.connections:
            if connection in self.world.broker.acceptor.connections:
                transport.closed = "lost"
                connection.connection_lost(None)


def produce(records: Any, *, topic: str = "t", acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def outcome(answer: ProduceResponse | None) -> tuple[int, int]:
    assert answer is not None
    result = raw.produced(answer)
    return result.error_code, result.base_offset


def played(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Turn], None]) -> None:
    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))  # which makes the route
        turn = Turn(world, monkeypatch)
        scenario(turn)
        turn.lose()
        await asyncio.sleep(1)

    run(main)


def test_all_are_written_at_once_and_answered_in_their_order(
    monkeypatch: pytest.MonkeyPatch, writes: list[int]
) -> None:
    def scenario(turn: Turn) -> None:
        writes.clear()
        turn.send(*(produce(raw.batch([b"%d" % number])) for number in range(10)))
        assert not writes
        assert not any(transport.written for _, transport in turn.connections)
        assert [outcome(answer) for answer in turn.end()] == [(0, offset) for offset in range(2, 12)]
        assert writes == [10]
        partition = turn.world.broker.partition("t", 0)
        assert partition.log.high_watermark == 12

    played(monkeypatch, scenario)


def test_no_more_wait_than_are_written_together(monkeypatch: pytest.MonkeyPatch, writes: list[int]) -> None:
    def scenario(turn: Turn) -> None:
        writes.clear()
        turn.send(*(produce(raw.batch([b"v"])) for _ in range(TOGETHER_MAX + 3)))
        assert writes == [TOGETHER_MAX]
        assert len([answer for answer in turn.end() if outcome(answer)[0] == 0]) == TOGETHER_MAX + 3
        assert writes == [TOGETHER_MAX, 3]
        for connection, transport in turn.connections:
            transport.written.clear()
            turn.world.connection, turn.world.transport = connection, transport
            turn.world.send((produce(raw.batch([b"next"])), VERSION))
        assert len([answer for answer in turn.end() if outcome(answer)[0] == 0]) == TOGETHER_MAX + 3

    played(monkeypatch, scenario)


def test_one_that_is_refused_does_not_hinder_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(turn: Turn) -> None:
        damaged = raw.batch([b"damaged"])
        damaged[-1] ^= 1
        turn.send(produce(raw.batch([b"a"])), produce(damaged), produce(raw.batch([b"b"])))
        assert [outcome(answer) for answer in turn.end()] == [(0, 2), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 3)]

    played(monkeypatch, scenario)


def test_producers_with_and_without_a_number_are_written_together(
    monkeypatch: pytest.MonkeyPatch, writes: list[int]
) -> None:
    def scenario(turn: Turn) -> None:
        numbered = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        turn.send(*(produce(raw.batch([b"v"], **options)) for options in ({}, numbered, {})))
        writes.clear()
        assert [outcome(answer) for answer in turn.end()] == [(0, 2), (0, 3), (0, 4)]
        assert writes == [3]
        answers = again(turn, *(produce(raw.batch([b"v"], **options)) for options in ({}, numbered, {})))
        assert [outcome(answer) for answer in answers] == [(0, 5), (0, 3), (0, 6)], "the second is a duplicate"

    played(monkeypatch, scenario)


def test_what_takes_long_to_look_at_goes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    begin = RequestPipeline.begin

    def noting(self: RequestPipeline, *args: Any) -> Any:
        context = begin(self, *args)
        taken.append(context.api_key)
        return context

    monkeypatch.setattr(RequestPipeline, "begin", noting)

    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))
        turn = Turn(world, monkeypatch)
        taken.clear()
        many = produce(raw.batch([bytes(number % 50) for number in range(1_100)]))
        turn.send(produce(raw.batch([b"a"])), many)
        turn.end()
        assert len(taken) == 1
        transport = turn.connections[1][1]
        for _ in range(100):
            await asyncio.sleep(0.01)
            if transport.written:
                break
        assert [outcome(turn.answer(transport)) for _, transport in turn.connections] == [(0, 2), (0, 3)]
        turn.lose()

    run(main)


def test_a_partition_that_is_led_by_another_within_the_turn_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, writes: list[int]
) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))
        writes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(turn.world.broker.partition("t", 0), "_refusal", "others lead")
            answers = turn.end()
        assert not writes
        assert {outcome(answer)[0] for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    played(monkeypatch, scenario)


def test_what_finds_its_disk_busy_is_written_together_and_answered_in_order(
    monkeypatch: pytest.MonkeyPatch, writes: list[int]
) -> None:
    """The clients' buffers are filled again meanwhile."""

    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))
        turn = Turn(world, monkeypatch)
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])), produce(b"no batch"))
        writes.clear()
        partition = world.broker.partition("t", 0)
        with monkeypatch.context() as patch:
            patch.setattr(type(partition.writer), "try_inline", lambda self, *work: BUSY)
            answers = turn.end()
        assert answers[:2] == [None, None]
        assert outcome(answers[2])[0] == ErrorCode.INVALID_RECORD, "it has nothing to wait for"
        world.connection, world.transport = turn.connections[0]
        world.send((produce(raw.batch([b"c"])), VERSION))
        await until(lambda: all(transport.written for _, transport in turn.connections))
        assert writes[0] == 2
        assert [outcome(turn.answer(transport)) for _, transport in turn.connections[:2]] == [(0, 2), (0, 3)]
        for finish in turn.ends:
            finish()
        await until(lambda: partition.log.high_watermark == 5)
        found = partition.log.locate(2, 1 << 20, limit=5, at_least_one=True)
        values = [value for _, value in raw.values_of(found.file.read(found.position, found.length))]
        assert values == [b"a", b"b", b"c"]
        turn.lose()

    run(main)


def test_records_that_have_to_be_on_the_disk_share_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    sync = Log.sync

    def noting(self: Log, **options: Any) -> None:
        syncs.append(self.end_offset)
        sync(self, **options)

    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))
        turn = Turn(world, monkeypatch)
        partition = world.broker.partition("t", 0)
        partition.reconfigure(replace(partition.log.config, flush_messages=1))
        await until(lambda: partition.log.durable_end == partition.log.end_offset)
        monkeypatch.setattr(Log, "sync", noting)
        turn.send(*(produce(raw.batch([b"v"])) for _ in range(20)))
        assert turn.end() == [None] * 20, "nothing is acknowledged before"
        assert partition.log.high_watermark == 2
        await until(lambda: all(transport.written for _, transport in turn.connections))
        assert [outcome(turn.answer(transport)) for _, transport in turn.connections] == [
            (0, offset) for offset in range(2, 22)
        ]
        assert syncs == [22]
        turn.lose()

    run(main)


@pytest.mark.parametrize("has_producer", [False, True])
def test_records_of_one_connection_wait_for_the_disk_together(has_producer: bool) -> None:
    """But those of a producer with an id one by one, as only the last of them is known for certain after a crash."""

    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))
        partition = world.broker.partition("t", 0)
        partition.reconfigure(replace(partition.log.config, flush_messages=1))
        await until(lambda: partition.log.durable_end == partition.log.end_offset)
        world.transport.written.clear()
        for number in range(5):
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number} if has_producer else {}
            world.send((produce(raw.batch([b"%d" % number], **producer)), VERSION))
        await asyncio.sleep(0)
        assert not world.transport.written
        assert partition.log.high_watermark == 2
        await until(lambda: partition.log.high_watermark == 7)
        await asyncio.sleep(0.1)
        left, offsets = memoryview(world.transport.written), []
        while left:
            size = int.from_bytes(left[:4], "big") + 4
            offsets.append(outcome(codec.decode_response(ProduceResponse, VERSION, left[4:size])[1]))
            left = left[size:]
        assert offsets == [(0, offset) for offset in range(2, 7)]

    run(main)


def test_a_client_that_sends_much_at_once_gets_all_answers_that_it_waits_for() -> None:
    """Others go before it; but what is there is sent, also when it has sent nothing more."""

    async def main(world: World) -> None:
        world.send((produce(raw.batch([b"first"])), VERSION))
        partition = world.broker.partition("t", 0)
        partition.reconfigure(replace(partition.log.config, flush_messages=1))
        await until(lambda: partition.log.durable_end == partition.log.end_offset)
        world.transport.written.clear()
        frames = [raw.frame(produce(raw.batch([b"%d" % number])), VERSION) for number in range(80)]
        world.send_bytes(b"".join(frames))
        expected = 80 * len(codec.encode_response(ProduceResponse(), VERSION, 1)[0])
        await until(lambda: partition.log.high_watermark == 82)
        await until(lambda: len(world.transport.written) > expected)
        await asyncio.sleep(1)
        left, offsets = memoryview(world.transport.written), []
        while left:
            size = int.from_bytes(left[:4], "big") + 4
            offsets.append(outcome(codec.decode_response(ProduceResponse, VERSION, left[4:size])[1]))
            left = left[size:]
        assert offsets == [(0, offset) for offset in range(2, 82)]

    run(main)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


def test_a_disk_that_fails_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))

        def failing(self: LogFile, parts: Any) -> int:
            raise DiskError("append", "t-0", 5)

        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "append", failing)
            answers = turn.end()
        assert [outcome(answer)[0] for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert turn.world.broker.partition("t", 0).is_offline

    played(monkeypatch, scenario)


def test_a_defect_costs_those_connections_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))
        with monkeypatch.context() as patch:
            patch.setattr(Log, "check_each", lambda *_: 1 // 0)
            assert turn.end() == [None, None]
        assert [transport.closed for _, transport in turn.connections] == ["aborted", "aborted"]
        turn.connections.clear()
        turn.ends.clear()
        turn.send(produce(raw.batch([b"c"])))
        assert [outcome(answer) for answer in turn.end()] == [(0, 2)]

    played(monkeypatch, scenario)
    assert "ZeroDivisionError" in caplog.text


def test_a_batch_that_cannot_be_looked_at_costs_its_own_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(turn: Turn) -> None:
        check = Log.check

        def failing(self: Log, records: Any, *args: Any, **options: Any) -> Any:
            return check(self, records, *args, **options) if b"odd" not in bytes(records) else 1 // 0

        monkeypatch.setattr(Log, "check", failing)
        turn.send(*(produce(raw.batch(values)) for values in ([b"a"], [b"odd", b"odd"], [b"b"])))
        first, odd, last = turn.end()
        assert [outcome(first), odd, outcome(last)] == [(0, 2), None, (0, 3)]
        assert [transport.closed for _, transport in turn.connections] == ["", "aborted", ""]

    played(monkeypatch, scenario)
    assert "ZeroDivisionError" in caplog.text


def test_a_client_that_is_gone_gets_no_answer_and_its_record_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))
        turn.connections[0][0].abort("gone")
        assert turn.end()[0] is None
        assert outcome(turn.answer(turn.connections[1][1])) == (0, 3)

    played(monkeypatch, scenario)


def test_a_request_that_fills_its_buffer_is_not_overwritten_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fills it is read again in the same turn."""

    def scenario(turn: Turn) -> None:
        room = CHUNK_BYTES - len(raw.frame(produce(raw.batch([bytes(15_000)])), VERSION)) + 15_000
        first, second = produce(raw.batch([b"a" * room])), produce(raw.batch([b"b" * room]))
        assert len(raw.frame(first, VERSION)) == CHUNK_BYTES
        turn.send(first)
        turn.world.send((second, VERSION))
        turn.end()
        transport = turn.connections[0][1]
        length = int.from_bytes(transport.written[:4], "big") + 4
        answers = [transport.written[4:length], transport.written[length + 4 :]]
        found = [codec.decode_response(ProduceResponse, VERSION, memoryview(one))[1] for one in answers]
        assert [outcome(answer) for answer in found] == [(0, 2), (0, 3)]
        log = turn.world.broker.partition("t", 0).log
        written = log.locate(2, 1 << 20, limit=4, at_least_one=True)
        records = bytes(written.file.read(written.position, written.length))
        assert records.count(b"a" * room) == records.count(b"b" * room) == 1

    played(monkeypatch, scenario)


def again(turn: Turn, *messages: Any) -> list[ProduceResponse | None]:
    """One more turn, in which the same connections send these."""
    turn.ends.clear()
    for (connection, transport), message in zip(turn.connections, messages):
        transport.written.clear()
        turn.world.connection, turn.world.transport = connection, transport
        turn.world.send((message, VERSION))
    return turn.end()


def test_each_request_of_a_connection_is_read_for_itself(monkeypatch: pytest.MonkeyPatch, writes: list[int]) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))
        turn.end()
        writes.clear()
        answers = again(turn, produce(raw.batch([b"c" * 500])), produce(raw.batch([b"d", b"d"])))
        assert [outcome(answer) for answer in answers] == [(0, 4), (0, 5)]
        damaged = raw.batch([b"damaged"])
        damaged[-1] ^= 1
        answers = again(turn, produce(damaged), produce(raw.batch([b"e"]), acks=1))
        assert [outcome(answer) for answer in answers] == [(ErrorCode.CORRUPT_MESSAGE, -1), (0, 7)]
        answers = again(turn, produce(raw.batch([b"f"]), topic="u"), produce(raw.batch([b"g"])))
        assert outcome(answers[0])[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert outcome(answers[1]) == (0, 8)
        assert len(writes) == 3
        metrics = turn.world.broker.pipeline.metrics[0]
        assert metrics.count == sum(metrics.local.buckets) == sum(metrics.send.buckets)

    played(monkeypatch, scenario)


def test_what_is_known_of_a_client_does_not_outlive_its_partition_nor_its_rights(
    monkeypatch: pytest.MonkeyPatch, writes: list[int]
) -> None:
    def scenario(turn: Turn) -> None:
        turn.send(produce(raw.batch([b"a"])), produce(raw.batch([b"b"])))
        turn.end()
        writes.clear()
        broker = turn.world.broker
        asked: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(broker.pipeline, "may", lambda context, request: asked.append(request))
            patch.setattr(broker.pipeline.access, "authorizer", AllowsNothing())
            answers = again(turn, produce(raw.batch([b"c"])), produce(raw.batch([b"d"])))
        assert len(asked) == 2
        assert [outcome(answer) for answer in answers] == [(0, 4), (0, 5)]
        writes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(broker.replicas, "partitions", {})
            answers = again(turn, produce(raw.batch([b"e"])), produce(raw.batch([b"f"])))
        assert not writes, "nothing is appended together"
        assert {outcome(answer)[0] for answer in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    played(monkeypatch, scenario)
