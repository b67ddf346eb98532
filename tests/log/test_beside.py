"""What one thread does to a log while another is in the middle of something, each moment reached by a hook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.log.making import NOW_MS, PARTITION, append_one, batch, make_host, marker, open_log
from tests.waiting import becomes

from headrace.broker.partitions.leadership import Leadership
from headrace.broker.partitions.partition import Partition
from headrace.errors import InvalidTxnStateError, KafkaStorageError, NotLeaderOrFollowerError
from headrace.log import UNVERIFIED, Log, LogConfig, Origin, Slice, reading
from headrace.log import segment as segment_module
from headrace.log.files import LogFile
from headrace.log.ownership import NotTheOwnerError
from headrace.log.producer_state import LogProducers
from headrace.log.segment import (
    _REBUILT_INTERVAL_BYTES,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    _indexes_from,
)
from headrace.records import check, split
from headrace.runtime import DirectoryWriter
from headrace.runtime.simulated import CrashModel, Simulation, run_simulation

SMALL = LogConfig(segment_bytes=1_000, file_delete_delay_ms=0)


def append(log: Log, records: bytearray | None = None, **options: Any) -> int:
    return append_one(log, records or batch(b"x" * 300), leader_epoch=0, now_ms=NOW_MS, **options).base_offset


def open_transaction(log: Log, producer_id: int, sequence: int = 0) -> int:
    return append(log, batch(b"t", producer=(producer_id, 0, sequence), transactional=True))


def end_transaction(log: Log, producer_id: int, *, commit: bool) -> int:
    return append(log, marker(producer_id, commit=commit), origin=Origin.COORDINATOR)


def offsets_of(found: Slice) -> list[int]:
    return [one.base_offset for one in split(found.file.read(found.position, found.length))]


def read_all(log: Log) -> list[int]:
    """The offset of every record, each batch checked."""
    found: list[int] = []
    at = log.start_offset
    while at < log.end_offset:
        place = log.locate(at, 1 << 20, limit=log.end_offset, at_least_one=True)
        for one in split(place.file.read(place.position, place.length)):
            check(one)
            found.extend(range(one.base_offset, one.next_offset))
            at = one.next_offset
    return found


def once(work: Callable[[], object]) -> Callable[[], None]:
    left = [work]

    def run() -> None:
        if left:
            left.pop()()

    return run


# ---- the loop's watermark beside the writer's appends


def test_a_watermark_that_moves_inside_an_append_neither_breaks_it_nor_passes_an_open_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(make_host())
    open_transaction(log, 1)
    end_transaction(log, 1, commit=True)  # not committed yet as far as the log knows
    plain = LogProducers.apply_batch
    beside = once(lambda: log.update_high_watermark(2))

    def apply_batch(self: LogProducers, *args: Any) -> None:
        beside()
        plain(self, *args)
        beside()

    monkeypatch.setattr(LogProducers, "apply_batch", apply_batch)
    assert open_transaction(log, 2) == 2
    assert log.high_watermark == 2
    assert append(log) == 3
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == 2
    assert read_all(log) == [0, 1, 2, 3]


def test_an_append_inside_a_move_of_the_watermark_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    open_transaction(log, 1)
    end_transaction(log, 1, commit=True)
    view_type = type(log.view)
    plain = view_type.valid
    beside = once(lambda: open_transaction(log, 2))

    def valid(self: Any, mark: Any) -> int:
        answer = plain(self, mark)
        beside()
        return answer

    monkeypatch.setattr(view_type, "valid", valid)
    log.update_high_watermark(2)
    log.update_high_watermark(log.end_offset)
    beside()
    log.update_high_watermark(log.end_offset)
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (3, 3, 2)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_that_cannot_be_taken_in_ends_the_logs_service_and_gives_no_offset_twice(
    monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    host = make_host()
    log = open_log(host)
    append(log)

    def note(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "note", note)
        with pytest.raises(KafkaStorageError, match="restart"):
            end_transaction(log, 1, commit=True) if transactional else append(log)
    assert log.end_offset == 1
    with pytest.raises(KafkaStorageError):
        append(log)
    log.abandon()
    assert read_all(open_log(host)) == [0, 1]


def test_the_last_stable_offset_is_not_below_the_logs_start() -> None:
    log = open_log(make_host())
    open_transaction(log, 7)
    for _ in range(9):
        append(log)
    log.update_high_watermark(log.end_offset)
    log.delete_records(5)
    assert (log.start_offset, log.last_stable_offset, log.high_watermark) == (5, 5, 10)
    end_transaction(log, 7, commit=True)
    log.update_high_watermark(log.end_offset)
    assert log.last_stable_offset == log.end_offset == 11


# ---- readers beside the writer


def test_a_reader_stops_at_its_end_also_when_a_batch_comes_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    append(log)
    log.update_high_watermark(1)
    plain = reading.locate
    beside = once(lambda: open_transaction(log, 1))

    def locate(*args: Any, **options: Any) -> Slice:
        beside()
        return plain(*args, **options)

    monkeypatch.setattr(reading, "locate", locate)
    found = log.locate(0, 1 << 20, limit=log.last_stable_offset, at_least_one=True)
    assert log.end_offset == 2
    assert offsets_of(found) == [0]


def three_segments_with_an_abort(log: Log) -> Slice:
    open_transaction(log, 7)
    end_transaction(log, 7, commit=False)
    while len(log.segments) < 3:
        append(log)
    log.update_high_watermark(log.end_offset)
    return log.locate(0, 1 << 20, limit=log.last_stable_offset, at_least_one=True)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_to_be_skipped_is_that_of_the_segment_which_was_found(reopened: bool) -> None:
    host = make_host()
    log = open_log(host, SMALL)
    found = three_segments_with_an_abort(log)
    if reopened:  # then nothing of the first segment is in memory
        log.close()
        log = open_log(host, SMALL, clean=True)
        log.update_high_watermark(log.end_offset)
        found = log.locate(0, 1 << 20, limit=log.last_stable_offset, at_least_one=True)
    log.delete_records(log.high_watermark)
    assert log.apply_retention(NOW_MS)
    assert [entry.producer_id for entry in log.aborted_transactions(0, found)] == [7]
    log.remove_discarded(2**62)
    assert [entry.producer_id for entry in log.aborted_transactions(0, found)] == [7]


def test_a_transaction_index_that_is_renamed_while_it_is_looked_for_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = make_host()
    three_segments_with_an_abort(log := open_log(host, SMALL))
    log.close()
    log = open_log(host, SMALL, clean=True)
    log.update_high_watermark(log.end_offset)
    log.delete_records(log.high_watermark)
    found = log.view.segments[0]
    plain = host.disk.read_file
    beside = once(lambda: log.apply_retention(NOW_MS))

    def read_file(path: str) -> bytes:
        if path.endswith(TXN_INDEX):
            beside()
        return plain(path)

    monkeypatch.setattr(host.disk, "read_file", read_file)
    assert [entry.producer_id for entry in found.aborted()] == [7]
    assert found.discarded


def with_lost_indexes(log: Log) -> Log:
    for segment in log.segments[:-1]:
        for kind in (OFFSET_INDEX, TIME_INDEX):
            log.caches.disk.remove(segment.path(kind))
        segment.unload_indexes()
    return log


def test_a_reader_skips_nothing_while_another_makes_an_index_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host(), SMALL)
    for _ in range(12):
        append(log)
    log.update_high_watermark(log.end_offset)
    with_lost_indexes(log)
    plain = segment_module.scan_headers
    others: list[list[int]] = []

    def look() -> list[int]:
        return offsets_of(log.locate(1, 1 << 20, limit=log.high_watermark, at_least_one=True))

    beside = once(lambda: others.append(look()))

    def scan(*args: Any, **options: Any) -> Iterator[Any]:
        for one in plain(*args, **options):
            yield one
            beside()

    monkeypatch.setattr(segment_module, "scan_headers", scan)
    assert look() == others[0] == [1]
    assert read_all(log) == list(range(12))


def test_index_files_that_readers_miss_are_made_again_by_the_writer_only() -> None:
    log = open_log(make_host(), SMALL)
    for _ in range(12):
        append(log)
    with_lost_indexes(log)
    first = log.segments[0]
    first.indexes()
    assert not log.caches.disk.exists(first.path(OFFSET_INDEX))
    log.apply_retention(NOW_MS)
    assert log.caches.disk.exists(first.path(OFFSET_INDEX))
    made = first.indexes()
    first.unload_indexes()
    assert [index.entries() for index in first.indexes()] == [index.entries() for index in made]


def test_an_index_that_became_another_segments_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction puts a segment with the same base offset, hence the same file names, in the place of an old one."""
    host = make_host()
    log = open_log(host, SMALL)
    for _ in range(12):
        append(log)
    old = log.segments[0]
    entries = [index.entries() for index in old.indexes()]
    old.unload_indexes()
    plain = host.disk.read_file

    def exchanged() -> None:
        old.discard()
        for kind in (OFFSET_INDEX, TIME_INDEX):
            host.disk.replace_file(old.path(kind).removesuffix(".deleted"), b"")

    beside = once(exchanged)

    def read_file(path: str) -> bytes:
        beside()
        return plain(path)

    monkeypatch.setattr(host.disk, "read_file", read_file)
    assert [index.entries() for index in old.indexes()] == entries


