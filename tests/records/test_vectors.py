"""Batches are read, written and filtered as Apache Kafka's Java code does, by the plain and by the compiled kernels."""

from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.records import (
    Batch,
    Codec,
    Columns,
    CorruptBatchError,
    Record,
    Retention,
    TimestampType,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    check,
    control_batch,
    decode_columns,
    empty_batch,
    filter_batch,
    iter_records,
    keep_offsets,
    kernels,
    murmur2,
    partition_for_key,
    read_control,
    read_records,
    records_of,
    split,
)
from headrace.records.build import ControlType
from headrace.records.columns import bytes_column

from .vectors import batches, load, to_bytes, unbase64

TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}


def java_record(record: dict[str, Any]) -> Record:
    return Record(
        record["offset"],
        record["timestamp"],
        unbase64(record["key"]),
        unbase64(record["value"]),
        tuple((key, unbase64(value)) for key, value in record["headers"]),
        record["sequence"],
    )


def batch_options(params: dict[str, Any]) -> dict[str, Any]:
    stamped = params["timestampType"] == "LogAppendTime"
    return {
        "base_offset": params["baseOffset"],
        "last_offset": params["overrideLastOffset"],
        "codec": Codec[params["codec"].upper()],
        "producer_id": params["producerId"],
        "producer_epoch": params["producerEpoch"],
        "base_sequence": params["baseSequence"],
        "transactional": params["isTransactional"],
        "control": params["isControl"],
        "leader_epoch": params["partitionLeaderEpoch"],
        "timestamp_type": TIMESTAMP_TYPES[params["timestampType"]],
        "log_append_time": params["logAppendTime"] if stamped else None,
        "delete_horizon": params["deleteHorizonMs"],
    }


def tuples_in(row: dict[str, Any]) -> list[Any]:
    base = row["params"]["baseOffset"]
    return [
        (
            record["timestamp"],
            unbase64(record["key"]),
            unbase64(record["value"]),
            [(key, unbase64(value)) for key, value in record["headers"]],
            record["offset"] - base,
        )
        for record in row["records_in"]
    ]


@pytest.mark.slow
def test_records_are_read_or_refused_as_by_java(either_kernels: str) -> None:
    for row in batches("batch", "several", "marker", "empty", "filtered", "corrupt"):
        found: list[Batch] = []
        try:
            found.extend(split(to_bytes(row)))
        except CorruptBatchError:
            assert row["read"]["stage"] == "batches"
        for batch, java in zip(found, row["read"]["batches"]):
            records: list[Record] = []
            failed = False
            try:
                for record in iter_records(batch):
                    records.append(record)
            except HeadraceError:
                failed = True
            assert failed == ("iterate_error" in java), (row["id"], row["why"], java.get("iterate_error"))
            assert records == [java_record(record) for record in java["records"]], (row["id"], row["why"])
            if failed:
                with pytest.raises(HeadraceError):
                    read_records(batch)
                with pytest.raises(HeadraceError):
                    decode_columns(batch)
            else:
                assert read_records(batch) == records
                plain = [record._replace(sequence=-1) for record in records]
                assert records_of(decode_columns(batch)) == plain


def test_batches_in_a_row_decode_into_one_set_of_columns(either_kernels: str) -> None:
    for row in batches("several"):
        found = list(split(to_bytes(row)))
        expected = [java_record(record) for java in row["read"]["batches"] for record in java["records"]]
        assert records_of(decode_columns(found)) == [record._replace(sequence=-1) for record in expected]


def test_uncompressed_batches_are_written_with_java_s_bytes(either_kernels: str) -> None:
    compared = 0
    for row in batches("batch"):
        if not row["encode_equal"]:
            continue
        options = batch_options(row["params"])
        rows = tuples_in(row)
        assert build_batch(rows, **options) == to_bytes(row), row["id"]
        timestamps, keys, values, headers, deltas = zip(*rows)
        assert build_batch_of(timestamps, keys, values, headers, deltas, **options) == to_bytes(row), row["id"]
        columns = decode_columns(Batch(to_bytes(row)))
        if options["log_append_time"] is None:
            assert build_batch_from_columns(columns, **options) == to_bytes(row), row["id"]
        compared += 1
    assert compared == 400


def test_compressed_batches_read_back_what_java_was_given(either_kernels: str) -> None:
    for row in batches("batch"):
        if row["encode_equal"]:
            continue
        built = build_batch(tuples_in(row), **batch_options(row["params"]))
        batch = Batch(built)
        check(batch)
        java = row["read"]["batches"][0]
        assert read_records(batch) == [java_record(record) for record in java["records"]]
        assert (batch.last_offset, batch.max_timestamp) == (java["lastOffset"], java["maxTimestamp"])
        assert batch.attributes == Batch(to_bytes(row)).attributes


def test_transaction_markers_are_those_of_java() -> None:
    for row in batches("marker"):
        params = row["params"]
        built = control_batch(
            ControlType[params["type"]],
            producer_id=params["producerId"],
            producer_epoch=params["producerEpoch"],
            coordinator_epoch=params["coordinatorEpoch"],
            timestamp=params["timestamp"],
            base_offset=params["baseOffset"],
            leader_epoch=params["partitionLeaderEpoch"],
        )
        assert built == to_bytes(row), row["id"]
        marker = read_control(read_records(Batch(built))[0])
        java = row["read"]["batches"][0]
        assert ControlType(marker.control_type).name == java["control_type"]
        assert marker.coordinator_epoch == java["coordinator_epoch"]


