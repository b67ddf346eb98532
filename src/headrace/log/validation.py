"""What a batch must satisfy to be appended by a leader, and what the broker corrects in it.

The common batch costs one header unpack and one checksum. Records are looked at only where a rule needs it: a compacted
topic (every record needs a key), timestamps beyond a limit, another codec than the producer's, and in small batches,
where the walk is cheap, to find a wrong record count or a wrong greatest timestamp. A large batch whose header is
consistent in itself is taken at its word; its checksum says that it is what the producer made.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from headrace.log.config import LogConfig
from headrace.log.producer_state import EndMarker, Origin
from headrace.records import (
    Batch,
    BatchHeader,
    Codec,
    DecompressedTooLargeError,
    MalformedRecordError,
    TimestampType,
    compress,
    decompress,
)
from headrace.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    PREFIX_BYTES,
    seal,
    set_max_timestamp,
)
from headrace.records.kernels_plain import NO_STAMP, Decoded, decode_records
from headrace.records.read import read_control, read_records
from headrace.runtime import Buffer
from headrace.topics import TopicPartition

_MAGIC = 2
_MIN_LENGTH = 14
_MIN_RECORD_BYTES = 7
_NO_TIMESTAMP = -1
_LONG_MAX = 2**63 - 1
_WALKED_RECORDS_MAX = 32
_WALKED_PACKED_BYTES_MAX = 4096
_WALKED_UNPACKED_BYTES_MAX = 256 * 1024
# How much more than a whole batch may be, compressed, its records may be when they have to be unpacked here.
_UNPACKED_RATIO_MAX = 32
_UNPACKED_BYTES_MIN = 1024 * 1024
_ATTRIBUTES = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_ERRORS_SHOWN_MAX = 3
_new_tuple = tuple.__new__
_CLIENT = Origin.CLIENT


class RecordError(NamedTuple):
    """One record that was refused: its place in the batch, and why."""

    batch_index: int
    message: str


class RecordsRejectedError(KafkaError):
    """Some records of a batch break a rule of the topic; the batch is refused as a whole."""

    def __init__(self, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidRecordsError(RecordsRejectedError, InvalidRecordError):
    """Records without what the topic requires."""


class InvalidTimestampsError(RecordsRejectedError, InvalidTimestampError):
    """Records with timestamps out of the topic's range."""


class Checked(NamedTuple):
    """A batch that may be appended: its bytes (patched, still without offset and epoch) and its header as it now is."""

    view: memoryview
    header: BatchHeader
    max_timestamp_ms: int
    append_time_ms: int


def writable(records: Buffer) -> memoryview:
    """A view that can be patched. Read-only bytes are copied: hand over a bytearray (or a view of one) instead."""
    view = records if type(records) is memoryview else memoryview(records)
    return memoryview(bytearray(view)) if view.readonly else view


def validate(view: memoryview, config: LogConfig, origin: Origin, partition: TopicPartition, now_ms: int) -> Checked:
    """Check one batch for a leader's append and correct its timestamps and codec in place; raises a KafkaError."""
    if len(view) < HEADER_BYTES:
        raise _no_batch(view, partition)
    header: BatchHeader = _new_tuple(BatchHeader, HEADER.unpack_from(view))
    if origin is _CLIENT and config.takes_as_is and _is_one_plain_record(view, header, config, now_ms):
        return _new_tuple(Checked, (view, header, header.max_timestamp, _NO_TIMESTAMP))
    size = header.batch_length + PREFIX_BYTES
    if size != len(view) or header.magic != _MAGIC:
        view = _only_batch(view, header, partition)
    from_client = origin is Origin.CLIENT
    if from_client and header.base_offset != 0:
        raise InvalidRecordError(f"{partition}: a producer's batch has base offset 0, not {header.base_offset}")
    # The end of a transaction is let in whatever its size: without it the transaction would be open for ever.
    if size > config.max_message_bytes and (from_client or not header.attributes & CONTROL_BIT):
        raise _too_large(size, config, partition)
    if crc32c(view[ATTRIBUTES_AT:]) != header.crc:
        raise CorruptMessageError(
            f"{partition}: the batch's checksum does not match its bytes; it was damaged on the way"
        )
    if from_client:
        _check_header(header, partition)
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise UnsupportedCompressionTypeError(f"{partition}: the batch has the unknown compression codec {codec}")
    max_timestamp_ms = header.max_timestamp
    if from_client:
        max_timestamp_ms = _check_records(view, header, config, partition, now_ms)
    target = config.codec
    if target is not None and target != codec and not attributes & CONTROL_BIT:
        view = _recompressed(view, header, target, config, partition)
        header = Batch(view).header()
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        set_max_timestamp(view, 1, now_ms)
        return Checked(view, header, now_ms, now_ms)
    if max_timestamp_ms != header.max_timestamp or attributes & LOG_APPEND_TIME_BIT:
        set_max_timestamp(view, 0, max_timestamp_ms)
    return Checked(view, header, max_timestamp_ms, _NO_TIMESTAMP)


