"""Read batches: into columns, or into record objects; refuses what Java refuses."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, cast

from headrace.records import kernels
from headrace.records.batch import (
    CURRENT_MAGIC,
    HEADER_BYTES,
    Batch,
    BatchHeader,
    Buffer,
    Codec,
    are_whole,
    increment_sequence,
    to_int32,
)
from headrace.records.buffers import SHARED
from headrace.records.columns import (
    MAX_COLUMN_BYTES,
    MIN_RECORD_BYTES,
    BytesColumn,
    Columns,
    Headers,
    Record,
    decode_headers,
)
from headrace.records.compression import DEFAULT_LIMIT_BYTES, decompress, lz4_blocks, lz4_into
from headrace.records.errors import CorruptBatchError, MalformedRecordError
from headrace.records.kernels_plain import NO_STAMP, TABLE_WIDTH, Decoded, DecodeFault, Stretch

_FAULTS = {
    DecodeFault.CUT: "the batch ends before its last record",
    DecodeFault.SIZE: "a record is longer than what is left of the batch",
    DecodeFault.STRUCTURE: "a record's fields do not fit its length",
    DecodeFault.HEADER_COUNT: "a record has an impossible number of headers",
    DecodeFault.HEADER_KEY: "a record has a header without a key",
    DecodeFault.MISMATCH: "a record's fields are shorter than its length",
    DecodeFault.REMAINING: "bytes are left after the last record",
    DecodeFault.COUNT: "the number of records is negative",
}
_new_tuple = tuple.__new__
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


def _opened(batch: Batch, limit_bytes: int) -> tuple[BatchHeader, Buffer]:
    """Header and decompressed records. A batch that says it has no records is empty whatever bytes follow."""
    header = batch.header()
    if header.magic != CURRENT_MAGIC:
        raise CorruptBatchError(
            f"batch at offset {header.base_offset} has magic {header.magic}: only format 2 is supported"
        )
    if header.count <= 0 or header.codec_id == 0:
        return header, batch.payload
    return header, decompress(header.codec, batch.payload, limit_bytes)


def _row(header: BatchHeader, start: int, end: int) -> tuple[int, int, int, int, int, int]:
    stamp = header.max_timestamp if header.is_log_append_time else NO_STAMP
    return start, end, header.count, header.base_offset, header.base_timestamp, stamp


def _capacity(header: BatchHeader, payload_bytes: int) -> int:
    """Rows that can come out of a batch: its count is a claim, its bytes are a fact."""
    return min(max(header.count, 0), payload_bytes // MIN_RECORD_BYTES)


def _decode(batch: Batch, limit_bytes: int) -> tuple[BatchHeader, Buffer, Decoded]:
    header, data = _opened(batch, limit_bytes)
    capacity = _capacity(header, len(data))
    decoded = kernels.choose(capacity).decode_records(data, _row(header, 0, len(data)), capacity)
    return header, data, decoded


def _invalid(fault: int, at: int, header: BatchHeader) -> MalformedRecordError:
    return MalformedRecordError(
        f"batch at offset {header.base_offset} with {header.count} records is invalid: {_FAULTS[DecodeFault(fault)]} "
        f"(byte {at} of its records)"
    )


def decode_columns(batches: Batch | Iterable[Batch], limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Columns:
    """The records of one or several batches as columns. `limit_bytes` bounds all that is decompressed."""
    if isinstance(batches, Batch):
        header, data, decoded = _decode(batches, limit_bytes)
        if decoded.fault:
            raise _invalid(decoded.fault, decoded.fault_at, header)
        return _columns(data, decoded)
    batches = list(batches)
    found = _decode_lz4(batches, limit_bytes)
    if found is not None:
        return found
    table = array("q")
    payloads: list[Buffer] = []
    headers: list[BatchHeader] = []
    position = capacity = 0
    room = limit_bytes
    for batch in batches:
        header, data = _opened(batch, room)
        if header.codec_id:
            room -= len(data)
        payloads.append(data)
        headers.append(header)
        table.extend(_row(header, position, position + len(data)))
        position += len(data)
        capacity += _capacity(header, len(data))
        if position > MAX_COLUMN_BYTES:
            raise ValueError(f"batches of more than {MAX_COLUMN_BYTES} bytes: decode fewer at a time")
    # Joined once so that a column is one buffer; a single batch is not copied.
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    return _decoded_table(joined, table, headers, capacity)


def _decode_lz4(batches: list[Batch], limit_bytes: int) -> Columns | None:
    """The records of batches that are all compressed with LZ4, decompressed side by side into memory that was used
    before. None when they are not, or anything is wrong: who opens one after the other can say what."""
    headers = [batch.header() for batch in batches]
    if not headers or not all(
        header.codec_id == Codec.LZ4 and header.magic == CURRENT_MAGIC and header.count > 0 for header in headers
    ):
        return None
    try:
        whole, sizes = _lz4_side_by_side([batch.payload for batch in batches], limit_bytes)
    except (MalformedRecordError, ValueError):
        return None
    table = array("q")
    position = capacity = 0
    for header, size in zip(headers, sizes):
        table.extend(_row(header, position, position + size))
        capacity += _capacity(header, size)
        position += size
    return _decoded_table(whole[:position], table, headers, capacity)


def decode_spans(data: Buffer, spans: Iterable[tuple[BatchHeader, int, int]]) -> Columns:
    """Uncompressed batches that lie in one buffer, as columns over that buffer: nothing is copied.

    A span is a batch's header and where its records begin and end in the buffer; spans come in ascending order.
    """
    if len(data) > MAX_COLUMN_BYTES:
        raise ValueError(f"batches of more than {MAX_COLUMN_BYTES} bytes: decode fewer at a time")
    table = array("q")
    headers: list[BatchHeader] = []
    capacity = 0
    for header, start, end in spans:
        if header.codec_id or header.magic != CURRENT_MAGIC:
            raise CorruptBatchError(f"batch at offset {header.base_offset} is not an uncompressed batch of format 2")
        headers.append(header)
        table.extend(_row(header, start, end))
        capacity += _capacity(header, end - start)
    return _decoded_table(data, table, headers, capacity)


def survey_stretch(data: Buffer, position: int, bytes_max: int) -> Stretch | None:
    """The batches of a fetch that end behind a position, seen together; None when they have to be looked at one by one:
    not all are plain (see `Stretch`), more than so many bytes, or not worth it."""
    return kernels.choose(len(data) // HEADER_BYTES).survey_batches(data, position, bytes_max)


def decode_stretch(data: Buffer, stretch: Stretch, *, check_crcs: bool) -> Columns | None:
    """Columns of a buffer that was surveyed, over its own bytes if they are not compressed. None when anything is
    wrong: who looks at each batch can say what."""
    if check_crcs and not are_whole(data, stretch.table[0::TABLE_WIDTH], stretch.table[1::TABLE_WIDTH]):
        return None
    table, capacity = stretch.table, stretch.capacity
    if stretch.codec_id:
        try:
            data, table, capacity = _decompressed(data, table, Codec(stretch.codec_id))
        except (MalformedRecordError, ValueError):
            return None
    decoded = kernels.choose(capacity).decode_records(data, table, capacity)
    return None if decoded.fault else _columns(data, decoded)


def _decompressed(data: Buffer, table: Sequence[int], codec: Codec) -> tuple[Buffer, Sequence[int], int]:
    """The records of batches side by side in memory that was used before, the table of where they are there, and the
    rows that they can have."""
    view = memoryview(data)
    payloads = [view[start:end] for start, end in zip(table[0::TABLE_WIDTH], table[1::TABLE_WIDTH])]
    if codec is Codec.LZ4:
        whole, sizes = _lz4_side_by_side(payloads)
    else:
        whole, sizes = _side_by_side(codec, payloads)
    moved = array("q", table)
    position = capacity = 0
    for entry, size in zip(range(0, len(moved), TABLE_WIDTH), sizes):
        moved[entry], moved[entry + 1] = position, position + size
        capacity += min(moved[entry + 2], size // MIN_RECORD_BYTES)
        position += size
    return whole[:position], moved, capacity


def _lz4_side_by_side(
    payloads: list[memoryview], limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> tuple[memoryview, list[int]]:
    frames = [lz4_blocks(payload) for payload in payloads]
    bound = sum(frame.bound for frame in frames)
    if bound > min(limit_bytes, MAX_COLUMN_BYTES):
        raise ValueError(f"batches that may grow to {bound} bytes: decompress fewer at a time")
    out = SHARED.take(bound)
    sizes: list[int] = []
    position = 0
    for payload, frame in zip(payloads, frames):
        size = lz4_into(payload, frame, out[position : position + frame.bound])
        if size is None:
            raise MalformedRecordError("a block is damaged, or has a checksum of its own")
        sizes.append(size)
        position += size
    return out, sizes


def _side_by_side(codec: Codec, payloads: list[memoryview]) -> tuple[memoryview, list[int]]:
    # Its library makes bytes of its own for each batch. They are copied behind one another as soon as they are made:
    # from the processor's cache, into memory that was used before, and freed for the next batch to be made in.
    room = DEFAULT_LIMIT_BYTES
    out = SHARED.take(0)
    sizes: list[int] = []
    position = 0
    for done, payload in enumerate(payloads):
        records = decompress(codec, payload, room - position)
        end = position + len(records)
        if end > len(out):
            # As much for each of the others, and some more: they are usually alike.
            larger = SHARED.take(max(end, min(room, end * len(payloads) // (done + 1) * 9 // 8)))
            larger[:position] = out[:position]
            out = larger
        out[position:end] = records
        sizes.append(len(records))
        position = end
    return out, sizes


def _decoded_table(data: Buffer, table: array[int], headers: list[BatchHeader], capacity: int) -> Columns:
    decoded = kernels.choose(capacity).decode_records(data, table, capacity)
    if decoded.fault:
        failed = next((row for row in range(len(headers)) if table[6 * row + 1] > decoded.fault_at), len(headers) - 1)
        raise _invalid(decoded.fault, decoded.fault_at - table[6 * failed], headers[failed])
    return _columns(data, decoded)


def _columns(data: Buffer, decoded: Decoded) -> Columns:
    return Columns(
        decoded.offsets,
        decoded.timestamps,
        BytesColumn(data, decoded.key_starts, decoded.key_lengths, is_ordered=True),
        BytesColumn(data, decoded.value_starts, decoded.value_lengths, is_ordered=True),
        BytesColumn(data, decoded.header_starts, decoded.header_lengths, is_ordered=True),
    )


def read_records(batch: Batch, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> list[Record]:
    """Every record of a batch; raises InvalidRecord when any is wrong."""
    header, data, decoded = _decode(batch, limit_bytes)
    if decoded.fault:
        raise _invalid(decoded.fault, decoded.fault_at, header)
    return _records(header, data, decoded)


def iter_records(batch: Batch, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Record]:
    """Like read_records, but gives the good records of an uncompressed batch before it raises, as Java does."""
    header, data, decoded = _decode(batch, limit_bytes)
    if decoded.fault and header.codec_id:
        raise _invalid(decoded.fault, decoded.fault_at, header)
    yield from _records(header, data, decoded)
    if decoded.fault:
        raise _invalid(decoded.fault, decoded.fault_at, header)


def records_of(columns: Columns) -> list[Record]:
    """Columns as record objects; sequence numbers are not known here."""
    return _objects(columns, repeat(-1))


def _records(header: BatchHeader, data: Buffer, decoded: Decoded) -> list[Record]:
    sequences: Iterable[int] = repeat(-1)
    if header.base_sequence >= 0:
        base, first = header.base_sequence, header.base_offset
        sequences = [increment_sequence(base, to_int32(offset - first)) for offset in decoded.offsets.tolist()]
    # Keys and values are cut out of the buffer one by one: from bytes that is one step each.
    raw = data if type(data) is bytes else bytes(data)
    return _objects(_columns(raw, decoded), sequences)


def _objects(columns: Columns, sequences: Iterable[int]) -> list[Record]:
    headers: Iterable[Headers] = repeat(())
    section = columns.headers
    if section is not None and columns.has_headers:
        raw = section.data if type(section.data) is bytes else bytes(section.data)
        headers = [
            () if length <= 1 else decode_headers(raw, start)
            for start, length in zip(section.starts.tolist(), section.lengths.tolist())
        ]
    rows = zip(
        columns.offsets.tolist(),
        columns.timestamps.tolist(),
        columns.keys.to_list(),
        columns.values.to_list(),
        headers,
        sequences,
    )
    # All in C: no Python frame per record.
    return cast(list[Record], list(map(_new_tuple, repeat(Record), rows)))


class ControlMarker(NamedTuple):
    """What a control record says. The type is a number: 0 abort, 1 commit, others are KRaft's or not known."""

    control_type: int
    coordinator_epoch: int | None


def read_control(record: Record) -> ControlMarker:
    """The marker in a control record; the coordinator epoch only of transaction markers."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise MalformedRecordError(f"control record at offset {record.offset} has no key of {_CONTROL_KEY.size} bytes")
    version, control_type = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise MalformedRecordError(f"control record at offset {record.offset} has version {version}")
    if control_type not in (0, 1):
        return ControlMarker(control_type, None)
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise MalformedRecordError(f"transaction marker at offset {record.offset} has no coordinator epoch")
    version, epoch = _CONTROL_VALUE.unpack_from(record.value)
    if version < 0:
        raise MalformedRecordError(f"transaction marker at offset {record.offset} has version {version}")
    return ControlMarker(control_type, epoch)
