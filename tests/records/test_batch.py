"""The batch view reads, splits, checks and patches headers as Java does."""

import pytest

from headrace.records import (
    Batch,
    CorruptBatchError,
    MalformedRecordError,
    TimestampType,
    assign,
    check,
    increment_sequence,
    set_max_timestamp,
    split,
    valid_bytes,
)

from .vectors import batches, to_bytes

HEADER_NAMES = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "nextOffset": "next_offset",
    "sizeInBytes": "size",
    "partitionLeaderEpoch": "leader_epoch",
    "magic": "magic",
    "crc": "crc",
    "baseTimestamp": "base_timestamp",
    "maxTimestamp": "max_timestamp",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "lastSequence": "last_sequence",
    "count": "count",
    "isTransactional": "is_transactional",
    "isControl": "is_control",
    "deleteHorizonMs": "delete_horizon_ms",
}


def good_batch() -> bytearray:
    return bytearray(to_bytes(batches("batch")[0]))


def test_header_fields_are_those_java_reads() -> None:
    for row in batches("batch", "several", "marker", "empty", "filtered"):
        found = list(split(to_bytes(row)))
        expected = row["read"]["batches"]
        assert len(found) == len(expected), row["id"]
        for batch, java in zip(found, expected):
            header = batch.header()
            for java_name, name in HEADER_NAMES.items():
                assert getattr(batch, name) == java[java_name], (row["id"], name)
                assert getattr(header, name) == java[java_name], (row["id"], name)
            assert batch.codec.kafka_name == java["compression"]
            assert batch.is_log_append_time == (java["timestampType"] == "LogAppendTime")
            assert batch.has_delete_horizon == (java["deleteHorizonMs"] is not None)
            assert len(batch.payload) == java["sizeInBytes"] - 61


def test_split_and_check_refuse_what_java_refuses() -> None:
    for row in batches("batch", "several", "marker", "empty", "filtered", "corrupt"):
        read = row["read"]
        found: list[Batch] = []
        failed = False
        try:
            for batch in split(to_bytes(row)):
                found.append(batch)
        except CorruptBatchError:
            failed = True
        assert failed == (read["stage"] == "batches"), (row["id"], row["why"])
        assert len(found) == len(read["batches"]), (row["id"], row["why"])
        for batch, java in zip(found, read["batches"]):
            if java["valid"]:
                check(batch)
            else:
                with pytest.raises(CorruptBatchError):
                    check(batch)
        if not failed:
            assert valid_bytes(to_bytes(row)) == read["valid_bytes"]


def test_assign_keeps_the_checksum_valid() -> None:
    buffer = good_batch()
    assign(memoryview(buffer), 2**40, 17)
    batch = Batch(buffer)
    check(batch)
    assert (batch.base_offset, batch.leader_epoch) == (2**40, 17)


def test_set_max_timestamp_marks_log_append_time_and_seals() -> None:
    buffer = good_batch()
    set_max_timestamp(buffer, TimestampType.LOG_APPEND_TIME, 1234)
    batch = Batch(buffer)
    check(batch)
    assert (batch.is_log_append_time, batch.max_timestamp) == (True, 1234)
    set_max_timestamp(buffer, TimestampType.CREATE_TIME, 99)
    check(batch)
    assert (batch.is_log_append_time, batch.max_timestamp) == (False, 99)


def test_set_max_timestamp_leaves_an_unchanged_batch_alone() -> None:
    buffer = good_batch()
    buffer[17] ^= 0xFF
    before = bytes(buffer)
    batch = Batch(buffer)
    set_max_timestamp(buffer, batch.timestamp_type, batch.max_timestamp)
    assert bytes(buffer) == before


def test_sequence_wraps_to_zero() -> None:
    assert increment_sequence(2147483647, 1) == 0
    assert increment_sequence(2147483646, 1) == 2147483647
    assert increment_sequence(2147483647, 2147483647) == 2147483646
    assert increment_sequence(5, 0) == 5


def test_unknown_codec_bits_leave_the_header_readable() -> None:
    buffer = good_batch()
    buffer[22] = 0x06
    batch = Batch(buffer)
    assert batch.codec_id == 6
    assert batch.header().codec_id == 6
    with pytest.raises(MalformedRecordError, match="unknown compression codec 6"):
        _ = batch.codec


def test_a_short_view_says_so_instead_of_a_struct_error() -> None:
    short = Batch(bytes(26))
    with pytest.raises(CorruptBatchError, match="26 bytes"):
        short.header()
    with pytest.raises(CorruptBatchError, match="26 bytes"):
        _ = short.count
    assert "26 bytes" in repr(short)