def _is_one_plain_record(view: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Whether nothing is wrong with a batch of one record, nor special about it: what small clients send, in one look.

    All that `validate` checks of any batch is known of it then; of one that is not, `validate` says what it is.
    """
    base_offset, length, _, magic, crc, attributes, last_delta, base_ms, newest_ms, producer, _, sequence, count = (
        header
    )
    size = len(view)
    if (
        count != 1
        or attributes
        or last_delta
        or base_offset
        or magic != _MAGIC
        or length + PREFIX_BYTES != size
        or size > config.max_message_bytes
        or base_ms != newest_ms
        or not 0 <= newest_ms <= now_ms + config.timestamp_after_max_ms
        or (producer >= 0 and sequence < 0)
        or crc32c(view[ATTRIBUTES_AT:]) != crc
    ):
        return False
    record_bytes, at = view[HEADER_BYTES], HEADER_BYTES + 1
    if record_bytes >= 0x80:
        more = view[at]
        if more >= 0x80:
            return False
        record_bytes, at = record_bytes + (more << 7) - 0x80, at + 1
    # An odd number is a negative length; behind the attributes is how much later than the batch's its time is.
    record_bytes = record_bytes >> 1 if not record_bytes & 1 else 0
    return record_bytes >= _MIN_RECORD_BYTES - 1 and at + record_bytes == size and view[at + 1] == 0


def _too_large(size: int, config: LogConfig, partition: TopicPartition) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"{partition}: a batch of {size} bytes is larger than max.message.bytes ({config.max_message_bytes})"
    )


def _no_batch(view: memoryview, partition: TopicPartition) -> InvalidRecordError | CorruptMessageError:
    if len(view) >= PREFIX_BYTES:
        length: int = _LENGTH.unpack_from(view, 8)[0]
        if length < _MIN_LENGTH:
            return CorruptMessageError(f"{partition}: a batch cannot have length {length}")
        if len(view) > 16 and view[16] in (0, 1):
            return _old_format(view[16], partition)
    return InvalidRecordError(f"{partition}: {len(view)} bytes hold no whole batch")


def _old_format(magic: int, partition: TopicPartition) -> InvalidRecordError:
    return InvalidRecordError(
        f"{partition}: message format {magic} is not supported; producers must send format {_MAGIC}"
    )


def _only_batch(view: memoryview, header: BatchHeader, partition: TopicPartition) -> memoryview:
    """The one batch of a buffer that is not exactly one batch; what is cut behind it is dropped, as Kafka does."""
    length, magic = header.batch_length, header.magic
    if length < _MIN_LENGTH or magic < 0 or magic > _MAGIC:
        raise CorruptMessageError(f"{partition}: no batch can have length {length} and magic {magic}")
    if magic != _MAGIC:
        raise _old_format(magic, partition)
    size = length + PREFIX_BYTES
    if size > len(view):
        raise InvalidRecordError(f"{partition}: the batch is cut: {len(view)} of its {size} bytes are there")
    if size < HEADER_BYTES:
        raise CorruptMessageError(f"{partition}: a batch of {size} bytes is smaller than its header")
    rest = view[size:]
    if len(rest) >= PREFIX_BYTES:
        next_length: int = _LENGTH.unpack_from(rest, 8)[0]
        if next_length < _MIN_LENGTH:
            raise CorruptMessageError(f"{partition}: what follows the batch is not one: it has length {next_length}")
        if next_length + PREFIX_BYTES <= len(rest):
            raise InvalidRecordError(f"{partition}: a produce request may hold only one batch for each partition")
    return view[:size]


def _check_header(header: BatchHeader, partition: TopicPartition) -> None:
    """What must hold among the fields of a producer's batch."""
    count = header.count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"{partition}: the batch says it has {count} records and a last offset delta of {header.last_offset_delta}"
        )
    if header.attributes & CONTROL_BIT:
        raise InvalidRecordError(f"{partition}: only brokers may write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"{partition}: the batch of producer {header.producer_id} has the sequence number {header.base_sequence}"
        )


