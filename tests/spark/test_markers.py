"""Markers beyond the last stable offset are decided by the control records that follow them."""

from __future__ import annotations

import pytest

from headrace.records import Batch, split
from headrace.records.build import ControlType, build_batch, control_batch
from headrace.spark.markers import Marker, UndecidedMarkerError, last_decided

KEY = b"mine"


def written(value: bytes, producer: int, key: bytes = KEY) -> bytearray:
    return build_batch(
        [(1, key, value, ())], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def ended(producer: int, kind: ControlType) -> bytearray:
    return control_batch(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1)


def decided(*parts: bytearray) -> bytes | None:
    batches: list[Batch] = list(split(b"".join(parts)))
    return last_decided(batches, KEY)


def test_a_marker_survives_its_bytes() -> None:
    marker = Marker(7, 100, 1_700_000_000_000)
    assert Marker.from_bytes(marker.to_bytes()) == marker


def test_committed_counts_and_aborted_does_not() -> None:
    assert decided(written(b"1", 1), ended(1, ControlType.COMMIT)) == b"1"
    assert decided(written(b"1", 1), ended(1, ControlType.ABORT)) is None
    assert (
        decided(written(b"1", 1), ended(1, ControlType.COMMIT), written(b"2", 1), ended(1, ControlType.ABORT)) == b"1"
    )


def test_another_querys_open_transaction_hides_nothing() -> None:
    other = written(b"9", 2, key=b"other")
    assert decided(other, written(b"1", 1), ended(1, ControlType.COMMIT)) == b"1"


def test_an_undecided_marker_of_ours_is_an_error() -> None:
    with pytest.raises(UndecidedMarkerError):
        decided(written(b"1", 1))


def test_nothing_is_nothing() -> None:
    assert decided(written(b"9", 2, key=b"other"), ended(2, ControlType.COMMIT)) is None
