"""Several log directories: whose they are, where partitions go, what a failing disk takes down, deletion and moves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.making import append_one

from headrace.errors import InvalidProducerEpochError, KafkaStorageError, LogDirNotFoundError
from headrace.log import DirectoryMismatchError, Log, LogConfig, LogCut, LogDirectories, partition_metadata
from headrace.log.checkpoints import read_offsets
from headrace.log.directory_names import DirectoryKind, parse_name, temporary_name
from headrace.log.files import LogFile
from headrace.log.invariants import BrokenInvariantError
from headrace.log.leader_epochs import EpochStart
from headrace.runtime import DirectoryLockedError, DiskError, Runtime
from headrace.runtime.simulated import DiskFault, Host, SimulatedCrash, Simulation, WorkModel, run_simulation
from headrace.topics import TopicPartition

from .crashes import stored
from .golden import copy_data, expected
from .making import NOW_MS, batch, make_host

A, B = "/data/a", "/data/b"
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)
TOPIC_ID = bytes(range(16))


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def opened(host: Host, *paths: str, **options: object) -> LogDirectories:
    directories = LogDirectories.open(host.runtime, paths or (A, B), **options)  # type: ignore[arg-type]  # pass-through
    directories.open_logs(lambda topic: CONFIG)
    return directories


def fill(log: Log, count: int = 20, leader_epoch: int = 0) -> None:
    for number in range(count):
        append_one(log, batch(b"%d" % number * 30), leader_epoch=leader_epoch, now_ms=NOW_MS)
    log.update_high_watermark(log.end_offset)


def test_new_partitions_go_where_the_fewest_are() -> None:
    directories = opened(make_host())
    for number in range(5):
        directories.create(tp(number), CONFIG, TOPIC_ID)
    by_path = {path: sum(directories.directory_of(log) == path for log in directories.logs.values()) for path in (A, B)}
    assert by_path == {A: 3, B: 2}
    assert directories.create(tp(0), CONFIG, TOPIC_ID) is directories.get(tp(0))


def test_a_directory_keeps_its_identity_and_refuses_another_node_or_cluster() -> None:
    host = make_host()
    directories = opened(host, A, node_id=7, cluster_id="c1")
    ids = directories.directory_ids()
    directories.close()
    again = opened(host, A)
    assert (again.node_id, again.cluster_id, again.directory_ids()) == (7, "c1", ids)
    again.close()
    with pytest.raises(DirectoryMismatchError, match="node 7"):
        opened(host, A, node_id=8)
    with pytest.raises(DirectoryMismatchError, match="cluster c1"):
        opened(host, A, cluster_id="c2")
    opened(host, A).close()  # the refusals let go of the lock


def test_a_directory_in_use_is_refused(tmp_path: Path, runtime: Runtime) -> None:
    first = LogDirectories.open(runtime, [str(tmp_path)])
    with pytest.raises(DirectoryLockedError):
        LogDirectories.open(runtime, [str(tmp_path)])
    first.close()
    LogDirectories.open(runtime, [str(tmp_path)]).close()


@pytest.mark.parametrize("clean", [True, False])
def test_logs_are_found_again(clean: bool) -> None:
    host = make_host()
    directories = opened(host)
    for number in range(4):
        fill(directories.create(tp(number), CONFIG, TOPIC_ID))
    directories.logs[tp(1)].delete_records(7)
    if clean:
        directories.close(broker_epoch=5)
        marker = json.loads(host.disk.read_file(f"{A}/.kafka_cleanshutdown"))
        assert marker == {"version": 0, "brokerEpoch": 5}
    else:
        directories.checkpoint()
        host.kill(power_loss=False)
        host.restart()
    again = opened(host)
    assert {partition: log.end_offset for partition, log in again.logs.items()} == {tp(n): 20 for n in range(4)}
    assert all(log.recovery.clean is clean for log in again.logs.values())
    assert all(log.high_watermark == 20 for log in again.logs.values())
    assert again.logs[tp(1)].start_offset == 7
    assert again.logs[tp(0)].topic_id == TOPIC_ID
    assert not host.disk.exists(f"{A}/.kafka_cleanshutdown")


def test_logs_open_and_close_in_parallel() -> None:
    async def main(runtime: Runtime) -> dict[TopicPartition, int]:
        directories = LogDirectories.open(runtime, [A, B])
        for number in range(20):
            fill(directories.create(tp(number), CONFIG, TOPIC_ID), 3)
        await directories.close_logs_in_parallel()
        directories.close()
        directories = LogDirectories.open(runtime, [A, B])
        logs = await directories.open_logs_in_parallel(lambda topic: CONFIG)
        return {partition: log.end_offset for partition, log in logs.items()}

    async def on_a_host(simulation: Simulation) -> dict[TopicPartition, int]:
        host = simulation.host()
        return await host.start(main(host.runtime))

    result = run_simulation(on_a_host, 1)
    assert result.value == {tp(number): 3 for number in range(20)}


def test_no_thread_goes_on_opening_logs_when_the_start_is_given_up() -> None:
    """Its directories are unlocked then, and another process may have them."""

    async def main(runtime: Runtime, host: Host) -> tuple[int, int]:
        directories = LogDirectories.open(runtime, [A, B])
        for number in range(40):
            fill(directories.create(tp(number), CONFIG, TOPIC_ID), 30)
        directories.close()
        directories = LogDirectories.open(runtime, [A, B])
        host.disk.inject(DiskFault("read", errno.EMFILE, under=f"{A}/t-0"))
        with pytest.raises(DiskError):
            await directories.open_logs_in_parallel(lambda topic: CONFIG)
        opened_then = len(directories.logs)
        await asyncio.sleep(100)
        return opened_then, len(directories.logs)

    async def on_a_host(simulation: Simulation) -> tuple[int, int]:
        host = simulation.host()
        return await host.start(main(host.runtime, host))

    then, later = run_simulation(on_a_host, 1, work=WorkModel(usual_s_max=0.5)).value
    assert then == later > 0


def test_a_failing_disk_takes_only_its_own_partitions_offline(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    host = make_host()
    offline: list[str] = []
    directories = opened(host, on_offline=lambda path, reason: offline.append(path))
    for number in range(4):
        fill(directories.create(tp(number), CONFIG, TOPIC_ID))
    on_a = [p for p, log in directories.logs.items() if directories.directory_of(log) == A]
    host.disk.inject(DiskFault("append", errno.EIO, under=A, times=None))
    with pytest.raises(DiskError):
        fill(directories.logs[on_a[0]])
    assert offline == [A]
    for partition, log in directories.logs.items():
        if partition in on_a:
            with pytest.raises(KafkaStorageError):
                append_one(log, batch(), leader_epoch=0, now_ms=NOW_MS)
        else:
            fill(log)
    assert directories.online_paths == [B]
    assert directories.directory_of(directories.create(tp(9), CONFIG, TOPIC_ID)) == B
    described = {info.path: info for info in directories.describe()}
    assert described[A].offline is not None
    assert len(described[B].replicas) == 3
    directories.close()
    assert not host.disk.exists(f"{A}/.kafka_cleanshutdown")
    assert host.disk.exists(f"{B}/.kafka_cleanshutdown")


def test_a_log_that_went_out_of_service_alone_is_checked_at_the_next_start() -> None:
    """It was not closed: what it knew of itself is not on disk, and nothing says what of it is durable."""
    host = make_host()
    directories = opened(host)
    broken, other = (directories.create(tp(number), CONFIG, TOPIC_ID) for number in range(2))
    fill(broken, 2, leader_epoch=1)
    broken.sync()
    fill(broken, 2, leader_epoch=2)
    fill(other)
    with pytest.raises(BrokenInvariantError):
        append_one(broken, batch(), leader_epoch=1, now_ms=NOW_MS)
    place = directories.directory_of(broken)
    directories.close()
    assert not host.disk.exists(f"{place}/.kafka_cleanshutdown")
    assert host.disk.exists(f"{directories.directory_of(other)}/.kafka_cleanshutdown")
    log = opened(host).logs[tp(0)]
    assert log.epochs.entries == [EpochStart(1, 0), EpochStart(2, 2)]
    assert (log.end_offset, log.recovery_point) == (4, 2)
    assert log.recovery.checked_batches == 4


def test_a_second_cut_is_written_down_though_the_first_has_taken_back_more() -> None:
    """What the file says counts after a crash, and not what the log knows of itself by now."""
    host = make_host()
    directories = opened(host, A)
    log = directories.create(tp(0), CONFIG, TOPIC_ID)

    def cut(offset: int) -> None:
        cut = LogCut(log.partition, offset)
        if directories.begin_cut(cut):
            directories.write_cut(cut)
        log.truncate_to(offset)
        directories.end_cut(cut)

    fill(log)
    cut(5)
    fill(log)
    log.sync()
    directories.checkpoint()
    cut(log.end_offset - 1)
    assert log.recovery_point == 5  # it goes by the lowest of its cuts, whatever was synced since
    cut(10)
    written = read_offsets(host.disk, f"{A}/recovery-point-offset-checkpoint")
    assert written[tp(0)] <= 10


def test_a_directory_that_cannot_be_made_is_offline_and_all_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    host = make_host()
    host.disk.inject(DiskFault("makedirs", errno.EROFS, under=A, times=None))
    directories = opened(host, node_id=1, cluster_id="c1")
    assert directories.online_paths == [B]
    directories.close()
    with pytest.raises(KafkaStorageError, match="no log directory can be used"):
        LogDirectories.open(host.runtime, [A])


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay() -> None:
    host = make_host()
    directories = opened(host, A)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID))
    directories.delete(tp(0))
    (name,) = [n for n in host.disk.listdir(A) if n.endswith("-delete")]
    assert parse_name(name) == (tp(0), DirectoryKind.DELETE)
    directories.delete(tp(0))  # what is not here needs no deleting
    other_id = bytes(range(1, 17))
    assert directories.create(tp(0), CONFIG, other_id).end_offset == 0
    now_ms = host.runtime.clock.now_ms()
    assert directories.clean_up(now_ms + CONFIG.file_delete_delay_ms - 1) == 0
    assert directories.clean_up(now_ms + CONFIG.file_delete_delay_ms) == 1
    assert not [n for n in host.disk.listdir(A) if n.endswith("-delete")]


def test_an_interrupted_deletion_is_finished_after_a_restart() -> None:
    host = make_host()
    directories = opened(host, A)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID))
    directories.delete(tp(0))
    directories.close()
    again = opened(host, A)
    assert again.logs == {}
    assert again.clean_up(host.runtime.clock.now_ms()) == 1


def test_long_topic_names_stay_legal_directory_names() -> None:
    name = temporary_name(tp(12, "x" * 249), bytes(16), DirectoryKind.DELETE)
    assert len(name) == 255
    assert parse_name(name) is not None
    assert parse_name("a-topic-3") == (tp(3, "a-topic"), DirectoryKind.PRESENT)
    assert parse_name("dotted.topic-3") == (tp(3, "dotted.topic"), DirectoryKind.PRESENT)
    for other in (
        "meta.properties",
        "nothing",
        "lost+found",
        ".lock",
        "t-03",
        "t-\N{ARABIC-INDIC DIGIT THREE}",
        "t-1" + "0" * 10,
    ):
        assert parse_name(other) is None


@pytest.mark.parametrize("name", ["notes.log.swap", "notes.swap"])
def test_a_file_of_somebody_else_does_not_keep_a_broker_from_starting(name: str) -> None:
    host = make_host()
    directories = opened(host, A)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID))
    directories.close()
    host.disk.replace_file(f"{A}/t-0/{name}", b"mine")
    host.disk.makedirs(f"{A}/t-00")
    assert opened(host, A).logs[tp(0)].end_offset == 20
    assert host.disk.read_file(f"{A}/t-0/{name}") == b"mine"


def test_a_log_moves_to_another_directory_while_it_is_written() -> None:
    host = make_host()
    directories = opened(host)
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    fill(log)
    log.delete_records(5)
    move = directories.start_move(tp(0), B)
    while move.step(300):
        if log.end_offset < 30:
            fill(log, 2)
    (future,) = [r for info in directories.describe() if info.path == B for r in info.replicas]
    assert future.is_future
    assert future.offset_lag == 0
    before = stored(log)
    moved = directories.finish_move(tp(0))
    assert directories.directory_of(moved) == B
    assert moved.directory == f"{B}/t-0"
    assert (moved.start_offset, moved.end_offset) == (5, log.end_offset)
    assert stored(moved) == before
    fill(moved, 3)
    directories.close()
    again = opened(host)
    assert directories.directory_of(again.logs[tp(0)]) == B
    assert stored(again.logs[tp(0)])[: len(before)] == before


@pytest.mark.parametrize("regrown", [0, 5, 16, 30])
@pytest.mark.parametrize("how", ["truncate_to", "start_at"])
def test_a_log_that_is_cut_while_it_moves_is_not_mixed_with_what_it_was(how: str, regrown: int) -> None:
    """A follower is cut to what its new leader has, and has the new leader's records there instead."""
    host = make_host()
    directories = opened(host)
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    fill(log)
    move = directories.start_move(tp(0), B)
    while move.step(300):
        pass
    getattr(log, how)(4)
    fill(log, regrown, leader_epoch=1)
    while not move.caught_up:
        move.step(300)
    before = stored(log)
    moved = directories.finish_move(tp(0))
    assert (moved.start_offset, moved.end_offset) == (log.start_offset, log.end_offset)
    assert stored(moved) == before
    assert moved.high_watermark == log.high_watermark
    assert moved.end_offset_for(0) == log.end_offset_for(0)
    moved.remove_discarded(NOW_MS * 2)
    assert not [name for name in host.disk.listdir(moved.directory) if name.endswith(".deleted")]


