"""Which transactions were aborted: Kafka's `.txnindex` of one segment, appended when an abort marker is written."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.log.offset_index import DamagedIndexError

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_VERSION = 0


@dataclass(slots=True, frozen=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        return _ENTRY.pack(_VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


def parse(data: bytes, base_offset: int) -> list[AbortedTransaction]:
    """The entries of a file, in order; DamagedIndexError when they cannot be this segment's."""
    if len(data) % ENTRY_BYTES:
        raise DamagedIndexError(f"{len(data)} bytes are no whole number of {ENTRY_BYTES}-byte entries")
    entries = []
    previous = -1
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise DamagedIndexError(f"entry of version {version}; the only known one is {_VERSION}")
        if last_offset < base_offset or last_offset <= previous or first_offset > last_offset:
            raise DamagedIndexError(f"entry with offsets {first_offset}..{last_offset} is out of place")
        previous = last_offset
        entries.append(AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset))
    return entries


def collect(entries: list[AbortedTransaction], start: int, end: int, found: list[AbortedTransaction]) -> bool:
    """Add to `found` what a reader of offsets [start, end) has to know; whether later segments cannot add to it."""
    for entry in entries:
        if entry.last_offset >= start and entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            return True
    return False
