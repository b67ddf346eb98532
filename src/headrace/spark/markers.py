"""Markers: which batch of which query was committed last, in a compacted topic that the batch's transaction writes too.

Up to the last stable offset the broker says what is committed. Beyond it another query's open transaction may hide a
marker of ours that is decided already; so there the log is read as it is, and decided here by the control records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from headrace.errors import HeadraceError
from headrace.records import Batch, read_control, read_records

_COMMIT = 1


class UndecidedMarker(HeadraceError):
    """A marker of ours belongs to a transaction that is open, although all of ours were ended before."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What is written with a batch; -1 where it is not known (yet)."""

    batch: int
    records: int = -1
    at_ms: int = -1

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Marker:
        given = json.loads(value)
        return cls(int(given["batch"]), int(given.get("records", -1)), int(given.get("at_ms", -1)))


def last_decided(batches: Iterable[Batch], key: bytes) -> bytes | None:
    """The value of the last record with this key whose transaction was committed within these batches.

    Raises `UndecidedMarker` when one is left whose transaction has no end in them.
    """
    open_values: dict[int, bytes] = {}
    found: bytes | None = None
    for batch in batches:
        header = batch.header()
        if header.is_control:
            records = read_records(batch)
            value = open_values.pop(header.producer_id, None)
            if value is not None and records and read_control(records[0]).control_type == _COMMIT:
                found = value
            continue
        for record in read_records(batch):
            if record.key != key or record.value is None:
                continue
            if header.is_transactional:
                open_values[header.producer_id] = record.value
            else:
                found = record.value
    if open_values:
        raise UndecidedMarker(
            f"the marker {key.decode(errors='replace')} is written but not decided: its transaction is still open"
        )
    return found
