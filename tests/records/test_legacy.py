"""Messages of formats 0 and 1 are read as Java's client reads them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.records.legacy_messages import message, wrapper

from headrace.records import Codec, CorruptBatchError, MalformedRecordError, TimestampType, split
from headrace.records.legacy import decode_legacy, is_legacy, legacy_timestamp_type

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def decoded(data: bytes, check_crcs: bool = True) -> list[tuple[Any, ...]]:
    columns = decode_legacy(split(data), check_crcs=check_crcs)
    return list(zip(columns.offsets, columns.timestamps, columns.keys.to_list(), columns.values.to_list()))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_stand_alone(magic: int) -> None:
    data = message(5, b"a", magic=magic, key=b"k") + message(6, None, magic=magic) + message(9, b"", magic=magic)
    time = -1 if magic == 0 else 1_500_000_000_000
    assert decoded(data) == [(5, time, b"k", b"a"), (6, time, None, None), (9, time, None, b"")]
    assert all(is_legacy(batch) for batch in split(data))


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrapper_of_format_1_has_relative_offsets_and_its_own_is_the_last(codec: Codec) -> None:
    # Compaction took the one at 102.
    inner = [message(0, b"a", timestamp=1), message(1, b"b", timestamp=2), message(3, b"d", timestamp=4)]
    data = wrapper(103, inner, codec)
    assert decoded(data) == [(100, 1, None, b"a"), (101, 2, None, b"b"), (103, 4, None, b"d")]


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrapper_of_format_0_has_the_offsets_themselves(codec: Codec) -> None:
    inner = [message(100, b"a", magic=0), message(103, b"d", magic=0)]
    assert decoded(wrapper(103, inner, codec, magic=0)) == [(100, -1, None, b"a"), (103, -1, None, b"d")]


def test_the_time_of_appending_stands_on_the_wrapper_alone() -> None:
    data = wrapper(1, [message(0, b"a", timestamp=1), message(1, b"b", timestamp=2)], Codec.GZIP, log_append_time=True)
    assert [row[1] for row in decoded(data)] == [1_500_000_009_999] * 2
    [batch] = split(data)
    assert legacy_timestamp_type(batch) is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize(
    ("magic", "attributes", "kind"),
    [
        (0, 0, TimestampType.NO_TIMESTAMP_TYPE),
        (1, 0, TimestampType.CREATE_TIME),
        (1, 8, TimestampType.LOG_APPEND_TIME),
    ],
)
def test_who_gave_the_timestamp(magic: int, attributes: int, kind: TimestampType) -> None:
    [batch] = split(message(0, b"a", magic=magic, attributes=attributes))
    assert legacy_timestamp_type(batch) is kind


@pytest.mark.parametrize("checksum", [0x00, 0x82, 0xFF])
def test_lz4_of_format_0_had_a_wrong_checksum_in_its_frame(checksum: int) -> None:
    inner = [message(0, b"a", magic=0)]
    data = wrapper(0, inner, Codec.LZ4, magic=0, descriptor_checksum=checksum)
    assert decoded(data) == [(0, -1, None, b"a")]
    if checksum != 0x82:
        with pytest.raises(MalformedRecordError):
            decoded(wrapper(0, [message(0, b"a")], Codec.LZ4, magic=1, descriptor_checksum=checksum))


def test_a_wrapper_at_offset_0_counts_from_0() -> None:
    assert [row[0] for row in decoded(wrapper(0, [message(0, b"a"), message(1, b"b")], Codec.GZIP))] == [0, 1]


def test_a_wrong_checksum_is_found_also_inside() -> None:
    data = bytearray(message(0, b"abc"))
    data[-1] ^= 1
    inner = wrapper(0, [bytes(data)], Codec.GZIP)
    for damaged in (bytes(data), inner):
        with pytest.raises(CorruptBatchError, match="checksum"):
            decoded(damaged)
        assert len(decoded(damaged, check_crcs=False)) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (wrapper(5, [message(0, b"a", magic=0)], Codec.GZIP), "another format"),
        (wrapper(5, [wrapper(0, [message(0, b"a")], Codec.GZIP)], Codec.GZIP), "holds a compressed message"),
        (wrapper(5, [], Codec.GZIP), "holds no messages"),
        (wrapper(5, [message(9, b"a")], Codec.GZIP), "relative offset 9"),
        (wrapper(5, [message(3, b"a"), message(2, b"b")], Codec.GZIP), "relative offset 3"),
        (wrapper(9, [message(2**63 - 1, b"a"), message(0, b"b")], Codec.GZIP), f"relative offset {2**63 - 1}"),
        (message(5, None, attributes=1), "no value"),
        (message(5, b"x", attributes=4), "codec 4"),
        (message(5, b"x", attributes=1), "gzip"),
    ],
)
def test_what_no_broker_wrote_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedRecordError, match=why):
        decoded(data)


def test_fields_that_do_not_fit_are_refused() -> None:
    data = bytearray(message(0, b"abc"))
    data[26 + 4 + 3] = 9
    with pytest.raises(MalformedRecordError, match="9 bytes"):
        decoded(bytes(data), check_crcs=False)
    data[26 + 4 + 3] = 1
    with pytest.raises(MalformedRecordError, match="2 bytes after"):
        decoded(bytes(data), check_crcs=False)


def test_what_is_decompressed_is_bounded() -> None:
    data = wrapper(9, [message(n, b"x" * 1000) for n in range(10)], Codec.GZIP)
    [batch] = split(data)
    with pytest.raises(MalformedRecordError):
        decode_legacy([batch], check_crcs=True, limit_bytes=500)
