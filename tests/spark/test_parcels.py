"""Rows in parcels: nothing is lost, order holds within a lane, and none grows without bound."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from headrace.spark.parcels import LANE, PARCEL, pack, unpack

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(values: list[bytes | None], **more: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **more})


def unpacked(packed: pa.RecordBatch) -> list[tuple[int, dict[str, object]]]:
    return [(lane, row) for lane, part in unpack(packed) for row in part.to_pylist()]


def test_rows_come_out_with_their_lane_in_the_order_they_had_within_it() -> None:
    rng = random.Random(5)
    values: list[bytes | None] = [None if number % 7 == 0 else b"%d" % number for number in range(1000)]
    headers = pa.array([[("h", b"1")] if number % 3 else [] for number in range(1000)], HEADERS)
    batch = rows(values, headers=headers, partition=pa.array(range(1000), pa.int32()))
    lanes = [rng.choice([0, 1, 4]) for _ in range(1000)]
    found = unpacked(pack(batch, np.array(lanes, np.int32)))
    expected = sorted(zip(lanes, batch.to_pylist()), key=lambda pair: pair[0])
    assert found == expected


def test_a_slice_is_packed_without_the_rest() -> None:
    batch = rows([b"x" * 100_000] * 10).slice(4, 2)
    packed = pack(batch, [1, 0])
    assert [lane for lane, _ in unpacked(packed)] == [0, 1]
    assert packed.nbytes < 300_000


def test_many_bytes_of_one_lane_become_several_parcels_and_a_large_row_one_of_its_own() -> None:
    many = pack(rows([b"x" * 1000] * 5000), [2] * 5000)
    assert many.column(LANE).to_pylist() == [2] * many.num_rows
    assert many.num_rows >= 4
    assert max(len(parcel.as_py()) for parcel in many.column(PARCEL)) < 1.1 * 2**18
    assert len(unpacked(many)) == 5000
    large = pack(rows([b"y" * 5_000_000, b"z"]), [0, 0])
    assert [row["value"][:1] for _, row in unpacked(large)] == [b"y", b"z"]  # type: ignore[index]


def test_no_rows_make_no_parcel() -> None:
    assert pack(rows([]), []).num_rows == 0
