"""The few primitives that generated codecs call, and the one exception that malformed bytes raise."""

from __future__ import annotations

import struct
from typing import Any

from headrace.errors import HeadraceError

pack = struct.pack
unpack_from = struct.unpack_from
pack_int16 = struct.Struct(">h").pack
pack_int32 = struct.Struct(">i").pack
read_int16 = struct.Struct(">h").unpack_from
read_int32 = struct.Struct(">i").unpack_from


class MalformedMessage(HeadraceError):
    """Bytes that are not the message they claim to be. Whoever sent them gets its connection closed."""


def uvarint(value: int) -> bytes:
    """An unsigned varint, 7 bits a byte, the lowest first."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


UVARINT = tuple(uvarint(value) for value in range(128))


def read_uvarint(buffer: Any, position: int) -> tuple[int, int]:
    """The value and the position after it. At most five bytes, as the protocol has it."""
    value = shift = 0
    for _ in range(5):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFF, position
        shift += 7
    raise MalformedMessage("a varint is longer than five bytes")