def test_an_index_that_an_earlier_segment_has_left_is_not_used() -> None:
    """Both were compacted away before the files of the first were removed, and the second had lost its index."""
    host = make_host()
    log = open_log(host, SMALL)
    for _ in range(12):
        append(log)
    old = log.segments[0]
    left = old.path(OFFSET_INDEX) + ".deleted"
    host.disk.replace_file(left, bytes(8))
    host.disk.remove(old.path(OFFSET_INDEX))
    old.unload_indexes()
    old.discard()
    assert old.path(OFFSET_INDEX) == left
    found = old.offset_index().entries()
    assert found == _indexes_from(old.file, old.base_offset, old.size, _REBUILT_INTERVAL_BYTES)[0].entries()
    assert not host.disk.exists(left)


# ---- syncs beside the writer


def test_what_is_appended_to_a_segment_while_it_is_synced_is_synced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        host = make_host(seed)
        log = open_log(host, SMALL)
        append(log)
        first = log.active
        plain = LogFile.sync

        def beside(log: Log = log, first: Segment = first) -> None:
            while log.active is first:
                append(log)

        run = once(beside)

        def sync(self: LogFile, run: Callable[[], None] = run, plain: Callable[[LogFile], None] = plain) -> None:
            plain(self)
            run()

        with monkeypatch.context() as patched:
            patched.setattr(LogFile, "sync", sync)
            log.sync()
        log.sync()
        end = log.end_offset
        assert log.recovery_point == end
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        assert read_all(open_log(host, SMALL, recovery_point=end)) == list(range(end))


