"""Names in a log directory outlive what they name: nothing is inherited under one, and nothing unknown is removed."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable

import pytest
from tests.log.making import append_one

from headrace.errors import HeadraceError, KafkaStorageError
from headrace.log import DirectoryMismatchError, FateOf, Log, LogConfig, LogCut, LogDirectories, LogFate, checkpoints
from headrace.log.cleaner import Cleaner
from headrace.log.directory_names import DirectoryKind, partition_names
from headrace.records import check, split
from headrace.runtime import DirectoryLockedError, DiskError
from headrace.runtime.simulated import CrashModel, DiskFault, Host, Simulation, run_simulation
from headrace.topics import TopicPartition

from .crashes import stored
from .making import NOW_MS, batch, make_host

A, B = "/data/a", "/data/b"
KEY, SECOND, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 0)
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=100)
OLD, NEW = bytes([1]) * 16, bytes([2]) * 16
FIRST = "0" * 20 + ".log"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def opened(host: Host, *paths: str, known: dict[bytes, LogFate] | None = None) -> LogDirectories:
    directories = LogDirectories.open(host.runtime, paths or (A,))
    if known is None:
        directories.open_logs(lambda topic: CONFIG)
    else:
        directories.open_logs(lambda topic: CONFIG, fates(known), bring_back=True)
    return directories


def fates(known: dict[bytes, LogFate]) -> FateOf:
    return lambda partition, topic_id: LogFate.OPENED if topic_id is None else known.get(topic_id, LogFate.SET_ASIDE)


def fill(log: Log, count: int, size: int = 30) -> None:
    for number in range(count):
        append_one(log, batch(b"%d" % number * size), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.end_offset)


def killed(host: Host) -> None:
    host.kill(power_loss=False)
    host.restart()


def names(host: Host, state: DirectoryKind, path: str = A) -> list[str]:
    return [name for name, _, found in partition_names(host.disk, path) if found is state]


def bytes_of(host: Host, home: str) -> int:
    disk = host.disk
    return sum(disk.size(f"{home}/{name}") for name in disk.listdir(home) if name.endswith(".log"))


def damage(host: Host, home: str) -> None:
    """Zeros over the second batch of what was synced, and no snapshot that would spare us reading it."""
    data = bytearray(host.disk.read_file(f"{home}/{FIRST}"))
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second : second + 61] = bytes(61)
    host.disk.replace_file(f"{home}/{FIRST}", bytes(data))
    for name in host.disk.listdir(home):
        if name.endswith(".snapshot"):
            host.disk.remove(f"{home}/{name}")


# --- a name that is used again


def test_a_topic_made_anew_does_not_inherit_where_the_old_one_began() -> None:
    host = make_host()
    directories = opened(host)
    old = directories.create(KEY, CONFIG, OLD)
    fill(old, 100)
    old.delete_records(80)
    directories.checkpoint()
    directories.delete(KEY)
    new = directories.create(KEY, CONFIG, NEW)
    fill(new, 50)
    new.sync()
    killed(host)
    again = opened(host).logs[KEY]
    assert (again.start_offset, again.end_offset, again.high_watermark) == (0, 50, 0)


@pytest.mark.parametrize("operation", ["sync_dir", "rename"])
def test_a_log_whose_deletion_ran_short_of_descriptors_never_passes_for_its_successor(operation: str) -> None:
    """Not after a power loss either that takes the id of the one and the name of the other, in another directory."""
    for seed in range(20):
        host = make_host(seed)
        directories = opened(host, A, B)
        old = directories.create(KEY, CONFIG, OLD, path=A)
        fill(old, 5)
        old.active.file.sync()
        for path in (old.directory, A):
            host.disk.sync_dir(path)
        host.disk.inject(DiskFault(operation, errno.EMFILE, under=A))
        directories.delete(KEY)
        host.disk.heal()
        directories.create(KEY, CONFIG, NEW, path=B)
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = opened(host, A, B, known={OLD: LogFate.DELETED, NEW: LogFate.OPENED}).get(KEY)
        assert again is None or again.end_offset == 0, seed


def settled(host: Host, path: str) -> None:
    """A log's first records and its name are durable, and the id of its topic is not."""
    file = host.disk.open(f"{path}/{FIRST}")
    file.sync()
    file.close()
    for name in (path, path.rpartition("/")[0]):
        host.disk.sync_dir(name)


