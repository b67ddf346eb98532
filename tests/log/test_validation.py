"""A batch of one plain record is looked at once, and what comes of it is what comes of the long look."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from headrace.errors import KafkaError
from headrace.log import LogConfig, Origin, validation
from headrace.records import Batch, Codec, TimestampType, build_batch, compress, read_records
from headrace.records.batch import HEADER_BYTES, PREFIX_BYTES, seal
from headrace.records.uniform import is_like_the_first
from headrace.topics import TopicPartition

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("t", 0)
CONFIGS = (
    LogConfig(),
    LogConfig(codec=Codec.NONE),
    LogConfig(codec=Codec.GZIP),
    LogConfig(compact=True),
    LogConfig(max_message_bytes=100),
    LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME),
    LogConfig(timestamp_before_max_ms=1000),
)


def outcome(batch: bytes, config: LogConfig, origin: Origin) -> tuple[Any, ...]:
    view = memoryview(bytearray(batch))
    try:
        checked = validation.validate(view, config, origin, PARTITION, NOW_MS)
    except KafkaError as error:
        return type(error), str(error)
    return bytes(checked.view), checked.header, checked.max_timestamp_ms, checked.append_time_ms


def cut_short(batch: bytes, kept: int) -> bytes:
    """A batch whose length and checksum are right, though of its record only so many bytes are there."""
    cut = bytearray(batch[: HEADER_BYTES + kept])
    cut[8:12] = (len(cut) - PREFIX_BYTES).to_bytes(4, "big")
    seal(cut)
    return bytes(cut)


def batches(rng: random.Random) -> list[bytes]:
    """One record of all lengths that matter, each as it is and with something about it changed."""
    found = []
    for size in (0, 1, 50, 54, 55, 56, 57, 58, 59, 60, 100, 8_000, 8_190, 8_200, 20_000):
        for timestamp_ms in (NOW_MS, NOW_MS - 5, -1, NOW_MS + 10**9):
            batch = build_batch([(timestamp_ms, rng.choice((None, b"k")), bytes(size), ())])
            found.append(bytes(batch))
            for _ in range(40):
                changed = bytearray(batch)
                at = rng.randrange(min(len(changed), HEADER_BYTES + 8))
                changed[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << rng.randrange(8)))
                if rng.random() < 0.8:
                    seal(changed)
                found.append(bytes(changed))
            found.append(bytes(batch[:-1]))
            found.append(bytes(batch) + b"\x00")
            found += [cut_short(batch, kept) for kept in range(10)]
    found.append(bytes(build_batch([(NOW_MS, None, b"a", ()), (NOW_MS + 1, None, b"b", ())])))
    found.append(bytes(build_batch([(NOW_MS, None, b"a", ())], producer_id=5, producer_epoch=0, base_sequence=0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_short_look_finds_what_the_long_one_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = batches(random.Random(seed))
    looks = [(batch, CONFIGS[0] if number % 3 else config) for number, batch in enumerate(cases) for config in CONFIGS]
    short = [outcome(batch, config, Origin.CLIENT) for batch, config in looks]
    short += [outcome(batch, CONFIGS[0], Origin.COORDINATOR) for batch in cases]
    monkeypatch.setattr(validation, "plain_record", lambda *_: None)
    long = [outcome(batch, config, Origin.CLIENT) for batch, config in looks]
    long += [outcome(batch, CONFIGS[0], Origin.COORDINATOR) for batch in cases]
    assert short == long


def test_what_small_clients_send_takes_the_short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> int:
        raise AssertionError("the records were looked at")

    monkeypatch.setattr(validation, "_check_records", never)
    for size in (0, 50, 57, 58, 8_000):
        for options in ({}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}):
            batch = build_batch([(NOW_MS, None, bytes(size), ())], **options)
            assert outcome(bytes(batch), LogConfig(), Origin.CLIENT)[2] == NOW_MS


def long_or_short(batch: bytes | bytearray, config: LogConfig) -> str:
    view = memoryview(bytearray(batch))
    try:
        validation.validate(view, config, Origin.CLIENT, PARTITION, NOW_MS, short=True)
    except validation.TakesLongError:
        assert bytes(view) == batch, "it is left as it is"
        return "long"
    return "short"


def test_what_has_to_be_compressed_anew_takes_long_by_what_it_is_unpacked() -> None:
    """On the event loop a batch of 15 KB took a tenth of a second, where the topic's codec is thorough."""
    rows = [(NOW_MS, b"k", b"what a small client sends, %d times " % index * 40, ()) for index in range(280)]
    large = build_batch(rows, codec=Codec.LZ4)
    small = build_batch(rows[:10], codec=Codec.LZ4)
    assert len(large) < 32 * 1024
    for codec in (None, Codec.LZ4, Codec.NONE):
        assert long_or_short(large, LogConfig(codec=codec)) == "short"
    assert long_or_short(large, LogConfig(codec=Codec.ZSTD)) == "long"
    assert long_or_short(small, LogConfig(codec=Codec.ZSTD)) == "short"


