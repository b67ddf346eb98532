"""Bytes made worse, in the ways in which decoders go wrong."""

from __future__ import annotations

import random
import struct
import zlib

from crc32c import crc32c

from headrace.records import Codec, compress

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
NUMBERS = (-(2**31), -2, -1, 0, 1, 0x7FFF, 0x10000, 2**31 - 1)


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """The same bytes but for one to five changes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _change(data, rng)
    return bytes(data)


def _change(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(7)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        del data[at : at + rng.choice((1, 2, 4, 8, 100))]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 100)))
    elif kind == 3:
        data[at : at + 4] = struct.pack(">i", rng.choice(NUMBERS))
    elif kind == 4:
        data[at : at + 8] = struct.pack(">q", rng.choice(NUMBERS) << rng.choice((0, 0, 31)))
    elif kind == 5 and data:
        end = rng.randrange(at, len(data) + 1)
        data[at:at] = data[at : min(end, at + 1000)]
    elif data:
        at = min(at, len(data) - 1)
        data[at] = rng.choice((*INTERESTING, data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))


def sealed_batches(raw: bytes, bits: int = 1) -> bytes:
    """The batches of a log, each with the checksum of what it has now: so that more than the checksum is tried."""
    if not bits & 7:
        return raw
    data = bytearray(raw)
    at = 0
    while len(data) - at >= 61:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if not at + 61 <= end <= len(data):
            break
        struct.pack_into(">I", data, at + 17, crc32c(bytes(data[at + 21 : end])))
        at = end
    return bytes(data)


def sealed_batch(raw: bytes, bits: int) -> bytes:
    """One batch with the right length and checksum; its records are compressed if it says that they are.

    One in eight keeps a wrong checksum, one a wrong length, one is not compressed.
    """
    if len(raw) < 61 or not bits & 7:
        return raw
    data = bytearray(raw)
    codec = data[22] & 7
    if 1 <= codec <= 4 and bits & 0x38:
        data[61:] = compress(Codec(codec), raw[61:])
    if bits & 0x1C0:
        struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def sealed_legacy(raw: bytes, bits: int) -> bytes:
    """Messages of formats 0 and 1 with the right checksums; what a wrapper holds is compressed."""
    if not bits & 7:
        return raw
    data = bytearray(raw)
    value = 30 if len(data) > 16 and data[16] else 22
    if len(data) > value + 4 and 1 <= data[17] & 7 <= 3 and data[value - 4 : value] == b"\xff" * 4 and bits & 0x38:
        inner = data[value + 4 :]
        if bits & 0x1C0:
            _seal_legacy(inner, 0)
        packed = compress(Codec(data[17] & 7), bytes(inner))
        data[value:] = struct.pack(">i", len(packed)) + packed
        struct.pack_into(">i", data, 8, len(data) - 12)
    _seal_legacy(data, 0)
    return bytes(data)


def _seal_legacy(data: bytearray, at: int) -> None:
    while len(data) - at >= 17:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if not at + 17 <= end <= len(data):
            return
        struct.pack_into(">I", data, at + 12, zlib.crc32(data[at + 16 : end]))
        at = end


def sealed_snapshot(raw: bytes, bits: int = 1) -> bytes:
    """A snapshot of producers with the right checksum, and in half of all cases the right number of them."""
    data = bytearray(raw)
    if len(data) < 10 or not bits & 7:
        return raw
    if bits & 8:
        struct.pack_into(">i", data, 6, (len(data) - 10) // 46)
    struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    return bytes(data)


def sealed_frames(raw: bytes, bits: int = 1) -> bytes:
    """The first entry of a shared directory's journal, with the right length and checksum; mostly also its JSON's."""
    if len(raw) <= 12 or not bits & 7:
        return raw
    body = raw[8:]
    if bits & 0x18:
        end = body.rfind(b"}") + 1
        body = struct.pack(">I", max(0, end - 4)) + body[4:]
    return struct.pack(">II", len(body), zlib.crc32(body)) + body
