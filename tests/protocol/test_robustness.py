"""Hostile bytes: whatever is cut, flipped or claims to be huge, the outcome is a message or `MalformedMessageError`."""

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.protocol.api import api, declared_keys, is_flexible
from headrace.protocol.codec import decode, decode_from, decode_request_header, decode_response, encode
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.stored import consumer_offsets, metadata_records
from headrace.protocol.stored.consumer_offsets import OffsetCommitValue
from headrace.protocol.wire import MalformedMessageError, read_length, read_uvarint, uvarint

from .kio_pairs import kio_class, pair

FIVE_BYTES = b"\xff\xff\xff\xff\x07"  # 2^31 - 1 as a varint


def samples(seed: str) -> Iterator[tuple[type[Any], int, bytes]]:
    """One message of every kind, in its first and last version."""
    for key in declared_keys():
        found = api(key)
        for kind, cls in (("request", found.request), ("response", found.response)):
            for version in {found.min_version, found.max_version}:
                rng = random.Random(f"{seed} {cls.__name__} {version}")
                message, _ = pair(cls, kio_class(key.name.lower(), version, kind), version, rng)
                yield cls, version, encode(message, version)


def survives(cls: type[Any], version: int, raw: bytes) -> bool:
    """Whether it decodes; any exception but one fails the test."""
    try:
        decode_from(cls, version, raw)
    except MalformedMessageError:
        return False
    return True


@pytest.mark.slow
def test_a_message_cut_anywhere_is_malformed() -> None:
    for cls, version, raw in samples("cut"):
        for size in range(min(len(raw), 400)):
            assert not survives(cls, version, raw[:size]), f"{cls.__name__} v{version} cut at {size} of {len(raw)}"


@pytest.mark.slow
def test_a_message_in_a_memoryview_or_bytearray_reads_the_same() -> None:
    for cls, version, raw in samples("views"):
        expected = decode(cls, version, raw)
        assert decode(cls, version, bytearray(raw)) == expected
        assert decode(cls, version, memoryview(b"x" + raw), 1) == expected