def _check_records(
    view: memoryview, header: BatchHeader, config: LogConfig, partition: TopicPartition, now_ms: int
) -> int:
    """Look at the records if a rule needs it; the greatest timestamp, as far as it is known."""
    stamped = bool(header.attributes & LOG_APPEND_TIME_BIT)
    create_time = config.timestamp_type is TimestampType.CREATE_TIME
    if stamped and not create_time:
        raise InvalidTimestampsError(
            f"{partition}: a producer must not mark its batch as stamped by the broker",
            [RecordError(index, "marked as stamped by the broker") for index in range(min(header.count, 1000))],
        )
    packed = header.attributes & CODEC_MASK
    limited = create_time and (
        header.max_timestamp > now_ms + config.timestamp_after_max_ms or config.timestamp_before_max_ms != _LONG_MAX
    )
    payload_bytes = len(view) - HEADER_BYTES
    small = header.count <= _WALKED_RECORDS_MAX and (not packed or payload_bytes <= _WALKED_PACKED_BYTES_MAX)
    odd = header.max_timestamp < header.base_timestamp
    if not (config.compact or limited or small or odd):
        if not packed and header.count * _MIN_RECORD_BYTES > payload_bytes:
            raise InvalidRecordError(
                f"{partition}: {header.count} records cannot fit into the batch's {payload_bytes} bytes of them"
            )
        return header.max_timestamp
    needed = config.compact or limited or odd
    try:
        data = _unpacked(view, header, config if needed else None, partition)
    except DecompressedTooLargeError:
        # Small only on the wire: its records are left as unseen as those of any large batch.
        return header.max_timestamp
    if config.compact or limited:
        _check_each(_decode(data, header, partition), config, partition, now_ms, limited)
    found = _greatest_timestamp(data, header, partition)
    return header.max_timestamp if stamped else found


def _unpacked(view: memoryview, header: BatchHeader, config: LogConfig | None, partition: TopicPartition) -> Buffer:
    """The records' bytes. With the topic's config too many are the client's error, without it they are TooLarge."""
    if not header.codec_id:
        return view[HEADER_BYTES:]
    limit_bytes = _WALKED_UNPACKED_BYTES_MAX if config is None else _unpacked_bytes_max(config)
    try:
        return decompress(header.codec, view[HEADER_BYTES:], limit_bytes)
    except DecompressedTooLargeError as error:
        if config is None:
            raise
        raise MessageTooLargeError(f"{partition}: {error}; send smaller batches") from error
    except MalformedRecordError as error:
        raise InvalidRecordError(f"{partition}: {error}") from error


def _unpacked_bytes_max(config: LogConfig) -> int:
    return max(_UNPACKED_RATIO_MAX * config.max_message_bytes, _UNPACKED_BYTES_MIN)


def _miscounted(header: BatchHeader, at: int, partition: TopicPartition) -> InvalidRecordError:
    return InvalidRecordError(
        f"{partition}: the batch says it has {header.count} records, but its bytes hold something else "
        f"(from byte {at} of them on)"
    )


