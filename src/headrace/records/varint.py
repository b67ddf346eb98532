"""Zigzag variable-length integers, one at a time, for the places where no kernel runs (headers, tables)."""

from __future__ import annotations

from functools import cache
from operator import add
from typing import NamedTuple

from headrace.records.batch import Buffer
from headrace.records.errors import MalformedRecordError


def encode(number: int) -> bytes:
    """Zigzag varint or varlong of a number that fits 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def size(number: int) -> int:
    """Bytes that `encode` would give."""
    return max(1, (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7)


def decode_int(data: Buffer, at: int) -> tuple[int, int]:
    """A 32-bit varint and the position after it. The fifth byte's surplus bits are dropped, as Java does."""
    rest = shift = 0
    for _ in range(5):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            rest &= 0xFFFFFFFF
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7
    raise MalformedRecordError(f"no valid varint before byte {at}")


SMALL = 1 << 14


class Tables(NamedTuple):
    """Encodings of 0 to SMALL - 1, and of -1 as the last entry, so that index -1 finds it."""

    encoded: list[bytes]
    sizes: list[int]
    """Bytes of each encoding."""
    costs: list[int]
    """Bytes of a byte string of that length together with its length; null for -1."""


@cache
def tables() -> Tables:
    """Made on first use: a look-up is several times faster than encoding."""
    encoded = [*map(encode, range(SMALL)), encode(-1)]
    sizes = list(map(len, encoded))
    return Tables(encoded, sizes, [*map(add, sizes[:-1], range(SMALL)), 1])
