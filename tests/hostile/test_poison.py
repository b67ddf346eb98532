"""Records that nobody could read are not acknowledged, whatever they are compressed with and however many there are;
and what it costs to find out is bounded, and is not paid by the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.broker import raw
from tests.broker.raw import RawClient

from headrace.errors import ErrorCode
from headrace.log import validation
from headrace.records import Codec, DecompressedTooLargeError, compress, decompress, read_records, split
from headrace.records.walk import Walk, walk_records
from headrace.testing import EmbeddedBroker, broker

from .batches import SMALLEST_RECORD, many_small, poisoned

NOW_MS = int(time.time() * 1000)
YEAR_MS = 365 * 86_400_000
CODECS = tuple(Codec)
NAMES = [codec.name.lower() for codec in CODECS]
MANY = 5000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with broker(str(tmp_path_factory.mktemp("kafka") / "data"), {}) as running:
        with RawClient(running.port) as client:
            client.request(raw.create_topics_request({"t": 1}), raw.CREATE_TOPICS_VERSION)
            client.request(
                raw.create_topics_request({"limited": 1}, message_timestamp_after_max_ms="1000"),
                raw.CREATE_TOPICS_VERSION,
            )
            client.request(raw.create_topics_request({"keyed": 1}, cleanup_policy="compact"), raw.CREATE_TOPICS_VERSION)
        yield running


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The threads on which batches were walked through, and how many records each time."""
    found: list[tuple[str, int]] = []

    def noted(batch: object, *limits: object) -> Walk:
        walk = walk_records(batch, *limits)  # type: ignore[arg-type]  # as the real one is given
        found.append((threading.current_thread().name, walk.index))
        return walk

    monkeypatch.setattr(validation, "walk_records", noted)
    return found


def produce(kafka: EmbeddedBroker, topic: str, records: bytes | bytearray) -> raw.PartitionProduceResponse:
    with RawClient(kafka.port) as client:
        return raw.produced(client.request(raw.produce_request(topic, 0, records), raw.PRODUCE_VERSION))


