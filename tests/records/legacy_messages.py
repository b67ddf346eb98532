"""Messages of formats 0 and 1, as brokers and producers before 0.11 wrote them."""

from __future__ import annotations

import struct
import zlib

from headrace.records import Codec
from headrace.records.compression import compress


def message(
    offset: int,
    value: bytes | None,
    *,
    magic: int = 1,
    key: bytes | None = None,
    timestamp: int = 1_500_000_000_000,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    last_offset: int,
    inner: list[bytes],
    codec: Codec,
    *,
    magic: int = 1,
    timestamp: int = 1_500_000_009_999,
    log_append_time: bool = False,
    descriptor_checksum: int | None = None,
) -> bytes:
    """`descriptor_checksum`: what stands in its place in an LZ4 frame."""
    payload = bytearray(compress(codec, b"".join(inner)))
    if descriptor_checksum is not None:
        payload[6] = descriptor_checksum
    attributes = codec | (8 if log_append_time else 0)
    return message(last_offset, bytes(payload), magic=magic, timestamp=timestamp, attributes=attributes)
