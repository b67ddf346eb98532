"""What librdkafka does with a batch of unknown outcome when it begins a new epoch: it writes it again.

Both answers that lead to it are Kafka's: a leader that was replaced has written a batch and tells
NOT_LEADER_OR_FOLLOWER, since it cannot know whether that stays; and one that refused a batch finds the next one out of
order. librdkafka then leaves its epoch in all partitions, and numbers anew what it has no answer for. Java's producer
and ours do not renumber what may have been written. `tests/checker` tells by librdkafka's log what came about this way.

And with its sequence numbers when a transaction is aborted that has a batch of unknown outcome: the next one begins
with the same numbers, in the same epoch.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import confluent_kafka
import pytest
from tests.waiting import eventually

from headrace.error_codes import ErrorCode
from headrace.protocol import codec
from headrace.protocol.api import ApiKey, api, is_flexible
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.testing import EmbeddedBroker

from .clients import TIMEOUT_S, confluent_consumer, create_topic, poll_confluent

ENVIRONMENT = "HEADRACE_TEST_KAFKA"
UNKNOWN, REFUSING = 0, 1
"""Partitions: of the batch whose outcome is not told, and of the one that is refused."""


class Fate(Enum):
    """What becomes of a batch. The first two are told NOT_LEADER_OR_FOLLOWER, the last is told nothing."""

    WRITTEN = "written"
    REFUSED = "refused"
    PASSES = "passes"
    LOST = "lost"


class DeposedLeader:
    """A proxy in front of a broker that answers some batches as a leader does that was replaced. It tells nothing of
    them before `go_on`, so that several are under way."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.fates: dict[bytes, Fate] = {}
        """By the value of a record. Each is met once."""
        self.met: list[bytes] = []
        self.is_lost = threading.Event()
        """A batch was written of which the client is never told."""
        self.go_on = threading.Event()
        self.is_ready = threading.Event()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.is_ready.set()
        await end.wait()
        server.close()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection(*self._target)
        asked: asyncio.Queue[tuple[bytes, Fate | None]] = asyncio.Queue()
        try:
            await asyncio.gather(self._ask(client, to_broker, asked), self._answer(broker, to_client, asked))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_client.close()
            to_broker.close()

    async def _ask(self, client: asyncio.StreamReader, to_broker: asyncio.StreamWriter, asked: Any) -> None:
        while True:
            request = await _frame(client)
            value = next((one for one in self.fates if one in request), None)
            fate = None if value is None else self.fates.pop(value)
            await asked.put((request, fate))
            if fate is not Fate.REFUSED:
                to_broker.write(struct.pack(">i", len(request)) + request)
            if value is not None:
                self.met.append(value)

    async def _answer(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter, asked: Any) -> None:
        while True:
            request, fate = await asked.get()
            key, version, correlation_id = struct.unpack_from(">hhi", request)
            answer = b"" if fate is Fate.REFUSED else await _frame(broker)
            if key == ApiKey.METADATA:
                answer = _changed(answer, key, version, correlation_id, self._as_broker)
            elif key == ApiKey.FIND_COORDINATOR:
                answer = _changed(answer, key, version, correlation_id, self._as_coordinator)
            elif fate is Fate.LOST:
                self.is_lost.set()
                raise ConnectionResetError("it is written, and nobody is told")
            elif fate is Fate.WRITTEN:
                answer = _changed(answer, key, version, correlation_id, _not_leader)
            elif fate is Fate.REFUSED:
                answer = _encoded(_refusal(request, version), version, correlation_id)
            if fate is not None:
                await asyncio.to_thread(self.go_on.wait, TIMEOUT_S)
            to_client.write(struct.pack(">i", len(answer)) + answer)

    def _as_broker(self, metadata: Any) -> None:
        for broker in metadata.brokers:
            broker.host, broker.port = "127.0.0.1", self.port

    def _as_coordinator(self, found: Any) -> None:
        for coordinator in (found, *found.coordinators):
            coordinator.host, coordinator.port = "127.0.0.1", self.port


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _changed(answer: bytes, key: int, version: int, correlation_id: int, change: Callable[[Any], None]) -> bytes:
    _, message = codec.decode_response(api(key).response, version, answer)
    change(message)
    return _encoded(message, version, correlation_id)


def _encoded(message: Any, version: int, correlation_id: int) -> bytes:
    return b"".join(bytes(part) for part in codec.encode_response(message, version, correlation_id))[4:]


def _not_leader(produced: Any) -> None:
    part = produced.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NONE, "it was to be written"
    part.error_code, part.base_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1


