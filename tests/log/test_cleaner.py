"""Compaction: what stays, what goes, when, and what must not change by it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.log.making import append_one

from headrace.errors import OutOfOrderSequenceNumberError
from headrace.log import LogConfig
from headrace.log.cleaning_choice import cleanable
from headrace.log.compaction_job import CleaningLimits, SourceSegment, grouped
from headrace.log.offset_map import ENTRY_BYTES, OffsetMap
from headrace.log.snapshots import SUFFIX as SNAPSHOT
from headrace.records import Codec, build_batch

from .compacting import (
    COMPACT,
    DAY_MS,
    DIRECTORY,
    PARTITION,
    Table,
    batches_of,
    consume,
    newest,
    pairs,
)

RETENTION_MS = COMPACT.delete_retention_ms


# ---- what stays --------------------------------------------------------------------------------------------------


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    table = Table()
    table.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    table.put((b"c", b"1"), (b"b", b"2"))
    table.log.roll()
    table.put((b"c", b"in the active segment"))
    report = table.clean()
    assert report is not None
    assert (report.first_dirty_offset, report.end_offset) == (0, 5)
    assert pairs(table) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2"), (5, b"c", b"in the active segment")]
    assert (table.log.start_offset, table.log.end_offset) == (0, 6)
    first = batches_of(table.log)[0]
    assert (first.base_offset, first.last_offset, first.count) == (0, 2, 1)
    assert report.statistics.read_records == 5
    assert report.statistics.written_records == 3
    assert "2 segments" not in report.summary()


def test_a_second_compaction_of_the_same_log_finds_nothing_to_do() -> None:
    table = Table()
    table.put((b"a", b"1"), (b"a", b"2"))
    assert table.roll_and_clean() is not None
    assert table.clean() is None


def test_a_newer_value_in_a_later_round_drops_the_older_one() -> None:
    table = Table()
    table.put((b"a", b"1"), (b"b", b"1"))
    table.roll_and_clean()
    table.put((b"a", b"2"))
    table.roll_and_clean()
    assert pairs(table) == [(1, b"b", b"1"), (2, b"a", b"2")]


@pytest.mark.parametrize("codec", list(Codec))
def test_codec_timestamps_and_headers_stay(codec: Codec) -> None:
    table = Table()
    records = [(table.clock.ms + n, b"k%d" % (n % 3), b"v%d" % n * 30, [("h", b"%d" % n)]) for n in range(9)]
    table.append(build_batch(records, codec=codec))
    table.roll_and_clean()
    (batch,) = batches_of(table.log)
    assert batch.codec is codec
    assert [(r.offset, r.timestamp, r.value, r.headers) for r in consume(table.log, committed=False)] == [
        (n, table.clock.ms + n, b"v%d" % n * 30, (("h", b"%d" % n),)) for n in (6, 7, 8)
    ]


def test_records_without_a_key_from_before_the_topic_was_compacted_go() -> None:
    table = Table(config=LogConfig(segment_bytes=2_000))
    table.put((None, b"1"), (b"a", b"1"))
    table.log.config = COMPACT
    report = table.roll_and_clean()
    assert report is not None
    assert report.statistics.keyless_records == 1
    assert pairs(table) == [(1, b"a", b"1")]


def test_long_keys_that_begin_alike_are_different_keys() -> None:
    table = Table()
    long = bytes(100)
    table.put((long + b"1", b"1"), (long + b"2", b"2"), (long, b"3"), (long + b"1", b"4"))
    table.roll_and_clean()
    assert [offset for offset, _, _ in pairs(table)] == [1, 2, 3]


# ---- tombstones --------------------------------------------------------------------------------------------------


def test_a_tombstone_stays_for_delete_retention_ms_after_the_first_compaction() -> None:
    table = Table()
    table.put((b"a", b"1"), (b"b", b"1"))
    table.put((b"a", None))
    table.clock.ms += 10 * RETENTION_MS  # its age before the first compaction does not count
    table.roll_and_clean()
    assert pairs(table) == [(1, b"b", b"1"), (2, b"a", None)]
    kept = batches_of(table.log)[-1]
    assert kept.delete_horizon_ms == table.clock.ms + RETENTION_MS
    table.clock.ms += RETENTION_MS - 1
    table.put((b"c", b"1"))
    table.roll_and_clean()
    assert (2, b"a", None) in pairs(table)
    assert batches_of(table.log)[1].delete_horizon_ms == kept.delete_horizon_ms, "set once"
    table.clock.ms += 1
    table.put((b"c", b"2"))
    table.roll_and_clean()
    assert pairs(table) == [(1, b"b", b"1"), (4, b"c", b"2")]


def test_a_value_after_a_tombstone_stays_when_the_tombstone_goes() -> None:
    table = Table(config=dataclasses.replace(COMPACT, delete_retention_ms=0))
    table.put((b"a", b"1"))
    table.put((b"a", None))
    table.roll_and_clean()
    table.put((b"a", b"2"))
    table.roll_and_clean()
    assert pairs(table) == [(2, b"a", b"2")]


def test_retention_for_ever_does_not_overflow_the_horizon() -> None:
    table = Table(config=dataclasses.replace(COMPACT, delete_retention_ms=2**63 - 1))
    table.put((b"a", None))
    table.roll_and_clean()
    assert batches_of(table.log)[0].delete_horizon_ms == 2**63 - 1
    assert pairs(table) == [(0, b"a", None)]


# ---- producers and transactions ----------------------------------------------------------------------------------


def test_a_producers_last_batch_stays_though_all_its_records_go() -> None:
    table = Table()
    producer = {"producer_id": 7, "producer_epoch": 1}
    table.put((b"a", b"1"), **producer, base_sequence=0)
    table.put((b"a", b"2"), (b"a", b"3"), **producer, base_sequence=1)
    table.put((b"a", b"4"))
    table.put((b"b", b"1"))
    table.roll_and_clean()
    assert [(b.base_offset, b.last_offset, b.count, b.producer_id) for b in batches_of(table.log)] == [
        (1, 2, 0, 7),
        (3, 3, 1, -1),
        (4, 4, 1, -1),
    ]
    # What producers' state is rebuilt from when the snapshots are lost, too.
    table.log.close()
    for name in table.files(SNAPSHOT):
        table.host.disk.remove(f"{DIRECTORY}/{name}")
    table.boot()
    again = append_one(
        table.log, build_batch([(0, b"a", b"2", []), (0, b"a", b"3", [])], **producer, base_sequence=1), leader_epoch=0
    )
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 1, 2)
    with pytest.raises(OutOfOrderSequenceNumberError):
        table.put((b"a", b"5"), **producer, base_sequence=4)
    table.put((b"a", b"5"), **producer, base_sequence=3)


def test_aborted_records_go_and_markers_stay_until_their_horizon() -> None:
    table = Table()
    txn = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    table.put((b"a", b"kept"))
    table.put((b"a", b"aborted"), **txn, base_sequence=0)
    table.end(7, commit=False)
    table.put((b"b", b"committed"), **txn, base_sequence=1)
    table.end(7, commit=True)
    table.put((b"c", b"1"))
    table.roll_and_clean()
    assert pairs(table) == [(0, b"a", b"kept"), (3, b"b", b"committed"), (5, b"c", b"1")]
    abort = next(b for b in batches_of(table.log) if b.base_offset == 2)
    assert abort.is_control
    assert not abort.has_delete_horizon, "its data was there until now"
    table.put((b"c", b"2"))
    table.roll_and_clean()
    abort = next(b for b in batches_of(table.log) if b.base_offset == 2)
    assert abort.delete_horizon_ms == table.clock.ms + RETENTION_MS
    table.clock.ms += RETENTION_MS
    table.put((b"c", b"3"))
    table.roll_and_clean()
    assert [b.base_offset for b in batches_of(table.log) if b.is_control] == [4], "the commit still has data"
    assert table.log.last_stable_offset == table.log.end_offset
    table.log.close()
    for name in table.files(SNAPSHOT):
        table.host.disk.remove(f"{DIRECTORY}/{name}")
    table.boot()
    assert table.log.last_stable_offset == table.log.end_offset, "no transaction is left open by compaction"


def test_an_epoch_known_only_from_a_marker_stays() -> None:
    table = Table()
    table.put((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    table.end(7, commit=True, epoch=1)  # the coordinator raised the epoch
    table.put((b"a", b"2"))
    for _ in range(3):
        table.clock.ms += RETENTION_MS
        table.put((b"b", b"x"))
        table.roll_and_clean()
    table.log.close()
    for name in table.files(SNAPSHOT):
        table.host.disk.remove(f"{DIRECTORY}/{name}")
    table.boot()
    assert [b.producer_epoch for b in batches_of(table.log) if b.is_control] == [1]


def test_nothing_from_an_open_transaction_on_is_compacted() -> None:
    table = Table()
    table.put((b"a", b"1"), (b"a", b"2"))
    table.log.roll()
    table.put((b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    table.put((b"b", b"1"), (b"b", b"2"))
    table.roll_and_clean()
    assert [offset for offset, _, _ in pairs(table)] == [1, 2, 3, 4]
    table.end(7, commit=True)
    table.roll_and_clean()
    assert [offset for offset, _, _ in pairs(table)] == [2, 4]


def test_uncommitted_records_are_not_compacted() -> None:
    table = Table()
    table.put((b"a", b"1"))
    table.log.roll()
    append_one(table.log, build_batch([(0, b"a", b"2", [])]), leader_epoch=0)
    table.log.roll()
    assert table.log.high_watermark == 1
    candidate = cleanable(table.log, table.clock.ms, None)
    assert candidate is not None
    assert candidate.end_offset == 1


# ---- when --------------------------------------------------------------------------------------------------------


def test_a_log_is_compacted_when_its_uncompacted_share_exceeds_the_ratio() -> None:
    table = Table(config=dataclasses.replace(COMPACT, min_cleanable_dirty_ratio=0.5, segment_bytes=100_000))
    for n in range(4):
        table.put((b"k%d" % n, b"x" * 100))
    assert table.clean() is None, "the active segment does not count"
    assert table.roll_and_clean() is not None
    for n in range(4):
        table.put((b"l%d" % n, b"x" * 100))
    assert table.roll_and_clean() is None, "one half is not more than one half"
    assert table.cleaner.metrics.dirtiest_ratio == 0.5
    table.put((b"l4", b"x" * 100))
    assert table.roll_and_clean() is not None


def test_the_dirtiest_log_comes_first() -> None:
    tables = [Table(seed) for seed in (1, 2)]
    for n, table in enumerate(tables):
        table.put((b"a", b"x" * 500))
        table.roll_and_clean()
        table.put((b"a", b"x" * (100 if n == 0 else 400)))
        table.log.roll()
    # Two logs of one broker would have names of their own; which disk they are on does not matter for the choice.
    candidates = [cleanable(table.log, table.clock.ms, 1) for table in tables]
    ratios = [candidate.ratio for candidate in candidates if candidate is not None]
    assert ratios[0] < ratios[1]
    tables[1].log.partition = PARTITION._replace(partition=1)
    chosen, _ = tables[0].cleaner._choose([table.log for table in tables], tables[0].clock.ms)
    assert chosen is not None
    assert chosen.log is tables[1].log


def test_young_segments_wait_for_min_compaction_lag() -> None:
    table = Table(config=dataclasses.replace(COMPACT, min_compaction_lag_ms=DAY_MS))
    table.put((b"a", b"1"), (b"a", b"2"))
    table.log.roll()
    table.clock.ms += 1000
    table.put((b"a", b"3"))
    assert table.roll_and_clean() is None
    table.clock.ms += DAY_MS - 500
    report = table.clean()
    assert report is not None
    assert report.end_offset == 2
    assert [offset for offset, _, _ in pairs(table)] == [1, 2]


def test_max_compaction_lag_makes_a_nearly_clean_log_due() -> None:
    config = dataclasses.replace(COMPACT, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=DAY_MS)
    table = Table(config=config)
    table.put((b"a", b"x" * 1000))
    table.roll_and_clean()
    table.put((b"a", b"2"))
    assert table.roll_and_clean() is None
    table.clock.ms += DAY_MS + 1
    assert table.clean() is not None
    assert [offset for offset, _, _ in pairs(table)] == [1]


def test_compact_and_delete_also_deletes_by_age() -> None:
    table = Table(config=dataclasses.replace(COMPACT, delete=True, retention_ms=DAY_MS))
    table.put((b"a", b"1"), (b"a", b"2"), (b"b", b"1"))
    table.roll_and_clean()
    table.put((b"c", b"1"))
    table.clock.ms += DAY_MS + 1
    table.log.roll()
    table.put((b"d", b"1"))
    table.log.apply_retention(table.clock.ms)
    assert [offset for offset, _, _ in pairs(table)] == [4]
    table.roll_and_clean()
    assert table.log.start_offset == 4


def test_a_look_up_by_time_never_ends_at_a_batch_without_records() -> None:
    table = Table()
    table.clock.ms += 1_000_000
    table.put((b"a", b"late"), producer_id=7, producer_epoch=0, base_sequence=0)
    late_ms = table.clock.ms
    table.clock.ms -= 900_000
    table.log.roll()
    table.put((b"a", b"1"))
    table.roll_and_clean()
    assert [batch.count for batch in batches_of(table.log)] == [0, 1]
    for _ in range(2):
        found = table.log.find_by_time(table.clock.ms - 5)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (1, table.clock.ms)
        assert table.log.find_by_time(late_ms) is None
        assert table.log.max_timestamp().offset == 1
        table.log.close()
        for name in table.files("index"):
            table.host.disk.remove(f"{DIRECTORY}/{name}")
        table.boot()


# ---- memory and segments -----------------------------------------------------------------------------------------


def test_keys_that_do_not_fit_the_memory_are_compacted_in_several_rounds() -> None:
    table = Table()
    for n in range(60):
        table.put((b"k%d" % (n % 20), b"%d" % n * 20))
    table.log.roll()
    table.cleaner.limits = CleaningLimits(dedupe_bytes=7 * ENTRY_BYTES, load_factor=1.0)
    ends = []
    while (report := table.clean()) is not None:
        ends.append(report.end_offset)
        assert set(newest(consume(table.log, committed=False))) == {b"k%d" % n for n in range(20)}
    assert ends[0] == 7
    assert ends == sorted(set(ends))
    assert ends[-1] == 60
    assert sorted(offset for offset, _, _ in pairs(table)) == list(range(40, 60))


def test_a_batch_with_more_keys_than_fit_is_still_taken_whole() -> None:
    table = Table()
    table.cleaner.limits = CleaningLimits(dedupe_bytes=1)
    table.put(*[(b"k%d" % (n % 10), b"v") for n in range(30)])
    table.put((b"k0", b"w"))
    table.log.roll()
    assert table.clean() is not None
    assert table.clean() is not None
    assert table.clean() is None
    assert [offset for offset, _, _ in pairs(table)] == [*range(21, 30), 30]


def test_the_map_takes_no_more_than_its_share() -> None:
    offsets = OffsetMap(10 * ENTRY_BYTES)
    assert offsets.put([b"%d" % n for n in range(10)], list(range(10)))
    assert offsets.put([b"3", b"4"], [10, 11]), "known keys need no room"
    assert not offsets.put([b"3", b"new"], [12, 13])
    assert offsets.rows_to_keep([b"3", b"4", b"5", b"other", None], [10, 10, 5, 0, 99]) == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_small_segments_become_one() -> None:
    table = Table()
    for n in range(40):
        table.put((b"k%d" % (n % 2), b"x" * 150))
    table.roll_and_clean()
    assert len(table.log.segments) > 2, "they were not small before"
    table.put((b"k0", b"y"))
    table.roll_and_clean()
    assert [segment.base_offset for segment in table.log.segments] == [0, 41]
    assert table.files(".cleaned") == []
    assert table.files(".swap") == []
    # One per segment, or of the log's end: those of segments that are gone would never be removed.
    bases = {f"{segment.base_offset:020d}" for segment in table.log.segments}
    assert {name[:20] for name in table.files(SNAPSHOT)} <= bases


def test_groups_keep_to_size_indexes_and_relative_offsets() -> None:
    def sources(*specs: tuple[int, int, int, int, int]) -> list[SourceSegment]:
        return [SourceSegment(*spec) for spec in specs]

    many = sources((0, 10, 60, 8, 12), (10, 20, 40, 8, 12), (20, 30, 1, 8, 12))
    assert [[s.base_offset for s in g] for g in grouped(many, 100, 1000)] == [[0, 10], [20]]
    assert [[s.base_offset for s in g] for g in grouped(many, 1000, 20)] == [[0], [10], [20]]
    assert [[s.base_offset for s in g] for g in grouped(many, 1000, 24)] == [[0, 10], [20]]
    far = sources((0, 10, 1, 0, 0), (10, 2**31, 1, 0, 0), (2**31, 2**31 + 1, 1, 0, 0))
    assert [[s.base_offset for s in g] for g in grouped(far, 1000, 1000)] == [[0, 10], [2**31]]


def test_each_segment_goes_on_where_the_one_before_it_ends() -> None:
    table = Table(config=dataclasses.replace(COMPACT, segment_bytes=400))
    for n in range(12):
        table.put((b"a", b"%d" % n * 100))
    table.roll_and_clean()
    segments = table.log.segments
    ends = [[header.next_offset for _, header in segment.headers()][-1] for segment in segments[:-1]]
    assert ends == [segment.base_offset for segment in segments[1:]]
    assert [offset for offset, _, _ in pairs(table)] == [11]