def test_a_log_that_is_cut_while_a_move_reads_it_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    directories = opened(make_host())
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    fill(log)
    move = directories.start_move(tp(0), B)
    read = LogFile.read

    def then_cut(self: LogFile, position: int, length: int) -> bytes:
        data = read(self, position, length)
        if length == 300:  # what the move asks for
            monkeypatch.undo()
            log.truncate_to(2)
            fill(log, 3, leader_epoch=1)
        return data

    monkeypatch.setattr(LogFile, "read", then_cut)
    while not move.caught_up:
        move.step(300)
    before = stored(log)
    assert stored(directories.finish_move(tp(0))) == before


@pytest.mark.parametrize("left", [0, 3])
def test_a_moved_log_knows_of_transactions_whose_records_are_deleted(left: int) -> None:
    """Else its end says nothing to the copy, and a late producer of an older epoch could go on in it."""
    host = make_host()
    directories = opened(host, producer_expiration_ms=2**62)
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    append_one(log, batch(b"deleted", producer=(7, 3, 0), transactional=True), leader_epoch=0, now_ms=NOW_MS)
    append_one(log, batch(b"deleted", producer=(8, 1, 0)), leader_epoch=0, now_ms=NOW_MS)
    fill(log, left)
    log.delete_records(2)
    log.roll()
    log.apply_retention(NOW_MS)
    move = directories.start_move(tp(0), B)
    while not move.caught_up:
        move.step()
    moved = directories.finish_move(tp(0))

    def check(moved: Log) -> None:
        assert (moved.start_offset, moved.end_offset) == (log.start_offset, log.end_offset)
        assert moved.producers.producers.keys() == {7, 8}
        assert moved.producers.producers[8].last_sequence == 0
        assert moved.producers.ongoing == log.producers.ongoing == {0: 7}
        assert moved.last_stable_offset == log.last_stable_offset == log.start_offset
        with pytest.raises(InvalidProducerEpochError):
            append_one(moved, batch(b"late", producer=(7, 2, 1), transactional=True), leader_epoch=0, now_ms=NOW_MS)

    check(moved)
    host.kill(power_loss=True)
    host.restart()
    check(opened(host, producer_expiration_ms=2**62).logs[tp(0)])


