"""What a leader's append accepts, corrects and refuses: each case as Apache Kafka 4.3.1 was recorded to behave."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from tests.log.making import append_one

from headrace.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageTooLargeError,
    RecordListTooLargeError,
)
from headrace.log import Appended, Log, LogConfig, Origin, RecordsRejectedError
from headrace.records import Batch, Codec, TimestampType, build_batch, read_records, split
from headrace.records.batch import seal

from .making import NOW_MS, batch, make_host, marker, open_log


def append(log: Log, records: bytes | bytearray, **options: object) -> Appended:
    return append_one(log, records, leader_epoch=3, now_ms=NOW_MS, **options)  # type: ignore[arg-type]  # pass-through


def stored(log: Log) -> list[Batch]:
    found = log.locate(log.start_offset, 1 << 30, limit=log.end_offset, at_least_one=True)
    return list(split(found.file.read(found.position, found.length)))


def edited(records: bytearray, at: int, layout: str, *values: int) -> bytearray:
    """The batch with other header fields and a checksum that holds."""
    struct.pack_into(layout, records, at, *values)
    seal(records)
    return records


def test_offsets_and_epoch_are_given_in_place() -> None:
    log = open_log(make_host())
    first = batch(b"a", b"b")
    assert append(log, first) == Appended(0, 1, -1, 0, leader_epoch_changed=True)
    second = batch(b"c")
    assert append(log, second) == Appended(2, 2, -1, 0)
    assert Batch(second).base_offset == 2
    assert [bytes(b.buffer) for b in stored(log)] == [bytes(first), bytes(second)]
    assert {b.leader_epoch for b in stored(log)} == {3}
    assert log.leader_epoch == 3


def test_read_only_bytes_are_appended_too() -> None:
    log = open_log(make_host())
    append(log, bytes(batch(b"a")))
    assert read_records(stored(log)[0])[0].value == b"a"


REFUSED: dict[str, tuple[Callable[[], bytearray], type[KafkaError]]] = {
    "bad checksum": (lambda: _flip(batch()), CorruptMessageError),
    "base offset not zero": (lambda: edited(batch(), 0, ">q", 500), InvalidRecordError),
    "two batches": (lambda: batch() + batch(), InvalidRecordError),
    "no bytes": (bytearray, InvalidRecordError),
    "cut batch": (lambda: batch()[:-3], InvalidRecordError),
    "cut header": (lambda: batch()[:40], InvalidRecordError),
    "no records": (lambda: edited(batch(), 57, ">i", 0), InvalidRecordError),
    "count too high": (lambda: edited(edited(batch(b"v", b"v"), 57, ">i", 3), 23, ">i", 2), InvalidRecordError),
    "count too low": (lambda: edited(edited(batch(b"v", b"v", b"v"), 57, ">i", 2), 23, ">i", 1), InvalidRecordError),
    "count and last offset differ": (lambda: edited(batch(b"v", b"v"), 23, ">i", 3), InvalidRecordError),
    "offsets run backwards": (lambda: edited(batch(b"v", b"v"), 23, ">i", -1), InvalidRecordError),
    "magic 0": (
        lambda: bytearray.fromhex("00000000000000000000000fd20cbff50000ffffffff0000000176"),
        InvalidRecordError,
    ),
    "magic 1": (
        lambda: bytearray.fromhex("00000000000000000000001795c2095e010000000174876e8000ffffffff0000000176"),
        InvalidRecordError,
    ),
    "magic 3": (lambda: edited(batch(), 16, ">b", 3), CorruptMessageError),
    "negative length": (lambda: edited(batch(), 8, ">i", -5), CorruptMessageError),
    "control batch from a client": (lambda: marker(1, commit=True), InvalidRecordError),
    "producer without sequence": (lambda: edited(batch(), 43, ">qhi", 5, 0, -1), InvalidRecordError),
    "unknown codec": (lambda: edited(batch(), 21, ">h", 5), KafkaError),
    "garbage under gzip": (lambda: edited(batch(), 21, ">h", 1), InvalidRecordError),
    "larger than max.message.bytes": (lambda: batch(b"x" * 300), MessageTooLargeError),
}


def _flip(records: bytearray) -> bytearray:
    records[-1] ^= 1
    return records


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_batch_is_refused_and_nothing_is_written(case: str) -> None:
    make, error = REFUSED[case]
    log = open_log(make_host(), LogConfig(max_message_bytes=300))
    with pytest.raises(error):
        append(log, make())
    assert log.end_offset == 0
    assert log.active.size == 0
    append(log, batch())
    assert log.end_offset == 1


def test_max_message_bytes_bounds_the_whole_batch() -> None:
    log = open_log(make_host(), LogConfig(max_message_bytes=len(batch(b"x" * 200))))
    append(log, batch(b"x" * 200))
    with pytest.raises(MessageTooLargeError):
        append(log, batch(b"x" * 201))


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=100))
    with pytest.raises(RecordListTooLargeError):
        append(log, batch(b"x" * 100))


def test_a_cut_batch_behind_the_first_is_dropped() -> None:
    log = open_log(make_host())
    append(log, batch(b"a") + batch(b"b")[:11])
    assert [r.value for b in stored(log) for r in read_records(b)] == [b"a"]


def test_keyless_records_on_a_compacted_topic_are_named_one_by_one() -> None:
    log = open_log(make_host(), LogConfig(compact=True))
    records = build_batch([(NOW_MS, b"k", b"a", []), (NOW_MS, None, b"b", []), (NOW_MS, b"k2", b"c", [])])
    with pytest.raises(InvalidRecordError) as caught:
        append(log, records)
    assert isinstance(caught.value, RecordsRejectedError)
    assert [index for index, _ in caught.value.record_errors] == [1]
    append(log, batch(None))  # a key and no value is a tombstone
    assert log.end_offset == 1


def test_keyless_records_in_a_large_compressed_batch_are_found() -> None:
    log = open_log(make_host(), LogConfig(compact=True))
    rows = [(NOW_MS, b"k", b"v" * 50, []) for _ in range(500)]
    append(log, build_batch(rows, codec=Codec.ZSTD))
    rows[499] = (NOW_MS, None, b"v", [])
    with pytest.raises(RecordsRejectedError) as caught:
        append(log, build_batch(rows, codec=Codec.ZSTD))
    assert [index for index, _ in caught.value.record_errors] == [499]


def test_a_wrong_greatest_timestamp_is_corrected() -> None:
    log = open_log(make_host())
    append(log, edited(batch(b"a"), 35, ">q", NOW_MS + 12345))
    (kept,) = stored(log)
    assert kept.max_timestamp == NOW_MS
    assert log.max_timestamp().timestamp_ms == NOW_MS


def test_the_append_time_bit_of_a_client_is_cleared() -> None:
    log = open_log(make_host())
    append(log, edited(batch(b"a"), 21, ">h", 8))
    assert not stored(log)[0].is_log_append_time


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("offset_ms", [3_600_001, -1001])
def test_timestamps_beyond_the_topics_limits_are_refused(offset_ms: int, count: int) -> None:
    log = open_log(make_host(), LogConfig(timestamp_before_max_ms=1000))
    rows = [(NOW_MS, b"k", b"v", [])] * (count - 1) + [(NOW_MS + offset_ms, b"k", b"v", [])]
    with pytest.raises(InvalidTimestampError) as caught:
        append(log, build_batch(rows))
    assert isinstance(caught.value, RecordsRejectedError)
    assert [index for index, _ in caught.value.record_errors] == [count - 1]


def test_a_timestamp_an_hour_ahead_is_the_default_limit() -> None:
    log = open_log(make_host())
    append(log, batch(timestamp=NOW_MS + 3_600_000))
    with pytest.raises(InvalidTimestampError):
        append(log, batch(timestamp=NOW_MS + 3_600_001))
    append(log, batch(timestamp=-1))
    append(log, batch(timestamp=0))


def test_log_append_time_stamps_the_batch() -> None:
    log = open_log(make_host(), LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    appended = append(log, batch(b"a", b"b", timestamp=NOW_MS + 99_999_999))
    assert appended.append_time_ms == NOW_MS
    (kept,) = stored(log)
    assert kept.is_log_append_time
    assert {record.timestamp for record in read_records(kept)} == {NOW_MS}
    with pytest.raises(InvalidTimestampError):
        append(log, edited(batch(b"a"), 21, ">h", 8))


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
def test_the_topics_codec_replaces_the_producers(source: Codec, target: Codec) -> None:
    log = open_log(make_host(), LogConfig(codec=target))
    append(log, batch(b"aaaa" * 100, b"bbbb", codec=source))
    (kept,) = stored(log)
    assert kept.codec is target
    assert [(r.offset, r.value, r.timestamp) for r in read_records(kept)] == [
        (0, b"aaaa" * 100, NOW_MS),
        (1, b"bbbb", NOW_MS),
    ]


def test_markers_are_never_compressed() -> None:
    log = open_log(make_host(), LogConfig(codec=Codec.GZIP))
    append(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    assert stored(log)[0].codec is Codec.NONE


def test_flush_messages_says_when_a_sync_is_due() -> None:
    log = open_log(make_host(), LogConfig(flush_messages=3))
    assert not append(log, batch(b"1", b"2")).sync_due
    assert append(log, batch(b"3")).sync_due
    log.sync()
    assert log.recovery_point == 3
    assert not append(log, batch(b"4")).sync_due


def test_flush_ms_counts_from_the_last_sync() -> None:
    log = open_log(make_host(), LogConfig(flush_ms=1000))
    later = log.last_sync_ms + 1000
    assert not log.sync_due(later)
    append(log, batch())
    assert log.sync_due(later)
    assert not log.sync_due(later - 1)
