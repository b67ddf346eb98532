"""Walking through a batch finds what decoding it finds, in pieces as well as whole, and keeps nothing."""

from __future__ import annotations

import functools
import itertools
import random
import struct
import tracemalloc
import zlib

import pytest

from headrace.protocol.wire import uvarint
from headrace.records import (
    Batch,
    Codec,
    DecompressedTooLargeError,
    MalformedRecordError,
    build_batch,
    compress,
    decompress,
    read_records,
    uniform,
    walk,
)
from headrace.records.batch import HEADER_BYTES, Buffer, seal
from headrace.records.compression import decompress_pieces
from headrace.records.kernels_plain import read_varint
from headrace.records.walk import (
    INT64_MAX,
    INT64_MIN,
    REFUSED_SHOWN_MAX,
    RecordRules,
    Walk,
    renumbered,
    walk_records,
)

CODECS = tuple(Codec)
NOW_MS = 1_700_000_000_000
MIB = 1024 * 1024
NAMES = [codec.name.lower() for codec in CODECS]


def rebuilt(batch: Batch, payload: bytes, codec: Codec, count: int | None = None) -> Batch:
    """The batch with other records, and a checksum that is right."""
    raw = bytearray(batch.buffer[:HEADER_BYTES]) + bytes(compress(codec, payload))
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    if count is not None:
        struct.pack_into(">i", raw, 57, count)
        struct.pack_into(">i", raw, 23, count - 1)
    seal(raw)
    return Batch(raw)


