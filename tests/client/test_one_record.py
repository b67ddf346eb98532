"""One record by the short way: the same bytes as by the usual one, and the usual one wherever the short one ends."""

from __future__ import annotations

import random

import pytest

from headrace.client.cluster_view import Node
from headrace.client.connection_core import Connection
from headrace.client.one_record import _PROBE, Frame
from headrace.protocol.codec import encode_request
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.records import build_batch_of
from headrace.records.build import build_one

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
