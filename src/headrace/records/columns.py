"""Records as columns: numbers in typed memoryviews, keys, values and headers as positions in shared buffers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from typing import NamedTuple, cast

from headrace.records import varint
from headrace.records.batch import Buffer
from headrace.records.errors import MalformedRecordError

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp, offset, key, value, header count: no record is smaller."""

MAX_COLUMN_BYTES = 2147483647
"""Positions are 32-bit."""

_BLOCK_BYTES = 64 * 1024
_LONG_ROW_BYTES = 1000
_ONE = array("i", [1]).tobytes()
_NULL_BYTES = b"\xff\xff\xff\xff"


class Record(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = -1


@dataclass(slots=True)
class BytesColumn:
    """Byte strings inside one buffer. Length -1 is null; `starts` and `lengths` are 32-bit."""

    data: Buffer
    starts: memoryview
    lengths: memoryview
    is_ordered: bool = False
    """Whether the rows are known to lie in the buffer one after the other, as those of a decoded batch do."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> bytes | None:
        length = self.lengths[row]
        if length < 0:
            return None
        start = self.starts[row]
        return bytes(self.data[start : start + length])

    def to_list(self) -> list[bytes | None]:
        """Every row as bytes, or None for null."""
        count = len(self.lengths)
        nulls = self.nulls
        if nulls == count:
            return [None] * count
        starts, lengths = self.starts.tolist(), self.lengths.tolist()
        if type(self.data) is bytes:
            return _cut(self.data, starts, lengths, 0, nulls)
        # A slice of bytes is bytes; of a view it is a view first. So the rows' stretch of the buffer is copied and then
        # cut, in blocks that stay in the processor's cache rather than at once into a megabyte of fresh memory. Long
        # rows are better cut one by one.
        view = memoryview(self.data)
        stretch = starts[-1] + lengths[-1] - starts[0]
        if not self.is_ordered or stretch > count * _LONG_ROW_BYTES:
            return [None if n < 0 else view[start : start + n].tobytes() for start, n in zip(starts, lengths)]
        step = max(1, count * _BLOCK_BYTES // max(1, stretch))
        if step >= count:
            return _cut(bytes(view[starts[0] : starts[-1] + max(lengths[-1], 0)]), starts, lengths, starts[0], nulls)
        rows: list[bytes | None] = []
        for at in range(0, count, step):
            some, sizes = starts[at : at + step], lengths[at : at + step]
            rows += _cut(bytes(view[some[0] : some[-1] + max(sizes[-1], 0)]), some, sizes, some[0], nulls)
        return rows

    @property
    def nulls(self) -> int:
        """How many rows are null."""
        # No other 32-bit length has four such bytes in a row, nor has it together with its neighbours.
        return self.lengths.tobytes().count(_NULL_BYTES)

    @property
    def bytes_max(self) -> int:
        """No more than that are in all rows together: of ordered ones, what lies between the first and the last."""
        if not len(self.lengths):
            return 0
        if self.is_ordered:
            return int(self.starts[-1] + max(self.lengths[-1], 0) - self.starts[0])
        return sum(length for length in self.lengths if length > 0)

    def rows(self, start: int, end: int) -> BytesColumn:
        """Neighbouring rows; everything is shared."""
        return BytesColumn(self.data, self.starts[start:end], self.lengths[start:end], self.is_ordered)

    def take(self, rows: Sequence[int]) -> BytesColumn:
        starts, lengths = self.starts, self.lengths
        return BytesColumn(
            self.data, int_column("i", [starts[row] for row in rows]), int_column("i", [lengths[row] for row in rows])
        )


def _cut(data: bytes, starts: list[int], lengths: list[int], base: int, nulls: int) -> list[bytes | None]:
    """The rows out of `data`, which begins at position `base`."""
    if nulls:
        return [
            None if length < 0 else data[start - base : start - base + length] for start, length in zip(starts, lengths)
        ]
    if base:
        return [data[(at := start - base) : at + length] for start, length in zip(starts, lengths)]
    return [data[start : start + length] for start, length in zip(starts, lengths)]


@dataclass(slots=True)
class Columns:
    """Records of one or several batches. A header row is the encoded header section, its count included."""

    offsets: memoryview
    timestamps: memoryview
    keys: BytesColumn
    values: BytesColumn
    headers: BytesColumn | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def has_headers(self) -> bool:
        """Whether any row has a header. (A section of one byte is the count 0.)"""
        return self.headers is not None and self.headers.lengths.tobytes() != _ONE * len(self)

    @property
    def bytes_max(self) -> int:
        """No more than that are in the keys, nor in the values."""
        return max(self.keys.bytes_max, self.values.bytes_max)

    def rows(self, start: int, end: int) -> Columns:
        """Neighbouring rows; everything is shared."""
        if start == 0 and end == len(self):
            return self
        return Columns(
            self.offsets[start:end],
            self.timestamps[start:end],
            self.keys.rows(start, end),
            self.values.rows(start, end),
            None if self.headers is None else self.headers.rows(start, end),
        )

    def headers_of(self, row: int) -> Headers:
        """Decoded headers of one row."""
        if self.headers is None or self.headers.lengths[row] <= 1:
            return ()
        return decode_headers(self.headers.data, self.headers.starts[row])

    def take(self, rows: Sequence[int]) -> Columns:
        """Only these rows, in this order; the byte buffers are shared."""
        return Columns(
            int_column("q", [self.offsets[row] for row in rows]),
            int_column("q", [self.timestamps[row] for row in rows]),
            self.keys.take(rows),
            self.values.take(rows),
            None if self.headers is None else self.headers.take(rows),
        )

    def filter(self, mask: Sequence[int] | Buffer) -> Columns:
        """Only the rows whose mask is true."""
        return self.take(list(compress(range(len(self)), mask)))


def int_column(typecode: str, numbers: Iterable[int]) -> memoryview:
    """Numbers as a typed memoryview: 'q' is 64-bit, 'i' 32-bit."""
    return memoryview(array(typecode, numbers))


def bytes_column(rows: Sequence[bytes | None]) -> BytesColumn:
    """Python byte strings laid end to end."""
    data, lengths = joined(rows)
    starts = array(
        "i", accumulate(chain((0,), lengths[:-1] if -1 not in lengths else (max(n, 0) for n in lengths[:-1])))
    )
    return BytesColumn(data, memoryview(starts)[: len(lengths)], memoryview(lengths))


def joined(rows: Sequence[bytes | None]) -> tuple[bytes, array[int]]:
    """All the bytes, and the length of each row."""
    if None in rows:
        lengths = array("i", [-1 if row is None else len(row) for row in rows])
        data = b"".join([row for row in rows if row is not None])
    else:
        present = cast(Sequence[bytes], rows)
        lengths = array("i", list(map(len, present)))
        data = b"".join(present)
    if len(data) > MAX_COLUMN_BYTES:
        raise ValueError(f"a column of {len(data)} bytes passes the limit of {MAX_COLUMN_BYTES}: build smaller batches")
    return data, lengths


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """The header section of a record, its count first."""
    pairs = tuple(headers)
    parts = [varint.encode(len(pairs))]
    for key, value in pairs:
        name = key.encode("utf-8", "replace")
        parts.append(varint.encode(len(name)))
        parts.append(name)
        if value is None:
            parts.append(b"\x01")
        else:
            parts.append(varint.encode(len(value)))
            parts.append(value)
    return b"".join(parts)


def decode_headers(data: Buffer, at: int) -> Headers:
    """The headers whose section starts at `at`. A kernel has walked over them before, so lengths are known to fit."""
    count, at = varint.decode_int(data, at)
    if count > len(data) - at:
        raise MalformedRecordError(f"{count} headers cannot fit in {len(data) - at} bytes")
    headers: list[Header] = []
    for _ in range(count):
        length, at = varint.decode_int(data, at)
        name = decode_utf8(bytes(data[at : at + length]))
        at += length
        length, at = varint.decode_int(data, at)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, bytes(data[at : at + length])))
            at += length
    return tuple(headers)


def decode_utf8(name: bytes) -> str:
    """UTF-8 as Java decodes it: what is malformed becomes U+FFFD, an encoded surrogate one for its three bytes."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return _decode_malformed(name)


def _decode_malformed(name: bytes) -> str:
    out: list[str] = []
    at = 0
    while at < len(name):
        try:
            out.append(name[at:].decode())
            break
        except UnicodeDecodeError as error:
            start, end = at + error.start, at + error.end
            out.append(name[at:start].decode())
            out.append("\ufffd")
            is_surrogate = name[start] == 0xED and len(name) >= start + 3
            if is_surrogate and 0xA0 <= name[start + 1] <= 0xBF and 0x80 <= name[start + 2] <= 0xBF:
                end = start + 3
            at = end
    return "".join(out)
