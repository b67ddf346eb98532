"""Compaction of random logs: what a reader can tell must not change, whenever and however often it runs or crashes."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from typing import Any

import pytest

from headrace.log.compaction_job import CleaningLimits
from headrace.log.offset_map import ENTRY_BYTES
from headrace.log.snapshots import SUFFIX as SNAPSHOT
from headrace.records import Record
from headrace.runtime.simulated import CrashModel, SimulatedCrash

from .compacting import COMPACT, DIRECTORY, RandomWriter, Table, batches_of, consume, newest

pytestmark = pytest.mark.slow

_FAST_SEEDS = 3


def table_for(seed: int) -> Table:
    rng = random.Random(seed)
    config = dataclasses.replace(
        COMPACT,
        segment_bytes=rng.choice([1_300, 2_000, 10_000]),
        index_interval_bytes=rng.choice([0, 200, 4096]),
        delete_retention_ms=rng.choice([0, 5_000, 10**9]),
    )
    table = Table(seed, config)
    if rng.random() < 0.5:
        table.cleaner.limits = CleaningLimits(dedupe_bytes=rng.choice([2, 5, 8]) * ENTRY_BYTES, load_factor=1.0)
    return table


def sequences(table: Table) -> dict[int, tuple[int, int, int]]:
    return {
        producer.producer_id: (producer.epoch, producer.last_sequence, producer.txn_first_offset)
        for producer in table.log.producers.producers.values()
        if producer.batches
    }


def check_subset(after: list[Record], before: list[Record]) -> None:
    """Nothing new, nothing changed, nothing moved."""
    known = {record.offset: record for record in before}
    for record in after:
        assert record._replace(sequence=-1) == known[record.offset]._replace(sequence=-1)
    offsets = [record.offset for record in after]
    assert offsets == sorted(set(offsets))


def seeds(count: int) -> list[Any]:
    """So many, of which a few are for the fast part."""
    return [pytest.param(seed, marks=[pytest.mark.slow] if seed >= _FAST_SEEDS else []) for seed in range(count)]


@pytest.mark.parametrize("seed", seeds(24))
def test_readers_end_up_with_the_same_values_and_producers_with_the_same_state(seed: int) -> None:
    table = table_for(seed)
    writer = RandomWriter(table, seed)
    for _ in range(4):
        writer.write(40)
        if seed % 2:
            writer.end_all()
        before = consume(table.log, committed=True)
        uncommitted = consume(table.log, committed=False)
        state, end, stable = sequences(table), table.log.end_offset, table.log.last_stable_offset
        table.log.roll()
        while (report := table.clean()) is not None:
            assert report.end_offset > report.first_dirty_offset, "each one gets further"
        after = consume(table.log, committed=True)
        check_subset(after, before)
        assert newest(after) == newest(before)
        check_subset(consume(table.log, committed=False), uncommitted)
        assert (table.log.end_offset, table.log.last_stable_offset) == (end, stable)
        assert sequences(table) == state
        assert table.log.find_by_time(0) is None or table.log.max_timestamp().offset < end
        # After any stop, and from the log alone, everything is the same.
        table.log.close()
        for name in table.files(SNAPSHOT):
            table.host.disk.remove(f"{DIRECTORY}/{name}")
        limits = table.cleaner.limits
        table.boot()
        table.cleaner.limits = limits
        assert not table.log.recovery.cut_bytes
        assert consume(table.log, committed=True) == after
        assert sequences(table) == state
        assert (table.log.end_offset, table.log.last_stable_offset) == (end, stable)


@pytest.mark.parametrize("seed", seeds(12))
def test_all_that_is_left_in_the_end_is_one_record_per_key_and_what_producers_need(seed: int) -> None:
    table = table_for(seed)
    table.config = table.log.config = dataclasses.replace(table.config, delete_retention_ms=1_000)
    writer = RandomWriter(table, seed)
    writer.write(120)
    writer.end_all()
    before = newest(consume(table.log, committed=True))
    for _ in range(4):
        table.clock.ms += 2_000
        table.put((b"another", b"key"))
        table.log.roll()
        while table.clean() is not None:
            pass
    after = consume(table.log, committed=True)
    assert {r.key: r for r in after if r.key != b"another"} == before
    assert len(after) == len(before) + 1
    assert consume(table.log, committed=False) == after
    empty = [batch for batch in batches_of(table.log) if not batch.count]
    assert len(empty) <= 4 + len(table.log.segments)


# ---- crashes -----------------------------------------------------------------------------------------------------


def crashed_table(seed: int) -> Table:
    table = Table(seed, dataclasses.replace(COMPACT, segment_bytes=1_300 if seed % 2 else 3_000, delete_retention_ms=0))
    writer = RandomWriter(table, seed)
    writer.write(14)
    writer.end_all()
    # A first round, so that tombstones and markers have their horizons, and the second one drops them.
    table.roll_and_clean()
    table.clock.ms += 1_000
    writer.write(9)
    writer.end_all()
    table.log.roll()
    table.log.sync()
    return table


def check_after_crash(table: Table, before: list[Record], final: dict[bytes, Record], end: int) -> None:
    table.boot(recovery_point=end)
    assert not table.log.recovery.cut_bytes, table.log.recovery.cut_reason
    assert table.log.end_offset == end
    assert table.log.last_stable_offset == end
    after = consume(table.log, committed=True)
    check_subset(after, before)
    assert newest(after) == final
    assert not [n for n in table.host.disk.listdir(DIRECTORY) if n.endswith((".cleaned", ".swap", ".deleted"))]
    # And the next compaction works, on whatever is there.
    table.clean()
    assert newest(consume(table.log, committed=True)) == final


@pytest.mark.slow
@pytest.mark.parametrize("model", list(CrashModel))
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_disk_operation_leaves_the_old_or_the_new(seed: int, model: CrashModel) -> None:
    operation = 0
    while True:
        table = crashed_table(seed)
        before = consume(table.log, committed=True)
        final, end = newest(before), table.log.end_offset
        state = sequences(table)
        table.host.disk.on_crash = partial(table.host.kill, power_loss=True, model=model)
        table.host.disk.crash_after(operation)
        try:
            assert table.clean() is not None
        except SimulatedCrash:
            table.host.restart()
        else:
            break
        check_after_crash(table, before, final, end)
        assert sequences(table) == state
        operation += 1
    assert operation > 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_while_recovering_from_a_crash_loses_nothing_either(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        table = crashed_table(seed)
        before = consume(table.log, committed=True)
        final, end = newest(before), table.log.end_offset
        for _ in range(3):
            table.host.disk.crash_after(rng.randint(0, 150))
            try:
                table.boot(recovery_point=end)
                table.clean()
            except SimulatedCrash:
                table.host.restart()
            table.host.disk.crash_after(10**9)
        check_after_crash(table, before, final, end)


def mergeable_table(seed: int) -> Table:
    """Five small segments that become one, so that for a while old and new ones lie side by side."""
    table = Table(seed, dataclasses.replace(COMPACT, segment_bytes=10_000))
    for n in range(5):
        table.put((b"k%d" % n, b"only here"), (b"shared", b"%d" % n))
        table.log.roll()
    table.log.sync()
    return table


def swap_operations() -> range:
    """The disk operations from the first new name to the end of the compaction, counted from its beginning."""
    table = mergeable_table(0)
    names: list[str] = []
    begin = table.host.disk.begin

    def counting(operation: str, path: str, *details: str | int) -> None:
        names.append(operation)
        begin(operation, path, *details)

    table.host.disk.begin = counting  # type: ignore[method-assign]  # only to count
    assert table.clean() is not None
    return range(names.index("rename"), len(names))


@pytest.mark.parametrize("seed", seeds(8))
def test_a_power_loss_while_several_segments_become_one_never_leaves_both(seed: int) -> None:
    for operation in swap_operations():
        table = mergeable_table(1000 * seed + operation)
        before = consume(table.log, committed=True)
        final, end = newest(before), table.log.end_offset
        table.host.disk.on_crash = partial(table.host.kill, power_loss=True, model=CrashModel.HARSH)
        table.host.disk.crash_after(operation)
        with pytest.raises(SimulatedCrash):
            table.clean()
        table.host.restart()
        for recovery_point in (end, 0):
            table.boot(recovery_point=recovery_point)
            assert not table.log.recovery.cut_bytes, table.log.recovery.cut_reason
            after = consume(table.log, committed=True)
            check_subset(after, before)
            assert newest(after) == final
            assert table.log.end_offset == end


@pytest.mark.parametrize("seed", seeds(6))
def test_no_value_is_lost_with_the_one_that_replaces_it(seed: int) -> None:
    """Compacted segments are put in place one by one: what they go by has to be as durable as they are."""
    config = dataclasses.replace(COMPACT, segment_bytes=400)
    operation = 0
    while True:
        table = Table(1000 * seed + operation, config)
        table.put((b"k", b"old"), (b"other", b"x" * 200))
        table.log.roll()
        table.log.sync()
        synced = table.log.recovery_point
        for n in range(4):
            table.put((b"k", b"new %d" % n), (b"other %d" % n, b"x" * 200))
        table.log.roll()
        table.host.disk.on_crash = partial(table.host.kill, power_loss=True, model=CrashModel.HARSH)
        table.host.disk.crash_after(operation)
        try:
            assert table.clean() is not None
        except SimulatedCrash:
            table.host.restart()
        else:
            break
        table.boot(recovery_point=synced)
        assert b"k" in newest(consume(table.log, committed=True)), f"operation {operation}: {table.log.recovery}"
        operation += 1


def test_a_new_segment_of_which_only_some_files_were_renamed_is_not_used() -> None:
    """Without its transaction index it would be another log than the one that was compacted."""
    table = mergeable_table(3)
    before = consume(table.log, committed=True)
    bases = [segment.base_offset for segment in table.log.segments]
    table.host.disk.on_crash = partial(table.host.kill, power_loss=False)
    table.host.disk.crash_after(swap_operations().start + 1)
    with pytest.raises(SimulatedCrash):
        table.clean()
    table.host.restart()
    assert table.files(".log.swap")
    assert table.files("index.cleaned")
    table.boot(recovery_point=table.log.end_offset)
    assert [segment.base_offset for segment in table.log.segments] == bases
    assert consume(table.log, committed=True) == before
    assert not table.files(".swap")
    assert not table.files(".cleaned")
