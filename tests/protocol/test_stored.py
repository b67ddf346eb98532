"""Stored records, held against bytes that Apache Kafka's own serializers wrote and read."""

from typing import Any

import pytest

from headrace.protocol.stored import consumer_offsets, metadata_records, share_groups, transaction_state
from headrace.protocol.stored.coordinator import KeyAndValue, RecordTypes, Unknown
from headrace.protocol.wire import MalformedMessageError

from .vectors import from_json, load, unbase64

TOPICS = {
    "__consumer_offsets": consumer_offsets.RECORD_TYPES,
    "__transaction_state": transaction_state.RECORD_TYPES,
    "__share_group_state": share_groups.STATE_RECORDS,
}


def rows(*, damaged: bool) -> list[dict[str, Any]]:
    """Every line with bytes; on three, Java refused to write (a field that the version lacks) and there are none."""
    lines = [*load("offsets-topic.jsonl.gz"), *load("offsets-topic-new-groups.jsonl.gz")]
    return [row for row in lines if row["topic"] in TOPICS and (row.get("op") == "decode") is damaged and "key" in row]


def as_read(row: dict[str, Any]) -> str:
    """Where a line has what Java read back; of the newer groups it is what was written too."""
    return "decoded_value_fields" if "decoded_value_fields" in row else "value_fields"


def expected(types: RecordTypes, row: dict[str, Any], value_fields: str) -> KeyAndValue:
    key_class, value_class = types.classes[row["type_id"]]
    value = row[value_fields]
    return KeyAndValue(
        from_json(key_class, row["key_fields"]), None if value is None else from_json(value_class, value)
    )


def test_every_record_that_kafka_wrote_reads_as_kafka_reads_it() -> None:
    seen = 0
    for row in rows(damaged=False):
        types = TOPICS[row["topic"]]
        got = types.decode(unbase64(row["key"]) or b"", unbase64(row["value"]))
        assert got == expected(types, row, as_read(row))
        seen += 1
    assert seen > 1000


def test_every_record_is_written_byte_for_byte_as_kafka_writes_it() -> None:
    for row in rows(damaged=False):
        types = TOPICS[row["topic"]]
        record = expected(types, row, "value_fields")
        got = types.encode(record.key, record.value, row["value_version"] or 0)
        assert got == (unbase64(row["key"]), unbase64(row["value"]))


def test_damaged_records_are_refused_where_kafka_refuses_them() -> None:
    for row in rows(damaged=True):
        types = TOPICS[row["topic"]]
        key, value = unbase64(row["key"]) or b"", unbase64(row["value"])
        record_type = int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else None
        error = row["error"]["class"] if row["error"] else None
        if record_type is not None and record_type not in types.classes:
            assert isinstance(types.decode(key, value), Unknown)
        elif error is None:
            got = types.decode(key, value)
            assert isinstance(got, KeyAndValue)
            value_class = types.classes[row["type_id"]][1]
            wanted = row["value_fields"]
            assert got.value == (None if wanted is None else from_json(value_class, wanted))
        elif error.endswith(("UnknownRecordVersionException", "UnsupportedVersionException")):
            got = types.decode(key, value)
            assert isinstance(got, Unknown)
            assert got.version is not None
        else:
            with pytest.raises(MalformedMessageError):
                types.decode(key, value)


def test_records_that_do_not_belong_together_are_not_written() -> None:
    key = consumer_offsets.OffsetCommitKey(group="g", topic="t", partition=1)
    with pytest.raises(ValueError, match="not a record of __consumer_offsets"):
        consumer_offsets.encode_record(key, consumer_offsets.GroupMetadataValue(), 3)
    with pytest.raises(ValueError, match="no version 5"):
        consumer_offsets.encode_record(key, consumer_offsets.OffsetCommitValue(), 5)


@pytest.mark.parametrize("cls", metadata_records._CLASSES.values(), ids=lambda cls: cls.__name__)
def test_a_metadata_record_comes_back_from_its_frame(cls: type[Any]) -> None:
    for version in range(cls.SCHEMA.versions.low, cls.SCHEMA.versions.high + 1):
        framed = metadata_records.encode_record(cls(), version)
        assert framed[:3] == bytes((1, cls.SCHEMA.api_key, version))
        assert metadata_records.decode_record(framed) == cls()
        for cut in range(len(framed)):
            with pytest.raises(MalformedMessageError):
                metadata_records.decode_record(framed[:cut])


def test_metadata_records_of_unknown_type_or_version_are_reported_not_refused() -> None:
    assert metadata_records.decode_record(b"\x01\x1d\x00rest") == Unknown(29)
    assert metadata_records.decode_record(b"\x01\x02\x09rest") == Unknown(2, 9, "TopicRecord")


def test_metadata_records_in_another_frame_or_with_bytes_after_them_are_refused() -> None:
    record = metadata_records.encode_record(metadata_records.TopicRecord(name="t"))
    with pytest.raises(MalformedMessageError, match="frame version"):
        metadata_records.decode_record(b"\x00" + record[1:])
    with pytest.raises(MalformedMessageError, match="1 bytes after"):
        metadata_records.decode_record(record + b"\x00")