def refused(kafka: EmbeddedBroker, topic: str, records: bytes | bytearray) -> ErrorCode:
    """How it is refused, with nothing written."""

    def end() -> int:
        return kafka.call(lambda inside: inside.partition(topic, 0).log.end_offset)

    before = end()
    answer = produce(kafka, topic, records)
    assert end() == before
    assert len(answer.record_errors) <= 100
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_random_bytes_are_no_records(kafka: EmbeddedBroker, codec: Codec) -> None:
    noise = bytes((7 * index * index + 13 * index) % 251 for index in range(20_000))
    assert refused(kafka, "t", poisoned(noise, 100, codec, timestamp_ms=NOW_MS)) == ErrorCode.INVALID_RECORD
    packed = bytes(compress(codec, noise))
    assert refused(kafka, "t", poisoned(packed, 100, codec, timestamp_ms=NOW_MS)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("more", [-1, 1, 10_000])
def test_a_wrong_number_of_records_is_refused(kafka: EmbeddedBroker, codec: Codec, more: int) -> None:
    payload = bytes(compress(codec, SMALLEST_RECORD * MANY))
    batch = poisoned(payload, MANY + more, codec, timestamp_ms=NOW_MS)
    assert refused(kafka, "t", batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_number_of_records_that_none_could_count_is_refused(kafka: EmbeddedBroker, codec: Codec) -> None:
    payload = bytes(compress(codec, SMALLEST_RECORD * 50))
    batch = poisoned(payload, 2**31 - 1, codec, timestamp_ms=NOW_MS)
    assert refused(kafka, "t", batch) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_the_records_timestamps_count_and_not_the_headers(kafka: EmbeddedBroker, codec: Codec) -> None:
    payload = bytes(compress(codec, SMALLEST_RECORD * MANY))
    late = poisoned(payload, MANY, codec, timestamp_ms=NOW_MS + YEAR_MS, max_timestamp_ms=NOW_MS)
    assert refused(kafka, "limited", late) == ErrorCode.INVALID_TIMESTAMP
    false = poisoned(payload, MANY, codec, timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS + YEAR_MS)
    assert produce(kafka, "limited", false).error_code == ErrorCode.NONE
    newest = kafka.call(lambda inside: inside.partition("limited", 0).log.max_timestamp())
    assert newest.timestamp_ms == NOW_MS


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("count", [3, MANY])
def test_offsets_within_a_batch_are_the_brokers_to_say(kafka: EmbeddedBroker, codec: Codec, count: int) -> None:
    """All records of this batch say that they are its first."""
    payload = bytes(compress(codec, SMALLEST_RECORD * count))
    answer = produce(kafka, "t", poisoned(payload, count, codec, timestamp_ms=NOW_MS))
    assert answer.error_code == ErrorCode.NONE
    with RawClient(kafka.port) as client:
        read = client.request(raw.fetch_request("t", 0, answer.base_offset), raw.FETCH_VERSION)
    (batch,) = split(raw.fetched(read).records or b"")
    assert batch.header().codec_id == codec
    assert [record.offset for record in read_records(batch)] == list(
        range(answer.base_offset, answer.base_offset + count)
    )


def test_a_timestamp_beyond_64_bits_wraps_as_it_does_in_java(kafka: EmbeddedBroker) -> None:
    body = b"\0" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0\x01\x01\0"
    batch = poisoned(bytes([2 * len(body)]) + body, 1, Codec.NONE, timestamp_ms=NOW_MS)
    assert produce(kafka, "t", batch).error_code in (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_what_takes_long_is_not_done_on_the_event_loop(
    kafka: EmbeddedBroker, walks: list[tuple[str, int]], codec: Codec
) -> None:
    assert produce(kafka, "t", many_small(MANY, codec, timestamp_ms=NOW_MS)).error_code == ErrorCode.NONE
    assert produce(kafka, "t", many_small(5, codec, timestamp_ms=NOW_MS)).error_code == ErrorCode.NONE
    loop_thread = kafka.call(lambda inside: threading.current_thread().name)
    assert [count for _, count in walks] == [MANY, 5]
    assert walks[0][0].startswith("headrace-checks")
    assert walks[1][0] == loop_thread


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS[1:], ids=NAMES[1:])
def test_a_few_kilobytes_that_grow_to_millions_of_records(
    kafka: EmbeddedBroker, walks: list[tuple[str, int]], codec: Codec
) -> None:
    """Too many are refused by their number alone; as many as are allowed get a hundred errors, not a million."""
    too_many = many_small(validation.RECORDS_MAX + 1, codec, timestamp_ms=NOW_MS + YEAR_MS)
    assert refused(kafka, "limited", too_many) == ErrorCode.MESSAGE_TOO_LARGE
    assert walks == []
    allowed = many_small(200_000, codec, timestamp_ms=NOW_MS + YEAR_MS)
    if len(allowed) > 1_048_588:
        return
    assert refused(kafka, "limited", allowed) == ErrorCode.INVALID_TIMESTAMP
    assert refused(kafka, "keyed", allowed) in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)


def test_one_small_record_of_noise_is_refused(kafka: EmbeddedBroker) -> None:
    """Also where it has the length that it says: what is in it has to be a key, a value and headers."""
    for body in (
        b"\0\0\0\x7e\x7e\x7e\x7e",
        b"\0\0\0\x01\x02\x05\x04",
        b"\0\0\0\x01\x01\x01",
        b"\0\0\0\xff\xff\xff\xff",
    ):
        batch = poisoned(bytes([2 * len(body)]) + body, 1, Codec.NONE, timestamp_ms=NOW_MS)
        assert refused(kafka, "t", batch) == ErrorCode.INVALID_RECORD, body


@pytest.mark.parametrize("name", ["gzip", "zstd", "snappy"])
def test_frames_of_next_to_nothing_are_not_unpacked_one_by_one(name: str) -> None:
    """What is unpacked on the loop, and on a thread, has a bound on frames as it has one on bytes."""
    if name == "gzip":
        codec, stream = Codec.GZIP, bytes(compress(Codec.GZIP, b"")) * 40_000
    elif name == "zstd":
        codec, stream = Codec.ZSTD, bytes(compress(Codec.ZSTD, b"")) * 40_000
    else:
        codec, stream = Codec.SNAPPY, bytes(compress(Codec.SNAPPY, b"")) + b"\0\0\0\1\0" * 40_000
    for limit_bytes in (512 * 1024, 128 * 1024 * 1024):
        with pytest.raises(DecompressedTooLargeError, match="frames"):
            decompress(codec, stream, limit_bytes)
    # What writers make has room: 32 KB in each.
    large = bytes(1024 * 1024)
    assert bytes(decompress(codec, compress(codec, large), len(large))) == large
    if codec is not Codec.SNAPPY:
        member = bytes(compress(codec, b"some"))
        assert bytes(decompress(codec, member * 64, 512 * 1024)) == b"some" * 64
