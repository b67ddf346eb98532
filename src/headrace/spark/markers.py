"""Markers: which batch of which sink of which query was committed last, and from which offsets of the source.

They are records of a compacted topic that the batch's own transaction writes too.

Up to the last stable offset the broker says what is committed. Beyond it another query's open transaction may hide a
marker of ours that is decided already; so there the log is read as it is, and decided here by the control records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from headrace.errors import HeadraceError
from headrace.records import Batch, read_control, read_records

_COMMIT = 1


class UndecidedMarkerError(HeadraceError):
    """A marker of ours belongs to a transaction that is open, although all of ours were ended before."""


class UnreadableMarkerError(HeadraceError):
    """A record of the progress topic that is no marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What is written with a batch, and of what it is: -1 and "" where it is not known (yet)."""

    batch: int
    records: int = -1
    at_ms: int = -1
    query: str = ""
    sink: str = ""
    cluster: str = ""
    """The id of the cluster that it was written to."""
    run: str = ""
    """Which start of the query wrote it."""
    call: str = ""
    """Which call: the same for all attempts of one."""
    begin: str = ""
    """A digest of the source's offsets before the batch."""
    end: str = ""
    """And of those behind it. Empty where batches are numbered by somebody else than Spark."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The output topics with their ids."""
    offsets: Mapping[str, Any] = field(default_factory=dict)
    """Where the batch ended in the source, as `startingOffsets` takes it; empty where that is not known."""

    def to_bytes(self) -> bytes:
        said = {name: value for name, value in asdict(self).items() if value not in ("", {})}
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """As written by this version, or by an earlier one, which said less."""
        try:
            given = json.loads(value)
            known = {one.name: given[one.name] for one in fields(cls) if one.name in given}
            return cls(**{**known, "batch": int(given["batch"])})
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableMarkerError(
                f"a record of the progress topic is no marker ({error}): {value[:200]!r}. Only markers belong there; "
                "use another progress_topic, or remove what is not one"
            ) from error


def last_decided(batches: Iterable[Batch], key: bytes) -> bytes | None:
    """The value of the last record with this key whose transaction was committed within these batches.

    Raises `UndecidedMarkerError` when one is left whose transaction has no end in them.
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
        raise UndecidedMarkerError(
            f"the marker {key.decode(errors='replace')} is written but not decided: its transaction is still open"
        )
    return found
