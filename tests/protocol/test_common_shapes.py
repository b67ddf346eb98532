"""The codecs for the common shapes of Produce and Fetch say what the generated ones say, or nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.protocol import codec
from headrace.protocol.common_shapes import (
    FETCH_SINCE_VERSION,
    PRODUCE_SINCE_VERSION,
    TOPIC_IDS_SINCE_VERSION,
    FetchShape,
    ProduceShape,
    read_small_fetch,
    read_small_produce,
    small_fetch_answer,
    small_produce_answer,
)
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

PRODUCE_VERSIONS = range(PRODUCE_SINCE_VERSION, 14)
FETCH_VERSIONS = range(FETCH_SINCE_VERSION, 19)
ID = bytes(range(16))


def topic_bytes(name: str, version: int) -> bytes:
    return ID if version >= TOPIC_IDS_SINCE_VERSION else bytes((len(name.encode()) + 1,)) + name.encode()


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
    for name, acks, index in (("t", -1, 0), ("a-name." * 18, 1, 7), ("ö", 0, 2**31 - 1)):
        request = produce(PartitionProduceData(index=index, records=records), name=name, acks=acks)
        found = read_small_produce(body(request, version), 4, version)
        if len(name.encode()) >= 127 and version < TOPIC_IDS_SINCE_VERSION:
            assert found is None
            continue
        assert found is not None
        assert found == (topic_bytes(name, version), acks, index, records)


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
        others += [produce(one, name=""), produce(one, name="n" * 127)]
    for request in others:
        assert read_small_produce(body(request, version), 4, version) is None
    whole = body(produce(one), version)
    assert read_small_produce(whole, 4, version) is not None
    for end in range(len(whole)):
        assert read_small_produce(whole[:end], 4, version) is None
    assert read_small_produce(memoryview(bytes(whole) + b"\x00"), 4, version) is None
    with_tags = memoryview(bytes(whole[:-1]) + b"\x01\x63\x00")
    assert read_small_produce(with_tags, 4, version) is None


def whole(message: Any, version: int, *, correlation_id: int = 99, client_id: str = "client") -> bytearray:
    """As it lies in the front of a connection's buffer."""
    return bytearray(b"".join(codec.encode_request(message, version, correlation_id, client_id)))


def body_of(request: bytearray) -> memoryview:
    return memoryview(request)[4:]


