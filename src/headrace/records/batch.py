"""A cheap view over one v2 batch inside a buffer: header fields read straight from the bytes, nothing decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import cache
from typing import NamedTuple, Protocol

from headrace.late_imports import late_import
from headrace.records.errors import CorruptBatchError, MalformedRecordError

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
"""Size of a v2 batch without records: the payload starts here."""

PREFIX_BYTES = 12
"""Base offset and length: the length field counts what follows these bytes."""

CURRENT_MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
MAX_SEQUENCE = 2147483647

CRC_AT = 17
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
_KNOWN_ATTRIBUTES = 0x7F

# While splitting, Java accepts any length from the smallest record of message format v0 on; `check` knows v2's minimum.
_MIN_LENGTH = 14
_BYTES_TO_MAGIC = 17
_MAX_SIZE = 2147483647

HEADER = struct.Struct(">qiibIhiqqqhii")
#: Writes what begins a batch: base offset, length (without base offset and length) and leader epoch.
pack_place = struct.Struct(">qii").pack_into
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_U32 = struct.Struct(">I")
_I16 = struct.Struct(">h")
_I8 = struct.Struct("b")


class Codec(IntEnum):
    """Compression of a batch's records, by the number in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def kafka_name(self) -> str:
        """The word used in `compression.type`."""
        return self.name.lower()