def test_a_power_loss_while_segments_are_deleted_loses_nothing_that_stays() -> None:
    for seed in range(40):
        host = make_host(seed)
        log = open_log(host, SMALL)
        for _ in range(12):
            append(log)
        log.sync()
        log.update_high_watermark(12)
        log.delete_records(8)
        assert len(log.apply_retention(NOW_MS)) > 2
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        # The recovery point is written down from time to time only.
        assert read_all(open_log(host, SMALL, recovery_point=0))[-4:] == [8, 9, 10, 11]


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_segment_that_is_removed_before_its_sync_comes_to_it_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, delay_ms: int
) -> None:
    log = open_log(make_host(), LogConfig(segment_bytes=1_000, retention_bytes=500, file_delete_delay_ms=delay_ms))
    for _ in range(12):
        append(log)
    log.update_high_watermark(log.end_offset)
    plain = LogFile.sync

    def retain() -> None:
        log.apply_retention(NOW_MS)
        log.remove_discarded(log._clock.now_ms())

    beside = once(retain)

    def sync(self: LogFile) -> None:
        plain(self)
        beside()

    monkeypatch.setattr(LogFile, "sync", sync)
    log.sync()
    assert log.failure is None
    assert log.recovery_point == log.end_offset == 12
    assert log.start_offset > 0


def test_a_sync_does_not_vouch_for_what_takes_the_place_of_a_cut_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    for _ in range(5):
        append(log)
    plain = LogFile.sync
    beside = once(lambda: log.truncate_to(2))

    def sync(self: LogFile) -> None:
        plain(self)
        beside()

    monkeypatch.setattr(LogFile, "sync", sync)
    log.sync()
    for _ in range(5):
        append(log)
    assert (log.end_offset, log.recovery_point) == (7, 2)
    log.sync()
    assert log.recovery_point == 7


def test_what_is_appended_while_the_durable_end_is_asked_for_is_not_part_of_it() -> None:
    log = open_log(make_host(), LogConfig(flush_messages=1))
    append(log)
    log.sync()
    beside = once(lambda: append(log))

    class Config(LogConfig):
        def __getattribute__(self, name: str) -> Any:
            if name == "flush_messages":
                beside()
            return super().__getattribute__(name)

    log.config = Config(flush_messages=1)
    assert log.durable_end == 1
    assert (log.end_offset, log.recovery_point, log.durable_end) == (2, 1, 1)


def test_a_watermark_from_before_a_cut_says_nothing_about_what_comes_after_it() -> None:
    log = open_log(make_host())
    for _ in range(5):
        append(log)
    log.update_high_watermark(5)
    log.truncate_to(2)
    for _ in range(5):
        append(log)
    assert log.high_watermark == log.last_stable_offset == 2
    log.update_high_watermark(6)
    assert log.high_watermark == 6


# ---- through the writer


def served(simulation: Simulation, log: Log) -> Partition:
    writer = DirectoryWriter(simulation.host().runtime, "/data")
    return Partition(1, PARTITION, log, writer, Leadership(1, 0, [1], [1]))


