"""Step from record to record of a batch, as a leader does before it appends: nothing is decoded, nothing is kept.

Kafka does the same to every batch that a producer sends: the number of records has to be right, each record's fields
have to fill its length, and its timestamp and key are held against the topic's rules. Whether the offsets count from 0
on is found out along the way. What is compressed is unpacked piece by piece, so that a batch costs the same memory
whatever it grows to.

Records of one size, which are usual, lie at equal distances: the same byte of many of them is one slice, and whether
all are alike is one comparison (`uniform`). Those of different sizes take a step each (`varied`), and what is written
in an unusual way is looked at byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.protocol.wire import uvarint
from headrace.records.batch import Batch, BatchHeader, Buffer, to_int64
from headrace.records.compression import DEFAULT_LIMIT_BYTES, PIECE_BYTES, decompress_pieces
from headrace.records.errors import MalformedRecordError, ManyDifferentError
from headrace.records.kernels_plain import MIN_BODY_BYTES, MalformedFieldError, read_varint, read_varlong, skip_headers
from headrace.records.uniform import WIDER_AT, bytes_behind, bytes_in, largest_number, numbered, shape_at
from headrace.records.varied import pass_varied

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NO_TIMESTAMP = -1
REFUSED_SHOWN_MAX = 100
"""How many records that break a rule are named; the others are counted."""

_RUN_MIN = 16
# How many are compared at once after a run has failed, and how many times as many as the last has passed: so no more
# are compared in vain than a few times those that are passed.
_RUN_AFTER_FAILURE = 64
_RUN_GROWTH = 4
_AFTER_NO_RUN = 64
_AFTER_NO_RUN_MAX = 1 << 14
# After so many of different sizes is looked whether those behind them are of one.
_VARIED_MAX = 1024
# Records of this size and more are so few that a copy of them would cost more than slow indexing.
_COPIED_BELOW_BYTES = 4096
_ZIGZAG = tuple(number >> 1 ^ -(number & 1) for number in range(0x80))
_EVEN_BYTES = bytes(range(0, 0x100, 2))
_NUMBER_BYTES_MAX = 10
_UINT64_MAX = (1 << 64) - 1


HOWEVER_MANY = 1 << 31


class RecordRules(NamedTuple):
    """What a topic asks of each record."""

    timestamp_min: int = INT64_MIN
    timestamp_max: int = INT64_MAX
    needs_key: bool = False


ANYTHING = RecordRules()


class Refused(NamedTuple):
    """A record that breaks a rule: its place in the batch, and its timestamp, or None when its key is missing."""

    place: int
    timestamp_ms: int | None


class Walk:
    """One walk through a batch: what was found so far."""

    __slots__ = (
        "_base",
        "_count",
        "_high",
        "_low",
        "_may_wrap",
        "_needs_key",
        "_one_by_one_left",
        "_pause",
        "_run_max",
        "greatest",
        "is_late",
        "is_misnumbered",
        "left",
        "refused",
        "refused_count",
    )

    def __init__(self, header: BatchHeader, rules: RecordRules = ANYTHING, one_by_one_max: int = HOWEVER_MANY) -> None:
        self._base = header.base_timestamp
        self._count = self.left = max(header.count, 0)
        self._low, self._high, self._needs_key = rules
        self._may_wrap = abs(self._base) >> 62 != 0
        self._pause = _AFTER_NO_RUN
        self._run_max = self._count
        self._one_by_one_left = one_by_one_max
        self.greatest = NO_TIMESTAMP
        self.refused: list[Refused] = []
        self.refused_count = 0
        #: Whether any was refused for its timestamp.
        self.is_late = False
        #: Whether any has another offset than its place in the batch.
        self.is_misnumbered = False

    @property
    def index(self) -> int:
        """How many records were passed."""
        return self._count - self.left

    def feed(self, raw: Buffer, at: int) -> int:
        """Pass all whole records from a position on; the position behind them.

        MalformedRecordError if one is wrong, ManyDifferentError if more than allowed have to be passed one by one.
        """
        if type(raw) is not bytes:
            # Slow to be indexed, and few.
            at = self.pass_runs(raw, at, len(raw))
            return self._pass_each(raw, at, self.left)
        alone = 0
        was_quick = True
        while self.left:
            if self._one_by_one_left < 0:
                raise ManyDifferentError(f"the batch's {self._count} records are not of one size")
            if alone:
                before = at
                at = self._pass_each(raw, at, alone)
                if at == before:
                    break
            run = self._pass_run(raw, at, len(raw)) if self.left >= _RUN_MIN else 0
            if run:
                at, alone, was_quick, self._pause = run, 0, True, _AFTER_NO_RUN
                continue
            at, passed = self._pass_varied(raw, at)
            is_quick = passed >= _RUN_MIN
            if is_quick:
                self._pause = _AFTER_NO_RUN
            # What ended a stretch is one record, and others may follow; where there was none there may be many.
            alone = 1 if is_quick or was_quick else self._pause
            if alone > 1:
                self._pause = min(2 * self._pause, _AFTER_NO_RUN_MAX)
            was_quick = is_quick
        return at

    def pass_runs(self, raw: Buffer, at: int, end: int) -> int:
        """Pass records as long as many of one size follow each other; the position behind them."""
        while self.left >= _RUN_MIN and (run := self._pass_run(raw, at, end)):
            at = run
        return at

    def _pass_varied(self, raw: bytes, at: int) -> tuple[int, int]:
        """Pass records of any size that are written in the usual way: the position behind them, and how many."""
        if self._may_wrap or self._one_by_one_left < 0:
            return at, 0
        count = min(self.left, _VARIED_MAX, self._one_by_one_left + 1)
        at, passed = pass_varied(raw, at, self.index, count, self._allows, needs_key=self._needs_key)
        self.left -= passed
        self._one_by_one_left -= passed
        return at, passed

    def _allows(self, delta: int) -> bool:
        """Whether a timestamp of that distance from the batch's keeps the rules; if so, it is noted."""
        timestamp = self._base + delta
        if not self._low <= timestamp <= self._high and timestamp != NO_TIMESTAMP:
            return False
        if timestamp > self.greatest:
            self.greatest = timestamp
        return True

    def _pass_each(self, raw: Buffer, at: int, count_max: int) -> int:
        """Pass up to so many records one by one; stops before one that is not whole."""
        zigzag, base, low, high, greatest = _ZIGZAG, self._base, self._low, self._high, self.greatest
        needs_key, may_wrap, end = self._needs_key, self._may_wrap, len(raw)
        record_at = at
        passed = 0
        numbered_at = 2 * self.index  # as the next record's offset is written: zigzag
        allowed: int | None = None  # the last timestamp that keeps the rules: neighbours mostly have the same
        try:
            # Numbers of one and two bytes, which nearly all are, are read here: a call costs as much as the rest.
            for _ in range(min(self.left, count_max)):
                record_at = at
                byte = raw[at]
                at += 1
                if byte < 0x80:
                    size = zigzag[byte]
                elif (second := raw[at]) < 0x80:
                    byte = byte & 0x7F | second << 7
                    size, at = byte >> 1 ^ -(byte & 1), at + 1
                else:
                    size, at = read_varint(raw, at - 1, end)
                record_end = at + size
                if record_end > end or size < MIN_BODY_BYTES:
                    break
                byte = raw[at + 1]  # one byte of attributes lies before it
                if byte < 0x80:
                    timestamp, at = base + zigzag[byte], at + 2
                elif (second := raw[at + 2]) < 0x80:
                    byte = byte & 0x7F | second << 7
                    timestamp, at = base + (byte >> 1 ^ -(byte & 1)), at + 3
                else:
                    delta, at = read_varlong(raw, at + 1, record_end)
                    timestamp = base + delta
                    may_wrap = True
                number = raw[at]
                if number < 0x80:
                    at += 1
                elif (second := raw[at + 1]) < 0x80:
                    number, at = number & 0x7F | second << 7, at + 2
                else:
                    number, at = read_varint(raw, at, record_end)
                    number *= 2
                if number != numbered_at:
                    self.is_misnumbered = True
                numbered_at += 2
                byte = raw[at]
                if byte < 0x80:
                    key_length, at = zigzag[byte], at + 1
                else:
                    key_length, at = read_varint(raw, at, record_end)
                if key_length > 0:
                    at += key_length
                byte = raw[at]
                if byte < 0x80:
                    length, at = zigzag[byte], at + 1
                elif (second := raw[at + 1]) < 0x80:
                    byte = byte & 0x7F | second << 7
                    length, at = byte >> 1 ^ -(byte & 1), at + 2
                else:
                    length, at = read_varint(raw, at, record_end)
                if length > 0:
                    at += length
                at = at + 1 if raw[at] == 0 else skip_headers(raw, at, record_end)
                if at != record_end:
                    break
                if needs_key and key_length < 0:
                    greatest = max(greatest, to_int64(timestamp))
                    self._refuse(passed, None)
                elif timestamp != allowed:
                    if may_wrap:
                        timestamp = to_int64(timestamp)
                    if timestamp > greatest:
                        greatest = timestamp
                    if low <= timestamp <= high or timestamp == NO_TIMESTAMP:
                        allowed = timestamp
                    else:
                        self._refuse(passed, timestamp)
                passed += 1
                record_at = at
        except (MalformedFieldError, IndexError):
            pass
        self.greatest = greatest
        self.left -= passed
        self._one_by_one_left -= passed
        if passed < count_max and self.left:
            self._check_cut(raw, record_at)
        return record_at

    def _refuse(self, passed: int, timestamp: int | None) -> None:
        self.refused_count += 1
        self.is_late |= timestamp is not None
        if len(self.refused) < REFUSED_SHOWN_MAX:
            self.refused.append(Refused(self.index + passed, timestamp))

    def _check_cut(self, raw: Buffer, at: int) -> None:
        """The record here was not passed: fine if only a part of it has come, MalformedRecordError otherwise."""
        end = len(raw)
        try:
            size, body_at = read_varint(raw, at, end)
        except MalformedFieldError:
            if end - at >= 5:
                raise self.wrong("its length is no number") from None
            return
        if size < MIN_BODY_BYTES:
            raise self.wrong(f"it says that it has {size} bytes")
        if body_at + size <= end:
            raise self.wrong("its fields do not fit its length")

    def passed(self, timestamp_delta: int, offset_delta: int, *, has_key: bool) -> None:
        """Note a record that somebody else has looked at."""
        self.is_misnumbered |= offset_delta != self.index
        timestamp = to_int64(self._base + timestamp_delta)
        self.greatest = max(self.greatest, timestamp)
        if not has_key and self._needs_key:
            self._refuse(0, None)
        elif not self._low <= timestamp <= self._high and timestamp != NO_TIMESTAMP:
            self._refuse(0, timestamp)
        self.left -= 1

    def wrong(self, what: str) -> MalformedRecordError:
        return MalformedRecordError(f"record {self.index} of the batch's {self._count} cannot be read: {what}")

    def _pass_run(self, raw: Buffer, at: int, end: int) -> int:
        """Pass records that are shaped like the one at a position, which is whole; 0 if they are too few to bother."""
        index = self.index
        shape = shape_at(raw, at, end, index)
        if shape is None:
            return 0
        stride, fixed, stamp_at, stamp_width, number_at, number_width, has_key = shape
        if self._needs_key and not has_key:
            return 0
        wider = WIDER_AT[number_width - 1]
        run_max, self._run_max = self._run_max, _RUN_AFTER_FAILURE
        count = compared = min(self.left, (end - at) // stride, wider - index, run_max)
        # How many have the same first byte of their length: the others are of another size.
        head = bytes(raw[at : at + count * stride : stride])
        if head != head[:1] * count:
            count -= len(head.lstrip(head[:1]))
        if count < _RUN_MIN:
            return 0
        end = at + count * stride
        for place in fixed:
            if raw[at + place : end : stride] != bytes((raw[at + place],)) * count:
                return 0
        for place, column in enumerate(numbered(index, count, number_width)):
            if raw[at + number_at + place : end : stride] != column:
                return 0
        if not self._take_stamps(raw, at + stamp_at, end, stride, stamp_width):
            return 0
        self.left -= count
        self._run_max = max(run_max if count == compared else _RUN_AFTER_FAILURE, _RUN_GROWTH * count)
        return end

    def _take_stamps(self, raw: Buffer, at: int, end: int, stride: int, width: int) -> bool:
        """Note the timestamps of a run; False if any breaks a rule."""
        parts = [bytes(raw[at + place : end : stride]) for place in range(width)]
        found = [bytes_in(part) for part in parts]
        if found[-1][-1] >= 0x80 or any(some[0] < 0x80 for some in found[:-1]):
            return False  # some take another number of bytes
        if self._base >= self._low and not found[0].translate(None, _EVEN_BYTES):
            # None is earlier than the batch's: the latest tells of all.
            number = largest_number(parts, found)
            if number is not None and self._base + (number >> 1) <= min(self._high, INT64_MAX):
                self.greatest = max(self.greatest, self._base + (number >> 1))
                return True
        # To look at each takes as long as to pass each.
        self._one_by_one_left -= len(parts[0])
        if self._one_by_one_left < 0:
            return False
        numbers = {
            sum((byte & 0x7F) << 7 * place for place, byte in enumerate(row)) & _UINT64_MAX for row in set(zip(*parts))
        }
        stamps = {to_int64(self._base + (number >> 1 ^ -(number & 1))) for number in numbers}
        stamps.discard(NO_TIMESTAMP)
        if stamps:
            if min(stamps) < self._low or max(stamps) > self._high:
                return False
            self.greatest = max(self.greatest, max(stamps))
        return True


class _Pieces:
    """What is unpacked so far and not yet passed."""

    __slots__ = ("_dropped", "_pieces", "at", "data")

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._dropped = 0
        self.data: Buffer = b""
        self.at = 0

    @property
    def position(self) -> int:
        return self._dropped + self.at

    def more(self) -> bool:
        """Another piece behind what is left of the last; False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._dropped += self.at
        self.data = bytes(self.data[self.at :]) + bytes(piece) if self.at < len(self.data) else bytes(piece)
        self.at = 0
        return True

    def skip(self, size: int) -> None:
        """Pass so many bytes, whatever they are; MalformedRecordError if there are not as many."""
        target = self.position + max(size, 0)
        while target > self._dropped + len(self.data):
            self.at = len(self.data)
            if not self.more():
                raise MalformedRecordError("the batch ends within a record")
        self.at = target - self._dropped

    def number(self, read: Callable[[Buffer, int, int], tuple[int, int]] = read_varint) -> int:
        """A zigzag varint, as it is read from elsewhere too: what nobody can read must not be taken."""
        while len(self.data) - self.at < _NUMBER_BYTES_MAX and self.more():
            pass
        some = bytes(self.data[self.at : self.at + _NUMBER_BYTES_MAX])
        try:
            number, size = read(some, 0, len(some))
        except MalformedFieldError:
            raise MalformedRecordError("a number in it does not end, or the batch ends within a record") from None
        self.at += size
        return number


def _pass_long(walk: Walk, pieces: _Pieces) -> None:
    """Pass one record that is larger than a piece: what is behind is not kept while the rest of it comes."""
    size = pieces.number()
    end = pieces.position + size
    pieces.skip(1)
    delta = pieces.number(read_varlong)
    offset_delta = pieces.number()
    key_length = pieces.number()
    pieces.skip(key_length)
    pieces.skip(pieces.number())
    headers = pieces.number()
    if headers < 0 or headers > end - pieces.position:
        raise walk.wrong("it has an impossible number of headers")
    for _ in range(headers):
        length = pieces.number()
        if length < 0:
            raise walk.wrong("it has a header without a key")
        pieces.skip(length)
        pieces.skip(pieces.number())
        if pieces.position > end:
            break
    if pieces.position != end:
        raise walk.wrong("its fields do not fit its length")
    walk.passed(delta, offset_delta, has_key=key_length >= 0)


def walk_records(
    batch: Batch,
    rules: RecordRules = ANYTHING,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    one_by_one_max: int = HOWEVER_MANY,
) -> Walk:
    """Pass all records of a batch; what the rules refuse is in the result.

    MalformedRecordError if a record is wrong or their number is, DecompressedTooLargeError past the limit,
    ManyDifferentError where more of them than that are not like their neighbours.
    """
    header = batch.header()
    walk = Walk(header, rules, one_by_one_max)
    payload = batch.payload
    if header.codec_id == 0:
        at = _pass_runs_in_place(walk, payload)
        is_copied = walk.left * _COPIED_BELOW_BYTES > len(payload) - at and walk.left > 1
        data: Buffer = bytes(payload) if is_copied else payload
        end = walk.feed(data, at)
        if walk.left:
            raise walk.wrong("the batch ends before it does")
        _check_end(walk, len(data) - end)
        return walk
    pieces = _Pieces(decompress_pieces(header.codec, payload, limit_bytes))
    while walk.left:
        pieces.at = walk.feed(pieces.data, pieces.at)
        if not walk.left:
            break
        if len(pieces.data) - pieces.at > PIECE_BYTES:
            _pass_long(walk, pieces)
        elif not pieces.more():
            raise walk.wrong("the batch ends before it does")
    left = len(pieces.data) - pieces.at
    if not left and pieces.more():
        left = len(pieces.data)
    _check_end(walk, left)
    return walk


def _pass_runs_in_place(walk: Walk, payload: Buffer) -> int:
    """Pass the first records as long as they are many of one size, without a copy of them; where the others begin."""
    behind = bytes_behind(payload) if type(payload) is memoryview and walk.left >= _RUN_MIN else None
    if behind is None:
        return 0
    raw, at = behind
    return walk.pass_runs(raw, at, at + len(payload)) - at


def _check_end(walk: Walk, bytes_left: int) -> None:
    if bytes_left:
        raise MalformedRecordError(f"bytes are left after the last of the batch's {walk.index} records")


def renumbered(records: Buffer, count: int) -> bytearray:
    """Records that were passed, with the offsets of their places. A copy, since other numbers have other sizes."""
    raw = bytes(records)
    out = bytearray()
    at, end = 0, len(raw)
    for index in range(count):
        size, body_at = read_varint(raw, at, end)
        at = body_at + size
        number_at = read_varlong(raw, body_at + 1, at)[1]
        rest_at = read_varint(raw, number_at, at)[1]
        number = uvarint(2 * index)
        out += uvarint(2 * (size - (rest_at - number_at) + len(number)))
        out += raw[body_at:number_at]
        out += number
        out += raw[rest_at:at]
    return out


_HEAD_BYTES_MAX = 5 + 1 + 10 + 5


def iter_times(batch: Batch, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record. MalformedRecordError at the first that cannot be read."""
    header = batch.header()
    stamp = header.max_timestamp if header.is_log_append_time else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    if header.count <= 0:
        return
    pieces = _Pieces(
        iter((batch.payload,)) if header.codec_id == 0 else decompress_pieces(header.codec, batch.payload, limit_bytes)
    )
    for index in range(header.count):
        while len(pieces.data) - pieces.at < _HEAD_BYTES_MAX and pieces.more():
            pass
        data, at, end = pieces.data, pieces.at, len(pieces.data)
        try:
            size, at = read_varint(data, at, end)
            record_end = at + size
            delta, at = read_varlong(data, at + 1, end)
            offset_delta, at = read_varint(data, at, end)
        except MalformedFieldError:
            raise MalformedRecordError(f"record {index} of the batch's {header.count} cannot be read") from None
        if at > record_end:
            raise MalformedRecordError(f"record {index} of the batch's {header.count} is shorter than its fields")
        pieces.at = at
        pieces.skip(record_end - at)
        yield (
            to_int64(base_offset + offset_delta),
            stamp if stamp is not None else to_int64(base_timestamp + delta),
        )
