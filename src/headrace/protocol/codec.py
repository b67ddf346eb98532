"""Messages to bytes and back: bodies, headers, whole frames. No I/O.

A frame is an int32 length, then a header, then a body. `encode_frame` gives a list of parts, so that record data is
handed to the socket without being copied into the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from headrace.protocol.codegen import decoder, encoder
from headrace.protocol.explain import explain
from headrace.protocol.schema import RECORDS, MessageKind, Primitive, Schema
from headrace.protocol.schema import Buffer as Buffer
from headrace.protocol.wire import MalformedMessageError, pack_int32, skip_tags

T = TypeVar("T")

API_VERSIONS_KEY = 18
FRAME_BYTES_MAX = 2**31 - 1
SMALL_PART_BYTES = 4096  # up to here a copy costs less than a buffer of its own for the socket
# What is larger is sent in pieces of about that size, and what a message has of that size is a piece of its own.
PIECE_BYTES = 256 * 1024
LARGE_PART_BYTES = 64 * 1024
_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")
# API key and version as one number, which says all about how to read the rest.
_HEADER_BY_KIND = struct.Struct(">Iih")
REQUEST_HEADER_BYTES = _HEADER.size  # up to the client's id
# The kind of a request, its correlation id, and the length of the client's id that follows.
unpack_request_header = _HEADER_BY_KIND.unpack_from


@dataclass(slots=True)
class RequestHeader:
    """What stands before every request. `body_position` is where the body begins in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int = 0


def decode(cls: type[T], version: int, buffer: Buffer, position: int = 0) -> T:
    """Read one message; bytes after it are ignored, as Kafka ignores them."""
    return decode_from(cls, version, buffer, position)[0]


def decode_from(cls: type[T], version: int, buffer: Buffer, position: int = 0) -> tuple[T, int]:
    """Read one message and say where it ends. Whatever is wrong with the bytes is a `MalformedMessageError`."""
    read = decoder(cls, version)
    try:
        return read(buffer, position)
    except (struct.error, IndexError) as error:
        raise MalformedMessageError(f"{cls.__name__} v{version} ends too early ({error})") from error


def encode_parts(message: Any, version: int) -> list[Buffer]:
    """The message as a list of parts to be sent one after the other; record data is a part of its own, not a copy.

    A value that does not fit its field is a `ValueError` that names the field: a mistake of the program's own.
    """
    write = encoder(type(message), version)
    parts: list[Buffer] = []
    try:
        write(message, parts.append)
    except _MISFITS as error:
        raise _misfit(message, version, error) from error
    return parts


# What comes of a value that does not fit its field.
_MISFITS = (struct.error, TypeError, AttributeError, OverflowError, UnicodeEncodeError)


def _misfit(message: Any, version: int, error: Exception) -> ValueError:
    return ValueError(explain(message, version) or f"{type(message).__name__} v{version}: {error}")


def encode(message: Any, version: int) -> bytes:
    return b"".join(encode_parts(message, version))


@cache
def has_flexible_header(message_class: type, version: int) -> bool:
    """Whether the header before this message carries tagged fields. ApiVersions' response never does."""
    schema: Schema = message_class.SCHEMA  # type: ignore[attr-defined]  # set by the decorators in `schema`
    if schema.api_key == API_VERSIONS_KEY and schema.kind is MessageKind.RESPONSE:
        return False
    return version in schema.flexible


def frame(parts: list[Buffer]) -> list[Buffer]:
    """Put the length before the parts of one message, small neighbours joined into one."""
    size = sum(map(len, parts))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes does not fit into a frame")
    joined: list[Buffer] = []
    small: list[Buffer] = [pack_int32(size)]
    for part in parts:
        if len(part) > SMALL_PART_BYTES or not isinstance(part, (bytes, bytearray, memoryview)):
            # A part that is still on disk stays one, however small: whoever sends it reads it.
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(part)
        else:
            small.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