def test_all_are_deleted_though_one_of_them_cannot_be_renamed_for_now() -> None:
    """And none of them passes for a topic that is made of the same name, whichever of them is made first."""
    for seed in range(20):
        host = make_host(seed)
        directories = opened(host, A, B)
        for key in (KEY, SECOND):
            log = directories.create(key, CONFIG, OLD, path=A)
            fill(log, 5)
            settled(host, log.directory)
        host.disk.inject(DiskFault("rename", errno.ENOMEM, under=A))
        directories.delete(KEY, SECOND)
        host.disk.heal()
        assert directories.logs == {}
        directories.create(SECOND, CONFIG, NEW, path=A)
        directories.create(KEY, CONFIG, NEW, path=B)
        directories.clean_up(2**62)
        assert names(host, DirectoryKind.DELETE) == names(host, DirectoryKind.STRAY) == []
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = opened(host, A, B, known={OLD: LogFate.DELETED, NEW: LogFate.OPENED})
        assert [log.end_offset for log in again.logs.values() if log.end_offset] == [], seed


@pytest.mark.parametrize("operation", ["sync_dir", "rename"])
@pytest.mark.parametrize("then", ["made anew", "cut"])
def test_what_a_move_leaves_behind_never_passes_for_the_log_that_is_in_use(operation: str, then: str) -> None:
    for seed in range(20):
        host = make_host(seed)
        directories = opened(host, A, B)
        log = directories.create(KEY, CONFIG, OLD, path=A)
        fill(log, 5)
        settled(host, log.directory)
        move = directories.start_move(KEY, B)
        while move.step():
            pass
        host.disk.inject(DiskFault(operation, errno.EMFILE, under=A))
        moved = directories.finish_move(KEY)
        host.disk.heal()
        if then == "made anew":
            directories.delete(KEY)
            directories.create(KEY, CONFIG, NEW, path=B)
        else:
            cut = LogCut(KEY, 0)
            if directories.begin_cut(cut):
                directories.write_cut(cut)
            moved.truncate_to(0)
            directories.end_cut(cut)
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        again = opened(
            host, A, B, known={OLD: LogFate.OPENED if then == "cut" else LogFate.DELETED, NEW: LogFate.OPENED}
        )
        assert [log.end_offset for log in again.logs.values() if log.end_offset] == [], seed


def test_a_log_that_cannot_be_made_for_want_of_descriptors_leaves_nothing_behind() -> None:
    host = make_host()
    directories = opened(host, A, B)
    directories.create(OTHER, CONFIG, OLD, path=B)
    host.disk.inject(DiskFault("open", errno.EMFILE, times=None))
    for _ in range(5):
        with pytest.raises(DiskError):
            directories.create(KEY, CONFIG, NEW, path=A)
        with pytest.raises(DiskError):
            directories.start_move(OTHER, A)
    host.disk.heal()
    directories.clean_up(2**62)
    assert [name for name, _, _ in partition_names(host.disk, A)] == []
    directories.create(KEY, CONFIG, NEW, path=A)
    assert [name for name, _, _ in partition_names(host.disk, A)] == [str(KEY)]


def test_a_move_that_cannot_begin_for_want_of_descriptors_is_none() -> None:
    """Also where the copy is to begin behind deleted records, which takes another file."""
    for skip in range(8):
        host = make_host()
        directories = opened(host, A, B)
        log = directories.create(KEY, CONFIG, OLD, path=A)
        fill(log, 100)
        log.delete_records(80)
        host.disk.inject(DiskFault("open", errno.EMFILE, skip=skip, under=B))
        with contextlib.suppress(DiskError):
            directories.start_move(KEY, B).step()
        host.disk.heal()
        directories.cancel_move(KEY)
        directories.clean_up(2**62)
        assert names(host, DirectoryKind.FUTURE, B) == []
        assert [found.replicas for found in directories.describe() if found.path == B] == [[]]


def test_a_disk_that_fails_where_an_older_log_was_deleted_does_not_keep_another_from_being_made() -> None:
    host = make_host()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, OLD, path=A), 5)
    directories.delete(KEY)
    host.disk.inject(DiskFault("*", errno.EIO, under=A, times=None))
    assert directories.create(KEY, CONFIG, NEW, path=B).directory == f"{B}/{KEY}"
    assert directories.online_paths == [B]


def test_nor_does_it_after_a_restart_between_the_deletion_and_the_creation() -> None:
    host = make_host()
    directories = opened(host)
    old = directories.create(KEY, CONFIG, OLD)
    fill(old, 100)
    old.delete_records(80)
    directories.checkpoint()
    directories.delete(KEY)
    killed(host)
    directories = opened(host)
    new = directories.create(KEY, CONFIG, NEW)
    fill(new, 50)
    new.sync()
    killed(host)
    assert opened(host).logs[KEY].start_offset == 0


