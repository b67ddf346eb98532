"""The few primitives that generated codecs call, and the one exception that malformed bytes raise."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from headrace.errors import HeadraceError

pack_int16 = struct.Struct(">h").pack
pack_int32 = struct.Struct(">i").pack
read_int16 = struct.Struct(">h").unpack_from

INT32_MAX = 2**31 - 1
SMALL_ARRAY = 64
REQUEST_ELEMENTS_MAX = 100_000
"""Of all arrays of a request together, unless the reader says otherwise."""
HEADER_TAGS_MAX = 1000
"""Tagged fields of a request's header: known clients send none."""
_LAYOUTS_MAX = 1024


class MalformedMessageError(HeadraceError):
    """Bytes that are not the message they claim to be. Whoever sent them gets its connection closed."""


class TooManyElementsError(MalformedMessageError):
    """A request whose arrays have more elements, all together, than its reader takes."""

    def __init__(self) -> None:
        super().__init__("the arrays of a request have too many elements")


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
    raise MalformedMessageError("a varint is longer than five bytes")


def read_length(buffer: Any, position: int) -> tuple[int, int]:
    """A compact length, which travels as one more. Kafka takes it as a signed number: from 2^31 on it means null.

    The usual lengths, of two or three bytes, are read without a loop: this is called for every batch of records.
    """
    first, second = buffer[position], buffer[position + 1]
    if first > 127:
        if second < 128:
            return (first & 127 | second << 7) - 1, position + 2
        third = buffer[position + 2]
        if third < 128:
            return (first & 127 | (second & 127) << 7 | third << 14) - 1, position + 3
    value, position = read_uvarint(buffer, position)
    return (value if value < 0x80000000 else value - 0x100000000) - 1, position


def skip_tags(buffer: Any, position: int, count_max: int | None = None) -> int:
    """The position after a section of tagged fields none of which is known. To Java a negative number is none."""
    count, position = read_uvarint(buffer, position)
    if count > INT32_MAX:
        return position
    if count_max is not None and count > count_max:
        raise TooManyElementsError
    if count * 2 > len(buffer) - position:
        raise MalformedMessageError("more tagged fields than bytes left")
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedMessageError("a tagged field reaches beyond the message")
    return position


@cache
def array_unpackers(code: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """What unpacks an array of `n` numbers, by `n`: making the format anew for each would take longer than reading."""
    return tuple(struct.Struct(f">{n}{code}").unpack_from for n in range(SMALL_ARRAY))


def read_numbers(code: str, count: int, buffer: Any, position: int) -> tuple[list[Any], int]:
    """An array of many numbers, and the position after it."""
    end = position + count * struct.calcsize(f">{code}")
    if end > len(buffer):
        raise MalformedMessageError("an array has more elements than bytes are left")
    return list(struct.unpack_from(f">{count}{code}", buffer, position)), end


class Layouts(dict[tuple[int, ...], Callable[..., bytes]]):
    """What packs a run of numbers and arrays of numbers, by the arrays' lengths.

    `layout` has a struct code for each number, and (struct code, compact length?) for each array. It remembers as many
    layouts as it may and makes the others anew each time.
    """

    def __init__(self, layout: Sequence[str | tuple[str, bool]]) -> None:
        self.layout = layout

    def __missing__(self, lengths: tuple[int, ...]) -> Callable[..., bytes]:
        codes = [">"]
        varints = {}  # lengths that need more than one byte: the index of the value → how it travels
        remaining, index = iter(lengths), 0
        for item in self.layout:
            if isinstance(item, str):
                codes.append(item)
                index += item != "x"
                continue
            code, compact = item
            n = next(remaining)
            if compact and n > 126:
                varints[index] = uvarint(n + 1)
                codes.append(f"{len(varints[index])}s")
            else:
                codes.append("B" if compact else "i")
            codes.append(f"{n}{code}")
            index += 1 + n
        pack = struct.Struct("".join(codes)).pack
        packer = _with_varints(pack, varints) if varints else pack
        if len(self) < _LAYOUTS_MAX and max(lengths) < SMALL_ARRAY:
            self[lengths] = packer
        return packer


def _with_varints(pack: Callable[..., bytes], varints: dict[int, bytes]) -> Callable[..., bytes]:
    def packer(*values: Any) -> bytes:
        return pack(*(varints.get(index, value) for index, value in enumerate(values)))

    return packer


def check_bytes(value: Any) -> None:
    """Text where bytes belong has a length too, and would be found out only when the frame is joined."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are needed")


def check_records(value: Any) -> None:
    """Records need not be in memory: a part of a file that knows its length is handed on to whoever sends it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return
    if isinstance(value, (str, list, tuple, dict)) or not hasattr(value, "__len__"):
        raise TypeError("bytes are needed")


def check_array(value: Any) -> None:
    """A text can be iterated over, but is not an array of texts."""
    if isinstance(value, str):
        raise TypeError("an array is needed")
