"""Batches become Arrow and Arrow becomes batches, nulls, slices and odd types included."""

from typing import Any

import pytest

from headrace.records import Batch, Codec, build_batch, decode_columns, read_records

pa: Any = pytest.importorskip("pyarrow")

from headrace.records.arrow import arrow_to_batch, arrow_to_columns, columns_to_arrow, schema  # noqa: E402

ROWS: list[Any] = [
    (
        1000 + row,
        None if row % 3 == 0 else b"k%d" % row,
        None if row % 5 == 0 else b"v" * row,
        [("h", b"x")] * (row % 2),
    )
    for row in range(50)
]


def test_columns_become_a_record_batch(either_kernels: str) -> None:
    columns = decode_columns(Batch(build_batch(ROWS, base_offset=40, codec=Codec.ZSTD)))
    table = columns_to_arrow(columns, headers=True)
    table.validate(full=True)
    assert table.schema == schema(headers=True)
    assert table.column("offset").to_pylist() == list(range(40, 90))
    assert table.column("key").to_pylist() == [row[1] for row in ROWS]
    assert table.column("value").to_pylist() == [row[2] for row in ROWS]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [row[0] for row in ROWS]
    assert table.column("headers").to_pylist() == [[{"key": k, "value": v} for k, v in row[3]] for row in ROWS]


def test_arrow_becomes_the_same_batch(either_kernels: str) -> None:
    built = build_batch(ROWS)
    table = columns_to_arrow(decode_columns(Batch(built)), headers=True)
    assert arrow_to_batch(table, default_timestamp_ms=0) == built


def test_slices_strings_and_missing_fields_are_taken(either_kernels: str) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["zero", "one", None, "three", "four"], pa.string()),
            pa.array([b"a", b"bb", b"", None, b"c"], pa.large_binary()),
        ],
        names=["key", "value"],
    ).slice(1, 3)
    records = read_records(Batch(arrow_to_batch(batch, default_timestamp_ms=77, base_offset=5)))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in records] == [
        (5, 77, b"one", b"bb"),
        (6, 77, None, b""),
        (7, 77, b"three", None),
    ]


def test_timestamps_of_other_units_and_nulls_become_milliseconds() -> None:
    stamps = pa.array([1_500_000, None], pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), stamps], names=["value", "timestamp"])
    columns = arrow_to_columns(batch, default_timestamp_ms=9)
    assert columns.timestamps.tolist() == [1500, 9]
    assert columns.keys.to_list() == [None, None]


def test_an_empty_batch_gives_empty_columns() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([], pa.binary())], names=["value"])
    assert len(arrow_to_columns(batch, default_timestamp_ms=0)) == 0
    empty = columns_to_arrow(decode_columns([]))
    assert empty.num_rows == 0


def test_a_column_of_numbers_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1.5])], names=["value"])
    with pytest.raises(TypeError, match="double"):
        arrow_to_columns(batch, default_timestamp_ms=0)
