"""The codecs for the common shapes of Produce and Fetch say what the generated ones say, or nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.protocol import codec
from headrace.protocol.common_shapes import small_fetch, small_produce
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
TOPIC_IDS_SINCE_VERSION = 13
ID = bytes(range(16))


def topic_bytes(name: str, version: int, flexible: int) -> bytes:
    data = name.encode()
    if version >= TOPIC_IDS_SINCE_VERSION:
        return ID
    return (bytes((len(data) + 1,)) if version >= flexible else len(data).to_bytes(2, "big")) + data


def produce(*parts: PartitionProduceData, name: str = "t", **fields: Any) -> ProduceRequest:
    topics = [TopicProduceData(name=name, topic_id=ID, partition_data=list(parts))]
    return ProduceRequest(**{"acks": -1, "timeout_ms": 5, "topic_data": topics, **fields})


def fetch(*parts: FetchPartition, name: str = "t", **fields: Any) -> FetchRequest:
    topics = [FetchTopic(topic=name, topic_id=ID, partitions=list(parts))]
    return FetchRequest(**{"session_epoch": -1, "topics": topics, **fields})


def body(message: Any, version: int) -> memoryview:
    """As it lies in a frame: something before it."""
    return memoryview(bytearray(b"head" + codec.encode(message, version)))


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_382, 16_383, 16_384, 100_000, 2_097_150])
def test_a_small_produce_is_read(version: int, size: int) -> None:
    records = random.Random(size).randbytes(size)
    for name, acks, index in (("t", -1, 0), ("a-name." * 18, 1, 7), ("a-name." * 19, 1, 7), ("ö", 0, 2**31 - 1)):
        request = produce(PartitionProduceData(index=index, records=records), name=name, acks=acks)
        found = small_produce(version).read(body(request, version), 4)
        if len(name.encode()) > 126 and version < TOPIC_IDS_SINCE_VERSION:
            assert found is None
            continue
        assert found is not None
        assert found == (topic_bytes(name, version, 9), acks, 5, index, records)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_any_other_produce_is_not(version: int) -> None:
    one = PartitionProduceData(index=1, records=b"records")
    others = [
        produce(one, transactional_id="x"),
        produce(one, transactional_id=""),
        produce(one, one),
        produce(),
        produce(PartitionProduceData(index=1, records=None)),
        produce(PartitionProduceData(index=1, records=b"")),
        produce(topic_data=[]),
        produce(topic_data=[TopicProduceData(name="t", topic_id=ID, partition_data=[one])] * 2),
    ]
    if version < TOPIC_IDS_SINCE_VERSION:
        others.append(produce(one, name=""))
    read = small_produce(version).read
    for request in others:
        assert read(body(request, version), 4) is None
    nothing_else_is_read(read, body(produce(one), version), version >= 9)


def nothing_else_is_read(read: Any, whole: memoryview, is_flexible: bool) -> None:
    """Not a part of a request, nor one with something behind it."""
    assert read(whole, 4) is not None
    for end in range(len(whole)):
        assert read(whole[:end], 4) is None
    assert read(memoryview(bytes(whole) + b"\x00"), 4) is None
    if is_flexible:
        assert read(memoryview(bytes(whole[:-1]) + b"\x01\x63\x00"), 4) is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_what_is_read_of_changed_bytes_is_what_the_decoder_reads(version: int) -> None:
    first = body(produce(PartitionProduceData(index=3, records=b"records"), name="topic"), version)
    rng, read = random.Random(version), small_produce(version).read
    taken = 0
    for at in range(4, len(first)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)} - {first[at]}:
            other = memoryview(bytearray(first))
            other[at] = value
            found = read(other, 4)
            if found is None:
                continue
            taken += 1
            request = codec.decode(ProduceRequest, version, other, 4)
            (topic,) = request.topic_data
            (part,) = topic.partition_data
            assert request.transactional_id is None
            assert found[1:] == (request.acks, request.timeout_ms, part.index, part.records)
            if version >= TOPIC_IDS_SINCE_VERSION:
                assert found[0] == topic.topic_id
            else:
                assert str(found[0][1 if version >= 9 else 2 :], "utf-8", "replace") == topic.name
    assert taken > 50


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_what_is_answered_to_a_small_produce_has_the_generated_bytes(version: int) -> None:
    for index, offset, time_ms, start in ((0, 0, -1, 0), (7, 2**40, 1_700_000_000_000, 5)):
        result = PartitionProduceResponse(
            index=index, base_offset=offset, log_append_time_ms=time_ms, log_start_offset=start
        )
        answer = ProduceResponse(responses=[TopicProduceResponse(name="t", topic_id=ID, partition_responses=[result])])
        packed = small_produce(version).answer(99, topic_bytes("t", version, 9), index, offset, time_ms, start)
        assert packed == b"".join(codec.encode_response(answer, version, 99))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_small_fetch_is_read(version: int) -> None:
    part = FetchPartition(partition=3, current_leader_epoch=2, fetch_offset=2**40, partition_max_bytes=77)
    request = fetch(part, max_wait_ms=500, min_bytes=2, max_bytes=1 << 20, isolation_level=1)
    found = small_fetch(version).read(body(request, version), 4)
    epoch = 2 if version >= 9 else -1
    assert found == (topic_bytes("t", version, 12), 500, 2, 1 << 20, 1, 3, epoch, 2**40, 77)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_any_other_fetch_is_not(version: int) -> None:
    one = FetchPartition(partition=3)
    others = [fetch(one, one), fetch(), fetch(topics=[])]
    if version >= 7:
        forgotten = [ForgottenTopic(topic="t", topic_id=ID, partitions=[1])]
        others += [fetch(one, session_id=5), fetch(one, session_epoch=0), fetch(one, session_id=5, session_epoch=1)]
        others.append(fetch(one, forgotten_topics_data=forgotten))
    if version >= 11:
        others.append(fetch(one, rack_id="r"))
    if version >= 12:
        others += [fetch(one, cluster_id="c"), fetch(FetchPartition(partition=3, last_fetched_epoch=0))]
    if version < 15:
        others.append(fetch(one, replica_id=1))
    else:
        follower = fetch(one)
        follower.replica_state.replica_id = 1
        others.append(follower)
    if version >= 18:
        others.append(fetch(FetchPartition(partition=3, high_watermark=5)))
    if version < TOPIC_IDS_SINCE_VERSION:
        others += [fetch(one, name=""), fetch(one, name="n" * 127)]
    read = small_fetch(version).read
    for request in others:
        assert read(body(request, version), 4) is None
    nothing_else_is_read(read, body(fetch(one), version), version >= 12)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 16_382, 16_383, 40_000])
def test_what_is_answered_to_a_small_fetch_has_the_generated_bytes(version: int, size: int) -> None:
    shape = small_fetch(version)
    for aborted, answer in ((None, shape.answer), ([], shape.answer_committed)):
        data = PartitionData(
            partition_index=3,
            high_watermark=2**40,
            last_stable_offset=9,
            log_start_offset=2,
            aborted_transactions=aborted,
            records=bytes(size),
        )
        topic = FetchableTopicResponse(topic="t", topic_id=ID, partitions=[data])
        packed = answer(99, topic_bytes("t", version, 12), 3, 2**40, 9, 2, bytes(size))
        whole = FetchResponse(responses=[topic])
        assert packed == b"".join(codec.encode_response(whole, version, 99))