@pytest.mark.slow
def test_a_topic_made_anew_is_checked_whatever_the_old_one_had_synced() -> None:
    for seed in range(30):
        host = make_host(seed)
        directories = opened(host)
        old = directories.create(KEY, CONFIG, OLD)
        fill(old, 200, 50)
        old.sync()
        directories.checkpoint()
        directories.delete(KEY)
        new = directories.create(KEY, CONFIG, NEW)
        fill(new, 4, 50)
        new.sync()
        fill(new, 96, 50)
        host.kill(power_loss=True, model=CrashModel.HARSH)
        host.restart()
        log = opened(host).logs.get(KEY)
        assert log is not None, seed
        assert log.end_offset >= 4
        for data in stored(log):
            check(next(split(data)))


def test_checkpoints_are_written_once_for_many_names() -> None:
    host = make_host()
    directories = opened(host)
    keys = [TopicPartition("t", number) for number in range(20)]
    for key in keys:
        directories.create(key, CONFIG, OLD)
    directories.checkpoint()
    directories.delete(*keys)
    written = []
    replace_file = host.disk.replace_file
    host.disk.replace_file = lambda path, data: (written.append(path), replace_file(path, data))[1]  # type: ignore[method-assign]
    for key in keys:
        directories.create(key, CONFIG, NEW)
    assert len(written) <= 4


def test_a_log_that_moves_to_a_name_used_before_inherits_nothing_and_keeps_its_own_start() -> None:
    host = make_host()
    directories = opened(host, A, B)
    old = directories.create(KEY, CONFIG, OLD, path=A)
    fill(old, 100)
    old.delete_records(80)
    directories.checkpoint()
    directories.delete(KEY)
    new = directories.create(KEY, CONFIG, NEW, path=B)
    for number in range(30):
        append_one(new, batch(*[b"%d" % number] * 3), leader_epoch=0, now_ms=NOW_MS)
    new.update_high_watermark(90)
    new.delete_records(7)
    move = directories.start_move(KEY, A)
    while move.step():
        pass
    moved = directories.finish_move(KEY)
    assert moved.directory == f"{A}/t-0"
    killed(host)
    again = opened(host, A, B).logs[KEY]
    assert (again.start_offset, again.end_offset) == (7, 90)


def test_a_move_finds_a_directory_in_its_way_and_sets_it_aside() -> None:
    host = make_host()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, NEW, path=A), 10)
    host.disk.makedirs(f"{B}/t-0")
    host.disk.replace_file(f"{B}/t-0/{FIRST}", b"somebody's")
    move = directories.start_move(KEY, B)
    while move.step():
        pass
    assert directories.finish_move(KEY).directory == f"{B}/t-0"
    (kept,) = names(host, DirectoryKind.STRAY, B)
    assert host.disk.read_file(f"{B}/{kept}/{FIRST}") == b"somebody's"
    assert directories.online_paths == [A, B]


def test_a_topic_made_anew_does_not_inherit_how_far_the_old_one_was_compacted() -> None:
    compacted = LogConfig(segment_bytes=1_000, compact=True, min_cleanable_dirty_ratio=0.0)

    async def main(simulation: Simulation) -> tuple[int | None, int | None]:
        host = simulation.host()
        return await host.start(inside(host))

    async def inside(host: Host) -> tuple[int | None, int | None]:
        directories = LogDirectories.open(host.runtime, [A])
        directories.open_logs(lambda topic: compacted)
        old = directories.create(KEY, compacted, OLD)
        fill(old, 50)

        async def write(path: str, offset_of: Callable[[Log], int | None]) -> None:
            directories.write_cleaned(path, offset_of)

        cleaner = Cleaner(host.runtime, write_checkpoint=write)
        assert await cleaner.clean_once([old]) is not None
        noted = checkpoints.read_offsets(host.disk, f"{A}/{checkpoints.CLEANER}")
        directories.delete(KEY)
        # A cleaner that sees the file for the first time when the old log is gone and the new one is not there yet.
        later = Cleaner(host.runtime, write_checkpoint=write)
        assert await later.clean_once([]) is None
        new = directories.create(KEY, compacted, NEW)
        fill(new, 3)
        kept = checkpoints.read_offsets(host.disk, f"{A}/{checkpoints.CLEANER}").get(KEY)
        assert await later.clean_once([new]) is None
        assert await cleaner.clean_once([new]) is None
        assert later.checkpoint_of(new) is None
        assert cleaner.checkpoint_of(new) is None
        return noted.get(KEY), kept

    noted, kept = run_simulation(main, 1).value
    assert noted is not None
    assert kept is None