def _decode(data: Buffer, header: BatchHeader, partition: TopicPartition) -> Decoded:
    """All columns, by the plain kernel: the broker's process never loads the compiled one."""
    stamp = header.max_timestamp if header.is_log_append_time else NO_STAMP
    table = (0, len(data), header.count, 0, header.base_timestamp, stamp)
    decoded = decode_records(data, table, min(header.count, len(data) // _MIN_RECORD_BYTES + 1))
    if decoded.fault:
        raise _miscounted(header, decoded.fault_at, partition)
    return decoded


def _greatest_timestamp(data: Buffer, header: BatchHeader, partition: TopicPartition) -> int:
    """Step from record to record: their number must be right. Of each only its length and timestamp are read."""
    at, end = 0, len(data)
    base = header.base_timestamp
    greatest = _NO_TIMESTAMP
    try:
        for _ in range(header.count):
            byte = data[at]
            at += 1
            if byte >= 0x80:
                byte, at = _more(data, at, byte)
            size = byte >> 1
            # An odd number is a negative length: lengths are zigzag.
            if byte & 1 or size < _MIN_RECORD_BYTES - 1 or at + size > end:
                raise _miscounted(header, at, partition)
            after = at + size
            byte = data[at + 1]  # one byte of attributes lies before the timestamp
            if byte >= 0x80:
                byte, _ = _more(data, at + 2, byte)
            timestamp = base + (byte >> 1 ^ -(byte & 1))
            if timestamp > greatest:
                greatest = timestamp
            at = after
    except IndexError:
        raise _miscounted(header, at, partition) from None
    if at != end:
        raise _miscounted(header, at, partition)
    return greatest


def _more(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """The rest of a varint of up to ten bytes: (unsigned number, position after it)."""
    number, shift = first & 0x7F, 7
    for _ in range(9):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise IndexError("a varint of more than ten bytes")


def _check_each(decoded: Decoded, config: LogConfig, partition: TopicPartition, now_ms: int, limited: bool) -> None:
    """Keys on a compacted topic, timestamps within the limits; all records that break a rule are named."""
    errors: list[RecordError] = []
    bad_times = False
    if config.compact:
        for index, length in enumerate(decoded.key_lengths):
            if length < 0:
                errors.append(RecordError(index, f"the record has no key, which compacted {partition} requires"))
    if limited:
        low = now_ms - config.timestamp_before_max_ms
        high = now_ms + config.timestamp_after_max_ms
        keyless = {error.batch_index for error in errors}
        for index, timestamp in enumerate(decoded.timestamps):
            if timestamp != _NO_TIMESTAMP and not low <= timestamp <= high and index not in keyless:
                bad_times = True
                errors.append(RecordError(index, f"timestamp {timestamp} is not between {low} and {high}"))
    if not errors:
        return
    errors.sort()
    shown = "; ".join(f"record {index}: {message}" for index, message in errors[:_ERRORS_SHOWN_MAX])
    text = f"{partition}: {len(errors)} of the batch's {len(decoded.offsets)} records are refused: {shown}"
    raise (InvalidTimestampsError if bad_times else InvalidRecordsError)(text, errors)


def _recompressed(
    view: memoryview, header: BatchHeader, target: Codec, config: LogConfig, partition: TopicPartition
) -> memoryview:
    """The same records under the topic's codec. This copies, because the bytes are other bytes."""
    plain = _unpacked(view, header, config, partition)
    payload = compress(target, plain, config.compression_level(target))
    batch = bytearray(view[:HEADER_BYTES])
    batch += payload
    _LENGTH.pack_into(batch, 8, len(batch) - PREFIX_BYTES)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | target)
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config, partition)
    seal(batch)
    return memoryview(batch)


def read_marker(batch: Batch) -> EndMarker | None:
    """The end of a transaction in a control batch; None when compaction emptied it, or it is of another kind."""
    if batch.count <= 0:
        return None
    records = read_records(batch)
    marker = read_control(records[0])
    if marker.control_type not in (0, 1) or marker.coordinator_epoch is None:
        return None
    return EndMarker(marker.control_type == 1, marker.coordinator_epoch, records[0].timestamp)
