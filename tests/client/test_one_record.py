"""One record by the short way: the same bytes as by the usual one, and the usual one wherever the short one ends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from headrace.client.producer._one_record import _PROBE, Frame, OneRecord
from headrace.net.connection import Connection
from headrace.net.node import Node
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import encode_request
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.records import build_batch_of
from headrace.records.build import build_one

from .fake import CUT, CUT_BEFORE, SILENCE, FakeCluster, VirtualClock, World

TOPIC_ID = bytes(range(16))


def request(records: bytes | memoryview) -> ProduceRequest:
    data = PartitionProduceData(index=7, records=memoryview(records))
    topic = TopicProduceData(name="orders", topic_id=TOPIC_ID, partition_data=[data])
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[topic])


def test_a_batch_of_one_has_the_bytes_that_any_batch_has() -> None:
    rng = random.Random(11)
    contents: list[bytes | None] = [None, b"", b"k", rng.randbytes(63), rng.randbytes(64), rng.randbytes(9_000)]
    for key in contents:
        for value in contents:
            stamp, producer = rng.choice([-1, 0, 1_700_000_000_000]), rng.choice([(-1, -1, -1), (4_711, 3, 2**31 - 1)])
            usual = build_batch_of(
                [stamp], [key], [value], producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
            )
            assert build_one(stamp, key, value, *producer) == usual
    with pytest.raises(ValueError, match="negative"):
        build_one(-2, None, b"", -1, -1, -1)


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("client_id", [None, "", "café"])
def test_a_frame_has_the_bytes_that_the_codec_gives(version: int, client_id: str | None) -> None:
    rng = random.Random(version)
    frame = Frame(Connection(Node(1, "h", 1), client_id, 0.0, 1.0), request_with_probe(), version, TOPIC_ID)
    for size in (1, 126, 127, 128, 16_382, 16_383, 16_384, 40_000):
        batch, number = rng.randbytes(size), rng.randrange(2**31)
        usual = b"".join(encode_request(request(batch), version, number, client_id))
        assert frame.around(batch, number) == usual


def request_with_probe() -> ProduceRequest:
    made = request(b"")
    made.topic_data[0].partition_data[0].records = _PROBE
    return made


# --- over a fake cluster ----------------------------------------------------------------------------------------------


def produce_versions(cluster: FakeCluster) -> list[int]:
    return [version for _, name, version, _ in cluster.requests if name == "Produce"]


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [True, False])
def test_records_sent_alone_are_there_once_and_in_order_whatever_becomes_of_their_requests(idempotent: bool) -> None:
    rng = random.Random(23)
    cluster = FakeCluster(VirtualClock(), brokers=2, topics={"t": 4})
    config = {} if idempotent else {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
    world = World(cluster, linger_ms=0, request_timeout_ms=1_000, delivery_timeout_ms=200_000, **config)
    one = OneRecord(world.producer)
    # Without numbers a record whose answer is lost is written twice: only what is not served is lost there.
    troubles = [CUT_BEFORE, CUT, SILENCE] if idempotent else [CUT_BEFORE]
    cluster.script = lambda node, name, request: rng.choice(troubles) if rng.random() < 0.2 else None
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    ways: Counter[bool] = Counter()
    for i in range(400):
        if rng.random() < 0.05:
            partition = rng.randrange(4)
            leader, epoch = cluster.leaders["t", partition]
            cluster.leaders["t", partition] = (3 - leader, epoch + 1)
        value = b"%d" % i
        delivery = world.send("t", value, key=rng.choice([None, b"a", b"b"]))
        call = one.send(delivery)
        ways[call is not None] += 1
        assert (delivery not in world.producer.accumulator.pending) or call is None
        world.deliver([delivery])
        sent[delivery.result().partition].append(value)
    assert {p: log.values for (_, p), log in cluster.logs.items()} == sent
    assert ways[True] > 200
    assert world.producer.is_idle
    assert world.producer.accumulator.buffered_bytes == 0


def test_the_usual_way_is_taken_where_the_short_one_ends() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 2})
    world = World(cluster, linger_ms=0)
    one = OneRecord(world.producer)

    def sent(**record: Any) -> bool:
        """Whether it went out at once, by whichever way."""
        delivery = world.send("t", record.pop("value", b"v"), **record)
        call = one.send(delivery)
        world.deliver([delivery])
        return call is not None

    assert not sent()  # neither the topic nor the producer id is known
    for record in ({}, {"partition": 1}, {"headers": [("h", b"")]}, {"value": b"x" * 20_000}):
        assert sent(**record), record
    # No leader: -1 is nobody, and not the bootstrap server that has this number.
    cluster.leaders["t", 0] = (-1, 1)
    world.core.refresh_metadata()
    world.run_until(lambda: world.core.view.leader_of("t", 0) is None)
    before = len(produce_versions(cluster))
    delivery = world.send("t", b"late", partition=0)
    assert one.send(delivery) is None
    world.settle()
    assert len(produce_versions(cluster)) == before
    cluster.leaders["t", 0] = (1, 2)
    world.deliver([delivery])


def test_brokers_of_before_flexible_fields_are_sent_to_by_the_usual_way() -> None:
    cluster = FakeCluster(VirtualClock(), topics={"t": 1})
    cluster.served[ApiKey.PRODUCE] = (3, 8)
    world = World(cluster, linger_ms=0)
    one = OneRecord(world.producer)
    for _ in range(3):
        delivery = world.send("t", b"v")
        one.send(delivery)
        world.deliver([delivery])
    assert set(produce_versions(cluster)) == {8}
    assert cluster.values("t") == [b"v"] * 3
