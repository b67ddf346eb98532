"""Where a reader is sent: whole batches, one segment, up to the limit, with and without waiting for the disk."""

from __future__ import annotations

import pytest

from headrace.errors import OffsetOutOfRangeError
from headrace.log import Caches, Log, LogConfig, Slice, WouldBlockError
from headrace.records import split

from .making import NOW_MS, append_one, batch, make_host, open_log

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300)
BATCHES = 40
PER_BATCH = 3


@pytest.fixture(params=["as written", "reopened", "reopened, few files and no cached index"])
def log(request: pytest.FixtureRequest) -> Log:
    host = make_host()
    made = open_log(host, CONFIG)
    for number in range(BATCHES):
        values = [b"%d" % number * 20] * PER_BATCH
        append_one(made, batch(*values, timestamp=NOW_MS + number), leader_epoch=0, now_ms=NOW_MS)
    if request.param != "as written":
        made.close()
        caches = Caches(host.disk, open_files_max=1, index_bytes_max=1) if "few" in request.param else None
        made = open_log(host, CONFIG, clean=True, **({"caches": caches} if caches else {}))
    made.update_high_watermark(made.end_offset)
    assert len(made.segments) > 3
    return made


def offsets_in(found: Slice) -> list[tuple[int, int]]:
    return [(b.base_offset, b.last_offset) for b in split(found.file.read(found.position, found.length))]


def test_every_offset_is_found_in_the_batch_that_has_it(log: Log) -> None:
    for offset in range(log.end_offset):
        found = log.locate(offset, 1, limit=log.end_offset, at_least_one=True)
        assert offsets_in(found) == [(offset // PER_BATCH * PER_BATCH, offset // PER_BATCH * PER_BATCH + PER_BATCH - 1)]


def test_a_slice_never_crosses_a_segment(log: Log) -> None:
    for segment, following in zip(log.segments, log.segments[1:]):
        found = log.locate(segment.base_offset, 1 << 30, limit=log.end_offset, at_least_one=True)
        assert (found.position, found.length) == (0, segment.size)
        assert offsets_in(found)[-1][1] == following.base_offset - 1


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 500, 10_000])
def test_max_bytes_may_cut_the_last_batch_but_not_an_only_one(log: Log, max_bytes: int) -> None:
    whole = log.locate(0, 1, limit=log.end_offset, at_least_one=True).length
    found = log.locate(0, max_bytes, limit=log.end_offset, at_least_one=True)
    assert found.length == min(max(max_bytes, whole), log.segments[0].size)
    assert log.locate(0, max_bytes, limit=log.end_offset, at_least_one=False).length == min(
        max_bytes, log.segments[0].size
    )


def test_nothing_at_or_after_the_limit_is_given(log: Log) -> None:
    for limit in range(log.end_offset + 1):
        found = log.locate(0, 1 << 30, limit=limit, at_least_one=True)
        first_segment_end = log.segments[1].base_offset
        complete = min(limit, first_segment_end) // PER_BATCH
        assert [last for _, last in offsets_in(found)] == [PER_BATCH * n + PER_BATCH - 1 for n in range(complete)]
    assert log.locate(5, 1 << 30, limit=5, at_least_one=True).length == 0


def test_the_end_is_an_empty_answer_and_beyond_is_an_error(log: Log) -> None:
    assert log.locate(log.end_offset, 1 << 20, limit=log.end_offset, at_least_one=True).length == 0
    for offset in (-1, log.end_offset + 1):
        with pytest.raises(OffsetOutOfRangeError):
            log.locate(offset, 1, limit=log.end_offset, at_least_one=True)
    log.delete_records(10)
    with pytest.raises(OffsetOutOfRangeError):
        log.locate(9, 1, limit=log.end_offset, at_least_one=True)
    assert offsets_in(log.locate(10, 1, limit=log.end_offset, at_least_one=True)) == [(9, 11)]


def test_without_waiting_the_answer_is_the_same_or_would_block(log: Log) -> None:
    for offset in range(0, log.end_offset, 7):
        try:
            found = log.locate(offset, 300, limit=log.end_offset, at_least_one=True, nowait=True)
        except WouldBlockError:
            found = log.locate(offset, 300, limit=log.end_offset, at_least_one=True)
        again = log.locate(offset, 300, limit=log.end_offset, at_least_one=True)
        assert found == again


def test_reading_what_was_just_written_needs_no_disk() -> None:
    host = make_host()
    made = open_log(host)
    append_one(made, batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
    operations = host.disk.trace.count
    made.locate(0, 1 << 20, limit=1, at_least_one=True, nowait=True)
    assert host.disk.trace.count == operations


def test_descriptors_and_loaded_indexes_are_bounded() -> None:
    host = make_host()
    caches = Caches(host.disk, open_files_max=2, index_bytes_max=600)
    made = open_log(host, CONFIG, caches=caches)
    for number in range(200):
        append_one(made, batch(b"%d" % number * 20), leader_epoch=0, now_ms=NOW_MS)
    assert len(made.segments) > 5
    for offset in (*range(200), *range(199, 0, -3)):
        assert offsets_in(made.locate(offset, 1, limit=200, at_least_one=True)) == [(offset, offset)]
        assert caches.files.open_count <= 2
    loaded = [segment for segment in made.segments if segment._indexes is not None]
    assert len(loaded) < len(made.segments)
