"""Batches that no producer makes, each with a checksum that is right."""

from __future__ import annotations

import struct

from headrace.records import Codec, build_batch, compress
from headrace.records.batch import HEADER_BYTES, seal

MIB = 1024 * 1024
SMALLEST_RECORD = b"\x0c\0\0\0\x01\x01\0"
"""Seven bytes: no key, no value."""


def poisoned(
    payload: bytes, count: int, codec: Codec, *, timestamp_ms: int, max_timestamp_ms: int | None = None
) -> bytearray:
    """A batch of these (compressed) bytes, whatever they are, that says it has so many records."""
    head = bytearray(build_batch([(timestamp_ms, None, b"v", ())])[:HEADER_BYTES])
    batch = head + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    if max_timestamp_ms is not None:
        struct.pack_into(">q", batch, 35, max_timestamp_ms)
    struct.pack_into(">i", batch, 57, count)
    seal(batch)
    return batch


def many_small(count: int, codec: Codec, *, timestamp_ms: int) -> bytearray:
    """A batch of so many of the smallest records, which compress to next to nothing."""
    return poisoned(bytes(compress(codec, SMALLEST_RECORD * count)), count, codec, timestamp_ms=timestamp_ms)


def of_all_sizes(count: int, codec: Codec, *, timestamp_ms: int) -> bytearray:
    """A batch of records of which no two neighbours have the same size."""
    some = b"".join(bytes((2 * (6 + size), 0, 0, 0, 1, 2 * size)) + bytes(size) + b"\0" for size in range(50))
    return poisoned(bytes(compress(codec, some * (count // 50))), count // 50 * 50, codec, timestamp_ms=timestamp_ms)
