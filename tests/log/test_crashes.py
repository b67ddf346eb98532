"""Power losses and disk errors at every step: what was promised stays, what is there is whole."""

from __future__ import annotations

import dataclasses
import errno
import logging

import pytest
from tests.log.making import append_one

from headrace.errors import KafkaStorageError
from headrace.log import Log, LogConfig, Origin
from headrace.records import Batch, CorruptBatchError
from headrace.runtime import DiskError
from headrace.runtime.simulated import DiskFault, Host

from .crashes import run_seed, stored
from .directory_crashes import run_directories_seed
from .follower_crashes import run_follower_seed
from .making import NOW_MS, batch, make_host, marker, open_log

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)


@pytest.mark.parametrize("block", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 6))])
def test_after_a_power_loss_the_log_is_a_prefix_with_everything_promised(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        run_seed(seed)


@pytest.mark.parametrize("block", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 6))])
def test_after_a_power_loss_a_followers_log_is_a_prefix_of_one_that_it_was_sent(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        run_follower_seed(seed)


@pytest.mark.parametrize("seed", [67, 164, 604, 623])
def test_after_a_power_loss_a_followers_log_knows_no_epoch_or_producer_of_what_was_cut_off(seed: int) -> None:
    """Seeds that have failed: an epoch in the middle of a batch, and a transaction that nobody would have ended."""
    run_follower_seed(seed)


@pytest.mark.parametrize("block", range(2))
def test_after_a_power_loss_each_directory_has_its_logs_and_nothing_of_others(
    block: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    for seed in range(block * 20, block * 20 + 20):
        run_directories_seed(seed)


def work(log: Log) -> int:
    """Append with a sync after each batch; the end offset after the last sync that came back."""
    promised = 0
    for number in range(12):
        records = batch(b"%d" % number * 50, producer=(7, 0, number))
        append_one(log, records, leader_epoch=number // 6, now_ms=NOW_MS)
        log.sync()
        promised = log.end_offset
    log.close()
    return promised


def operations_of(operation: str) -> int:
    """How often the work does this operation."""
    host = make_host()
    log = open_log(host, CONFIG)
    fault = host.disk.inject(DiskFault(operation, skip=1_000_000))
    work(log)
    return 1_000_000 - fault.skip


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["append", "sync", "open", "rename", "truncate", "sync_dir", "replace_file"])
def test_each_disk_error_fails_the_log_and_loses_nothing_that_was_synced(operation: str) -> None:
    """The habit of SQLite's tests: fail the first such operation, then the second, and so on through the whole work."""
    count = operations_of(operation)
    for skip in range(count):
        host = make_host()
        log = open_log(host, CONFIG)
        promised = 0
        host.disk.inject(DiskFault(operation, errno.EIO, skip=skip))
        try:
            promised = _work_until_error(log)
        except DiskError:
            pytest.fail("the error must have been seen by the work")
        host.disk.heal()
        _check_failed(log)
        host.kill(power_loss=skip % 2 == 0)
        host.restart()
        again = open_log(host, CONFIG)
        assert again.end_offset >= promised
        assert len(stored(again)) == again.end_offset
        append_one(again, batch(producer=(7, 0, again.end_offset)), leader_epoch=5, now_ms=NOW_MS)


def _work_until_error(log: Log) -> int:
    promised = 0
    try:
        for number in range(12):
            records = batch(b"%d" % number * 50, producer=(7, 0, number))
            append_one(log, records, leader_epoch=number // 6, now_ms=NOW_MS)
            log.sync()
            promised = log.end_offset
        log.close()
    except DiskError:
        assert log.failure is not None
    return promised


def _check_failed(log: Log) -> None:
    if log.failure is None:
        return  # the operation came only while letting go
    with pytest.raises(KafkaStorageError):
        append_one(log, batch(), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(KafkaStorageError):
        log.sync()
    with pytest.raises(KafkaStorageError):
        log.locate(0, 1, limit=1, at_least_one=True)


def test_a_full_disk_fails_the_log_and_leaves_what_was_there() -> None:
    host = make_host()
    log = open_log(host)
    append_one(log, batch(b"x" * 100), leader_epoch=0, now_ms=NOW_MS)
    log.sync()
    host.disk.fill(50)
    with pytest.raises(DiskError):
        append_one(log, batch(b"x" * 100), leader_epoch=0, now_ms=NOW_MS)
    host.kill(power_loss=True)
    host.restart()
    host.disk.fill(1 << 20)
    again = open_log(host)
    assert again.end_offset == 1
    assert len(stored(again)) == 1


def damaged(host: Host, name: str, change: bytes | None) -> None:
    path = f"/data/t-0/{name}"
    if change is None:
        host.disk.remove(path)
        return
    file = host.disk.open(path)
    file.truncate(0)
    file.append([change])
    file.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("change", [None, b"", b"\x00" * 7, b"\xff" * 48, b"\x00" * 480])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_damaged_or_missing_side_files_are_made_again(suffix: str, change: bytes | None, clean: bool) -> None:
    host = make_host()
    log = open_log(host, CONFIG)
    for number in range(30):
        records = batch(b"v" * 40, producer=(7, 0, number), timestamp=NOW_MS + number)
        append_one(log, records, leader_epoch=number // 10, now_ms=NOW_MS)
    log.close()
    for name in host.disk.listdir("/data/t-0"):
        if name.endswith(suffix):
            damaged(host, name, change)
    again = open_log(host, CONFIG, clean=clean, recovery_point=25)
    assert again.end_offset == 30
    assert len(stored(again)) == 30
    assert again.producers.producers[7].last_sequence == 29
    assert [again.epochs.epoch_for(offset) for offset in (0, 10, 20, 29)] == [0, 1, 2, 2]
    assert again.find_by_time(NOW_MS + 17) == (NOW_MS + 17, 17, 1)
    assert again.max_timestamp().offset == 29
    again.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("change", [b"\x00" * 7, b"\xff" * 34, b"\x00" * 340])
def test_a_damaged_transaction_index_is_made_again_and_until_then_costs_its_readers_alone(
    change: bytes, clean: bool
) -> None:
    host = make_host()
    log = open_log(host, CONFIG)
    for number in range(10):
        records = batch(b"v" * 40, producer=(7, 0, number), transactional=True)
        append_one(log, records, leader_epoch=0, now_ms=NOW_MS)
        append_one(log, marker(7, commit=False), leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)
    log.close()
    log = open_log(host, CONFIG, clean=True)
    for name in host.disk.listdir("/data/t-0"):
        if name.endswith(".txnindex"):
            damaged(host, name, change)
    found = log.locate(0, 1000, limit=20, at_least_one=True)
    with pytest.raises(CorruptBatchError):
        log.aborted_transactions(0, found)
    with pytest.raises(CorruptBatchError):  # of which a follower holds up this log alone
        log.truncate_to(4)
    assert (log.end_offset, log.failure) == (20, None)
    log.abandon()
    for _ in range(2):
        log = open_log(host, CONFIG, clean=clean, recovery_point=20)
        assert [entry.first_offset for segment in log.segments for entry in segment.aborted()] == list(range(0, 20, 2))
        assert not log.producers.ongoing
        host.kill(power_loss=True)  # made again for good
        host.restart()


@pytest.mark.parametrize("place", [0, 1])
def test_a_transaction_index_that_cannot_be_made_again_is_not_taken_for_one_that_is_empty(place: int) -> None:
    """Where the batches are damaged, too, of the segment or of one before it, readers were given aborted records."""
    host = make_host()
    log = open_log(host, CONFIG)
    for number in range(15):
        records = batch(b"v" * 40, producer=(7, 0, number), transactional=True)
        append_one(log, records, leader_epoch=0, now_ms=NOW_MS)
        append_one(log, marker(7, commit=False), leader_epoch=0, origin=Origin.COORDINATOR, now_ms=NOW_MS)
    log.close()
    segment = log.segments[place]
    position = [position for position, _ in log.segments[0].headers()][-1]
    log.abandon()
    damaged(host, f"{segment.base_offset:020d}.txnindex", b"\x00" * 7)
    host.disk.remove(f"/data/t-0/{log.segments[1].base_offset:020d}.snapshot")
    file = host.disk.open(log.segments[0].path(".log"))
    file.pwrite(position + 16, b"\x7f")  # no known version of a batch
    file.close()
    log = open_log(host, CONFIG, clean=True, recovery_point=30)
    found = log.locate(segment.base_offset, 200, limit=30, at_least_one=True)
    with pytest.raises(CorruptBatchError):
        log.aborted_transactions(segment.base_offset, found)


def test_a_torn_batch_is_cut_off_and_reported() -> None:
    host = make_host()
    log = open_log(host)
    for _ in range(3):
        append_one(log, batch(b"v" * 40), leader_epoch=0, now_ms=NOW_MS)
    path = log.active.file.path
    size = log.active.size
    file = host.disk.open(path)
    file.truncate(size - 5)
    file.close()
    again = open_log(host)
    assert again.end_offset == 2
    report = again.recovery
    assert (report.cut_bytes, report.cut_from_offset) == (size // 3 - 5, 2)
    assert "from offset 2 on (the last batch is incomplete)" in report.summary(again.partition)


def test_what_a_clean_stop_cannot_have_left_is_checked_in_spite_of_it() -> None:
    host = make_host()
    log = open_log(host)
    for _ in range(3):
        append_one(log, batch(b"v" * 40), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    file = host.disk.open(log.active.file.path)
    file.truncate(log.active.size - 1)
    file.close()
    again = open_log(host, clean=True, recovery_point=3)
    assert again.end_offset == 2
    assert again.recovery.cut_bytes


def compacted_without(host: Host, lost: int) -> tuple[LogConfig, tuple[int, ...]]:
    """Thirty records in segments of a compacted log, one of which never came to the disk; where segments begin."""
    config = LogConfig(segment_bytes=1000, compact=True)
    log = open_log(host, config)
    for number in range(30):
        append_one(log, batch(b"v" * 40, key=b"%d" % number), leader_epoch=0, now_ms=NOW_MS)
    file = host.disk.open(log.segments[lost].file.path)
    file.truncate(0)
    file.close()
    return config, tuple(log.view.bases)


def offsets_in(log: Log) -> list[int]:
    return [Batch(found).header().base_offset for found in stored(log)]


def test_a_segment_that_was_lost_is_not_taken_for_a_gap_that_compaction_left() -> None:
    """The file behind it came to the disk before it did: a follower would have gone on behind both."""
    host = make_host()
    config, bases = compacted_without(host, 1)
    assert len(bases) > 2
    again = open_log(host, config)
    assert again.end_offset == bases[1]
    assert offsets_in(again) == [*range(bases[1])]
    assert "does not continue where the one before it ends" in again.recovery.summary(again.partition)


@pytest.mark.parametrize("known", ["cleaned_to", "recovery_point"])
def test_a_gap_that_compaction_left_stays(known: str) -> None:
    """As Apache Kafka's does; ours keeps what each segment ends with."""
    host = make_host()
    config, bases = compacted_without(host, 0)
    again = open_log(host, config, **{known: bases[1]})
    assert offsets_in(again) == [*range(bases[1], 30)]
    assert again.recovery.cut_bytes == 0


def test_a_gap_that_compaction_left_stays_when_the_topic_is_compacted_no_more() -> None:
    host = make_host()
    config, bases = compacted_without(host, 0)
    again = open_log(host, dataclasses.replace(config, compact=False), cleaned_to=bases[1], recovery_point=bases[1])
    assert offsets_in(again) == [*range(bases[1], 30)]