def shape_of(request: bytearray, position: int, version: int) -> ProduceShape:
    found = read_small_produce(body_of(request), position, version)
    assert found is not None
    return ProduceShape(body_of(request), position, found.topic, found.partition)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_that_is_like_one_before_is_read_as_that_was(version: int) -> None:
    position = 10 + len("client") + 1
    shape = shape_of(whole(produce(PartitionProduceData(index=3, records=b"first")), version), position, version)
    for size in (1, 126, 127, 128, 5_000, 16_000):
        records = random.Random(size).randbytes(size)
        request = whole(produce(PartitionProduceData(index=3, records=records)), version, correlation_id=size)
        found = shape.read(request + b"of another", len(request))
        assert found is not None
        correlation_id, start, end = found
        assert (correlation_id, request[start:end]) == (size, records)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_no_other_is_taken_for_it(version: int) -> None:
    """Whatever byte is another: it is read as one that is not known, or not at all."""
    position = 10 + len("client") + 1
    first = whole(produce(PartitionProduceData(index=3, records=b"records")), version)
    shape = shape_of(first, position, version)
    rng = random.Random(version)
    for at in range(4, len(first)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)} - {first[at]}:
            other = bytearray(first)
            other[at] = value
            known = shape.read(other + bytes(100), len(other))
            if known is None:
                continue
            read = read_small_produce(body_of(other), position, version)
            kept = read_small_produce(body_of(first), position, version)
            assert read is not None
            assert kept is not None
            assert read[:3] == kept[:3]
            assert other[known[1] : known[2]] == read.records
            assert known[0] == int.from_bytes(other[8:12], "big", signed=True)
    for end in range(12, len(first)):
        assert shape.read(first[:end] + bytes(200), end) is None
    assert shape.read(first + b"\0", len(first) + 1) is None
    assert shape.read(whole(produce(PartitionProduceData(index=3, records=b"")), version), len(first) - 7) is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_what_is_answered_to_a_small_produce_has_the_generated_bytes(version: int) -> None:
    for index, offset, time_ms, start in ((0, 0, -1, 0), (7, 2**40, 1_700_000_000_000, 5)):
        result = PartitionProduceResponse(
            index=index, base_offset=offset, log_append_time_ms=time_ms, log_start_offset=start
        )
        answer = ProduceResponse(responses=[TopicProduceResponse(name="t", topic_id=ID, partition_responses=[result])])
        packed = small_produce_answer(99, topic_bytes("t", version), index, offset, time_ms, start)
        assert packed == b"".join(codec.encode_response(answer, version, 99))
        request = whole(produce(PartitionProduceData(index=index, records=b"records")), version)
        shape = shape_of(request, 10 + len("client") + 1, version)
        assert shape.answer(99, offset, time_ms, start) == packed


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_small_fetch_is_read(version: int) -> None:
    part = FetchPartition(partition=3, current_leader_epoch=2, fetch_offset=2**40, partition_max_bytes=77)
    request = fetch(part, max_wait_ms=500, min_bytes=2, max_bytes=1 << 20, isolation_level=1)
    found = read_small_fetch(body(request, version), 4, version)
    assert found == (topic_bytes("t", version), 500, 2, 1 << 20, 1, 3, 2, 2**40, 77)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_that_is_like_one_before_is_read_as_that_was(version: int) -> None:
    def request(offset: int, correlation_id: int) -> bytearray:
        part = FetchPartition(partition=3, fetch_offset=offset, partition_max_bytes=77)
        return whole(fetch(part, max_wait_ms=500), version, correlation_id=correlation_id)

    shape = FetchShape(body_of(request(5, 1)), topic_bytes("t", version), 3, tells_aborted=False)
    for offset in (0, 5, 2**40, -1):
        found = request(offset, 77)
        assert shape.read(found + b"of another", len(found)) == (77, offset)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_no_other_fetch_is_taken_for_it(version: int) -> None:
    """Whatever byte is another: it is read as one that is not known, or not at all."""
    position = 10 + len("client") + 1
    first = whole(fetch(FetchPartition(partition=3, fetch_offset=6, partition_max_bytes=77)), version)
    shape = FetchShape(body_of(first), topic_bytes("t", version), 3, tells_aborted=False)
    kept = read_small_fetch(body_of(first), position, version)
    assert kept is not None
    rng = random.Random(version)
    known_ones = 0
    for at in range(4, len(first)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)} - {first[at]}:
            other = bytearray(first)
            other[at] = value
            known = shape.read(other + bytes(100), len(other))
            if known is None:
                continue
            known_ones += 1
            read = read_small_fetch(body_of(other), position, version)
            assert read is not None
            assert read._replace(offset=0) == kept._replace(offset=0)
            assert known == (int.from_bytes(other[8:12], "big", signed=True), read.offset)
    assert known_ones >= 12 * 6, "whatever correlation id and offset are"
    for end in range(12, len(first)):
        assert shape.read(first[:end] + bytes(200), end) is None
    assert shape.read(first + b"\0", len(first) + 1) is None


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_any_other_fetch_is_not(version: int) -> None:
    one = FetchPartition(partition=3)
    forgotten = [ForgottenTopic(topic="t", topic_id=ID, partitions=[1])]
    others = [
        fetch(one, one),
        fetch(),
        fetch(topics=[]),
        fetch(one, session_id=5),
        fetch(one, session_epoch=0),
        fetch(one, session_id=5, session_epoch=1),
        fetch(one, forgotten_topics_data=forgotten),
        fetch(one, rack_id="r"),
        fetch(one, cluster_id="c"),
        fetch(FetchPartition(partition=3, last_fetched_epoch=0)),
    ]
    if version < 15:
        others.append(fetch(one, replica_id=1))
    else:
        follower = fetch(one)
        follower.replica_state.replica_id = 1
        others.append(follower)
    if version < TOPIC_IDS_SINCE_VERSION:
        others += [fetch(one, name=""), fetch(one, name="n" * 127)]
    for request in others:
        assert read_small_fetch(body(request, version), 4, version) is None
    whole = body(fetch(one), version)
    assert read_small_fetch(whole, 4, version) is not None
    for end in range(len(whole)):
        assert read_small_fetch(whole[:end], 4, version) is None


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 16_382, 16_383, 40_000])
def test_what_is_answered_to_a_small_fetch_has_the_generated_bytes(version: int, size: int) -> None:
    for tells_aborted in (False, True):
        data = PartitionData(
            partition_index=3,
            high_watermark=2**40,
            last_stable_offset=9,
            log_start_offset=2,
            aborted_transactions=[] if tells_aborted else None,
            records=bytes(size),
        )
        topic = FetchableTopicResponse(topic="t", topic_id=ID, partitions=[data])
        answer = FetchResponse(responses=[topic])
        packed = small_fetch_answer(
            99, topic_bytes("t", version), 3, 2**40, 9, 2, tells_aborted=tells_aborted, records=bytes(size)
        )
        assert packed == b"".join(codec.encode_response(answer, version, 99))
        request = whole(fetch(FetchPartition(partition=3)), version)
        shape = FetchShape(body_of(request), topic_bytes("t", version), 3, tells_aborted=tells_aborted)
        assert shape.answer(99, 2**40, 9, 2, bytes(size)) == packed
