"""What decoders read, in pieces that say what they are, so that a mutation knows a length from a text.

A shape is one valid input: its parts, joined, are what is read. `Fuel` has, for every kind of piece, what may stand in
its place, drawn anew for each block of inputs; that makes an input cost a few list operations, with no number drawn
for a byte that nobody looks at.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum, auto
from typing import Any, NamedTuple

from headrace.protocol.schema import Array, Field, Primitive
from headrace.protocol.source_writer import SourceWriter, is_fixed
from headrace.protocol.wire import uvarint
from headrace.records.varint import encode as encode_int


class Kind(IntEnum):
    """What a piece is; the first ones decide what is read after them."""

    TEXT_LENGTH = 0  # int16
    BYTES_LENGTH = auto()  # int32
    COMPACT_LENGTH = auto()
    COUNT = auto()  # int32
    COMPACT_COUNT = auto()
    PRESENT = auto()
    UVARINT = auto()
    VARINT = auto()  # zigzag
    WORD = auto()
    MARK = auto()  # what stands between words
    VERSION = auto()  # int16
    INT8 = auto()
    INT16 = auto()
    INT32 = auto()
    INT64 = auto()
    FIXED = auto()
    CONTENT = auto()


STRUCTURE = frozenset(range(Kind.VERSION + 1))
_SIZES = {Kind.INT8: 1, Kind.INT16: 2, Kind.INT32: 4, Kind.INT64: 8, Kind.FIXED: 16}
_BY_SIZE = {1: Kind.INT8, 2: Kind.INT16, 4: Kind.INT32, 8: Kind.INT64, 16: Kind.FIXED}
TEXTS = (b"", b"a", b"t", b"topic-1", "ä€😀".encode(), b"\0", b"x" * 20, b"x" * 126, b"x" * 127, b"__consumer_offsets")
BAD_TEXTS = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0" * 9, b"../..", b"\r\n", b"\xef\xbf\xbd" * 9)
WORDS = [b"", b"0", b"-1", b"+1", b"1_0", b"\xd9\xa3", b"00", b"1e9", b"1.0", b"nan", b"0x1", b"9" * 19, b"9" * 30]
WORDS += [b"9" * 4301, b"-9223372036854775809", b"2147483648", b"null", b"true", b"[]", b"{}", b'""', b"\xff", b"\0"]
WORDS += [b"1e999", b"-0", b'"\\ud800"', b'"\\u0000"', b"version", b"cluster.id", b"AAAAAAAAAAAAAAAAAAAAAw", b"a"]
WORDS += [b"\xc3\xa4", b"[" * 2000, b"\xc2\xb2", b"--5", b"9223372036854775808", b"4294967296"]
MARKS = [b"", b" ", b"\n", b"\r\n", b"\r", b"=", b":", b",", b"\t", b"\n\n", b"\\\n", b"#", b"\xc2\xa0", b"\x1c"]
MARKS += [b"\xe2\x80\xa8", b"[", b"]", b"{", b"}", b'"', b"\\"]


class Run(NamedTuple):
    """The elements of an array: which part counts them, and where each begins, and the last ends."""

    count: int
    bounds: tuple[int, ...]


class Shape:
    __slots__ = ("enclosed", "kinds", "parts", "runs", "structure")

    def __init__(
        self,
        parts: list[bytes],
        kinds: list[int],
        runs: Sequence[Run] = (),
        enclosed: Sequence[tuple[int, int]] = (),
    ) -> None:
        #: Parts that are the zigzag lengths of what comes after them: which, and where that ends.
        self.enclosed = enclosed
        self.parts = parts
        self.kinds = kinds
        self.runs = [run for run in runs if len(run.bounds) > 1]
        #: Where the parts are that decide what is read after them; all, where none does.
        self.structure = [at for at, kind in enumerate(kinds) if kind in STRUCTURE] or list(range(len(kinds)))

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


class MessageShapes(SourceWriter):
    """Random messages of a class, in one version."""

    def __init__(self, cls: Any, version: int, rng: random.Random) -> None:
        super().__init__(version, version in cls.SCHEMA.flexible)
        self.cls, self.random = cls, rng

    def shape(self, before: Sequence[tuple[int, bytes]] = ()) -> Shape:
        self.parts: list[bytes] = [part for _, part in before]
        self.kinds: list[int] = [kind for kind, _ in before]
        self.runs: list[Run] = []
        self._struct(self.cls)
        return Shape(self.parts, self.kinds, self.runs)

    def _put(self, kind: int, part: bytes) -> None:
        self.kinds.append(kind)
        self.parts.append(part)

    def _struct(self, cls: Any) -> None:
        for field in self.plain_fields(cls.SCHEMA):
            self._field(field)
        if self.flexible:
            self._tags([field for field in self.tagged_fields(cls.SCHEMA) if self.random.random() < 0.6])

    def _tags(self, fields: list[Field]) -> None:
        unknown = self.random.random() < 0.1
        self._put(Kind.UVARINT, uvarint(len(fields) + unknown))
        for field in fields:
            self._put(Kind.UVARINT, uvarint(field.tag or 0))
            at = len(self.parts)
            self._put(Kind.UVARINT, b"")
            self._field(field)
            self.parts[at] = uvarint(sum(map(len, self.parts[at:])))
        if unknown:
            for part in (uvarint(self.random.choice((7, 200, 2**31))), b"\4"):
                self._put(Kind.UVARINT, part)
            self._put(Kind.INT32, b"tags")

    def _field(self, field: Field) -> None:
        is_null = self.version in field.nullable and self.random.random() < 0.15
        if is_fixed(field.type):
            self._number(field.type)
        elif isinstance(field.type, Array):
            self._array(field.type.element, is_null)
        elif isinstance(field.type, Primitive):
            self._bytes(field.type, is_null)
        else:
            if self.version in field.nullable:
                self._put(Kind.PRESENT, b"\xff" if is_null else b"\x01")
            if not is_null:
                self._struct(field.type)

    def _number(self, type_: Primitive) -> None:
        number = self.random.choice((0, 1, 0xFF << 8 * (type_.size - 1), self.random.getrandbits(8 * type_.size)))
        value = number & 1 if type_.name == "bool" else number
        self._put(_BY_SIZE[type_.size], value.to_bytes(type_.size, "big"))

    def _length(self, size: int, *, text: bool = False, count: bool = False) -> None:
        if self.flexible:
            self._put(Kind.COMPACT_COUNT if count else Kind.COMPACT_LENGTH, uvarint(size + 1))
        elif text:
            self._put(Kind.TEXT_LENGTH, struct.pack(">h", size))
        else:
            self._put(Kind.COUNT if count else Kind.BYTES_LENGTH, struct.pack(">i", size))

    def _bytes(self, type_: Primitive, is_null: bool) -> None:
        text = type_.name == "string"
        content = self.random.choice(TEXTS) if text else self.random.randbytes(self.random.choice((0, 1, 9, 61, 130)))
        self._length(-1 if is_null else len(content), text=text)
        if not is_null:
            self._put(Kind.CONTENT, content)

    def _array(self, element: Any, is_null: bool) -> None:
        at = len(self.parts)
        count = -1 if is_null else self.random.choice((0, 1, 1, 2, 3))
        if is_fixed(element) and self.random.random() < 0.05:
            count = 70  # many numbers are read in another way than few
        self._length(count, count=True)
        bounds = [len(self.parts)]
        for _ in range(count):
            if not isinstance(element, Primitive):
                self._struct(element)
            elif is_fixed(element):
                self._number(element)
            else:
                self._bytes(element, False)
            bounds.append(len(self.parts))
        self.runs.append(Run(at, tuple(bounds)))


def of_numbers(layout: str, data: bytes, head: str = "") -> Shape:
    """Entries of that layout (as `struct` has it), after a head."""
    parts, kinds, at = [], [], 0
    sizes = {"b": 1, "h": 2, "i": 4, "I": 4, "q": 8}
    codes = head
    while at < len(data):
        for code in codes:
            size = min(sizes[code], len(data) - at)
            if size:
                parts.append(data[at : at + size])
                kinds.append(_BY_SIZE.get(size, Kind.CONTENT))
                at += size
        codes = layout
    return Shape(parts or [b""], kinds or [Kind.CONTENT])


def of_text(data: bytes) -> Shape:
    """Words, and what stands between them."""
    parts = [part for part in re.split(rb"([\s=:,\[\]{}\"\\]+)", data) if part] or [b""]
    return Shape(parts, [Kind.MARK if re.match(rb"[\s=:,\[\]{}\"\\]", part) else Kind.WORD for part in parts])


def of_records(data: bytes, before: Sequence[tuple[int, bytes]] = ()) -> Shape:
    """Uncompressed records of a v2 batch: varints, and what they are the lengths of."""
    parts: list[bytes] = [part for _, part in before]
    kinds: list[int] = [kind for kind, _ in before]
    enclosed: list[tuple[int, int]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        start, value, shift = at, 0, 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        parts.append(data[start:at])
        kinds.append(Kind.VARINT)
        return value >> 1 ^ -(value & 1)

    def content(size: int) -> None:
        nonlocal at
        if size > 0:
            parts.append(data[at : at + size])
            kinds.append(Kind.CONTENT)
            at += size

    while at < len(data):
        start = len(parts)
        varint()
        parts.append(data[at : at + 1])
        kinds.append(Kind.INT8)
        at += 1
        varint()
        varint()
        for _ in range(2):  # key and value
            content(varint())
        for _ in range(varint()):
            content(varint())
            content(varint())
        enclosed.append((start, len(parts)))
    return Shape(parts, kinds, enclosed=enclosed)


def _varints(numbers: Iterable[int], encode: Callable[[int], bytes]) -> list[bytes]:
    return [encode(number) for number in numbers]


class Fuel:
    """What may stand in the place of a piece, by its kind; and whole texts with their lengths."""

    ROUND = 64

    def __init__(self, rng: random.Random) -> None:
        draw = rng.getrandbits
        lengths = [*range(6), 12, 19, 60, 126, 127, 128, 300]
        sizes = [draw(1 + draw(8) % 31) for _ in range(24)]
        signed = [-1, -2, *lengths, 2**31 - 1, -(2**31), *sizes]
        unsigned = [0, *lengths, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 100_000, 100_001, *sizes]
        junk = [rng.randbytes(1 + draw(3)) for _ in range(8)] + [b"\x80" * 4 + b"\x08", b"\xff" * 5, b"\x80\x00", b""]
        compact = _varints(unsigned, uvarint) + junk
        int32 = [struct.pack(">i", number) for number in signed] + junk[:4]
        wide = [*signed, 2**63 - 1, -(2**63), 2**62, *(draw(63) for _ in range(8))]
        contents = [*TEXTS, *BAD_TEXTS, *(rng.randbytes(draw(5)) for _ in range(24)), rng.randbytes(draw(9))]
        self.pools: list[list[bytes]] = [[] for _ in Kind]
        self.pools[Kind.TEXT_LENGTH] = [struct.pack(">h", (n + 2**15) % 2**16 - 2**15) for n in signed]
        self.pools[Kind.BYTES_LENGTH] = self.pools[Kind.COUNT] = int32
        self.pools[Kind.COMPACT_LENGTH] = self.pools[Kind.COMPACT_COUNT] = self.pools[Kind.UVARINT] = compact
        self.pools[Kind.PRESENT] = [b"\xff", b"\x00", b"\x01", b"\x7f", b"\x80", bytes((draw(8),))]
        self.pools[Kind.VARINT] = _varints(wide, encode_int) + junk
        self.pools[Kind.WORD] = WORDS + [str(draw(1 + draw(6))).encode() for _ in range(8)] + contents[-25:]
        self.pools[Kind.MARK] = MARKS
        self.pools[Kind.VERSION] = [struct.pack(">h", n) for n in (*range(-2, 12), draw(15))]
        self.pools[Kind.CONTENT] = contents
        for kind, size in _SIZES.items():
            pool = [(n % (1 << 8 * size)).to_bytes(size, "big") for n in (0, 1, -1, 2, 127, 128, 1 << 8 * size - 1)]
            self.pools[kind] = pool + [rng.randbytes(size) for _ in range(32)]
        #: Kinds of lengths whose content comes next → lengths and contents that fit.
        self.fitting: dict[int, list[tuple[bytes, bytes]]] = {
            Kind.TEXT_LENGTH: [(struct.pack(">h", len(text)), text) for text in contents],
            Kind.BYTES_LENGTH: [(struct.pack(">i", len(text)), text) for text in contents],
            Kind.COMPACT_LENGTH: [(uvarint(len(text) + 1), text) for text in contents],
            Kind.VARINT: [(encode_int(len(text)), text) for text in contents],
        }
        self.rough = [rng.randbytes(1 + draw(3)) for _ in range(32)] + int32[:8] + compact[:16]


def _counted(kind: int, count: int) -> bytes:
    return uvarint(count + 1) if kind == Kind.COMPACT_COUNT else struct.pack(">i", count)


def varied(shapes: Sequence[Shape], fuel: Fuel, draw: Callable[[int], int]) -> bytes:
    """One of these shapes with one to four changes to its parts, and in a quarter of all cases one to its bytes."""
    bits = draw(64)
    shape = shapes[bits % len(shapes)]
    bits >>= 12
    parts, kinds = shape.parts.copy(), shape.kinds
    if len(parts) < 2:  # nothing is known of it
        data = roughened(shape.data, fuel, draw(64))
        for _ in range((0, 0, 1, 1, 2, 3, 5, 8)[bits & 7]):
            data = roughened(data, fuel, draw(64))
        return data
    if shape.runs and not bits & 7:
        kinds = kinds.copy()
        _with_elements(parts, kinds, shape.runs[(bits >> 3 & 0xFF) % len(shape.runs)], bits >> 11)
        structure = None
    else:
        structure = shape.structure
    bits >>= 20
    changes = (0, 1, 1, 1, 1, 2, 2, 3)[bits & 7] if structure is None else (1, 1, 1, 1, 2, 2, 3, 4)[bits & 7]
    is_rough = not bits >> 3 & 3
    for _ in range(changes if parts else 0):
        bits = draw(64)
        if structure is not None and bits & 3:
            at = structure[(bits >> 2 & 0xFFFF) % len(structure)]
        else:
            at = (bits >> 2 & 0xFFFF) % len(parts)
        kind = kinds[at]
        pairs = fuel.fitting.get(kind) if bits >> 18 & 1 else None
        if kind == Kind.CONTENT and at and kinds[at - 1] in fuel.fitting and bits >> 19 & 7:
            at -= 1
            pairs = fuel.fitting[kinds[at]]
        if pairs is not None and at + 1 < len(parts) and kinds[at + 1] == Kind.CONTENT:
            parts[at], parts[at + 1] = pairs[(bits >> 22) % len(pairs)]
        else:
            pool = fuel.pools[kind]
            parts[at] = pool[(bits >> 22) % len(pool)]
    if shape.enclosed and bits >> 60:
        for start, end in shape.enclosed:
            parts[start] = encode_int(sum(map(len, parts[start + 1 : end])))
    data = b"".join(parts)
    return roughened(data, fuel, draw(64)) if is_rough else data


def _with_elements(parts: list[bytes], kinds: list[int], run: Run, bits: int) -> None:
    """One element of an array again, or not at all, and counted so."""
    bounds = run.bounds
    which = bits % (len(bounds) - 1)
    start, end = bounds[which], bounds[which + 1]
    more = (-1, 1, 1, 2, 9)[(bits >> 8) % 5]
    if more < 0:
        del parts[start:end]
        del kinds[start:end]
    else:
        parts[end:end] = parts[start:end] * more
        kinds[end:end] = kinds[start:end] * more
    parts[run.count] = _counted(kinds[run.count], len(bounds) - 1 + more)


def roughened(data: bytes, fuel: Fuel, bits: int) -> bytes:
    """One change to bytes of which nothing is known: cut, left out, put in, put over, twice, flipped."""
    at = (bits & 0xFFFFFF) % (len(data) + 1)
    bits >>= 24
    what = bits & 7
    bits >>= 3
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[at + 1 + bits % 8 :]
    if what == 2:
        end = at + 1 + bits % 64
        return data[:end] + data[at:]
    piece = fuel.rough[bits % len(fuel.rough)]
    if what <= 4:
        return data[:at] + piece + data[at:]
    if what <= 6 or at == len(data):
        return data[:at] + piece + data[at + len(piece) :]
    return data[:at] + bytes((data[at] ^ 1 << (bits & 7),)) + data[at + 1 :]
