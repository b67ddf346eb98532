"""Producer state on disk: Kafka's `<offset>.snapshot` files, one when a segment ends and one at a clean stop."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from headrace.errors import HeadraceError
from headrace.log.producer_state import Producer, WrittenBatch

SUFFIX = ".snapshot"
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_CRC_FROM = 6


class DamagedSnapshot(HeadraceError):
    """A snapshot that cannot be used: the state is rebuilt from the log instead."""


def encode(producers: Iterable[Producer]) -> bytes:
    entries = [
        _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.batches[-1].offset_delta if producer.batches else 0,
            producer.last_timestamp_ms,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
        for producer in producers
    ]
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode(data: bytes) -> list[Producer]:
    if len(data) < _HEAD.size:
        raise DamagedSnapshot(f"{len(data)} bytes are too few for a snapshot")
    version, stored_crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise DamagedSnapshot(f"version {version}; the only known one is {_VERSION}")
    if crc32c(memoryview(data)[_CRC_FROM:]) != stored_crc:
        raise DamagedSnapshot("its checksum does not match its bytes")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise DamagedSnapshot(f"{len(data)} bytes do not hold the {count} producers it names")
    producers = []
    for entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first_offset = entry
        batches = [WrittenBatch(last_sequence, last_offset, delta, timestamp_ms)] if last_offset >= 0 else []
        producers.append(Producer(producer_id, epoch, coordinator_epoch, timestamp_ms, max(first_offset, -1), batches))
    return producers