@pytest.mark.parametrize("how", ["deleted", "cut", "begun anew"])
def test_a_move_goes_on_though_what_it_was_about_to_read_is_gone(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = opened(make_host())
    log = directories.create(tp(0), replace(CONFIG, file_delete_delay_ms=0), TOPIC_ID, path=A)
    fill(log)
    move = directories.start_move(tp(0), B)
    move.step(300)
    assert 0 < move.future.end_offset < 5
    locate = Log.locate

    def gone_before_it_is_found(self: Log, *where: object, **more: object) -> object:
        if self is log:
            monkeypatch.undo()
            if how == "deleted":
                log.delete_records(12)
                log.apply_retention(NOW_MS)
                log.remove_discarded(NOW_MS * 2)
            elif how == "cut":
                log.truncate_to(0)
            else:
                log.start_at(50)
                fill(log, 3, leader_epoch=1)
        return locate(self, *where, **more)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(Log, "locate", gone_before_it_is_found)
    while not move.caught_up:
        move.step(300)
    before = stored(log)
    moved = directories.finish_move(tp(0))
    assert (moved.start_offset, moved.end_offset, stored(moved)) == (log.start_offset, log.end_offset, before)


def test_a_log_whose_last_records_were_compacted_away_moves() -> None:
    """Apache Kafka leaves such: the move went on asking for what comes after the last batch."""
    host = make_host()
    directories = opened(host)
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    fill(log, 3)
    directories.close()
    host.disk.open(f"{A}/t-0/{9:020d}.log", create=True).close()
    directories = opened(host)
    log = directories.logs[tp(0)]
    assert log.end_offset == 9
    move = directories.start_move(tp(0), B)
    for _ in range(5):
        move.step()
    moved = directories.finish_move(tp(0))
    assert (moved.start_offset, moved.end_offset, moved.size_bytes) == (0, 9, log.size_bytes)
    fill(moved, 1)
    assert (moved.end_offset, len(stored(moved))) == (10, 4)


def test_a_move_that_is_cancelled_leaves_the_log_where_it_is() -> None:
    host = make_host()
    directories = opened(host)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID, path=A))
    directories.start_move(tp(0), B).step(300)
    directories.cancel_move(tp(0))
    assert directories.moves == {}
    assert directories.directory_of(directories.logs[tp(0)]) == A
    with pytest.raises(LogDirNotFoundError):
        directories.start_move(tp(0), "/elsewhere")


