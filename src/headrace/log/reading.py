"""Where things are in a log: bytes for a fetch, offsets for timestamps, what a reader of committed data must skip."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from headrace.log.files import LogFile
from headrace.log.invariants import BrokenInvariantError
from headrace.log.offset_index import DamagedIndexError
from headrace.log.segment import TXN_INDEX, Segment
from headrace.log.transaction_index import AbortedTransaction, collect
from headrace.log.view import View, place_of
from headrace.records import Batch, BatchHeader, CorruptBatchError, MalformedRecordError
from headrace.records.walk import iter_times

log = logging.getLogger("headrace.log")

_new_tuple = tuple.__new__


class Slice(NamedTuple):
    """Where bytes of the log are: `length` bytes of `file` from `position`, from a batch's start on.

    It knows the view and the place of the segment that it was found with: what belongs to these bytes is looked up
    there, whatever has become of the log since.
    """

    file: LogFile
    position: int
    length: int
    base_offset: int
    view: View
    place: int


class TimeAndOffset(NamedTuple):
    """An answer to a look-up by time; -1 is "none" in each field."""

    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


def locate(view: View, offset: int, max_bytes: int, limit: int, at_least_one: bool, nowait: bool) -> Slice:
    """See `Log.locate`; `offset` < `limit` ≤ the view's end."""
    segments, bases = view.segments, view.bases
    last = len(segments) - 1
    place = last if offset >= bases[last] else place_of(bases, offset)
    while place <= last:
        segment = segments[place]
        if place == last:
            end, end_offset = view.size, view.end_offset
        else:
            end, end_offset = segment.size, bases[place + 1]
        found = segment.translate(offset, end, nowait=nowait)
        if found is None:
            place += 1
            continue  # compaction took the rest of this segment
        position, first_size = found
        if limit < end_offset:
            cut = segment.translate(limit, end, nowait=nowait)
            if cut is not None:
                if cut[0] > end:
                    raise _outside(segment, offset, position, cut[0], end)
                end = cut[0]
        length = end - position
        if length < 0:
            raise _outside(segment, offset, position, end, end)
        if at_least_one and first_size > max_bytes:
            max_bytes = first_size
        if length > max_bytes:
            length = max_bytes
        return _new_tuple(Slice, (segment.file, position, length, offset, view, place))
    return nothing(view, offset)


def _outside(segment: Segment, offset: int, position: int, end: int, size: int) -> BrokenInvariantError:
    wrong = f"offset {offset} would be read from byte {position} to {end}, but there are {size} to be read"
    return BrokenInvariantError("read", segment.file.path, wrong)


def nothing(view: View, offset: int) -> Slice:
    return Slice(view.segments[-1].file, view.size, 0, offset, view, len(view.segments) - 1)


def batch_start(segment: Segment, offset: int) -> int:
    """Where the batch of the segment begins that `offset` lies within; the offset itself where it lies between two."""
    found = segment.translate(offset)
    if found is None:
        return offset
    _, header = next(segment.headers(found[0]))
    return min(header.base_offset, offset)


def aborted_in(start: int, slice_: Slice, *, nowait: bool) -> list[AbortedTransaction]:
    """See `Log.aborted_transactions`."""
    found: list[AbortedTransaction] = []
    if slice_.length == 0:
        return found
    view, place = slice_.view, slice_.place
    end = view.segments[place].offset_index(nowait=nowait).upper_bound(slice_.position + slice_.length)
    if end is None:
        end = view.end_of(place)
    for segment in view.segments[place:]:
        try:
            entries = segment.aborted(nowait=nowait)
        except DamagedIndexError as error:
            raise CorruptBatchError(f"{segment.path(TXN_INDEX)}: {error}; a restart makes it again") from error
        if collect(entries, start, end, found):
            break
    return found


def first_at_or_after(view: View, timestamp_ms: int) -> TimeAndOffset | None:
    """The first record with a timestamp not below this one, at or after the log's start, as Kafka finds it."""
    start_offset = view.start_offset
    for place, segment in enumerate(view.segments):
        if segment.largest_timestamp_ms() < timestamp_ms:
            continue
        position = segment.position_for_time(timestamp_ms, start_offset)
        for at, header in segment.headers(position, view.size_of(place)):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for offset, timestamp in _times(segment, at, header):
                if timestamp >= timestamp_ms and offset >= start_offset:
                    return TimeAndOffset(timestamp, offset, header.leader_epoch)
        # None here though its timestamps promise one: compaction took that record. The next segment may have another.
    return None


def newest(view: View) -> TimeAndOffset:
    """The first record that has the greatest timestamp; all -1 when no record has one."""
    candidates = [(*segment.max_timestamp(), place) for place, segment in enumerate(view.segments)]
    timestamp_ms, batch_end, place = max(candidates, key=lambda candidate: candidate[0])
    if timestamp_ms < 0:
        return TimeAndOffset()
    segment = view.segments[place]
    # To the segment's own end: what has the greatest timestamp may have come after the view was made.
    for at, header in segment.headers(segment.offset_index().lookup(batch_end)):
        if header.max_timestamp != timestamp_ms:
            continue
        for offset, timestamp in _times(segment, at, header):
            if timestamp == timestamp_ms:
                return TimeAndOffset(timestamp, offset, header.leader_epoch)
    return TimeAndOffset()


def _times(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of a batch, as they are unpacked; those that cannot be read are where the
    first of them would be, with what the batch says of them: who reads from there misses none that can be."""
    offset = header.base_offset
    try:
        for found, timestamp in iter_times(Batch(segment.file.read(position, header.size))):
            yield found, timestamp
            offset = found + 1
    except (CorruptBatchError, MalformedRecordError) as error:
        log.warning(
            "%s at byte %d: from offset %d on records cannot be read: %s", segment.file.path, position, offset, error
        )
        yield min(offset, header.last_offset), header.max_timestamp