def encode_request(message: Any, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A whole request frame. Its header has the client id as an old-style string, in every version."""
    name = None if client_id is None else client_id.encode()
    head = _HEADER.pack(message.SCHEMA.api_key, version, correlation_id, -1 if name is None else len(name)) + (
        name or b""
    )
    message_class: type = type(message)
    if has_flexible_header(message_class, version):
        head += b"\x00"
    return frame([head, *encode_parts(message, version)])


def encode_response(message: Any, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response frame."""
    cls: type = type(message)
    return response_encoder(cls, version)(message, correlation_id)


@cache
def response_encoder(cls: type, version: int) -> Callable[[Any, int], list[Buffer]]:
    """What makes whole frames of responses of one class and version, of a message and its correlation id."""
    write = encoder(cls, version)
    is_flexible = has_flexible_header(cls, version)
    pack_head = struct.Struct(">iix" if is_flexible else ">ii").pack
    head_bytes = 5 if is_flexible else 4

    def encode_joined(message: Any, correlation_id: int) -> list[Buffer]:
        parts: list[bytes] = []
        try:
            write(message, parts.append)
            size = sum(map(len, parts))
            head = pack_head(size + head_bytes, correlation_id)
            if size > PIECE_BYTES:
                return _in_pieces([head, *parts])
            return [head + b"".join(parts)]
        except _MISFITS as error:
            raise _misfit(message, version, error) from error

    def encode_in_parts(message: Any, correlation_id: int) -> list[Buffer]:
        parts = encode_parts(message, version)
        size = sum(map(len, parts)) + head_bytes
        if size <= SMALL_PART_BYTES:
            try:
                return [pack_head(size, correlation_id) + b"".join(parts)]
            except TypeError:
                pass  # a part of it is still on disk, however small
        head = pack_int32(correlation_id)
        return frame([head + b"\x00" if is_flexible else head, *parts])

    return encode_in_parts if _has_records(cls) else encode_joined


def _in_pieces(parts: list[bytes]) -> list[Buffer]:
    """The same bytes, the small ones joined as far as it takes: what is large is not copied, nor all in one go."""
    pieces: list[Buffer] = []
    small: list[bytes] = []
    small_bytes = 0
    for part in parts:
        if len(part) >= LARGE_PART_BYTES or small_bytes > PIECE_BYTES:
            if small:
                pieces.append(b"".join(small))
            small, small_bytes = [], 0
            if len(part) >= LARGE_PART_BYTES:
                pieces.append(part)
                continue
        small.append(part)
        small_bytes += len(part)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _has_records(cls: Any) -> bool:
    """Whether a message can carry record data, which is sent as it is and not copied into a frame."""
    for field in cls.SCHEMA.fields:
        inner = getattr(field.type, "element", field.type)
        if inner is RECORDS or (not isinstance(inner, Primitive) and _has_records(inner)):
            return True
    return False


def read_request_header(buffer: Buffer) -> tuple[int, int, str | None, int]:
    """What kind of request it is (see `split_kind`), its correlation id, the client's id, and where they end.

    It raises `struct.error` when the header is cut. Tagged fields may follow, which depends on the kind.
    """
    kind, correlation_id, n = unpack_request_header(buffer)
    if n < 0:
        return kind, correlation_id, None, REQUEST_HEADER_BYTES
    end = REQUEST_HEADER_BYTES + n
    if end > len(buffer):
        raise MalformedMessageError("the client id reaches beyond the request")
    return kind, correlation_id, str(buffer[REQUEST_HEADER_BYTES:end], "utf-8", "replace"), end


def split_kind(kind: int) -> tuple[int, int]:
    """The API key and the version of a kind of request."""
    api_key, version = kind >> 16, kind & 0xFFFF
    return api_key - 0x10000 if api_key > 0x7FFF else api_key, version - 0x10000 if version > 0x7FFF else version


def decode_request_header(buffer: Buffer, flexible: Callable[[int, int], bool]) -> RequestHeader:
    """Read the header of a request frame (without its length). `flexible(api_key, version)` tells which header it has.

    It raises `MalformedMessageError` when the header is cut; an unknown key is for the caller to refuse.
    """
    try:
        kind, correlation_id, client_id, position = read_request_header(buffer)
        api_key, version = split_kind(kind)
        if flexible(api_key, version):
            position = skip_tags(buffer, position)
    except (struct.error, IndexError) as error:
        raise MalformedMessageError(f"a request header is cut ({error})") from error
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def decode_response(cls: type[T], version: int, buffer: Buffer) -> tuple[int, T]:
    """The correlation id and the body of a response frame (without its length)."""
    message_class: type = cls
    try:
        correlation_id: int = _INT32.unpack_from(buffer, 0)[0]
        position = 4
        if has_flexible_header(message_class, version):
            # Nobody sends any; a count of 0 is one byte.
            position = skip_tags(buffer, 4) if buffer[4] else 5
    except (struct.error, IndexError) as error:
        raise MalformedMessageError(f"a response header is cut ({error})") from error
    return correlation_id, decode(cls, version, buffer, position)
