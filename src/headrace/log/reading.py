"""Where things are in a log: bytes for a fetch, offsets for timestamps, what a reader of committed data must skip."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from headrace.log.files import LogFile
from headrace.log.segment import Segment
from headrace.log.transaction_index import AbortedTransaction, collect
from headrace.records import Batch, BatchHeader, CorruptBatch, InvalidRecord, decompress
from headrace.records.batch import HEADER_BYTES
from headrace.records.kernels_plain import NO_STAMP, Decoded, decode_records
from headrace.runtime import Buffer

_MIN_RECORD_BYTES = 7


class Slice(NamedTuple):
    """Where bytes of the log are: `length` bytes of `file` from `position`, from a batch's start on."""

    file: LogFile
    position: int
    length: int
    base_offset: int
    segment_base_offset: int


class TimeAndOffset(NamedTuple):
    """An answer to a look-up by time; -1 is "none" in each field."""

    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


def place_of(bases: Sequence[int], offset: int) -> int:
    """The place of the segment that has `offset`, or would have it."""
    return max(bisect_right(bases, offset) - 1, 0)


def locate(
    segments: Sequence[Segment],
    bases: Sequence[int],
    offset: int,
    max_bytes: int,
    limit: int,
    end_offset: int,
    *,
    at_least_one: bool,
    nowait: bool,
) -> Slice:
    """See `Log.locate`; `offset` < `limit` ≤ `end_offset`."""
    for place in range(place_of(bases, offset), len(segments)):
        segment = segments[place]
        end = segment.size
        found = segment.translate(offset, nowait=nowait)
        if found is None:
            continue  # compaction took the rest of this segment
        position, first_size = found
        following = bases[place + 1] if place + 1 < len(bases) else end_offset
        if limit < following:
            cut = segment.translate(limit, nowait=nowait)
            if cut is not None:
                end = cut[0]
        length = end - position
        if length > max_bytes:
            length = min(length, max(max_bytes, first_size)) if at_least_one else max_bytes
        return Slice(segment.file, position, max(length, 0), offset, segment.base_offset)
    return nothing(segments, offset)


def nothing(segments: Sequence[Segment], offset: int) -> Slice:
    active = segments[-1]
    return Slice(active.file, active.size, 0, offset, active.base_offset)


def aborted_in(
    segments: Sequence[Segment], bases: Sequence[int], start: int, slice_: Slice, end_offset: int, *, nowait: bool
) -> list[AbortedTransaction]:
    """See `Log.aborted_transactions`."""
    found: list[AbortedTransaction] = []
    if slice_.length == 0:
        return found
    place = place_of(bases, slice_.segment_base_offset)
    end = segments[place].offset_index(nowait=nowait).upper_bound(slice_.position + slice_.length)
    if end is None:
        end = bases[place + 1] if place + 1 < len(bases) else end_offset
    for segment in segments[place:]:
        if collect(segment.aborted(nowait=nowait), start, end, found):
            break
    return found


def first_at_or_after(segments: Sequence[Segment], timestamp_ms: int, start_offset: int) -> TimeAndOffset | None:
    """The first record with a timestamp not below this one, at or after `start_offset`, as Kafka finds it."""
    for segment in segments:
        if segment.largest_timestamp_ms() < timestamp_ms:
            continue
        position = segment.position_for_time(timestamp_ms, start_offset)
        for at, header in segment.headers(position):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            decoded = _decode(segment, at, header)
            for offset, timestamp in zip(decoded.offsets, decoded.timestamps):
                if timestamp >= timestamp_ms and offset >= start_offset:
                    return TimeAndOffset(timestamp, offset, header.leader_epoch)
        # None here though its timestamps promise one: compaction took that record. The next segment may have another.
    return None


def newest(segments: Sequence[Segment]) -> TimeAndOffset:
    """The first record that has the greatest timestamp; all -1 when no record has one."""
    segment = max(segments, key=lambda candidate: candidate.max_timestamp()[0])
    timestamp_ms, batch_end = segment.max_timestamp()
    if timestamp_ms < 0:
        return TimeAndOffset()
    for at, header in segment.headers(segment.offset_index().lookup(batch_end)):
        if header.max_timestamp != timestamp_ms:
            continue
        decoded = _decode(segment, at, header)
        for offset, timestamp in zip(decoded.offsets, decoded.timestamps):
            if timestamp == timestamp_ms:
                return TimeAndOffset(timestamp, offset, header.leader_epoch)
    return TimeAndOffset()


def _decode(segment: Segment, position: int, header: BatchHeader) -> Decoded:
    batch = Batch(segment.file.read(position, header.size))
    try:
        decoded = decode_plain(batch, header)
    except InvalidRecord as error:
        raise CorruptBatch(f"{segment.file.path} at byte {position}: {error}") from error
    if decoded.fault:
        raise CorruptBatch(f"{segment.file.path} at byte {position}: its records cannot be read")
    return decoded


def decode_plain(batch: Batch, header: BatchHeader) -> Decoded:
    """Columns of a batch by the plain kernel: the broker's process never loads the compiled ones."""
    data: Buffer = batch.buffer[HEADER_BYTES:]
    if header.codec_id and header.count > 0:
        data = decompress(header.codec, data)
    stamp = header.max_timestamp if header.is_log_append_time else NO_STAMP
    table = (0, len(data), header.count, header.base_offset, header.base_timestamp, stamp)
    return decode_records(data, table, min(max(header.count, 0), len(data) // _MIN_RECORD_BYTES + 1))