# --- logs that cannot be opened


def damaged_world() -> tuple[Host, int]:
    host = make_host()
    directories = opened(host)
    for key in (KEY, OTHER):
        log = directories.create(key, CONFIG, OLD if key is KEY else NEW)
        fill(log, 100)
        log.sync()
    directories.checkpoint()
    damage(host, f"{A}/t-0")
    killed(host)
    return host, bytes_of(host, f"{A}/t-0")


def test_a_log_left_offline_is_never_cut_nor_made_anew() -> None:
    host, size = damaged_world()
    for clean in (False, True, False, True):
        directories = opened(host)
        assert list(directories.unopened) == [KEY]
        assert list(directories.logs) == [OTHER]
        with pytest.raises(KafkaStorageError, match="restore the directory"):
            directories.create(KEY, CONFIG, OLD)
        directories.checkpoint()
        if clean:
            directories.close()
        killed(host)
        assert bytes_of(host, f"{A}/t-0") == size
    points = checkpoints.read_offsets(host.disk, f"{A}/{checkpoints.RECOVERY_POINT}")
    assert points == {KEY: 100, OTHER: 100}


def test_a_log_left_offline_is_deleted_with_its_topic() -> None:
    host, _ = damaged_world()
    directories = opened(host)
    directories.delete(KEY)
    assert directories.unopened == {}
    assert directories.create(KEY, CONFIG, NEW).end_offset == 0
    assert directories.clean_up(host.runtime.clock.now_ms()) == 1
    directories.close()
    assert opened(host).logs[KEY].topic_id == NEW


def test_damage_to_what_was_synced_is_refused_also_in_the_last_segment() -> None:
    host = make_host()
    directories = opened(host)
    log = directories.create(KEY, CONFIG, OLD)
    fill(log, 10)
    log.sync()
    directories.checkpoint()
    assert len(log.segments) == 1
    damage(host, f"{A}/t-0")
    size = bytes_of(host, f"{A}/t-0")
    killed(host)
    directories = opened(host)
    assert "whole batches follow" in directories.unopened[KEY]
    assert bytes_of(host, f"{A}/t-0") == size


def test_an_older_copy_of_a_log_is_checked_as_a_whole_and_served() -> None:
    host = make_host()
    directories = opened(host)
    log = directories.create(KEY, CONFIG, OLD)
    fill(log, 10)
    log.sync()
    backup = {name: host.disk.read_file(f"{A}/t-0/{name}") for name in host.disk.listdir(f"{A}/t-0")}
    fill(log, 90)
    log.sync()
    directories.checkpoint()
    killed(host)
    host.disk.rmtree(f"{A}/t-0")
    host.disk.makedirs(f"{A}/t-0")
    for name, data in backup.items():
        host.disk.replace_file(f"{A}/t-0/{name}", data)
    again = opened(host).logs[KEY]
    assert again.end_offset == 10
    assert again.recovery.checked_batches >= 10
    assert "synced up to 100" in again.recovery.summary(KEY)
    assert len(stored(again)) == 10


# --- logs that nobody knows


def test_what_nobody_knows_is_set_aside_untouched_and_comes_back_with_its_metadata() -> None:
    host = make_host()
    directories = opened(host)
    log = directories.create(KEY, CONFIG, OLD)
    fill(log, 20)
    expected = stored(log)
    log.sync()
    directories.checkpoint()
    size = bytes_of(host, f"{A}/t-0")
    killed(host)
    for _ in range(2):
        directories = opened(host, known={})
        assert directories.logs == {}
        (kept,) = names(host, DirectoryKind.STRAY)
        assert bytes_of(host, f"{A}/{kept}") == size
        assert directories.clean_up(2**62) == 0
        directories.close()
        killed(host)
    directories = opened(host, known={OLD: LogFate.OPENED})
    assert stored(directories.logs[KEY]) == expected
    assert names(host, DirectoryKind.STRAY) == []


def test_what_was_set_aside_stays_so_while_its_place_is_taken() -> None:
    host = make_host()
    directories = opened(host)
    fill(directories.create(KEY, CONFIG, OLD), 20)
    directories.close()
    directories = opened(host, known={})
    fill(directories.create(KEY, CONFIG, NEW), 3)
    directories.close()
    directories = opened(host, known={OLD: LogFate.OPENED, NEW: LogFate.OPENED})
    assert directories.logs[KEY].topic_id == NEW
    assert len(names(host, DirectoryKind.STRAY)) == 1