class TimestampType(IntEnum):
    """Who gave the records their timestamps: the producer, or the broker on append; nobody in message format 0."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


_CODECS = tuple(Codec)
_new_tuple = tuple.__new__


@cache
def _crc32c() -> Callable[[Buffer], int]:
    # The package looks up its own version when imported, which takes longer than everything else here.
    found: Callable[[Buffer], int] = late_import("crc32c").crc32c
    return found


def to_int32(number: int) -> int:
    """Wrap as Java's int does."""
    return ((number + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def to_int64(number: int) -> int:
    """Wrap as Java's long does."""
    return ((number + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a producer's sequence number, which wraps after 2147483647 to 0."""
    if sequence > to_int32(MAX_SEQUENCE - increment):
        return to_int32(increment - (MAX_SEQUENCE - sequence) - 1)
    return to_int32(sequence + increment)


class _HeaderFields(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def batch_length(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...


class _Derived:
    """What follows from header fields; shared by the view and the unpacked header."""

    __slots__ = ()

    @property
    def size(self: _HeaderFields) -> int:
        """Whole size in bytes, the 12-byte prefix included."""
        return self.batch_length + PREFIX_BYTES

    @property
    def codec_id(self: _HeaderFields) -> int:
        """The codec's number, known or not."""
        return self.attributes & CODEC_MASK

    @property
    def codec(self: _HeaderFields) -> Codec:
        """The codec; raises InvalidRecord for numbers that Kafka does not know (header reading alone never does)."""
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise MalformedRecordError(f"unknown compression codec {number} in batch at offset {self.base_offset}")
        return _CODECS[number]

    @property
    def is_log_append_time(self: _HeaderFields) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def timestamp_type(self: _HeaderFields) -> TimestampType:
        if self.attributes & LOG_APPEND_TIME_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self: _HeaderFields) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self: _HeaderFields) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self: _HeaderFields) -> bool:
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def delete_horizon_ms(self: _HeaderFields) -> int | None:
        """When tombstones and markers of this batch may go; it is kept in the base timestamp's place."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_offset(self: _HeaderFields) -> int:
        return to_int64(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self: _HeaderFields) -> int:
        return to_int64(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self: _HeaderFields) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


class _Fields(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs on a header


class BatchHeader(_Derived, _Fields):
    """All header fields of one batch, unpacked at once."""

    __slots__ = ()


class Batch(_Derived):
    """A view of exactly one batch. Keeps the underlying buffer alive; copies nothing."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer if type(buffer) is memoryview else memoryview(buffer)

    def __repr__(self) -> str:
        if len(self.buffer) < HEADER_BYTES:
            return f"Batch({len(self.buffer)} bytes, too short for a header)"
        header = self.header()
        return f"Batch(offsets {header.base_offset}..{header.last_offset}, {header.count} records, {header.size} bytes)"

    def header(self) -> BatchHeader:
        """Every field with one unpack."""
        if len(self.buffer) < HEADER_BYTES:
            raise CorruptBatchError(
                f"a batch of {len(self.buffer)} bytes is smaller than a batch header ({HEADER_BYTES} bytes)"
            )
        # tuple.__new__ skips the length check of NamedTuple._make: this is the broker's one call per batch.
        return _new_tuple(BatchHeader, HEADER.unpack_from(self.buffer))

    def _int(self, layout: struct.Struct, at: int) -> int:
        try:
            number: int = layout.unpack_from(self.buffer, at)[0]
        except struct.error:
            raise CorruptBatchError(
                f"a batch of {len(self.buffer)} bytes is smaller than a batch header ({HEADER_BYTES} bytes)"
            ) from None
        return number

    @property
    def base_offset(self) -> int:
        return self._int(_I64, 0)

    @property
    def batch_length(self) -> int:
        return self._int(_I32, 8)

    @property
    def leader_epoch(self) -> int:
        return self._int(_I32, 12)

    @property
    def magic(self) -> int:
        return self._int(_I8, 16)

    @property
    def crc(self) -> int:
        return self._int(_U32, CRC_AT)

    @property
    def attributes(self) -> int:
        return self._int(_I16, ATTRIBUTES_AT)

    @property
    def last_offset_delta(self) -> int:
        return self._int(_I32, 23)

    @property
    def base_timestamp(self) -> int:
        return self._int(_I64, 27)

    @property
    def max_timestamp(self) -> int:
        return self._int(_I64, MAX_TIMESTAMP_AT)

    @property
    def producer_id(self) -> int:
        return self._int(_I64, 43)

    @property
    def producer_epoch(self) -> int:
        return self._int(_I16, 51)

    @property
    def base_sequence(self) -> int:
        return self._int(_I32, 53)

    @property
    def count(self) -> int:
        return self._int(_I32, 57)

    @property
    def payload(self) -> memoryview:
        """The records, still compressed if the batch is."""
        return self.buffer[HEADER_BYTES:]


def split(buffer: Buffer) -> Iterator[Batch]:
    """The batches of a buffer, in order.

    A cut last batch ends the iteration silently (a fetch may end in the middle of one); a length or magic that no
    batch can have raises CorruptBatchError. Magic 0 and 1 are passed on, as Java does; `check` and readers refuse them.
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    position = 0
    end = len(view)
    while end - position >= PREFIX_BYTES:
        length: int = _I32.unpack_from(view, position + 8)[0]
        if length < _MIN_LENGTH:
            raise CorruptBatchError(
                f"batch at byte {position} has length {length}, less than the minimum of {_MIN_LENGTH}"
            )
        if end - position < _BYTES_TO_MAGIC:
            return
        magic = view[position + 16]
        if magic > CURRENT_MAGIC:
            raise CorruptBatchError(f"batch at byte {position} has magic {magic}; the highest known is {CURRENT_MAGIC}")
        size = length + PREFIX_BYTES
        if size > _MAX_SIZE:
            raise CorruptBatchError(f"batch at byte {position} has length {length}: its size passes {_MAX_SIZE} bytes")
        if end - position < size:
            return
        yield Batch(view[position : position + size])
        position += size


def valid_bytes(buffer: Buffer) -> int:
    """How many bytes of the buffer are whole batches."""
    return sum(len(batch.buffer) for batch in split(buffer))


def check(batch: Batch) -> None:
    """Raise CorruptBatchError unless length, magic and checksum are right. Records are not looked at."""
    view = batch.buffer
    if len(view) < HEADER_BYTES:
        raise CorruptBatchError(f"a batch of {len(view)} bytes is smaller than a batch header ({HEADER_BYTES} bytes)")
    length: int = _I32.unpack_from(view, 8)[0]
    if length + PREFIX_BYTES != len(view):
        raise CorruptBatchError(
            f"batch at offset {batch.base_offset} says {length + PREFIX_BYTES} bytes but has {len(view)}"
        )
    if view[16] != CURRENT_MAGIC:
        raise CorruptBatchError(
            f"batch at offset {batch.base_offset} has magic {batch.magic}; only format {CURRENT_MAGIC} is supported"
        )
    stored: int = _U32.unpack_from(view, CRC_AT)[0]
    computed = _crc32c()(view[ATTRIBUTES_AT:])
    if stored != computed:
        raise CorruptBatchError(
            f"batch at offset {batch.base_offset} is corrupt: its checksum is {stored}, its bytes give {computed}"
        )


def are_whole(buffer: Buffer, starts: Iterable[int], ends: Iterable[int]) -> bool:
    """Whether the checksums of batches are right, whose records begin and end there in a buffer."""
    view = memoryview(buffer)
    checksum, unpack = _crc32c(), _U32.unpack_from
    to_crc, to_attributes = HEADER_BYTES - CRC_AT, HEADER_BYTES - ATTRIBUTES_AT
    return all(
        unpack(view, start - to_crc)[0] == checksum(view[start - to_attributes : end])
        for start, end in zip(starts, ends)
    )


def assign(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log, in place. Both fields lie outside the checksum."""
    _I64.pack_into(buffer, 0, base_offset)
    _I32.pack_into(buffer, 12, leader_epoch)


def set_max_timestamp(buffer: bytearray | memoryview, timestamp_type: int, max_timestamp: int) -> None:
    """Set who stamped the batch and its maximum timestamp, in place, and recompute the checksum.

    Attribute bits that Kafka does not define are cleared when anything changes, as Java does.
    """
    view = memoryview(buffer)
    attributes: int = _I16.unpack_from(view, ATTRIBUTES_AT)[0]
    is_log_append_time = bool(attributes & LOG_APPEND_TIME_BIT)
    if is_log_append_time == bool(timestamp_type) and _I64.unpack_from(view, MAX_TIMESTAMP_AT)[0] == max_timestamp:
        return
    attributes &= _KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_BIT
    if timestamp_type:
        attributes |= LOG_APPEND_TIME_BIT
    _I16.pack_into(view, ATTRIBUTES_AT, attributes)
    _I64.pack_into(view, MAX_TIMESTAMP_AT, max_timestamp)
    seal(view)


def seal(buffer: bytearray | memoryview) -> None:
    """Write the checksum of a finished batch, in place."""
    _U32.pack_into(buffer, CRC_AT, _crc32c()(memoryview(buffer)[ATTRIBUTES_AT:]))