def test_empty_batches_are_those_of_java() -> None:
    for row in batches("empty"):
        params = row["params"]
        built = empty_batch(
            base_offset=params["baseOffset"],
            last_offset=params["lastOffset"],
            max_timestamp=params["timestamp"],
            producer_id=params["producerId"],
            producer_epoch=params["producerEpoch"],
            base_sequence=params["baseSequence"],
            leader_epoch=params["partitionLeaderEpoch"],
            timestamp_type=TIMESTAMP_TYPES[params["timestampType"]],
            transactional=params["isTransactional"],
            control=params["isControl"],
        )
        assert built == to_bytes(row), row["id"]


def test_filtered_batches_are_those_of_java(either_kernels: str) -> None:
    for row in batches("filtered"):
        params = row["params"]
        before = unbase64(params["before"])
        assert before is not None
        # Java's answers were made with a filter of time 0 and a delete retention of 0. The offsets are listed over all
        # batches, which may overlap: which batch they belong to shows in what Java kept of it.
        outcome = {identity(batch): [record.offset for record in read_records(batch)] for batch in split(to_bytes(row))}
        wanted = [outcome.get(identity(batch), []) for batch in split(before)]
        assert [offset for offsets in wanted for offset in offsets] == params["keptOffsets"]
        kept = [
            filter_batch(batch, keep_offsets(set(offsets)), Retention[params["batchRetention"]], delete_horizon_ms=0)
            for batch, offsets in zip(split(before), wanted)
        ]
        after = b"".join(bytes(part) for part in kept if part is not None)
        expected = to_bytes(row)
        if row["encode_equal"]:
            assert after == expected, row["id"]
        assert valid_headers(after) == valid_headers(expected), row["id"]
        assert [read_records(batch) for batch in split(after)] == [read_records(batch) for batch in split(expected)]


def identity(batch: Batch) -> tuple[int, ...]:
    header = batch.header()
    return header.base_offset, header.last_offset, header.leader_epoch, header.producer_id, header.base_sequence


def valid_headers(data: bytes) -> list[Any]:
    found = []
    for batch in split(data):
        check(batch)
        found.append(batch.header()._replace(batch_length=0, crc=0))
    return found


def test_keys_hash_as_in_java(either_kernels: str) -> None:
    rows = [row for row in load("hashes.jsonl.gz") if row["kind"] == "murmur2"]
    keys = [unbase64(row["key"]) or b"" for row in rows]
    for row, key in zip(rows, keys):
        assert murmur2(key) == row["hash"]
        for count, partition in row["partition"].items():
            assert partition_for_key(key, int(count)) == partition
    column = bytes_column([*keys, None])
    assert kernels.choose(len(keys)).murmur2_column(column).tolist() == [row["hash"] for row in rows] + [0]


def test_a_count_that_cannot_fit_allocates_nothing(either_kernels: str) -> None:
    raw = bytearray(build_batch([(0, None, b"v", ())]))
    raw[57:61] = (2147483647).to_bytes(4, "big")
    with pytest.raises(HeadraceError, match="2147483647 records"):
        read_records(Batch(raw))


def test_columns_have_a_length() -> None:
    columns = decode_columns(Batch(build_batch([(1, b"k", None, [("h", b"x")]), (2, None, b"v", ())])))
    assert isinstance(columns, Columns)
    assert len(columns) == 2
    assert columns.headers_of(0) == (("h", b"x"),)
    assert columns.headers_of(1) == ()
    assert (columns.keys[0], columns.keys[1], columns.values[0]) == (b"k", None, None)


@pytest.mark.slow
def test_damaged_batches_are_read_or_refused_as_by_java(either_kernels: str) -> None:
    rows = load("damaged-batches.jsonl.gz")
    assert len(rows) > 2000
    for number, row in enumerate(rows):
        assert in_java_s_words(to_bytes(row)) == row["java"], number


def in_java_s_words(data: bytes) -> str:
    words: list[str] = []
    try:
        for batch in split(data):
            words.append("B")
            try:
                for record in iter_records(batch):
                    sizes = [-1 if part is None else len(part) for part in (record.key, record.value)]
                    words.append(
                        f"{record.offset},{record.timestamp},{record.sequence},{sizes[0]},{sizes[1]},{java_hash(record)}"
                    )
            except HeadraceError:
                words.append("E")
    except CorruptBatchError:
        words.append("S")
    return "".join(f"{word};" for word in words)


def java_hash(record: Record) -> int:
    hashed = 0
    for byte in (record.key or b"") + (record.value or b""):
        hashed = hashed * 31 + (byte ^ 0x80) - 0x80
    for key, value in record.headers:
        units = key.encode("utf-16-be")
        name = 0
        for at in range(0, len(units), 2):
            name = name * 31 + int.from_bytes(units[at : at + 2], "big")
        hashed = hashed * 31 + name
        for byte in value or b"":
            hashed = hashed * 31 + (byte ^ 0x80) - 0x80
    return (hashed + 2**31) % 2**32 - 2**31