def test_what_was_set_aside_stays_so_while_a_directory_is_away_that_may_have_the_newer() -> None:
    host = make_host()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, OLD, path=A), 20)
    directories.close()
    opened(host, A, B, known={}).close()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, OLD, path=B), 30)
    directories.close()
    killed(host)
    host.disk.inject(DiskFault("*", errno.EIO, under=B, times=None))
    directories = opened(host, A, B, known={OLD: LogFate.OPENED})
    assert directories.logs == {}
    assert len(names(host, DirectoryKind.STRAY)) == 1
    killed(host)
    assert opened(host, A, B, known={OLD: LogFate.OPENED}).logs[KEY].end_offset == 30


def test_a_log_of_a_topic_that_was_deleted_is_deleted_at_the_start() -> None:
    host = make_host()
    directories = opened(host)
    fill(directories.create(KEY, CONFIG, OLD), 20)
    directories.close()
    directories = opened(host, known={OLD: LogFate.DELETED})
    assert directories.logs == {}
    assert len(names(host, DirectoryKind.DELETE)) == 1
    assert directories.clean_up(host.runtime.clock.now_ms()) == 1
    assert directories.create(KEY, CONFIG, NEW).end_offset == 0


def test_of_two_topics_of_one_name_the_one_that_the_metadata_knows_is_served() -> None:
    host = make_host()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, OLD, path=B), 20)
    directories.close()
    host.disk.rename(f"{B}/t-0", "/data/elsewhere")
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, NEW, path=A), 3)
    directories.close()
    host.disk.rename("/data/elsewhere", f"{B}/t-0")
    directories = opened(host, A, B, known={NEW: LogFate.OPENED})
    assert (directories.logs[KEY].directory, directories.logs[KEY].end_offset) == (f"{A}/t-0", 3)
    assert len(names(host, DirectoryKind.STRAY, B)) == 1


def test_of_two_copies_the_one_that_tells_its_topic_stays_and_the_other_is_kept() -> None:
    host = make_host()
    directories = opened(host, A, B)
    fill(directories.create(KEY, CONFIG, OLD, path=B), 3)
    directories.close()
    host.disk.makedirs(f"{A}/t-0")
    directories = opened(host, A, B, known={OLD: LogFate.OPENED})
    assert directories.logs[KEY].directory == f"{B}/t-0"
    assert len(names(host, DirectoryKind.STRAY, A)) == 1


def test_a_log_without_the_id_of_its_topic_is_given_it() -> None:
    host = make_host()
    directories = opened(host)
    fill(directories.create(KEY, CONFIG, None), 3)
    directories.close()
    directories = opened(host, known={})
    log = directories.logs[KEY]
    assert log.topic_id is None
    directories.identify(log, NEW)
    host.kill(power_loss=True)
    host.restart()
    assert opened(host, known={NEW: LogFate.OPENED}).logs[KEY].topic_id == NEW


def test_a_directory_in_the_way_of_a_new_log_is_kept() -> None:
    host = make_host()
    directories = opened(host)
    host.disk.makedirs(f"{A}/t-0")
    host.disk.replace_file(f"{A}/t-0/{FIRST}", b"somebody's")
    assert directories.create(KEY, CONFIG, NEW).end_offset == 0
    (kept,) = names(host, DirectoryKind.STRAY)
    assert host.disk.read_file(f"{A}/{kept}/{FIRST}") == b"somebody's"


# --- whose a directory is


def test_no_new_cluster_begins_while_a_directory_that_may_know_it_is_away() -> None:
    host = make_host()
    opened(host, A).close()
    killed(host)
    host.disk.inject(DiskFault("*", errno.EIO, under=A, times=None))
    with pytest.raises(KafkaStorageError, match="may be all that knows which cluster this is"):
        opened(host, A, B)
    killed(host)
    directories = opened(host, A, B)
    assert directories.online_paths == [A, B]


def test_a_metadata_directory_apart_is_locked_and_belongs_to_one_node() -> None:
    host = make_host()
    first = LogDirectories.open(host.runtime, [A], node_id=1, metadata_path="/data/m")
    with pytest.raises(DirectoryLockedError):
        LogDirectories.open(host.runtime, [B], node_id=2, metadata_path="/data/m")
    first.close()
    with pytest.raises(DirectoryMismatchError, match="/data/m belongs to node 1"):
        LogDirectories.open(host.runtime, ["/data/c"], node_id=2, metadata_path="/data/m")
    killed(host)
    host.disk.inject(DiskFault("*", errno.EIO, under="/data/m", times=None))
    with pytest.raises(HeadraceError, match="the metadata directory /data/m cannot be used"):
        LogDirectories.open(host.runtime, [A], metadata_path="/data/m")