def _refusal(request: bytes, version: int) -> ProduceResponse:
    header = codec.decode_request_header(request, is_flexible)
    topic = codec.decode(api(ApiKey.PRODUCE).request, version, request, header.body_position).topic_data[0]
    part = PartitionProduceResponse(
        index=topic.partition_data[0].index,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        base_offset=-1,
        record_errors=[],
    )
    told = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[part])
    return ProduceResponse(responses=[told], throttle_time_ms=0)


@contextmanager
def deposed_leader(target: str) -> Iterator[DeposedLeader]:
    leader = DeposedLeader(target)
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        ends.append((asyncio.get_running_loop(), asyncio.Event()))
        await leader.serve(ends[0][1])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert leader.is_ready.wait(TIMEOUT_S)
        yield leader
    finally:
        leader.go_on.set()
        loop, end = ends[0]
        loop.call_soon_threadsafe(end.set)
        thread.join()


@pytest.fixture(params=["headrace", "apache"])
def address(request: pytest.FixtureRequest, kafka: EmbeddedBroker) -> str:
    if request.param == "headrace":
        return kafka.address
    if ENVIRONMENT not in os.environ:
        pytest.skip(f"{ENVIRONMENT} names no Apache Kafka")
    return os.environ[ENVIRONMENT]


def test_librdkafka_writes_a_batch_of_unknown_outcome_again_when_another_partition_misses_one(
    address: str,
) -> None:
    topic = f"epochs-{uuid.uuid4().hex}"  # the Apache Kafka is there for others, too
    create_topic(address, topic, partitions=2)
    acknowledged: list[bytes] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged.append(message.value())

    with deposed_leader(address) as leader:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": leader.address, "enable.idempotence": True, "linger.ms": 0}
        )

        def send(partition: int, value: bytes, fate: Fate | None = None) -> None:
            if fate is not None:
                leader.fates[value] = fate
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            eventually(
                lambda: producer.poll(0.01) is not None and value in [*leader.met, *acknowledged],
                f"{value!r} is sent",
                TIMEOUT_S,
            )

        send(UNKNOWN, b"first-of-unknown")
        send(REFUSING, b"first-of-refusing")
        send(UNKNOWN, b"written-and-not-told", Fate.WRITTEN)
        send(REFUSING, b"refused", Fate.REFUSED)
        send(REFUSING, b"out-of-order", Fate.PASSES)
        leader.go_on.set()
        assert producer.flush(TIMEOUT_S) == 0
        assert len(acknowledged) == 5

    consumer = confluent_consumer(address, topic)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in (UNKNOWN, REFUSING)])
    try:
        found = poll_confluent(consumer, 6)
    finally:
        consumer.close()
    values = {
        partition: [message.value() for message in found if message.partition() == partition]
        for partition in (UNKNOWN, REFUSING)
    }
    assert values[REFUSING] == [b"first-of-refusing", b"refused", b"out-of-order"]
    assert values[UNKNOWN] == [b"first-of-unknown", b"written-and-not-told", b"written-and-not-told"]


@pytest.mark.slow
def test_a_transaction_whose_records_are_numbered_as_aborted_ones_ends_aborted(
    kafka: EmbeddedBroker, topic: str
) -> None:
    """Apache Kafka says that they are there already, so it is committed, and they are lost."""
    create_topic(kafka.address, topic)
    with deposed_leader(kafka.address) as leader:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": leader.address,
                "transactional.id": topic,
                "linger.ms": 0,
                # What may have been written is not sent again before the transaction is aborted.
                "retry.backoff.ms": 1000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
            }
        )
        producer.init_transactions(TIMEOUT_S)

        def begin(value: bytes) -> None:
            producer.begin_transaction()
            producer.produce(topic, value, partition=0)

        begin(b"first")
        producer.commit_transaction(TIMEOUT_S)
        leader.fates[b"aborted"] = Fate.LOST
        begin(b"aborted")
        eventually(lambda: producer.poll(0.01) is not None and leader.is_lost.is_set(), "it is written", TIMEOUT_S)
        producer.abort_transaction(TIMEOUT_S)
        begin(b"numbered as the aborted one")
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            producer.commit_transaction(TIMEOUT_S)
        assert refused.value.args[0].txn_requires_abort(), refused.value
        producer.abort_transaction(TIMEOUT_S)
        begin(b"numbered as the aborted one")
        producer.commit_transaction(TIMEOUT_S)
        begin(b"last")
        producer.commit_transaction(TIMEOUT_S)

    consumer = confluent_consumer(kafka.address, topic)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        found = poll_confluent(consumer, 3)
    finally:
        consumer.close()
    assert [message.value() for message in found] == [b"first", b"numbered as the aborted one", b"last"]