def test_a_move_is_dropped_by_a_restart() -> None:
    host = make_host()
    directories = opened(host)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID, path=A))
    directories.start_move(tp(0), B).step(300)
    directories.close()
    again = opened(host)
    assert {p: again.directory_of(log) for p, log in again.logs.items()} == {tp(0): A}
    again.clean_up(host.runtime.clock.now_ms())
    assert not [n for n in host.disk.listdir(B) if n.endswith("-future")]


def test_two_topics_of_one_name_are_an_error_where_no_metadata_tells_them_apart() -> None:
    host = make_host()
    directories = opened(host)
    directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
    directories.close()
    host.disk.makedirs(f"{B}/t-0")
    host.disk.replace_file(f"{B}/t-0/{partition_metadata.FILE_NAME}", partition_metadata.encode(bytes(range(1, 17))))
    with pytest.raises(DirectoryMismatchError, match=r"t-0 is in /data/a and in /data/b"):
        opened(host)


@pytest.mark.parametrize("here", [A, B])
@pytest.mark.parametrize("deleted", [0, 17])
def test_of_two_logs_of_a_partition_the_one_is_used_that_has_the_later_epoch(here: str, deleted: int) -> None:
    """The other was away, and had more at its end than was committed: what was acknowledged since would be lost."""
    host = make_host()
    directories = opened(host)
    log = directories.create(tp(0), CONFIG, TOPIC_ID, path=here)
    fill(log, 15, leader_epoch=1)
    fill(log, 3, leader_epoch=2)
    log.delete_records(deleted)
    directories.close()
    away = B if here == A else A
    old = Log.open(host.runtime, f"{away}/{tp(0)}", tp(0), CONFIG, topic_id=TOPIC_ID)
    fill(old, 30, leader_epoch=1)
    old.close()
    log = opened(host).logs[tp(0)]
    assert (log.directory, log.start_offset, log.end_offset) == (f"{here}/{tp(0)}", deleted, 18)
    assert [name for name in host.disk.listdir(away) if name.endswith("-stray")]


