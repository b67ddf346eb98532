"""Batches that cannot be read, or grow to gigabytes, in a log that was written before anybody looked into them."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.log.compacting import COMPACT, Table, batches_of
from tests.log.making import append_one

from headrace.log import Log, LogConfig, Origin, compaction
from headrace.records import Codec, build_batch, compress, walk
from headrace.runtime import real_runtime
from headrace.topics import TopicPartition

from .batches import MIB, SMALLEST_RECORD, many_small, poisoned

NOW_MS = 1_700_000_000_000
CODECS = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = Log.open(real_runtime(), str(tmp_path / "t-0"), TopicPartition("t", 0), LogConfig())
    yield found
    found.close()


def append(log: Log, batch: bytearray) -> None:
    """As a broker of another kind would have."""
    append_one(log, batch, leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_look_up_by_time_keeps_nothing_of_what_it_unpacks(log: Log, codec: Codec) -> None:
    size = 48 * MIB
    huge = build_batch([(NOW_MS, None, bytes(size), ()), (NOW_MS + 5, None, b"wanted", ())], codec=codec)
    append(log, huge)
    append(log, many_small(100_000, codec, timestamp_ms=NOW_MS + 7))
    tracemalloc.start()
    try:
        found, newest = log.find_by_time(NOW_MS + 5), log.max_timestamp()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert (found.timestamp_ms, found.offset) == (NOW_MS + 5, 1)
    assert (newest.timestamp_ms, newest.offset) == (NOW_MS + 7, 2)
    assert peak < 12 * MIB


def test_a_look_up_by_time_unpacks_no_more_than_it_needs(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, many_small(1_000_000, Codec.ZSTD, timestamp_ms=NOW_MS))
    pieces = []
    real = walk.decompress_pieces
    monkeypatch.setattr(
        walk, "decompress_pieces", lambda *arguments: (pieces.append(len(piece)) or piece for piece in real(*arguments))
    )
    assert log.find_by_time(NOW_MS) is not None
    assert sum(pieces) <= 2 * MIB


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_look_up_by_time_passes_a_batch_that_cannot_be_read(log: Log, codec: Codec) -> None:
    """It is not an error for ever: whoever asks is told where the batch begins, and misses nothing that can be read."""
    append(log, build_batch([(NOW_MS, None, b"before", ())]))
    append(log, poisoned(b"no such stream", 3, codec, timestamp_ms=NOW_MS + 10))
    append(log, poisoned(bytes(compress(codec, SMALLEST_RECORD * 2)), 4, codec, timestamp_ms=NOW_MS + 15))
    append(log, build_batch([(NOW_MS + 20, None, b"after", ())]))
    assert [log.find_by_time(NOW_MS + later) for later in (0, 5, 12, 20, 30)] == [
        (NOW_MS, 0, 0),
        (NOW_MS + 10, 1, 0),
        (NOW_MS + 15, 4, 0),
        (NOW_MS + 20, 8, 0),
        None,
    ]
    assert log.max_timestamp() == (NOW_MS + 20, 8, 0)
    append(log, poisoned(b"no such stream", 3, codec, timestamp_ms=NOW_MS + 40))
    assert log.max_timestamp() == (NOW_MS + 40, 9, 0)


# --- compaction -------------------------------------------------------------------------------------------------------


def keyed(*pairs: tuple[bytes, bytes], codec: Codec = Codec.NONE) -> bytearray:
    return build_batch([(NOW_MS, key, value, ()) for key, value in pairs], codec=codec)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_compaction_keeps_what_it_cannot_read_and_goes_on(codec: Codec) -> None:
    table = Table(config=dataclasses.replace(COMPACT, segment_bytes=1 << 20))
    poison = poisoned(b"no such stream", 3, codec, timestamp_ms=NOW_MS)
    for batch in (keyed((b"a", b"1"), (b"b", b"1")), poison, keyed((b"a", b"2")), keyed((b"b", b"2"), codec=codec)):
        table.append(batch, Origin.COORDINATOR)
    report = table.roll_and_clean()
    assert report is not None
    assert report.statistics.unread_batches == 1
    assert [(batch.base_offset, batch.count) for batch in batches_of(table.log)] == [(2, 3), (5, 1), (6, 1)]


def test_compaction_does_not_unpack_what_grows_past_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "UNPACKED_BYTES_MAX", 2 * MIB)
    monkeypatch.setattr(compaction, "_TOGETHER_BYTES_MAX", MIB)
    table = Table(config=dataclasses.replace(COMPACT, segment_bytes=1 << 20))
    huge = keyed((b"a", bytes(24 * MIB)), (b"b", b"1"), codec=Codec.ZSTD)
    large = [keyed((b"a", b"2"), (b"c", bytes(MIB)), codec=Codec.ZSTD) for _ in range(20)]
    for batch in (huge, *large):
        table.append(batch, Origin.COORDINATOR)
    tracemalloc.start()
    try:
        report = table.roll_and_clean()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report is not None
    assert report.statistics.unread_batches == 1
    assert [(batch.base_offset, batch.count) for batch in batches_of(table.log)] == [(0, 2), (40, 2)]
    assert peak < 20 * MIB
