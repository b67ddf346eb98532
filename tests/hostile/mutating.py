"""Bytes made worse, in the ways in which decoders go wrong."""

from __future__ import annotations

import random
import struct
import zlib

from crc32c import crc32c

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


def sealed_batches(raw: bytes) -> bytes:
    """The batches of a log, each with the checksum of what it has now: so that more than the checksum is tried."""
    data = bytearray(raw)
    at = 0
    while len(data) - at >= 61:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if not at + 61 <= end <= len(data):
            break
        struct.pack_into(">I", data, at + 17, crc32c(bytes(data[at + 21 : end])))
        at = end
    return bytes(data)


def sealed_snapshot(raw: bytes) -> bytes:
    """A snapshot of producers with the right checksum."""
    data = bytearray(raw)
    if len(data) >= 6:
        struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    return bytes(data)


def sealed_frames(raw: bytes) -> bytes:
    """The first entry of a shared directory's journal, with the right length and checksum."""
    return struct.pack(">II", len(raw) - 8, zlib.crc32(raw[8:])) + raw[8:] if len(raw) > 8 else raw
