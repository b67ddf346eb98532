"""The headers of a fetch's batches, looked at together in compiled code: most fetches hold only batches of one kind."""

from __future__ import annotations

from typing import Any

from headrace.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CURRENT_MAGIC,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    Buffer,
)
from headrace.records.columns import MAX_COLUMN_BYTES, MIN_RECORD_BYTES
from headrace.records.compiling import as_array, bytes_in, helper, i64, kernel, longs_out, np, pooled
from headrace.records.kernels_plain import NO_STAMP, TABLE_WIDTH, Stretch

_LENGTH_AT, _EPOCH_AT, _MAGIC_AT, _LAST_DELTA_AT, _BASE_TIMESTAMP_AT, _COUNT_AT = 8, 12, 16, 23, 27, 57
_UNUSUAL = TRANSACTIONAL_BIT | CONTROL_BIT
_CAPACITY, _COUNT, _NEXT_OFFSET, _EPOCH, _APPEND_TIME, _CODEC, _BYTES = range(7)
_FACTS = 7
_NONE, _NO_ROOM = -1, -2
_BATCHES_EXPECTED = 512


@helper
def _big_endian(data: Any, at: Any, size: Any) -> Any:
    """A signed number of so many bytes."""
    number = np.int64(np.int8(data[at]))
    for step in range(1, size):
        number = (number << 8) | np.int64(data[at + step])
    return number


@kernel(i64(bytes_in, i64, longs_out, longs_out))
def _survey(data: Any, position: Any, table: Any, facts: Any) -> Any:
    """Rows of the table; or that something is not plain (who looks at each header knows what to do about it), or that
    there are more than the table has room for."""
    rows = 0
    at = np.int64(0)
    facts[:] = 0
    while len(data) - at >= PREFIX_BYTES:
        end = at + PREFIX_BYTES + _big_endian(data, at + _LENGTH_AT, 4)
        if end - at < HEADER_BYTES or end - at > MAX_COLUMN_BYTES:
            return _NONE
        if len(data) - at <= _MAGIC_AT:
            break
        if data[at + _MAGIC_AT] != CURRENT_MAGIC:
            return _NONE
        if end > len(data):
            # A fetch may end in the middle of a batch.
            break
        attributes = _big_endian(data, at + ATTRIBUTES_AT, 2)
        count = _big_endian(data, at + _COUNT_AT, 4)
        base_offset = _big_endian(data, at, 8)
        last_delta = _big_endian(data, at + _LAST_DELTA_AT, 4)
        if attributes & _UNUSUAL or count < 0 or base_offset < 0 or last_delta < 0:
            return _NONE
        next_offset = base_offset + last_delta + 1
        if next_offset > position:
            epoch = _big_endian(data, at + _EPOCH_AT, 4)
            is_append_time = 1 if attributes & LOG_APPEND_TIME_BIT else 0
            codec = attributes & CODEC_MASK
            if rows == 0:
                facts[_EPOCH] = epoch
                facts[_APPEND_TIME] = is_append_time
                facts[_CODEC] = codec
            elif facts[_EPOCH] != epoch or facts[_APPEND_TIME] != is_append_time or facts[_CODEC] != codec:
                return _NONE
            if codec != 0 and count == 0:
                # It has no records whatever its bytes are.
                return _NONE
            entry = rows * TABLE_WIDTH
            if entry == len(table):
                return _NO_ROOM
            table[entry] = at + HEADER_BYTES
            table[entry + 1] = end
            table[entry + 2] = count
            table[entry + 3] = base_offset
            table[entry + 4] = _big_endian(data, at + _BASE_TIMESTAMP_AT, 8)
            table[entry + 5] = _big_endian(data, at + MAX_TIMESTAMP_AT, 8) if is_append_time else NO_STAMP
            facts[_CAPACITY] += min(count, (end - at - HEADER_BYTES) // MIN_RECORD_BYTES)
            facts[_COUNT] += count
            facts[_NEXT_OFFSET] = next_offset
            facts[_BYTES] += end - at
            rows += 1
        at = end
    return rows


def survey_batches(data: Buffer, position: int, bytes_max: int) -> Stretch | None:
    """The plain batches of a fetch; see `kernels_plain.survey_batches`."""
    if len(data) > MAX_COLUMN_BYTES:
        return None
    facts = np.empty(_FACTS, np.int64)
    table = np.empty(TABLE_WIDTH * _BATCHES_EXPECTED, np.int64)
    rows = _survey(as_array(data, np.uint8), position, table, facts)
    if rows == _NO_ROOM:
        table = pooled(8 * TABLE_WIDTH * (len(data) // HEADER_BYTES), np.int64)
        rows = _survey(as_array(data, np.uint8), position, table, facts)
    capacity, count, next_offset, epoch, is_append_time, codec, size = facts.tolist()
    if rows <= 0 or size > bytes_max:
        return None
    # A copy, so that the room is free again: it was taken for as many batches as there may be.
    kept = memoryview(table[: rows * TABLE_WIDTH].copy())
    return Stretch(kept, capacity, count, next_offset, epoch, bool(is_append_time), codec)