def test_flipped_bytes_never_escape_as_another_exception() -> None:
    rng = random.Random(20)
    for cls, version, raw in samples("flip"):
        for _ in range(60):
            damaged = bytearray(raw)
            for _ in range(rng.choice((1, 1, 2, 5))):
                if damaged:
                    damaged[rng.randrange(len(damaged))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            survives(cls, version, bytes(damaged))


@pytest.mark.slow
def test_flipped_bytes_never_escape_in_many_more_ways() -> None:
    rng = random.Random(21)
    for round_ in range(10):
        for cls, version, raw in samples(f"flip {round_}"):
            for _ in range(300):
                damaged = bytearray(raw)
                for _ in range(rng.choice((1, 1, 2, 5))):
                    if damaged:
                        damaged[rng.randrange(len(damaged))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                survives(cls, version, bytes(damaged))


def test_random_bytes_never_escape_as_another_exception() -> None:
    rng = random.Random(22)
    for key in declared_keys():
        found = api(key)
        for cls in (found.request, found.response):
            for version in range(found.min_version, found.max_version + 1):
                for size in (0, 1, 7, 40, 200):
                    survives(cls, version, rng.randbytes(size))
                    survives(cls, version, bytes([rng.choice((0, 1, 2, 255))]) * size)


@pytest.mark.parametrize(
    ("cls", "version", "raw"),
    [
        pytest.param(DeleteGroupsRequest, 0, b"\x7f\xff\xff\xff" + bytes(100), id="array of strings"),
        pytest.param(DeleteGroupsRequest, 2, FIVE_BYTES + bytes(100), id="compact array of strings"),
        pytest.param(MetadataResponse, 1, b"\x7f\xff\xff\xff" + bytes(100), id="array of structs"),
        pytest.param(MetadataRequest, 12, FIVE_BYTES + bytes(100), id="compact array of structs"),
        pytest.param(SaslAuthenticateRequest, 0, b"\x7f\xff\xff\xff" + bytes(100), id="bytes"),
        pytest.param(SaslAuthenticateRequest, 2, FIVE_BYTES + bytes(100), id="compact bytes"),
        pytest.param(HeartbeatRequest, 0, b"\x7f\xff" + bytes(100), id="string"),
        pytest.param(HeartbeatRequest, 4, FIVE_BYTES + bytes(100), id="compact string"),
        pytest.param(
            OffsetFetchRequest,
            1,
            b"\x00\x01g\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff" + bytes(100),
            id="array of numbers",
        ),
        pytest.param(HeartbeatResponse, 4, bytes(6) + FIVE_BYTES + bytes(100), id="number of tagged fields"),
        pytest.param(
            HeartbeatResponse, 4, bytes(6) + b"\x01\x05" + FIVE_BYTES + bytes(100), id="size of a tagged field"
        ),
    ],
)
def test_a_huge_length_costs_nothing_and_is_malformed(cls: type[Any], version: int, raw: bytes) -> None:
    assert not survives(cls, version, raw)  # the codec is compiled here, outside the measurement
    tracemalloc.start()
    try:
        assert not survives(cls, version, raw)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_follows_the_size_of_the_frame_not_its_claims() -> None:
    """The worst honest frame, all empty strings, needs a pointer for each byte; a lie may not need more."""
    size = 100_000
    honest = uvarint(size + 1) + b"\x01" * size + b"\x00"
    lying = uvarint(size + 1) + b"\x01" * (size - 1)
    decode(DeleteGroupsRequest, 2, b"\x01\x00")
    for raw, works in ((honest, True), (lying, False)):
        tracemalloc.start()
        try:
            assert survives(DeleteGroupsRequest, 2, raw) is works
            assert tracemalloc.get_traced_memory()[1] < 12 * size
        finally:
            tracemalloc.stop()


def test_record_data_is_not_copied() -> None:
    records = bytes(1_000_000)
    topic = FetchResponse.SCHEMA.fields[3].type.element  # type: ignore[attr-defined]
    partition = topic.SCHEMA.fields[2].type.element
    message = FetchResponse(responses=[topic(topic="t", partitions=[partition(records=records)])])
    raw = encode(message, 12)
    assert decode(FetchResponse, 12, raw) == message
    tracemalloc.start()
    try:
        decode(FetchResponse, 12, raw)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_any_negative_length_of_a_nullable_array_means_null(length: bytes) -> None:
    assert decode(MetadataRequest, 1, length).topics is None
    assert not survives(CreateTopicsRequest, 2, length + bytes(5))


def test_a_compact_length_that_kafka_takes_as_negative_means_null() -> None:
    assert decode(MetadataRequest, 12, b"\xff\xff\xff\xff\x0f\x00\x00\x00").topics is None


def test_bytes_after_a_message_are_ignored() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    raw = encode(message, 4)
    assert decode_from(HeartbeatRequest, 4, raw + b"more") == (message, len(raw))


def test_unknown_tagged_fields_are_skipped_and_of_a_known_one_sent_twice_the_last_counts() -> None:
    head = b"\x00\x00\x01\x00\x00\x00\x00"  # no error, no keys, no throttling
    epoch = b"\x01\x08" + bytes(7)
    raw = head + b"\x04" + epoch + b"\x05" + b"\x63\x03abc" + epoch + b"\x06" + b"\x64\x00"
    assert decode(ApiVersionsResponse, 3, raw).finalized_features_epoch == 6


def test_the_size_of_a_known_tagged_field_is_not_looked_at_and_that_of_an_unknown_one_is() -> None:
    """As Java's generated classes read them, in messages and in internal records."""
    head = b"\x00\x00\x01\x00\x00\x00\x00"
    for size in (0, 7, 9, 100):
        raw = head + b"\x02\x01" + uvarint(size) + bytes(7) + b"\x05" + b"\x63\x01x"
        assert decode(ApiVersionsResponse, 3, raw).finalized_features_epoch == 5
    assert not survives(ApiVersionsResponse, 3, head + b"\x01\x01\x08" + bytes(7))
    assert not survives(ApiVersionsResponse, 3, head + b"\x01\x63\x02x")
    value = OffsetCommitValue(offset=5, topic_id=bytes(range(16)))
    raw = encode(value, 4)
    assert raw[-18:-16] == b"\x00\x10"
    assert decode(OffsetCommitValue, 4, raw[:-17] + b"\x7f" + raw[-16:]) == value


def test_a_negative_number_of_tagged_fields_is_none() -> None:
    negative = b"\xff\xff\xff\xff\x0f"
    for message, version in ((HeartbeatRequest(group_id="g"), 4), (FetchRequest(), 15), (HeartbeatResponse(), 4)):
        raw = encode(message, version)
        assert decode(type(message), version, raw[:-1] + negative) == message


def test_tagged_fields_inside_tagged_fields_are_read() -> None:
    replica_state = b"\x00\x00\x00\x05" + bytes(8)
    inner = replica_state + b"\x01\x07\x02xy"  # an unknown tag of the struct that is itself a tagged field
    body = encode(FetchRequest(), 15)
    assert body.endswith(b"\x00")
    message = decode(FetchRequest, 15, body[:-1] + b"\x01\x01" + uvarint(len(inner)) + inner)
    assert message.replica_state.replica_id == 5
    cut = replica_state + b"\x01\x07\x20xy"
    assert not survives(FetchRequest, 15, body[:-1] + b"\x01\x01" + uvarint(len(cut)) + cut)


def test_text_that_is_not_utf8_is_read_with_replacement_characters() -> None:
    assert decode(HeartbeatRequest, 0, b"\x00\x02\xff\x61\x00\x00\x00\x00\x00\x00").group_id == "\ufffda"


def test_a_varint_has_at_most_five_bytes() -> None:
    assert read_uvarint(FIVE_BYTES, 0) == (2**31 - 1, 5)
    assert read_length(b"\x80\x01", 0) == (127, 2)
    assert read_length(b"\x80\x80\x01", 0) == (16383, 3)
    assert read_length(b"\x80\x80\x80\x01", 0) == (2**21 - 1, 4)
    with pytest.raises(MalformedMessageError):
        read_uvarint(b"\x80" * 5 + b"\x01", 0)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**32 - 1])
