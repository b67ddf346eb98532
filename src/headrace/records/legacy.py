"""Messages of formats 0 and 1, which brokers before 0.11 wrote and logs may still hold: read, never written.

A message stands alone, or is a wrapper whose value is a compressed set of messages. A wrapper bears the offset of the
last message in it; those in a wrapper of format 1 count from its first one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.records.batch import (
    CODEC_MASK,
    CURRENT_MAGIC,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    Batch,
    Buffer,
    Codec,
    TimestampType,
)
from headrace.records.columns import Columns, bytes_column, int_column
from headrace.records.compression import DEFAULT_LIMIT_BYTES, decompress, mend_lz4_descriptor
from headrace.records.errors import CorruptBatchError, MalformedRecordError

_CRC_AT = PREFIX_BYTES
_MAGIC_AT = 16
_ATTRIBUTES_AT = 17
_TIMESTAMP_AT = 18
_KEY_AT = (18, 26)
"""Where the key's length stands, by format."""
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class _Message(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: memoryview | None


def is_legacy(batch: Batch) -> bool:
    """Whether this is a message of format 0 or 1, and not a batch."""
    return batch.buffer[_MAGIC_AT] < CURRENT_MAGIC


def is_wrapper(batch: Batch) -> bool:
    """Whether a legacy message holds others: then its offset is that of the last of them."""
    return bool(batch.buffer[_ATTRIBUTES_AT] & CODEC_MASK)


def legacy_timestamp_type(batch: Batch) -> TimestampType:
    """Who gave a legacy message its timestamp: nobody, in format 0."""
    if batch.buffer[_MAGIC_AT] == 0:
        return TimestampType.NO_TIMESTAMP_TYPE
    is_append_time = batch.buffer[_ATTRIBUTES_AT] & LOG_APPEND_TIME_BIT
    return TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME


def check_legacy(batch: Batch) -> None:
    """Raise CorruptBatchError unless the message's checksum is right."""
    view = batch.buffer
    stored: int = _U32.unpack_from(view, _CRC_AT)[0]
    computed = zlib.crc32(view[_MAGIC_AT:])
    if stored != computed:
        raise CorruptBatchError(
            f"message at offset {batch.base_offset} is corrupt: its checksum is {stored}, its bytes give {computed}"
        )


def decode_legacy(batches: Iterable[Batch], *, check_crcs: bool, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Columns:
    """The records of legacy messages as columns, what wrappers hold included. `limit_bytes` bounds what is
    decompressed. Their bytes are copied: such logs are old, and read once."""
    found: list[_Message] = []
    room = limit_bytes
    for batch in batches:
        if check_crcs:
            check_legacy(batch)
        if not is_wrapper(batch):
            found.append(_message(batch))
            continue
        inner = _unwrapped(batch, room)
        room -= sum(len(one.buffer) for one in inner)
        found.extend(_inner_messages(batch, inner, check_crcs))
    return Columns(
        int_column("q", [one.offset for one in found]),
        int_column("q", [one.timestamp for one in found]),
        bytes_column([one.key for one in found]),
        bytes_column([None if one.value is None else bytes(one.value) for one in found]),
    )


def _message(batch: Batch) -> _Message:
    """The fields of one message; InvalidRecord when they do not fill it."""
    view = batch.buffer
    magic = view[_MAGIC_AT]
    try:
        timestamp = NO_TIMESTAMP if magic == 0 else _I64.unpack_from(view, _TIMESTAMP_AT)[0]
        key, at = _field(view, _KEY_AT[magic])
        value, at = _field(view, at)
    except struct.error:
        raise MalformedRecordError(f"message at offset {batch.base_offset} ends before its last field") from None
    if at != len(view):
        raise MalformedRecordError(f"message at offset {batch.base_offset} has {len(view) - at} bytes after its value")
    return _Message(batch.base_offset, timestamp, None if key is None else bytes(key), value)


def _field(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    length: int = _I32.unpack_from(view, at)[0]
    at += 4
    if length < 0:
        return None, at
    if length > len(view) - at:
        raise MalformedRecordError(f"a field of a message says {length} bytes, {len(view) - at} are left")
    return view[at : at + length], at + length


def _unwrapped(wrapper: Batch, limit_bytes: int) -> list[Batch]:
    """The messages in a wrapper, as they stand there."""
    number = wrapper.buffer[_ATTRIBUTES_AT] & CODEC_MASK
    if number >= Codec.ZSTD:
        raise MalformedRecordError(
            f"message at offset {wrapper.base_offset} is compressed with codec {number}, unknown then"
        )
    codec = Codec(number)
    payload: Buffer | None = _message(wrapper).value
    if payload is None:
        raise MalformedRecordError(f"compressed message at offset {wrapper.base_offset} has no value")
    if codec is Codec.LZ4 and wrapper.buffer[_MAGIC_AT] == 0:
        # Producers of that time wrote a wrong checksum of the frame's descriptor (KIP-57).
        payload = mend_lz4_descriptor(memoryview(payload))
    inner = list(_split(memoryview(decompress(codec, payload, limit_bytes)), wrapper.base_offset))
    if not inner:
        raise MalformedRecordError(f"compressed message at offset {wrapper.base_offset} holds no messages")
    return inner


def _split(view: memoryview, offset: int) -> Iterator[Batch]:
    at = 0
    while len(view) - at >= PREFIX_BYTES:
        length: int = _I32.unpack_from(view, at + 8)[0]
        end = at + PREFIX_BYTES + length
        if length < _KEY_AT[0] - PREFIX_BYTES + 8:
            raise MalformedRecordError(f"compressed message at offset {offset} holds one of {length} bytes")
        if end > len(view):
            # Cut, as the last message of a fetch may be: what is whole counts.
            return
        yield Batch(view[at:end])
        at = end


def _inner_messages(wrapper: Batch, inner: list[Batch], check_crcs: bool) -> Iterator[_Message]:
    magic = wrapper.buffer[_MAGIC_AT]
    last = wrapper.base_offset
    first = 0
    # The outer offset is 0 in what some producers sent: then those inside count from 0.
    if magic == 1 and last != 0:
        first = last - inner[-1].base_offset
        if first < 0:
            raise MalformedRecordError(
                f"compressed message at offset {last} holds one of relative offset {inner[-1].base_offset}"
            )
    is_append_time = legacy_timestamp_type(wrapper) is TimestampType.LOG_APPEND_TIME
    stamp = _I64.unpack_from(wrapper.buffer, _TIMESTAMP_AT)[0] if is_append_time else None
    for one in inner:
        if one.buffer[_MAGIC_AT] != magic:
            raise MalformedRecordError(
                f"compressed message at offset {last} of format {magic} holds one of another format"
            )
        if is_wrapper(one):
            raise MalformedRecordError(f"compressed message at offset {last} holds a compressed message")
        if check_crcs:
            check_legacy(one)
        found = _message(one)
        if magic == 1 and last != 0 and not 0 <= first + found.offset <= last:
            raise MalformedRecordError(
                f"compressed message at offset {last} holds one of relative offset {found.offset}, beyond its last"
            )
        yield found._replace(offset=first + found.offset, timestamp=found.timestamp if stamp is None else stamp)
