"""A log that contradicts itself is refused before anything is written: it alone, and what is on disk stays."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.log.making import append_copies, append_one

from headrace.broker.partitions.leadership import Leadership
from headrace.broker.partitions.partition import Partition
from headrace.errors import CorruptMessageError, HeadraceError, KafkaStorageError
from headrace.log import Log, LogConfig, LogDirectories
from headrace.log.invariants import BrokenInvariantError
from headrace.log.leader_epochs import EpochStart, LeaderEpochs
from headrace.log.recovery import LogLoader
from headrace.log.runs import NO_ROOM, AppendedBatch, BatchRun
from headrace.log.segment import Segment
from headrace.records import Batch, CorruptBatchError, assign
from headrace.runtime import DirectoryWriter
from headrace.runtime.simulated import Host, Simulation, run_simulation
from headrace.topics import TopicPartition

from .making import NOW_MS, PARTITION, batch, make_host, open_log

EPOCH = 3


def filled(host: Host, **options: Any) -> Log:
    """Offsets 0 to 3, a batch each, in two segments."""
    log = open_log(host, **options)
    for number in range(4):
        append_one(log, batch(b"v%d" % number), EPOCH, now_ms=NOW_MS)
        if number == 1:
            log.roll()
    log.update_high_watermark(4)
    return log


def content(log: Log) -> list[bytes]:
    return [segment.file.read(0, segment.file.size()) for segment in log.segments]


def check_refused(host: Host, log: Log, break_it: Callable[[Log], object], match: str) -> None:
    """It is refused, everything else is from then on, and the next start finds the log as it was."""
    before, view = content(log), log.view
    with pytest.raises(BrokenInvariantError, match=match) as refused:
        break_it(log)
    assert isinstance(refused.value, HeadraceError)
    assert log.failure is refused.value
    assert log.view is view
    with pytest.raises(KafkaStorageError, match="offline"):
        append_one(log, batch(b"more"), EPOCH)
    with pytest.raises(KafkaStorageError, match="offline"):
        log.locate(0, 1000, limit=4, at_least_one=True)
    log.close()
    again = open_log(host)
    assert content(again)[:1] == before[:1]
    assert b"".join(content(again)) == b"".join(before)
    assert (again.start_offset, again.end_offset, again.leader_epoch) == (0, 4, EPOCH)
    append_one(again, batch(b"more"), EPOCH)
    again.close()


def test_an_epoch_that_falls_is_not_appended() -> None:
    host = make_host()
    told: list[object] = []
    log = filled(host, on_failure=lambda log, error: told.append(error))
    check_refused(host, log, lambda log: append_one(log, batch(), EPOCH - 1), "leader epoch 2, but the log has 3")
    assert told == [log.failure]


def test_an_epoch_that_falls_is_not_appended_together_either() -> None:
    host = make_host()

    def together(log: Log) -> None:
        (outcome,) = log.append([log.check(batch())], EPOCH - 1)
        assert isinstance(outcome, BrokenInvariantError)
        raise outcome

    check_refused(host, filled(host), together, "leader epoch 2, but the log has 3")


def test_no_epoch_at_all_may_be_appended() -> None:
    log = filled(make_host())
    assert append_one(log, batch(), -1).base_offset == 4
    assert log.leader_epoch == EPOCH


def test_a_leaders_epochs_that_fall_are_not_copied() -> None:
    log = filled(make_host())
    before = content(log)
    first, second = batch(b"a"), batch(b"b")
    assign(first, 4, EPOCH + 2)
    assign(second, 5, EPOCH + 1)
    with pytest.raises(CorruptMessageError, match="offset 5 of leader epoch 4, but this log has 5"):
        append_copies(log, first + second)
    assert content(log) == before
    assert append_copies(log, first).last_offset == 4  # what is wrong is the leader's, not this log's


@pytest.mark.parametrize("offset", [0, 3])
def test_a_batch_that_does_not_follow_is_not_written(offset: int) -> None:
    host = make_host()

    def write(log: Log) -> None:
        data = batch()
        assign(data, offset, EPOCH)
        run = BatchRun(offset, NO_ROOM)
        run.end_offset = offset + 1
        run.add(data, AppendedBatch(Batch(data).header(), offset, len(data), NOW_MS, EPOCH, None), len(data))
        log._append_run(run)

    check_refused(host, filled(host), write, f"a batch has offset {offset}, but the log ends at 4")


def test_a_batch_that_ends_before_it_begins_is_not_written() -> None:
    host = make_host()
    log = filled(host)
    checked = log.check(batch())
    wrong = checked._replace(header=checked.header._replace(last_offset_delta=-1))
    check_refused(host, log, lambda log: append_one(log, wrong.view, EPOCH, checked=wrong), "from 4 on ends at 4")


def test_nothing_is_written_behind_bytes_that_readers_do_not_know() -> None:
    host = make_host()
    log = filled(host)
    log.active.size += 1
    check_refused(host, log, lambda log: append_one(log, batch(), EPOCH), "bytes are noted, but readers are told of")


def test_nothing_is_written_at_an_offset_that_producers_have_had() -> None:
    """A view that was lost: what came last is in no view, but its producer is noted."""
    host = make_host()
    log = filled(host)
    log.producers.end_offset += 1
    check_refused(host, log, lambda log: append_one(log, batch(), EPOCH), "known up to 5, but readers are told of 4")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"end_offset": 3}, "it was 0..4, is 0..3, and was not cut"),
        ({"start_offset": 5}, "out of order"),
        ({"start_offset": -1}, "out of order"),
        ({"end_offset": 1, "cuts": 1, "cut_to": 1}, "its last segment begins at 2, after its end 1"),
        ({"epochs": LeaderEpochs([EpochStart(3, 0), EpochStart(2, 1)])}, "epochs do not rise"),
        ({"epochs": LeaderEpochs([EpochStart(2, 2), EpochStart(3, 1)])}, "epochs do not rise"),
        ({"epochs": LeaderEpochs([EpochStart(2, 0)])}, "leader epoch went back from 3 to 2"),
    ],
)
def test_a_view_that_cannot_be_is_not_published(changes: dict[str, Any], match: str) -> None:
    host = make_host()
    check_refused(host, filled(host), lambda log: log._publish(**changes), match)


def test_segments_that_do_not_rise_are_not_published() -> None:
    host = make_host()
    log = filled(host)

    def publish(log: Log) -> None:
        log.files.bases = (2, 0)
        log._publish()

    check_refused(host, log, publish, r"begin at \(2, 0\), which does not rise")


def test_a_cut_that_makes_no_sense_leaves_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host()
    log = filled(host)

    def truncate_end(epochs: LeaderEpochs, end_offset: int) -> bool:
        epochs._entries[:] = [EpochStart(3, 0), EpochStart(2, 0)]
        return True

    def cut(log: Log) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(LeaderEpochs, "truncate_end", truncate_end)
            log.truncate_to(1)

    check_refused(host, log, cut, "epochs do not rise")


@pytest.mark.parametrize(("limit", "found"), [(4, {3: (10_000, 80)}), (3, {2: (0, 80), 3: (10_000, 80)})])
def test_what_lies_outside_the_view_is_not_read(
    limit: int, found: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()

    def read(log: Log) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Segment, "translate", lambda self, offset, size, *, nowait: found[offset])
            log.locate(limit - 1, 1000, limit=limit, at_least_one=True)

    check_refused(host, filled(host), read, "to be read")


def test_a_reader_that_finds_overwritten_what_was_cut_off_beside_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host()
    log = open_log(host)
    for _ in range(6):
        append_one(log, batch(b"v"), EPOCH, now_ms=NOW_MS)
    log.close()
    log = open_log(host, clean=True)
    # Where these are is known. The ones before are looked for on disk.
    for _ in range(4):
        append_one(log, batch(b"v"), EPOCH, now_ms=NOW_MS)
    log.update_high_watermark(7)
    plain, cuts = Segment.translate, [2]

    def translate(self: Segment, offset: int, size: int | None = None, *, nowait: bool = False) -> Any:
        if cuts:
            log.truncate_to(cuts.pop())
            for _ in range(8):
                append_one(log, batch(b"w" * 109), EPOCH + 1, now_ms=NOW_MS)
        return plain(self, offset, size, nowait=nowait)

    monkeypatch.setattr(Segment, "translate", translate)
    assert log.locate(4, 10_000, limit=7, at_least_one=True).length == 0
    assert log.failure is None
    assert log.locate(4, 10_000, limit=7, at_least_one=True).length == 3 * len(batch(b"w" * 109))


def test_other_bytes_than_those_looked_for_are_not_given_to_readers() -> None:
    log = filled(make_host())
    found = log.locate(2, 1000, limit=4, at_least_one=True)
    data = bytearray(found.file.read(found.position, found.length))
    log.check_read(found, data)
    log.check_read(found, data[:20])  # too little to tell
    for offset in (1, 4, 2**40):
        assign(data, offset, EPOCH)
        with pytest.raises(CorruptBatchError, match=r"00002\.log at byte 0: a batch"):
            log.check_read(found, data)
    assert log.failure is None  # it is that place on disk, as with any batch that cannot be read
    log.truncate_to(2)
    log.check_read(found, data)  # it was cut meanwhile: what is there now is not what was looked for


def test_a_gap_that_compaction_left_is_read_over() -> None:
    log = filled(make_host())
    found = log.locate(2, 1000, limit=4, at_least_one=True)
    data = bytearray(found.file.read(found.position, found.length))
    assign(data, 3, EPOCH)
    log.check_read(found, data)


def test_a_log_that_is_found_contradicting_itself_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host()
    filled(host).close()
    load = LogLoader.load

    def wrong(self: LogLoader, names: list[str], **options: Any) -> Any:
        return dataclasses.replace(load(self, names, **options), start_offset=9)

    with monkeypatch.context() as patched:
        patched.setattr(LogLoader, "load", wrong)
        with pytest.raises(KafkaStorageError, match="out of order; restore the directory"):
            open_log(host)
    assert open_log(host).end_offset == 4


def test_a_log_that_contradicts_itself_leaves_its_directory_in_service() -> None:
    offline: list[str] = []
    directories = LogDirectories.open(
        make_host().runtime, ["/data/a"], on_offline=lambda path, reason: offline.append(path)
    )
    directories.open_logs(lambda topic: LogConfig())
    first, second = (directories.create(TopicPartition("t", number), LogConfig(), None) for number in range(2))
    append_one(first, batch(), 5)
    append_one(second, batch(), 5)
    with pytest.raises(BrokenInvariantError):
        append_one(first, batch(), 4)
    first_size = first.active.file.size()
    directories.checkpoint()
    assert offline == []
    assert append_one(second, batch(), 5).base_offset == 1
    assert second.failure is None
    assert first.active.file.size() == first_size
    directories.close()


def test_its_partition_goes_offline_and_answers_so() -> None:
    async def main(simulation: Simulation) -> None:
        host = simulation.host()
        log = open_log(host)
        partition = Partition(1, PARTITION, log, DirectoryWriter(host.runtime, "/data"), Leadership(1, 0, [1], [1]))
        partition.append(batch())
        log.active.size += 1
        with pytest.raises(KafkaStorageError, match="bytes are noted"):
            partition.append(batch())
        assert partition.is_offline
        with pytest.raises(KafkaStorageError, match="offline"):
            partition.append(batch())
        await partition.writer.close()

    run_simulation(main, 1)


def test_it_is_looked_at_in_production_too(tmp_path: Path) -> None:
    """Without the switch that tests are run with, nor Python's own assertions."""
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_CHECK_OWNERS"}
    done = subprocess.run(
        [sys.executable, "-O", "-c", _PRODUCTION, str(tmp_path / "t-0")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "appended\nrefused\nrefused\n", done.stderr


_PRODUCTION = """
import sys
from headrace.log import Log, LogConfig
from headrace.log.invariants import BrokenInvariantError
from headrace.records import build_batch
from headrace.runtime import CHECK_OWNERS, real_runtime
from headrace.topics import TopicPartition

def opened():
    return Log.open(real_runtime(), sys.argv[1], TopicPartition("t", 0), LogConfig())

def one():
    return build_batch([(1, b"k", b"v", [])])

def refused(outcomes):
    raise outcomes[0]

log = opened()
log.append([log.check(one())], 5)
print("appended" if not CHECK_OWNERS else "switched on")
for change in (lambda log: refused(log.append([log.check(one())], 4)), lambda log: log._publish(end_offset=0)):
    try:
        change(log)
    except BrokenInvariantError:
        print("refused")
    log = opened()
"""