@pytest.mark.parametrize(("count", "found"), [(2, "short"), (1000, "long")])
def test_so_does_what_has_to_be_numbered_anew(count: int, found: str) -> None:
    one = bytes(Batch(build_batch([(NOW_MS, b"k", bytes(100), ())])).payload)
    raw = build_batch([(NOW_MS, b"k", b"", ())] * count)[:HEADER_BYTES] + compress(Codec.GZIP, one * count)
    struct.pack_into(">i", raw, 8, len(raw) - PREFIX_BYTES)
    struct.pack_into(">h", raw, 21, Codec.GZIP)
    seal(raw)
    assert long_or_short(raw, LogConfig()) == found
    assert long_or_short(raw, LogConfig(codec=Codec.NONE)) == "short"
    checked = validation.validate(memoryview(raw), LogConfig(), Origin.CLIENT, PARTITION, NOW_MS)
    assert [record.offset for record in read_records(Batch(checked.view))] == [*range(count)]


@pytest.mark.parametrize(
    ("count", "others", "found"),
    [(1024, 1024, "short"), (9000, 0, "short"), (9000, 20, "long"), (1 << 14, 0, "short")],
)
def test_many_records_take_long_unless_they_are_of_one_size(count: int, others: int, found: str) -> None:
    """What a producer sends in one request has thousands of records, and mostly nothing has to be asked about them."""
    places = {*random.Random(count).sample(range(1, count), others)} if others < count else {*range(count)}
    rows = [(NOW_MS + index // 99, None, bytes(50 + index % 2 * (index in places)), ()) for index in range(count)]
    assert long_or_short(build_batch(rows), LogConfig()) == found
    if count > 1024:
        assert long_or_short(build_batch(rows, codec=Codec.LZ4), LogConfig()) == "long", "nobody can tell before"


@pytest.mark.parametrize(("begins_ms", "found"), [(0, "short"), (-8_000, "long"), (100, "long")])
def test_many_timestamps_without_order_take_long(begins_ms: int, found: str) -> None:
    """Those of several threads: on the event loop they took 20 ms, one by one."""
    rng = random.Random(1)
    late = [0, *(begins_ms + rng.randrange(1, 60 if found == "short" else 7_900) for _ in range(8_000))]
    rows = [(NOW_MS + later, None, bytes(50), ()) for later in late]
    assert long_or_short(build_batch(rows), LogConfig()) == found


def test_more_records_take_long_whatever_they_are() -> None:
    rows = [(NOW_MS, None, b"", ())] * ((1 << 14) + 1)
    assert long_or_short(build_batch(rows), LogConfig()) == "long"
    different = [(NOW_MS, None, bytes(index % 90), ()) for index in range(2000)]
    assert long_or_short(build_batch(different), LogConfig()) == "long"
    assert not is_like_the_first(Batch(build_batch(different)).payload, 2000), "it is not even begun"


def test_timestamps_that_break_a_rule_are_refused_however_many_they_are() -> None:
    rows = [(NOW_MS + 8_000 * (index % 3 == 0), None, bytes(50), ()) for index in range(1, 9_001)]
    config = LogConfig(timestamp_after_max_ms=5_000)
    assert long_or_short(build_batch(rows), config) == "long"
    with pytest.raises(validation.InvalidTimestampsError, match="3000 of the batch's 9000 records are refused"):
        validation.validate(memoryview(build_batch(rows)), config, Origin.CLIENT, PARTITION, NOW_MS)
    few = build_batch(rows[:900])
    with pytest.raises(validation.InvalidTimestampsError, match="300 of the batch's 900 records are refused"):
        validation.validate(memoryview(few), config, Origin.CLIENT, PARTITION, NOW_MS, short=True)
