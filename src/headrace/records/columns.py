"""Records as columns: numbers in typed memoryviews, keys, values and headers as positions in shared buffers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from typing import NamedTuple, cast

from headrace.records import varint
from headrace.records.batch import Buffer
from headrace.records.errors import InvalidRecord

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp, offset, key, value, header count: no record is smaller."""

MAX_COLUMN_BYTES = 2147483647
"""Positions are 32-bit."""


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
        # A slice of bytes is bytes; of a memoryview it is a view first. One copy of the buffer pays for itself.
        data = self.data if type(self.data) is bytes else bytes(self.data)
        starts, lengths = self.starts.tolist(), self.lengths.tolist()
        if min(lengths, default=0) >= 0:
            return [data[start : start + length] for start, length in zip(starts, lengths)]
        if max(lengths) < 0:
            return [None] * len(lengths)
        return [data[start : start + length] if length >= 0 else None for start, length in zip(starts, lengths)]

    def take(self, rows: Sequence[int]) -> BytesColumn:
        starts, lengths = self.starts, self.lengths
        return BytesColumn(
            self.data, int_column("i", [starts[row] for row in rows]), int_column("i", [lengths[row] for row in rows])
        )


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
        raise InvalidRecord(f"{count} headers cannot fit in {len(data) - at} bytes")
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