def test_of_two_logs_of_a_partition_the_one_with_records_is_used_whatever_epoch_has_begun_in_the_other() -> None:
    host = make_host()
    for path, epoch, count in ((A, 5, 0), (B, 1, 3)):
        log = Log.open(host.runtime, f"{path}/{tp(0)}", tp(0), CONFIG, topic_id=TOPIC_ID)
        log.begin_epoch(epoch)
        fill(log, count, leader_epoch=epoch)
        log.sync()
        log.close()
    assert opened(host).logs[tp(0)].directory == f"{B}/{tp(0)}"


@pytest.mark.parametrize("operation", ["open", "rename", "sync_dir"])
def test_a_shortage_of_descriptors_at_the_end_of_a_move_costs_that_move_alone(operation: str) -> None:
    for skip in itertools.count():
        host = make_host()
        directories = opened(host)
        log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
        other = directories.create(tp(1), CONFIG, TOPIC_ID, path=B)
        fill(log)
        move = directories.start_move(tp(0), B)
        while move.step():
            pass
        fault = host.disk.inject(DiskFault(operation, errno.EMFILE, skip=skip))
        try:
            log = directories.finish_move(tp(0))
        except DiskError:
            directories.cancel_move(tp(0))
        host.disk.heal()
        assert directories.online_paths == [A, B], (operation, skip)
        for served in (log, other):
            fill(served)
        assert directories.logs[tp(0)] is log
        assert log.end_offset == 40
        if fault.times:
            assert log.directory == f"{B}/t-0"
            break