def test_a_varint_comes_back(value: int) -> None:
    assert read_uvarint(uvarint(value), 0) == (value, len(uvarint(value)))


def test_headers_cut_anywhere_are_malformed() -> None:
    header = b"\x00\x0c\x00\x04\x00\x00\x00\x07\x00\x02ab\x01\x63\x01x"
    assert decode_request_header(header, is_flexible).body_position == len(header)
    for size in range(len(header)):
        with pytest.raises(MalformedMessageError):
            decode_request_header(header[:size], is_flexible)
    response = b"\x00\x00\x00\x07\x01\x63\x01x" + encode(HeartbeatResponse(), 4)
    assert decode_response(HeartbeatResponse, 4, response) == (7, HeartbeatResponse())
    for size in range(len(response)):
        with pytest.raises(MalformedMessageError):
            decode_response(HeartbeatResponse, 4, response[:size])


def test_a_client_id_that_is_not_utf8_is_tolerated() -> None:
    header = decode_request_header(b"\x00\x0c\x00\x00\x00\x00\x00\x07\x00\x02\xff\xfe", is_flexible)
    assert header.client_id == "\ufffd\ufffd"
    assert decode_request_header(b"\x00\x0c\x00\x00\x00\x00\x00\x07\xff\xff", is_flexible).client_id is None


def test_stored_records_of_random_bytes_never_escape_as_another_exception() -> None:
    rng = random.Random(23)
    for _ in range(3000):
        key = bytes((0, rng.randrange(4))) + rng.randbytes(rng.randrange(30))
        value = bytes((0, rng.randrange(6))) + rng.randbytes(rng.randrange(60))
        for read in (
            lambda key=key, value=value: consumer_offsets.decode_record(key, value),
            lambda value=value: metadata_records.decode_record(b"\x01" + value[1:]),
        ):
            try:
                read()
            except MalformedMessageError:
                pass
