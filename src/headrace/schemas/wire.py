"""How a record says which schema it was written with: a zero byte and the schema's number before the data, or the
schema's GUID in a header; for Protobuf also which message of the file it is."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.client.errors import SerializationError

MAGIC, GUID_MAGIC = 0, 1
PREFIX = struct.Struct(">bI")
KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
INDEXES_MAX = 1_000
_SHIFT_MAX = 63


class Framed(NamedTuple):
    """A record's data, and what it says of its schema: a number or a GUID."""

    schema: int | uuid.UUID
    payload: bytes
    indexes: tuple[int, ...] = ()
    """Of a Protobuf message: where it is in the file, the outermost first."""


def prefix(number: int) -> bytes:
    """What stands before data of the schema with this number."""
    return PREFIX.pack(MAGIC, number)


def unframe(
    topic: str,
    data: bytes,
    *,
    is_key: bool,
    headers: Iterable[tuple[str, bytes | None]] = (),
    has_indexes: bool = False,
) -> Framed:
    """Take a record's data apart; a header comes before the prefix."""
    name = KEY_HEADER if is_key else VALUE_HEADER
    told = next((value for key, value in headers if key == name and value is not None), None)
    if told is not None:
        if len(told) < 17 or told[0] != GUID_MAGIC:
            raise SerializationError(f"the header {name} of a record of {topic} is no schema's GUID: {told[:20].hex()}")
        guid = uuid.UUID(bytes=told[1:17])
        return Framed(guid, data, read_indexes(told, 17)[0] if has_indexes else ())
    if len(data) < PREFIX.size or data[0] not in (MAGIC, GUID_MAGIC):
        raise SerializationError(
            f"a record of {topic} was not written with a schema registry: it begins with "
            f"{data[:5].hex() or 'nothing'}, and not with a zero byte and a schema's number"
        )
    if data[0] == GUID_MAGIC:
        if len(data) < 17:
            raise SerializationError(f"a record of {topic} ends within its schema's GUID")
        schema: int | uuid.UUID = uuid.UUID(bytes=bytes(data[1:17]))
        start = 17
    else:
        schema, start = PREFIX.unpack_from(data)[1], PREFIX.size
    indexes: tuple[int, ...] = ()
    if has_indexes:
        indexes, start = read_indexes(data, start)
    return Framed(schema, data[start:], indexes)


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Where a message is in its file; the first one, which is the usual case, is a single zero."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def read_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The indexes that begin there, and where they end."""
    count, at = _read_varint(data, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise SerializationError(f"a record names its message by {count} indexes")
    found = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        found.append(number)
    return tuple(found), at


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    made = bytearray()
    while number > 0x7F:
        made.append((number & 0x7F) | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _SHIFT_MAX:
            raise SerializationError("a record ends, or goes wrong, within the indexes that name its message")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