def test_a_late_batch_behind_its_transactions_end_is_refused() -> None:
    async def main(simulation: Simulation) -> None:
        log = open_log(simulation.host())
        partition = served(simulation, log)
        first = batch(b"v", producer=(7, 0, 0), transactional=True)
        partition.append(first, verification=log.start_verification(7, 0, 0))
        syncing = asyncio.ensure_future(partition.turns.sync())
        await becomes(lambda: partition.writer.busy, every_s=0)
        ending = partition.append(marker(7, commit=False), origin=Origin.COORDINATOR)
        assert log.start_verification(7, 1, 0) is None  # its transaction is open still
        late = partition.append(batch(b"late", producer=(7, 0, 1), transactional=True))
        assert isinstance(ending, asyncio.Future)
        assert isinstance(late, asyncio.Future)
        await ending
        with pytest.raises(InvalidTxnStateError):
            await late
        await syncing
        assert (log.end_offset, log.last_stable_offset) == (2, 2)
        await partition.writer.close()

    run_simulation(main, 1)


def test_a_batch_without_proof_may_continue_a_transaction_but_not_open_one() -> None:
    log = open_log(make_host())
    options = {"leader_epoch": 0, "now_ms": NOW_MS, "verification": UNVERIFIED}
    with pytest.raises(InvalidTxnStateError):
        append_one(log, batch(b"v", producer=(7, 0, 0), transactional=True), **options)
    open_transaction(log, 7)
    append_one(log, batch(b"v", producer=(7, 0, 1), transactional=True), **options)
    append_one(log, batch(b"v"), **options)
    assert log.end_offset == 3


def test_what_waits_for_the_disk_is_refused_when_a_new_leader_epoch_has_begun() -> None:
    async def main(simulation: Simulation) -> None:
        log = open_log(simulation.host())
        partition = served(simulation, log)
        partition.append(batch(b"v"))
        syncing = asyncio.ensure_future(partition.turns.sync())
        await becomes(lambda: partition.writer.busy, every_s=0)
        earlier = partition.append(batch(b"v"))
        partition.lead(Leadership(1, 5, [1], [1]))
        later = partition.append(batch(b"v"))
        assert log.leader_epoch == 0
        assert isinstance(earlier, asyncio.Future)
        with pytest.raises(NotLeaderOrFollowerError):
            await earlier
        for appended in (later, syncing):
            assert isinstance(appended, asyncio.Future)
            await appended
        await partition.turns.idle()
        assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0), (5, 1)]
        await partition.writer.close()

    run_simulation(main, 1)


def test_what_waits_to_be_synced_is_not_seen_for_somebody_elses_sake() -> None:
    async def main(simulation: Simulation) -> None:
        log = open_log(simulation.host(), LogConfig(flush_messages=1))
        partition = served(simulation, log)
        known = batch(b"v", producer=(7, 0, 0))
        first = partition.append(bytearray(known))
        assert isinstance(first, asyncio.Future)
        await first
        waits = partition.append(batch(b"not yet"))
        assert isinstance(waits, asyncio.Future)
        assert log.end_offset == 2
        again = partition.append(known)  # a duplicate of what is durable
        again = await again if isinstance(again, asyncio.Future) else again
        partition.lead(Leadership(1, 1, [1], [1]))
        assert log.high_watermark == 1 or waits.done()
        await waits
        assert log.high_watermark == 2
        await partition.writer.close()

    run_simulation(main, 1)


def test_a_log_that_is_served_is_changed_by_its_writer_and_the_watermark_by_the_loop() -> None:
    async def main(simulation: Simulation) -> None:
        log = open_log(simulation.host())
        partition = served(simulation, log)
        partition.append(batch(b"v"))
        with pytest.raises(NotTheOwnerError):
            append(log)
        with pytest.raises(NotTheOwnerError):
            log.apply_retention(NOW_MS)
        with pytest.raises(NotTheOwnerError):
            await partition.turns.change_log(lambda log: log.update_high_watermark(0))
        await partition.turns.change_log(Log.roll)
        assert log.end_offset == 1
        await partition.writer.close()

    run_simulation(main, 1)


def test_two_changes_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(make_host())
    refused: list[BaseException] = []

    def other() -> None:
        try:
            append(log)
        except NotTheOwnerError as error:
            refused.append(error)

    def beside() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    plain, run = LogFile.append, once(beside)

    def append_bytes(self: LogFile, parts: Any) -> int:
        run()
        return plain(self, parts)

    monkeypatch.setattr(LogFile, "append", append_bytes)
    append(log)
    assert len(refused) == 1
    assert read_all(log) == [0]
