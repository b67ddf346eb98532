"""Compacted topics that Apache Kafka wrote: compacting them (again) keeps what Kafka kept, and Kafka can read it."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from headrace.log import Log, LogConfig
from headrace.log.checkpoints import CLEANER, read_offsets
from headrace.log.cleaner import Cleaner
from headrace.records import Record
from headrace.runtime import Runtime

from .compacting import RandomWriter, Table, batches_of, consume, newest
from .golden import ALL, copy_partition, expected, open_log
from .test_java import COMPLAINTS, dump, needs_kafkas_tools

pytestmark = pytest.mark.slow

CONFIG = LogConfig(compact=True, delete=False, min_cleanable_dirty_ratio=0)
COMPACTED = [(kind, name) for kind, name in ALL if name.startswith(("g-compact", "__"))]
KEYED = [(kind, name) for kind, name in ALL if name.startswith(("g-idem", "g-mixed", "g-txn", "g-none"))]


def compact(runtime: Runtime, log: Log) -> int:
    """Compact until nothing is due; how often."""
    log.roll()

    async def all_of_it() -> int:
        cleaner = Cleaner(runtime)
        try:
            count = 0
            while await cleaner.clean_once([log]) is not None:
                count += 1
            assert not cleaner.metrics.uncleanable
            return count
        finally:
            await cleaner.close()
            await runtime.close()

    return asyncio.run(all_of_it())


@pytest.fixture
def own_runtime() -> Runtime:
    from headrace.runtime import real_runtime

    return real_runtime()


def described(records: list[Record]) -> list[tuple[int, int, bytes | None, bytes | None, Any]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize(("kind", "name"), COMPACTED)
@pytest.mark.parametrize("from_start", [False, True], ids=["from the checkpoint", "from the start"])
def test_what_kafka_compacted_keeps_its_last_values(
    kind: str, name: str, from_start: bool, tmp_path: Path, own_runtime: Runtime
) -> None:
    directory = copy_partition(kind, name, tmp_path)
    if from_start:
        (tmp_path / CLEANER).unlink(missing_ok=True)
    # Tombstones stay: how long is not the question here.
    log = open_log(own_runtime, directory, kind, dataclasses.replace(CONFIG, delete_retention_ms=10**15))
    before = consume(log, committed=True)
    end, stable = log.end_offset, log.last_stable_offset
    producers = {p.producer_id: (p.epoch, p.last_sequence) for p in log.producers.producers.values()}
    compact(own_runtime, log)
    after = consume(log, committed=True)
    assert set(described(after)) <= set(described(before))
    assert {k: v.value for k, v in newest(after).items()} == {k: v.value for k, v in newest(before).items()}
    assert (log.end_offset, log.last_stable_offset) == (end, stable)
    log.close()
    again = Log.open(own_runtime, str(directory), log.partition, CONFIG, producer_expiration_ms=2**62)
    assert not again.recovery.cut_bytes
    again.update_high_watermark(end)
    assert described(consume(again, committed=True)) == described(after)
    assert {p.producer_id: (p.epoch, p.last_sequence) for p in again.producers.producers.values()} == producers
    again.close()


@pytest.mark.parametrize("kind", ["clean", "unclean"])
@pytest.mark.parametrize("name", ["g-compact-0", "g-compact-tomb-0", "g-compact-txn-0"])
def test_compacting_what_kafka_compacted_changes_no_record_of_its_clean_part(
    kind: str, name: str, tmp_path: Path, own_runtime: Runtime
) -> None:
    if name not in expected(kind)["partitions"]:
        pytest.skip(f"there is no {name} in {kind}")
    directory = copy_partition(kind, name, tmp_path)
    log = open_log(own_runtime, directory, kind, dataclasses.replace(CONFIG, delete_retention_ms=10**15))
    clean_end = read_offsets(own_runtime.disk, str(tmp_path / CLEANER))[log.partition]
    newer = {record.key for record in consume(log, committed=True) if record.offset >= clean_end}

    def settled() -> list[Any]:
        """Compacted, not replaced since, and no tombstone whose time is over."""
        records = consume(log, committed=True)
        return described([r for r in records if r.offset < clean_end and r.key not in newer and r.value is not None])

    before = settled()
    compact(own_runtime, log)
    assert settled() == before
    assert before
    log.close()


@pytest.mark.parametrize(("kind", "name"), KEYED)
def test_uncompacted_logs_of_kafka_keep_the_last_value_per_key(
    kind: str, name: str, tmp_path: Path, own_runtime: Runtime
) -> None:
    log = open_log(own_runtime, copy_partition(kind, name, tmp_path), kind, CONFIG)
    before = consume(log, committed=True)
    stable = log.last_stable_offset
    rounds = compact(own_runtime, log)
    assert rounds or stable < log.segments[0].size
    after = consume(log, committed=True)
    assert newest(after) == newest(before)
    assert set(described(after)) <= set(described(before))
    keys = [r.key for r in after if r.offset < log.segments[-1].base_offset]
    if stable >= log.segments[-1].base_offset:
        assert len(keys) == len(set(keys))
    log.close()


def test_values_of_golden_records_are_those_kafka_served(tmp_path: Path, own_runtime: Runtime) -> None:
    """The reader of these tests reads what a client of Kafka read."""
    log = open_log(own_runtime, copy_partition("clean", "g-compact-0", tmp_path), "clean", CONFIG)
    served = [
        (record["offset"], record["key"] and base64.b64decode(record["key"]))
        for batch in expected("clean")["partitions"]["g-compact-0"]["batches"]
        if not batch["control"]
        for record in batch["records"]
    ]
    assert [(r.offset, r.key) for r in consume(log, committed=False)] == served
    log.close()


# ---- Java --------------------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.slow
@needs_kafkas_tools
def test_kafkas_own_tool_reads_what_we_compacted(tmp_path: Path, own_runtime: Runtime) -> None:
    table = Table(5, dataclasses.replace(CONFIG, segment_bytes=4_000, index_interval_bytes=100))
    writer = RandomWriter(table, 5)
    for _ in range(3):
        writer.write(60)
        writer.end_all()
        table.roll_and_clean()
    table.log.close()
    offsets = [record.offset for record in consume(table.log, committed=False)]
    batches = batches_of(table.log)
    assert any(batch.has_delete_horizon for batch in batches)
    assert any(not batch.count for batch in batches)
    disk = table.host.disk
    paths = []
    for name in disk.listdir("/data/c-0"):
        if name.endswith((".log", ".index", ".timeindex", ".txnindex")):
            path = tmp_path / name
            path.write_bytes(disk.read_file(f"/data/c-0/{name}"))
            if path.stat().st_size:
                paths.append(path)
    said = dump(*paths, options=("--deep-iteration",))
    # Gaps are what compaction is about; anything else would be a complaint.
    assert not COMPLAINTS.search(said.replace("Non-consecutive offsets", "")), COMPLAINTS.search(said)
    assert said.count("baseOffset: ") == len(batches)
    listed = [line for line in said.splitlines() if line.startswith("| offset: ") and "endTxnMarker" not in line]
    assert [int(line.split()[2]) for line in listed] == offsets