@pytest.mark.slow
def test_a_crash_at_any_moment_of_a_move_leaves_the_whole_log() -> None:
    """The power goes at each operation of a move in turn: one log is served afterwards, with all that was synced."""
    for operations in range(400):
        host = make_host(operations)
        directories = opened(host)
        log = directories.create(tp(0), CONFIG, TOPIC_ID, path=A)
        fill(log)
        log.sync()
        host.disk.on_crash = None
        host.disk.crash_after(operations)
        finished = False
        with contextlib.suppress(SimulatedCrash):
            move = directories.start_move(tp(0), B)
            while move.step(300):
                pass
            directories.finish_move(tp(0))
            finished = True
        host.kill()
        host.restart()
        again = opened(host)
        assert again.logs[tp(0)].end_offset == 20, operations
        again.close()
        if finished:
            return
    raise AssertionError("the move never came to its end")


def test_a_damaged_checkpoint_costs_only_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    host = make_host()
    directories = opened(host, A)
    fill(directories.create(tp(0), CONFIG, TOPIC_ID))
    directories.close()
    for name in host.disk.listdir(A):
        if name.endswith("checkpoint"):
            host.disk.replace_file(f"{A}/{name}", b"0\n7\nnonsense")
    assert opened(host, A).logs[tp(0)].end_offset == 20


@pytest.mark.parametrize("kind", ["clean", "unclean"])
def test_a_data_directory_of_kafka_is_adopted(kind: str, tmp_path: Path, runtime: Runtime) -> None:
    root = copy_data(kind, tmp_path / "data")
    answers = expected(kind)["partitions"]
    directories = LogDirectories.open(runtime, [str(root)], producer_expiration_ms=2**62)
    assert {str(found.partition) for found in directories.scan()} == set(answers)
    assert all(found.topic_id is not None for found in directories.scan())
    config_of = {True: LogConfig(compact=True), False: LogConfig()}
    logs = directories.open_logs(lambda topic: config_of[topic.startswith(("g-compact", "__"))])
    assert {str(p): (log.start_offset, log.end_offset) for p, log in logs.items()} == {
        name: (answer["log_start_offset"], answer["log_end_offset"]) for name, answer in answers.items()
    }
    directories.close()
    points = read_offsets(runtime.disk, f"{root}/recovery-point-offset-checkpoint")
    assert points == {partition: log.end_offset for partition, log in logs.items()}
