"""Bytes that are no request, or a wrong one: the connection is closed or the error said, and nobody else notices."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from headrace.errors import ErrorCode
from headrace.log import validation
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import PartitionProduceData
from headrace.records import Codec, decompress, walk
from headrace.records.compression import decompress_pieces
from headrace.runtime import Buffer
from headrace.testing import EmbeddedBroker, broker

from . import raw
from .raw import RawClient

METADATA_VERSION = 9
FIRST_FRAME_BYTES_MAX = 2 * 1024 * 1024


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"socket.request.max.bytes": "10000000", "auto.create.topics.enable": "false"}
    with broker(str(tmp_path_factory.mktemp("kafka") / "data"), settings) as running:
        with RawClient(running.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
            client.request(
                raw.create_topics_request({"again": 1}, compression_type="uncompressed", max_message_bytes="100000"),
                raw.CREATE_TOPICS_VERSION,
            )
            client.request(
                raw.create_topics_request({"stamped": 1}, message_timestamp_type="LogAppendTime"),
                raw.CREATE_TOPICS_VERSION,
            )
        yield running


@pytest.fixture(autouse=True)
def still_well(kafka: EmbeddedBroker, failures: list[str]) -> Iterator[None]:
    """After every test the broker answers another client, holds no memory for the first, and had no error inside."""
    yield
    with RawClient(kafka.port) as client:
        assert client.request(MetadataRequest(topics=None), METADATA_VERSION).topics
    assert failures == []


def header(api_key: int, version: int, *, flexible: bool) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 3) + b"raw" + (b"\0" if flexible else b"")


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def end_offset(kafka: EmbeddedBroker, topic: str) -> int:
    return kafka.call(lambda running: running.partition(topic, 0).log.end_offset)


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, -(2**31), 10_000_001, 2**31 - 1])
def test_a_frame_of_a_wrong_size_closes_the_connection(kafka: EmbeddedBroker, size: int) -> None:
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        client.socket.sendall(struct.pack(">i", size))
        assert client.is_closed_by_peer()


def test_the_first_frame_of_a_stranger_may_not_grow_large(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.socket.sendall(struct.pack(">i", 9_000_000))
        with pytest.raises(ConnectionError):
            client.socket.sendall(bytes(8_999_999))  # all but the last byte


def test_a_known_client_may_send_a_frame_as_large(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        large = raw.batch([bytes(3 * FIRST_FRAME_BYTES_MAX // 2)])
        answer = raw.produced(client.request(raw.produce_request("t", 0, large), raw.PRODUCE_VERSION))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_what_is_not_kafka_at_all_is_hung_up_on(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.socket.sendall(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
        assert client.is_closed_by_peer()


# --- requests ---------------------------------------------------------------------------------------------------------

METADATA_OLD = header(ApiKey.METADATA, 1, flexible=False)
METADATA_NEW = header(ApiKey.METADATA, 9, flexible=True)
MALFORMED = {
    "an empty header": b"\0\0",
    "a client id beyond the frame": struct.pack(">hhih", 3, 1, 7, 30_000) + b"raw",
    "an unknown key": header(9_999, 0, flexible=False),
    "a negative key": header(-1, 0, flexible=False),
    "an unknown version": header(ApiKey.METADATA, 99, flexible=False),
    "a negative version": header(ApiKey.METADATA, -1, flexible=False),
    "an array of two billion": METADATA_OLD + struct.pack(">i", 2**31 - 1),
    "an array longer than the frame": METADATA_OLD + struct.pack(">i", 1_000) + b"\0\1t",
    "an array of length -2": header(ApiKey.CREATE_TOPICS, 2, flexible=False) + struct.pack(">i", -2),
    "a string beyond the frame": METADATA_OLD + struct.pack(">ih", 1, 30_000) + b"t",
    "a string of length -2": METADATA_OLD + struct.pack(">ih", 1, -2),
    "a null where none is allowed": METADATA_OLD + struct.pack(">ih", 1, -1),
    "a varint that never ends": METADATA_NEW + b"\xff" * 20,
    "a varint over 32 bits": METADATA_NEW + b"\xff\xff\xff\xff\x7f",
    "a compact array of two billion": METADATA_NEW + b"\xff\xff\xff\xff\x07",
    "a tag beyond the frame": METADATA_NEW + b"\x01\x01\x00\x00\x01\x05\xff\xff\x03",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_closes_the_connection(kafka: EmbeddedBroker, body: bytes) -> None:
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        client.socket.sendall(framed(body))
        assert client.is_closed_by_peer()


def test_a_request_that_is_cut_anywhere_closes_the_connection(kafka: EmbeddedBroker) -> None:
    whole = raw.frame(raw.produce_request("t", 0, raw.batch([b"v"])), raw.PRODUCE_VERSION)[4:]
    before = end_offset(kafka, "t")
    for length in range(1, len(whole) - 100, 7):
        with RawClient(kafka.port) as client:
            client.socket.sendall(framed(whole[:length]))
            assert client.is_closed_by_peer(), f"after {length} of {len(whole)} bytes"
    assert end_offset(kafka, "t") == before


def test_a_version_from_the_future_is_told_what_is_spoken_here(kafka: EmbeddedBroker) -> None:
    with RawClient(kafka.port) as client:
        client.socket.sendall(framed(header(ApiKey.API_VERSIONS, 99, flexible=True) + b"\x01\x01\0"))
        _, answer = client.receive(ApiVersionsRequest(), 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_batch_with_a_wrong_checksum_is_refused_and_nothing_written(kafka: EmbeddedBroker) -> None:
    before = end_offset(kafka, "t")
    size_before = kafka.call(lambda running: running.partition("t", 0).log.size_bytes)
    with RawClient(kafka.port) as client:
        for at in (-1, 17, 30, 60):
            damaged = raw.batch([b"value"])
            damaged[at] ^= 1
            answer = raw.produced(client.request(raw.produce_request("t", 0, damaged), raw.PRODUCE_VERSION))
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE, at
            assert answer.base_offset == -1
        good = raw.produced(client.request(raw.produce_request("t", 0, raw.batch([b"v"])), raw.PRODUCE_VERSION))
        assert good.base_offset == before
    assert kafka.call(lambda running: running.partition("t", 0).log.size_bytes) < size_before + 200


def test_null_records_do_not_count_where_the_partition_is_named_again(kafka: EmbeddedBroker) -> None:
    good, wrong = raw.batch([b"value"]), b"no batch"
    before = end_offset(kafka, "t")
    with RawClient(kafka.port) as client:

        def produce(*records: Buffer | None) -> tuple[int, int]:
            request = raw.produce_request("t", 0, b"")
            request.topic_data[0].partition_data = [PartitionProduceData(index=0, records=one) for one in records]
            answer = raw.produced(client.request(request, raw.PRODUCE_VERSION))
            return answer.error_code, answer.base_offset

        assert produce(None, good) == (ErrorCode.NONE, before)  # as Kafka 4.3.1 does
        assert produce(good, None) == (ErrorCode.INVALID_RECORD, -1)
        # Kafka writes the good one of these, and says the same.
        assert produce(wrong, good) == produce(good, wrong) == (ErrorCode.INVALID_RECORD, -1)
    assert end_offset(kafka, "t") == before + 1


BOMB_BYTES = 64 * 1024 * 1024
CODECS = (Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY)


@pytest.fixture(scope="module")
def bombs() -> dict[Codec, bytes]:
    """Zeros that compress to almost nothing; with zstd to 2 KB, which is small enough for the broker to look inside."""
    return {codec: bytes(raw.batch([bytes(BOMB_BYTES)], codec=codec)) for codec in CODECS}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much the broker unpacked of each batch, at a time."""
    sizes: list[int] = []

    def noted(codec: Codec, payload: Buffer, limit_bytes: int) -> Buffer:
        found = decompress(codec, payload, limit_bytes)
        sizes.append(len(found))
        return found

    def noted_pieces(codec: Codec, payload: Buffer, limit_bytes: int) -> Iterator[Buffer]:
        for piece in decompress_pieces(codec, payload, limit_bytes):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(validation, "decompress", noted)
    monkeypatch.setattr(walk, "decompress_pieces", noted_pieces)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["again", "stamped", "t"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_decompression_bomb_is_unpacked_in_pieces_and_refused_where_it_has_to_be_in_memory(
    kafka: EmbeddedBroker, bombs: dict[Codec, bytes], unpacked: list[int], topic: str, codec: Codec
) -> None:
    """Only a topic that compresses anew has to unpack it as a whole; the others walk through it, as Kafka does."""
    bomb = bombs[codec]
    before = end_offset(kafka, topic)
    with RawClient(kafka.port) as client:
        client.request(ApiVersionsRequest(), 0)
        answer = raw.produced(client.request(raw.produce_request(topic, 0, bomb), raw.PRODUCE_VERSION))
    assert max(unpacked, default=0) <= 4 * 1024 * 1024
    if topic == "again" or len(bomb) > 1_048_588:
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert end_offset(kafka, topic) == before
    else:
        assert answer.error_code == ErrorCode.NONE


@pytest.mark.slow
def test_a_bomb_past_the_bound_is_refused(
    kafka: EmbeddedBroker, bombs: dict[Codec, bytes], unpacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "_UNPACKED_BYTES_MAX", 8 * 1024 * 1024)
    with RawClient(kafka.port) as client:
        answer = raw.produced(client.request(raw.produce_request("t", 0, bombs[Codec.ZSTD]), raw.PRODUCE_VERSION))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert sum(unpacked) <= 10 * 1024 * 1024  # of which the event loop has seen half a megabyte
