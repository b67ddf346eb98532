"""What a batch must satisfy to be appended by a leader, and what the broker corrects in it.

Kafka looks at every record of every batch that a producer sends, and so does this: their number and structure, their
timestamps (the greatest of which is the batch's, whatever its header says), on a compacted topic their keys. Offsets
within a batch that do not count from 0 on are corrected, as in Kafka, and here also where nothing is compressed. What
is acknowledged can be read. `records/walk.py` steps through them without decoding any; a batch for which that may take
long is refused with `TakesLongError` where nothing may, on the event loop, and is validated on another thread. Kafka
has no bound on what a batch grows to; here it is RECORDS_MAX records, and `unpacked_bytes_max`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import (
    CorruptMessageError,
    HeadraceError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from headrace.log.config import LogConfig
from headrace.log.producer_state import EndMarker, Origin, Verification
from headrace.records import (
    DEFAULT_LIMIT_BYTES,
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
from headrace.records.errors import ManyDifferentError
from headrace.records.kernels_plain import MIN_BODY_BYTES, MalformedFieldError, read_varint
from headrace.records.read import read_control, read_records
from headrace.records.uniform import is_like_the_first
from headrace.records.walk import (
    ANYTHING,
    HOWEVER_MANY,
    INT64_MAX,
    INT64_MIN,
    REFUSED_SHOWN_MAX,
    RecordRules,
    Walk,
    renumbered,
    walk_records,
)
from headrace.runtime import Buffer
from headrace.topics import TopicPartition

_MAGIC = 2
_MIN_LENGTH = 14
_NO_TIMESTAMP = -1
RECORDS_MAX = 1 << 20
"""Of one batch: more than any known client puts into one (librdkafka: a million)."""
RECORD_ERRORS_MAX = REFUSED_SHOWN_MAX
# How much more than a whole batch may be, compressed, its records may be; and how much they may always, and ever, be.
_UNPACKED_RATIO_MAX = 32
_UNPACKED_BYTES_ALWAYS = 128 * 1024 * 1024
_UNPACKED_BYTES_MAX = DEFAULT_LIMIT_BYTES
# Records that are to be compressed anew are in memory all at once.
_RECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
# What may be validated on the event loop: about a millisecond's worth.
_SHORT_RECORDS_MAX = 1024
_SHORT_RECORDS_OF_ONE_SIZE_MAX = 1 << 14
# Of those how many may be looked at one by one, where their sizes change.
_SHORT_ONE_BY_ONE_MAX = 128
_SHORT_BYTES_MAX = 2 * 1024 * 1024
_SHORT_PACKED_BYTES_MAX = 32 * 1024
_SHORT_UNPACKED_BYTES_MAX = 512 * 1024
_ATTRIBUTES = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_ERRORS_SHOWN_MAX = 3
# A batch's header and what begins its first record: `plain_record` looks at both at once.
_PLAIN = struct.Struct(HEADER.format + "6B")
_unpack_plain = _PLAIN.unpack_from
_PLAIN_BYTES_MIN = HEADER_BYTES + 1 + MIN_BODY_BYTES
_HEADER_FIELDS = len(BatchHeader._fields)
_new_tuple = tuple.__new__
_CLIENT = Origin.CLIENT


class TakesLongError(HeadraceError):
    """Validating this batch may take longer than an event loop can wait: do it on another thread."""


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
    origin: Origin = Origin.CLIENT
    verification: Verification | None = None
    """Of what is written in a transaction: it is refused unless that is open, or this is the guard to open it with."""
    transaction_version: int = 0
    """That of the transaction which a marker ends."""


def writable(records: Buffer) -> memoryview:
    """A view that can be patched. Read-only bytes are copied: hand over a bytearray (or a view of one) instead."""
    view = records if type(records) is memoryview else memoryview(records)
    return memoryview(bytearray(view)) if view.readonly else view


def validate(
    view: memoryview,
    config: LogConfig,
    origin: Origin,
    partition: TopicPartition,
    now_ms: int,
    *,
    short: bool = False,
) -> Checked:
    """Check one batch for a leader's append and correct its timestamps and codec in place; raises a KafkaError.

    With `short`, a producer's batch that may take long is left as it is: TakesLongError.
    """
    if len(view) < HEADER_BYTES:
        raise _no_batch(view, partition)
    if origin is _CLIENT and config.takes_as_is:
        checked = plain_record(view, config, now_ms)
        if checked is not None:
            return checked
    header: BatchHeader = _new_tuple(BatchHeader, HEADER.unpack_from(view))
    size = header.batch_length + PREFIX_BYTES
    if size != len(view) or header.magic != _MAGIC:
        view = _only_batch(view, header, partition)
    from_client = origin is Origin.CLIENT
    if from_client and header.base_offset != 0:
        raise InvalidRecordError(f"{partition}: a producer's batch has base offset 0, not {header.base_offset}")
    # The end of a transaction is let in whatever its size: without it the transaction would be open for ever.
    if size > config.max_message_bytes and (from_client or not header.attributes & CONTROL_BIT):
        raise _too_large(size, config, partition)
    if short and from_client and _takes_long(view, header, config):
        raise TakesLongError(f"{partition}: a batch of {header.count} records and {size} bytes")
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
    max_timestamp_ms, is_misnumbered = header.max_timestamp, False
    if from_client:
        max_timestamp_ms, is_misnumbered = _check_records(view, header, config, partition, now_ms, short)
    target = Codec(codec) if config.codec is None else config.codec
    if (target != codec and not attributes & CONTROL_BIT) or is_misnumbered:
        view = _rebuilt(view, header, target, config, partition, is_misnumbered, short)
        header = Batch(view).header()
    if config.timestamp_type is TimestampType.LOG_APPEND_TIME:
        set_max_timestamp(view, 1, now_ms)
        return Checked(view, header, now_ms, now_ms, origin)
    if max_timestamp_ms != header.max_timestamp or attributes & LOG_APPEND_TIME_BIT:
        set_max_timestamp(view, 0, max_timestamp_ms)
    return Checked(view, header, max_timestamp_ms, _NO_TIMESTAMP, origin)


def plain_record(view: memoryview, config: LogConfig, now_ms: int) -> Checked | None:
    """What small clients send, in one look: a batch of one record with nothing wrong about it, and nothing special.

    All that `validate` checks of any batch of a client is known of it then, where `config.takes_as_is`; of one that is
    not (None), `validate` says what it is. The view is of bytes that can be patched.
    """
    size = len(view)
    if not _PLAIN_BYTES_MIN <= size <= config.max_message_bytes:
        return None
    fields = _unpack_plain(view)
    (
        base_offset, length, _, magic, crc, attributes, last_delta, base_ms, newest_ms, producer, _, sequence, count,
        record_bytes, second, third, fourth, fifth, sixth,
    ) = fields  # fmt: skip
    if (
        count != 1
        or attributes
        or last_delta
        or base_offset
        or magic != _MAGIC
        or length + PREFIX_BYTES != size
        or base_ms != newest_ms
        or not 0 <= newest_ms <= now_ms + config.timestamp_after_max_ms
        or (producer >= 0 and sequence < 0)
        or crc32c(view[ATTRIBUTES_AT:]) != crc
    ):
        return None
    # The record's length, of one byte or two; its attributes; how much later than the batch's its time is, and how much
    # greater its offset; the length of its key.
    if record_bytes < 0x80:
        at, later_ms, delta, key = HEADER_BYTES + 1, third, fourth, fifth
    elif second < 0x80:
        record_bytes += (second << 7) - 0x80
        at, later_ms, delta, key = HEADER_BYTES + 2, fourth, fifth, sixth
    else:
        return None
    # An odd number is a negative length.
    if later_ms or delta or record_bytes & 1 or at + (record_bytes >> 1) != size or record_bytes >> 1 < MIN_BODY_BYTES:
        return None
    try:
        if key < 0x80:
            at += 4 if key & 1 else 4 + (key >> 1)
        else:
            length, at = read_varint(view, at + 3, size)
            at += max(length, 0)
        value = view[at]
        if value < 0x80:
            at += 1
        else:
            second = view[at + 1]
            if second < 0x80:
                value, at = value + (second << 7) - 0x80, at + 2
            else:
                length, at = read_varint(view, at, size)
                value = max(length, 0) << 1
        # Key and value fill the record, but for a number of headers that is 0.
        if (at if value & 1 else at + (value >> 1)) != size - 1 or view[size - 1]:
            return None
    except (IndexError, MalformedFieldError):
        return None
    header = _new_tuple(BatchHeader, fields[:_HEADER_FIELDS])
    return _new_tuple(Checked, (view, header, newest_ms, _NO_TIMESTAMP, _CLIENT, None, 0))


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
    if count > RECORDS_MAX:
        raise MessageTooLargeError(
            f"{partition}: the batch says it has {count} records; at most {RECORDS_MAX} are taken: send smaller batches"
        )
    if header.attributes & CONTROL_BIT:
        raise InvalidRecordError(f"{partition}: only brokers may write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"{partition}: the batch of producer {header.producer_id} has the sequence number {header.base_sequence}"
        )


def _takes_long(view: memoryview, header: BatchHeader, config: LogConfig) -> bool:
    size, count, codec = len(view), header.count, header.attributes & CODEC_MASK
    if count > _SHORT_RECORDS_OF_ONE_SIZE_MAX or size > _SHORT_BYTES_MAX:
        return True
    if count > _SHORT_RECORDS_MAX and (codec or not is_like_the_first(view[HEADER_BYTES:], count)):
        return True
    if codec and size > _SHORT_PACKED_BYTES_MAX:
        return True
    return config.codec is not None and config.codec != codec and size > _SHORT_PACKED_BYTES_MAX


def unpacked_bytes_max(config: LogConfig) -> int:
    """How large the records of a batch may be once they are unpacked."""
    return min(max(_UNPACKED_RATIO_MAX * config.max_message_bytes, _UNPACKED_BYTES_ALWAYS), _UNPACKED_BYTES_MAX)


def _check_records(
    view: memoryview, header: BatchHeader, config: LogConfig, partition: TopicPartition, now_ms: int, short: bool
) -> tuple[int, bool]:
    """Look at every record; the greatest timestamp, and whether their offsets have to be numbered anew."""
    stamped = bool(header.attributes & LOG_APPEND_TIME_BIT)
    create_time = config.timestamp_type is TimestampType.CREATE_TIME
    if stamped and not create_time:
        raise InvalidTimestampsError(
            f"{partition}: a producer must not mark its batch as stamped by the broker",
            [
                RecordError(index, "marked as stamped by the broker")
                for index in range(min(header.count, RECORD_ERRORS_MAX))
            ],
        )
    rules = ANYTHING._replace(needs_key=config.compact)
    if create_time:
        low = max(INT64_MIN, now_ms - config.timestamp_before_max_ms)
        high = min(INT64_MAX, now_ms + config.timestamp_after_max_ms)
        if not stamped:
            rules = RecordRules(low, high, config.compact)
        elif not low <= header.max_timestamp <= high:
            # All its records have this timestamp, whatever they say themselves.
            message = f"timestamp {header.max_timestamp} is not between {low} and {high}"
            raise InvalidTimestampsError(
                f"{partition}: all of the batch's records are refused: {message}",
                [RecordError(index, message) for index in range(min(header.count, RECORD_ERRORS_MAX))],
            )
    limit_bytes = _SHORT_UNPACKED_BYTES_MAX if short else unpacked_bytes_max(config)
    one_by_one_max = _SHORT_ONE_BY_ONE_MAX if short and header.count > _SHORT_RECORDS_MAX else HOWEVER_MANY
    try:
        walk = walk_records(Batch(view), rules, limit_bytes, one_by_one_max)
    except ManyDifferentError as error:
        raise TakesLongError(f"{partition}: {error}") from error
    except DecompressedTooLargeError as error:
        if short:
            raise TakesLongError(f"{partition}: {error}") from error
        raise MessageTooLargeError(f"{partition}: {error}; send smaller batches") from error
    except MalformedRecordError as error:
        raise InvalidRecordError(f"{partition}: {error}") from error
    if walk.refused_count:
        raise _refusal(walk, header, rules, partition)
    return header.max_timestamp if stamped else walk.greatest, walk.is_misnumbered


def _refusal(walk: Walk, header: BatchHeader, rules: RecordRules, partition: TopicPartition) -> RecordsRejectedError:
    errors = [
        RecordError(
            refused.place,
            f"the record has no key, which compacted {partition} requires"
            if refused.timestamp_ms is None
            else f"timestamp {refused.timestamp_ms} is not between {rules.timestamp_min} and {rules.timestamp_max}",
        )
        for refused in walk.refused
    ]
    shown = "; ".join(f"record {index}: {message}" for index, message in errors[:_ERRORS_SHOWN_MAX])
    text = f"{partition}: {walk.refused_count} of the batch's {header.count} records are refused: {shown}"
    return (InvalidTimestampsError if walk.is_late else InvalidRecordsError)(text, errors)


def _rebuilt(
    view: memoryview,
    header: BatchHeader,
    target: Codec,
    config: LogConfig,
    partition: TopicPartition,
    is_misnumbered: bool,
    short: bool,
) -> memoryview:
    """The same records under the topic's codec, with the offsets of their places. A copy: its bytes are other bytes."""
    # Uncompressed records are the batch itself, which may be only so large.
    limit_bytes = config.max_message_bytes if target is Codec.NONE else _RECOMPRESSED_BYTES_MAX
    # To compress takes many times as long as to unpack, and what is unpacked may be much more than has come.
    is_short = short and target is not Codec.NONE
    if is_short:
        limit_bytes = _SHORT_PACKED_BYTES_MAX
    plain: Buffer = view[HEADER_BYTES:]
    if header.codec_id:
        try:
            plain = decompress(header.codec, plain, min(limit_bytes, unpacked_bytes_max(config)))
        except DecompressedTooLargeError as error:
            if is_short:
                raise TakesLongError(f"{partition}: {error}") from error
            raise MessageTooLargeError(f"{partition}: {error}; send smaller batches") from error
        except MalformedRecordError as error:
            raise InvalidRecordError(f"{partition}: {error}") from error
    if is_misnumbered:
        plain = renumbered(plain, header.count)
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