def some_batch(rng: random.Random, codec: Codec) -> Batch:
    alike = rng.random() < 0.5
    size = rng.choice((0, 1, 20, 100, 200))
    rows = [
        (
            NOW_MS + (rng.choice((0, 5, 60, 70, 9000, -1)) if rng.random() < 0.3 else index // 40),
            None if rng.random() < 0.1 and not alike else bytes(rng.choice((0, 3))) if not alike else b"key",
            bytes(size) if alike and rng.random() < 0.99 else rng.choice((None, b"", bytes(rng.randrange(300)))),
            () if rng.random() < 0.99 else ((("h", b"v"), ("i", None))),
        )
        for index in range(rng.choice((1, 2, 30, 100, 300)))
    ]
    return Batch(build_batch(rows, codec=codec))


def judged(batch: Batch) -> object:
    try:
        records = read_records(batch)
        is_misnumbered = [record.offset for record in records] != list(range(len(records)))
        return max(-1, *(record.timestamp for record in records)), is_misnumbered
    except MalformedRecordError:
        return "invalid"


def walked(batch: Batch) -> object:
    try:
        found = walk_records(batch)
        return found.greatest, found.is_misnumbered
    except MalformedRecordError:
        return "invalid"


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_it_takes_and_refuses_what_decoding_does(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(codec)
    outcomes = set()
    for turn in range(120):
        piece_bytes = rng.choice((7, 50, 1000, MIB))
        monkeypatch.setattr("headrace.records.compression.PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(walk, "PIECE_BYTES", piece_bytes)
        batch = some_batch(rng, codec)
        assert walked(batch) == judged(batch)
        plain = bytearray(decompress(codec, batch.payload))
        count = batch.count
        for _ in range(rng.choice((0, 1, 1, 3))):
            plain[rng.randrange(len(plain))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        change = rng.random()
        if change < 0.2:
            count += rng.choice((-1, 1, 5))
        elif change < 0.4:
            plain = plain[: rng.randrange(len(plain))] or plain
        elif change < 0.5:
            plain += bytes(rng.randrange(1, 9))
        damaged = rebuilt(batch, bytes(plain), codec, max(count, 1))
        assert walked(damaged) == judged(damaged), (turn, bytes(plain), count)
        outcomes.add(walked(damaged) == "invalid")
    assert outcomes == {True, False}


@functools.cache
def equal_records(count: int, value_bytes: int) -> tuple[Batch, list[bytes]]:
    """Records of one size, in a batch and each for itself."""
    batch = Batch(build_batch([(NOW_MS, b"key", bytes(value_bytes), ()) for _ in range(count)]))
    raw = bytes(batch.payload)
    ends = [0]
    for _ in range(count):
        size, at = read_varint(raw, ends[-1], len(raw))
        ends.append(at + size)
    return batch, [raw[start:end] for start, end in itertools.pairwise(ends)]


def shuffled(count: int, places: tuple[int, int], value_bytes: int) -> Batch:
    """Records of which two have each other's offsets."""
    batch, records = equal_records(count, value_bytes)
    order = list(range(count))
    order[places[0]], order[places[1]] = order[places[1]], order[places[0]]
    return rebuilt(batch, b"".join(records[place] for place in order), Codec.NONE)


@pytest.mark.parametrize("places", [(0, 1), (40, 50), (63, 64), (100, 101), (8190, 8191), (8191, 8192), (19_000, 3)])
@pytest.mark.parametrize("value_bytes", [0, 5000])
def test_offsets_that_do_not_count_from_0_are_noticed_and_corrected(places: tuple[int, int], value_bytes: int) -> None:
    count = 20_000 if value_bytes == 0 else max(places) + 2
    if count * value_bytes > 10 * MIB:
        return
    batch = shuffled(count, places, value_bytes)
    assert walk_records(batch).is_misnumbered
    corrected = rebuilt(batch, bytes(renumbered(batch.payload, count)), Codec.NONE)
    assert not walk_records(corrected).is_misnumbered
    before, after = read_records(batch), read_records(corrected)
    assert [record.offset for record in after] == list(range(count))
    assert before[0]._fields[0] == "offset"
    assert [record[1:] for record in before] == [record[1:] for record in after]


def test_records_of_one_size_are_passed_together() -> None:
    """Counted by how many are looked at one by one: a few per run, whatever their number."""
    rows = [(NOW_MS + index // 1000, b"k%06d" % index, bytes(93), ()) for index in range(10_000)]
    passed = []
    batch = Batch(build_batch(rows))

    class Counting(walk.Walk):
        def _pass_each(self, raw: bytes, at: int, count_max: int) -> int:
            left = self.left
            at = super()._pass_each(raw, at, count_max)
            passed.append(left - self.left)
            return at

    counting = Counting(batch.header())
    assert counting.feed(bytes(batch.payload), 0) == len(batch.payload)
    assert counting.left == 0
    assert counting.greatest == NOW_MS + 9
    assert sum(passed) < 20


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_records_that_break_a_rule_are_counted_and_a_hundred_named(codec: Codec) -> None:
    rows = [(NOW_MS + index, None if index % 2 else b"k", b"v", ()) for index in range(1000)]
    found = walk_records(Batch(build_batch(rows, codec=codec)), RecordRules(NOW_MS, NOW_MS + 499, needs_key=True))
    assert found.refused_count == 500 + 250
    assert len(found.refused) == REFUSED_SHOWN_MAX
    assert [refused.place for refused in found.refused[:3]] == [1, 3, 5]
    late = walk_records(Batch(build_batch(rows, codec=codec)), RecordRules(timestamp_max=NOW_MS + 997))
    assert [(refused.place, refused.timestamp_ms) for refused in late.refused] == [
        (998, NOW_MS + 998),
        (999, NOW_MS + 999),
    ]


def test_records_without_a_timestamp_are_in_no_range() -> None:
    rows = [(-1, None, b"v", ())] * 100
    assert walk_records(Batch(build_batch(rows)), RecordRules(NOW_MS, NOW_MS)).refused_count == 0


def test_a_timestamp_delta_may_be_as_large_as_it_likes() -> None:
    body = b"\0" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0\x01\x01\0"  # a delta of 2^63 - 1
    record = bytes([2 * len(body)]) + body
    batch = rebuilt(Batch(build_batch([(NOW_MS, None, None, ())])), record, Codec.NONE)
    assert walk_records(batch).greatest == -1  # it has wrapped, as Java's does


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS[1:], ids=NAMES[1:])
@pytest.mark.parametrize("is_one", [True, False], ids=["one record", "many records"])
def test_memory_does_not_grow_with_what_is_unpacked(codec: Codec, is_one: bool) -> None:
    rows = [(NOW_MS, None, bytes(48 * MIB), ())] if is_one else [(NOW_MS, None, bytes(MIB // 4), ())] * 192
    batch = Batch(build_batch(rows, codec=codec))
    tracemalloc.start()
    try:
        assert walk_records(batch).left == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * MIB


@pytest.mark.parametrize("codec", CODECS[1:], ids=NAMES[1:])
def test_no_more_is_unpacked_than_the_limit(codec: Codec) -> None:
    batch = Batch(build_batch([(NOW_MS, None, bytes(4 * MIB), ())], codec=codec))
    with pytest.raises(DecompressedTooLargeError):
        walk_records(batch, limit_bytes=3 * MIB)
    assert walk_records(batch, limit_bytes=5 * MIB).left == 0


def test_many_members_of_a_gzip_stream_cost_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what it was given and did not use: counted, that is at most a few times the stream."""
    copied = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._inflater = real(bits)

        def decompress(self, data: bytes, length_max: int) -> bytes:
            found = self._inflater.decompress(data, length_max)
            copied.append(len(self._inflater.unused_data) + len(self._inflater.unconsumed_tail))
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflater, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    member = zlib.compress(b"", wbits=31) + b""
    stream = member * 5000 + zlib.compress(b"the end", wbits=31)
    assert b"".join(decompress_pieces(Codec.GZIP, stream)) == b"the end"
    assert sum(copied) < 40 * len(stream)


def varied_payload(rng: random.Random) -> tuple[bytes, int]:
    """Records as they are usual, of many sizes, past each place where an offset takes another byte."""
    count = rng.choice((20, 150, 400, 8_400))
    sizes = rng.choice((range(1, 30), range(40, 80), range(50, 300), range(8_150, 8_230) if count < 100 else range(9)))
    keys = rng.choice(((None,), (b"", b"key", b"longer-key"), (None, b"k"), (bytes(61), bytes(64), bytes(70))))
    spread_ms = rng.choice((0, 0, 3, 90, 10_000))
    rows = [
        (NOW_MS + rng.randrange(spread_ms + 1), rng.choice(keys), bytes(rng.choice(sizes)), ())
        if rng.random() > 0.001
        else (NOW_MS - 1, None, None, ((("h", b"v"),)))
        for _ in range(count)
    ]
    return bytes(Batch(build_batch(rows)).payload), count


@pytest.mark.parametrize("seed", range(25))
def test_the_quick_ways_find_what_looking_at_each_record_finds(seed: int) -> None:
    """What is no `bytes` object is looked at one by one. Whole, and with any few bytes changed."""
    rng = random.Random(seed)
    payload, count = varied_payload(rng)
    header = Batch(build_batch([(NOW_MS, None, b"", ())])).header()._replace(count=count)
    rules = RecordRules(NOW_MS - rng.choice((0, 10_000)), NOW_MS + rng.choice((2, 95, 20_000)), rng.random() < 0.3)

    def outcome(raw: bytes | memoryview) -> object:
        found = walk.Walk(header, rules)
        try:
            end = found.feed(raw, 0)
        except MalformedRecordError as error:
            return str(error)
        return end, found.left, found.greatest, found.refused, found.refused_count, found.is_late, found.is_misnumbered

    assert outcome(payload) == outcome(memoryview(payload))
    for _ in range(40 if count < 1_000 else 4):
        changed = bytearray(payload)
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(len(changed)) if rng.random() < 0.3 else record_at(payload, rng) + rng.randrange(9)
            changed[place % len(changed)] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        assert outcome(bytes(changed)) == outcome(memoryview(changed))


@pytest.mark.parametrize("seed", range(25))
def test_records_are_looked_at_where_they_lie_as_in_a_copy(seed: int) -> None:
    """In the middle of a buffer, with records behind the batch that would go on as it ends; and with bytes changed."""
    rng = random.Random(seed)
    size, count = rng.choice((0, 10, 100, 300)), rng.choice((20, 100, 9_000))
    key = rng.choice((None, b"key"))
    rows = [(NOW_MS + place * rng.choice((0, 1)), key, bytes(size), ()) for place in range(count + 20)]
    longer = bytes(Batch(build_batch(rows)).payload)
    whole = rebuilt(Batch(build_batch(rows[:count])), bytes(Batch(build_batch(rows[:count])).payload), Codec.NONE)
    before = rng.randbytes(rng.randrange(100))
    rules = RecordRules(NOW_MS, NOW_MS + rng.choice((2, 95, 20_000)), rng.random() < 0.3)

    def outcome(batch: Batch) -> object:
        try:
            found = walk_records(batch, rules)
        except MalformedRecordError as error:
            return str(error)
        return found.left, found.greatest, found.refused, found.refused_count, found.is_late, found.is_misnumbered

    for changes in (0, 0, 1, 1, 1, 2):
        changed = bytearray(whole.buffer)
        for _ in range(changes):
            place = rng.randrange(HEADER_BYTES, len(changed))
            changed[place] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            del changed[rng.randrange(HEADER_BYTES, len(changed)) :]
        behind = longer[len(changed) - HEADER_BYTES :] + rng.randbytes(20)
        lying = memoryview(bytearray(before + changed + behind))[len(before) :][: len(changed)]
        assert uniform.bytes_behind(lying[HEADER_BYTES:]) is not None or len(changed) == HEADER_BYTES
        assert outcome(Batch(lying)) == outcome(Batch(bytes(changed)))


def test_where_a_view_lies_is_told_of_plain_bytes_that_can_be_written_only() -> None:
    base = bytearray(range(200))
    assert uniform.bytes_behind(memoryview(base)[50:][20:30]) == (base, 70)
    assert uniform.bytes_behind(memoryview(base)[::2]) is None
    assert uniform.bytes_behind(memoryview(base).toreadonly()) is None
    assert uniform.bytes_behind(memoryview(base)[:0]) is None
    assert uniform.bytes_behind(memoryview(bytes(base))) is None
    base.clear()  # nothing holds it


def record_at(payload: bytes, rng: random.Random) -> int:
    """The position of some record."""
    at = 0
    for _ in range(rng.randrange(150)):
        size, body_at = read_varint(payload, at, len(payload))
        if body_at + size >= len(payload):
            break
        at = body_at + size
    return at


def test_a_length_of_one_byte_is_never_read_together_with_the_end_of_headers_before_it() -> None:
    """The record before has a header that ends with a byte that would make another length of it."""
    rows: list[tuple[int, bytes | None, bytes, object]] = [(NOW_MS, None, b"a" * 20, ()) for _ in range(40)]
    rows[20] = (NOW_MS, None, b"a" * 21, (("h", b"\x85"),))
    batch = Batch(build_batch(rows))  # type: ignore[arg-type]  # as its tuples
    found = walk_records(batch)
    assert (found.left, found.is_misnumbered, found.refused_count) == (0, False, 0)


def in_bytes(number: int, width: int) -> bytes:
    """A number as a varint of so many bytes, however few it needs."""
    return bytes(number >> 7 * place & 0x7F | (0x80 if place < width - 1 else 0) for place in range(width))


class Style:
    """How the numbers of neighbouring records are written: with more bytes than they need, and bits that are too many.

    By place: the record's length, its timestamp, its offset, the lengths of key and value, the number of headers.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._more = [rng.choice((0, 0, 0, 0, 1, 2, 3, 4)) for _ in range(6)]
        self._beyond = [rng.choice((0, 0, 0, 1, 2, 6)) if rng.random() < 0.2 else 0 for _ in range(6)]
        self._is_late = rng.random() < 0.1

    def written(self, place: int, number: int, bits: int = 32) -> bytes:
        zigzag = (number << 1 ^ number >> 63) & (1 << bits) - 1
        width, width_max = max(1, -(-zigzag.bit_length() // 7)) + self._more[place], 5 if bits == 32 else 10
        if self._rng.random() > 0.02:
            width = min(width, width_max)
        if self._beyond[place] or (self._is_late and place == 1):
            width = max(width, width_max)
        return in_bytes(zigzag | self._beyond[place] << bits, width)


def oddly_written(rng: random.Random) -> tuple[bytes, int]:
    """Records with numbers that are written in unusual ways, many in a row in the same one."""
    out = bytearray()
    index = 0
    count = rng.choice((1, 3, 40, 150))
    while index < count:
        written = Style(rng).written
        delta, key, value = rng.choice((0, 1, 5, 200, -7, 1 << 62)), rng.choice((-1, 0, 3)), rng.choice((-1, 0, 3, 70))
        for _ in range(min(count - index, rng.choice((1, 17, 40)))):
            place = index if rng.random() < 0.995 else index + 1
            body = b"\0" + written(1, delta, 64) + written(2, place) + written(3, key) + bytes(max(key, 0))
            body += written(4, value) + bytes(max(value, 0)) + written(5, 0)
            out += written(0, len(body)) + body
            index += 1
    return bytes(out), count


def numbers_of(raw: bytes, at: int, bits: int) -> tuple[int, int]:
    """As Kafka reads a varint: of bytes that are too many the bits are lost, and there may be only so many."""
    number = 0
    for place in range(5 if bits == 32 else 10):
        byte = raw[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            number &= (1 << bits) - 1
            return number >> 1 ^ -(number & 1), at + place + 1
    raise IndexError


def plainly(raw: bytes, count: int, rules: RecordRules) -> object:
    """One record after the other, one field after the other."""
    at, greatest, refused, is_misnumbered = 0, -1, 0, False
    try:
        for place in range(count):
            size, at = numbers_of(raw, at, 32)
            end = at + size
            delta, at = numbers_of(raw, at + 1, 64)
            number, at = numbers_of(raw, at, 32)
            key, at = numbers_of(raw, at, 32)
            value, at = numbers_of(raw, at + max(key, 0), 32)
            headers, at = numbers_of(raw, at + max(value, 0), 32)
            if headers or at != end:
                return "invalid"
            timestamp = (NOW_MS + delta + (1 << 63)) % (1 << 64) - (1 << 63)
            greatest = max(greatest, timestamp)
            is_misnumbered |= number != place
            refused += (key < 0 and rules.needs_key) or (
                timestamp != -1 and not rules.timestamp_min <= timestamp <= rules.timestamp_max
            )
    except IndexError:
        return "invalid"
    return (greatest, refused, is_misnumbered) if at == len(raw) else "invalid"


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 30))])
def test_numbers_of_more_bytes_than_they_need_are_read_alike_everywhere(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at a time, one by one, and in pieces: as somebody would who knows only the format, and as whoever reads."""
    rng = random.Random(seed)
    outcomes = set()
    for _ in range(30):
        payload, count = oddly_written(rng)
        rules = RecordRules(
            NOW_MS - rng.choice((0, 10, 1 << 62)), NOW_MS + rng.choice((2, 1 << 63)), rng.random() < 0.3
        )
        expected = plainly(payload, count, rules)
        for codec in (Codec.NONE, Codec.ZSTD, Codec.GZIP):
            piece_bytes = rng.choice((7, 50, 1000, MIB))
            monkeypatch.setattr("headrace.records.compression.PIECE_BYTES", piece_bytes)
            monkeypatch.setattr(walk, "PIECE_BYTES", piece_bytes)
            batch = rebuilt(Batch(build_batch([(NOW_MS, None, b"", ())], codec=codec)), payload, codec, count)
            try:
                found = walk_records(batch, rules)
                assert (found.greatest, found.refused_count, found.is_misnumbered) == expected
            except MalformedRecordError:
                assert expected == "invalid"
            assert (judged(batch) == "invalid") == (expected == "invalid")
        outcomes.add(expected == "invalid")
    assert False in outcomes


@pytest.mark.parametrize("width", [3, 4, 5])
def test_offsets_of_many_bytes_cost_no_more_than_others(width: int) -> None:
    """To compare all the bytes of many offsets of five, 128 MiB of others would have to be made, again and again."""
    bodies = [b"\0\0" + in_bytes(2 * index, width) + b"\x01\x02v\0" for index in range(20)]
    payload = b"".join(bytes((2 * len(body),)) + body for body in bodies)
    batch = rebuilt(Batch(build_batch([(NOW_MS, None, b"", ())])), payload, Codec.NONE, 20)
    tracemalloc.start()
    try:
        found = walk_records(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.left, found.is_misnumbered, found.greatest) == (0, False, NOW_MS)
    assert peak < MIB


def test_a_long_record_that_nobody_could_read_is_refused() -> None:
    """Its key's length takes six bytes, of which whoever reads takes five; before it is all there, and after."""
    for value_bytes in (100, 3 * MIB):
        length = in_bytes(2 * value_bytes, 4)
        body = b"\0\0\0" + in_bytes(1, 6) + length + bytes(value_bytes) + b"\0"
        payload = in_bytes(2 * len(body), 4) + body
        for codec in CODECS:
            batch = rebuilt(Batch(build_batch([(NOW_MS, None, b"", ())], codec=codec)), payload, codec, 1)
            assert judged(batch) == "invalid"
            with pytest.raises(MalformedRecordError):
                walk_records(batch)


def test_what_ends_runs_again_and_again_is_not_compared_with_all_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 17th record breaks a rule that is looked at last; ten seconds of comparing, if it were."""
    count = 20_000
    rows = [(NOW_MS + (0 if index % 17 else 9), None, b"vv", ()) for index in range(count)]
    compared = []
    numbered = walk.numbered

    def noted(first: int, some: int, width: int) -> list[bytes]:
        compared.append(some)
        return numbered(first, some, width)

    monkeypatch.setattr(walk, "numbered", noted)
    found = walk_records(Batch(build_batch(rows)), RecordRules(NOW_MS, NOW_MS + 5))
    assert (found.left, found.refused_count) == (0, len(range(0, count, 17)))
    assert sum(compared) < 6 * count
    compared.clear()
    assert walk_records(Batch(build_batch(rows))).left == 0
    assert len(compared) < 12, "where nothing ends them, they are long"


def with_stamps(deltas: list[int], value_bytes: int) -> bytes:
    """Records of one size, each with its timestamp in as many bytes as the one that needs most."""
    written = [(delta << 1 ^ delta >> 63) & (1 << 64) - 1 for delta in deltas]
    width = max(1, *(-(-number.bit_length() // 7) for number in written))
    payload = b""
    for index, number in enumerate(written):
        body = b"\0" + in_bytes(number, width) + uvarint(2 * index) + b"\1" + uvarint(2 * value_bytes)
        body += bytes(value_bytes) + b"\0"
        payload += uvarint(2 * len(body)) + body
    return payload


@pytest.mark.parametrize("seed", range(8))
def test_the_latest_timestamp_of_many_is_found_in_whatever_order_they_come(seed: int) -> None:
    """Later and later, which is usual and is looked at together; then those of several threads, and earlier ones."""
    rng = random.Random(seed)
    taken = set()
    for _ in range(40):
        most = rng.choice((5, 63, 64, 200, 8191, 8192, 1 << 20, 1 << 40, 1 << 61, INT64_MAX - NOW_MS, INT64_MAX))
        least = rng.choice((0, 0, 0, -1, -most, -NOW_MS - 1))
        deltas = sorted(rng.randrange(least, most + 1) for _ in range(rng.choice((20, 60, 200))))
        disorder = rng.choice((0, 0, 1, len(deltas)))
        for _ in range(disorder):
            one, other = rng.randrange(len(deltas)), rng.randrange(len(deltas))
            deltas[one], deltas[other] = deltas[other], deltas[one]
        payload = with_stamps(deltas, rng.choice((10, 100, 5000)))
        rules = RecordRules(
            NOW_MS + rng.choice((0, 1, least, INT64_MIN)), NOW_MS + rng.choice((max(deltas), most, most - 1, 1 << 63))
        )
        batch = rebuilt(Batch(build_batch([(NOW_MS, None, b"", ())])), payload, Codec.NONE, len(deltas))
        found = walk_records(batch, rules)
        expected = plainly(payload, len(deltas), rules)
        assert (found.greatest, found.refused_count, found.is_misnumbered) == expected
        taken.add(found.refused_count == 0)
    assert taken == {True, False}


@pytest.mark.parametrize("wrong", [None, 0, 30, 59])
def test_large_records_are_compared_where_they_lie(wrong: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large to be copied, all of one size but for one that is not what it says."""
    one_by_one = []
    pass_each = Walk._pass_each

    def noted(self: Walk, raw: Buffer, at: int, count_max: int) -> int:
        before = self.left
        at = pass_each(self, raw, at, count_max)
        one_by_one.append(before - self.left)
        return at

    monkeypatch.setattr(Walk, "_pass_each", noted)
    payload = bytearray(with_stamps([0] * 60, 5000))
    if wrong is not None:
        payload[(wrong + 1) * (len(payload) // 60) - 1] = 2  # it has a header
    batch = rebuilt(Batch(build_batch([(NOW_MS, None, b"", ())])), bytes(payload), Codec.NONE, 60)
    if wrong is None:
        assert walk_records(batch).left == 0
        assert sum(one_by_one) == 0
    else:
        with pytest.raises(MalformedRecordError, match=f"record {wrong} "):
            walk_records(batch)
