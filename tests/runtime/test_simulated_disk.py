"""What a power loss leaves, and what injected faults do."""

from __future__ import annotations

import errno
import random

import pytest

from headrace.runtime import DiskError, FileMissingError
from headrace.runtime.simulated import CrashModel, DiskFault, SimulatedCrash, simulated_host
from headrace.runtime.simulated.storage import PAGE, SECTOR, FileWrite, Truncate, after_crash

MODELS = list(CrashModel)
SEEDS = range(150)


def new_disk(seed: int):
    return simulated_host(seed).disk


def durable_file(disk, path: str, content: bytes = b""):
    file = disk.open(path, create=True)
    file.append([content])
    file.sync()
    disk.sync_dir("/data")
    return file


# Contents


@pytest.mark.parametrize("model", MODELS)
def test_what_was_synced_survives_whatever_came_after(model):
    for seed in SEEDS:
        disk, rng = new_disk(seed), random.Random(seed)
        content = rng.randbytes(rng.randint(1, 20_000))
        file = durable_file(disk, "/data/log", content)
        for _ in range(rng.randint(0, 10)):
            file.append([rng.randbytes(rng.randint(1, 9_000))])
        after = disk.crash(model).read_file("/data/log")
        assert after[: len(content)] == content


@pytest.mark.parametrize("model", MODELS)
def test_unsynced_appends_are_lost_wholly_partly_or_not_at_all(model):
    outcomes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "/data/log", b"a" * 100)
        file.append([b"b" * 30_000])
        size = len(disk.crash(model).read_file("/data/log"))
        outcomes.add("none" if size == 100 else "all" if size == 30_100 else "part")
    # One append has two sizes, so the harsh model has no "part" of it: there, sectors are missing instead.
    assert outcomes == ({"none", "part", "all"} if model is CrashModel.ORDERED else {"none", "all"})


def test_ordered_leaves_a_prefix_cut_at_a_page():
    for seed in SEEDS:
        disk, rng = new_disk(seed), random.Random(seed)
        file = durable_file(disk, "/data/log", rng.randbytes(5_000))
        ends = {5_000}
        for _ in range(5):
            file.append([rng.randbytes(rng.randint(1, 20_000))])
            ends.add(file.size())
        full = file.read(0, 200_000)
        after = disk.crash(CrashModel.ORDERED).read_file("/data/log")
        assert full.startswith(after)
        assert len(after) in ends or len(after) % PAGE == 0


def test_harsh_tears_at_sectors_and_leaves_holes():
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "/data/log", b"a" * 700)
        for _ in range(3):
            file.append([b"b" * 6_000])
        after = disk.crash(CrashModel.HARSH).read_file("/data/log")
        assert after[:700] == b"a" * 700
        assert set(after[700:]) <= {0, ord("b")}
        unit_edges = [i for i in range(701, len(after)) if after[i] != after[i - 1]]
        assert all(edge % SECTOR == 0 or edge in (6_700, 12_700) for edge in unit_edges)
        seen.add("hole" if b"\0" in after else "whole")
    assert seen == {"hole", "whole"}


def test_an_overwrite_leaves_old_or_new_sectors_and_nothing_else():
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "/data/index", b"o" * 10_000)
        file.pwrite(1_000, b"n" * 5_000)
        after = disk.crash().read_file("/data/index")
        assert len(after) == 10_000
        assert after[:1_000] + after[6_000:] == b"o" * 5_000
        assert set(after) <= set(b"on")
        seen.add(after.count(b"n"))
    assert {0, 5_000} < seen


def test_a_truncation_is_there_or_not_and_old_bytes_never_mix_with_new_ones():
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "/data/log", b"o" * 10_000)
        file.truncate(4_000)
        file.append([b"n" * 3_000])
        after = disk.crash().read_file("/data/log")
        if after == b"o" * 10_000:
            seen.add("not truncated")
        else:
            assert after[:4_000] == b"o" * 4_000
            assert set(after[4_000:]) <= {0, ord("n")}
            seen.add("truncated")
    assert seen == {"truncated", "not truncated"}


@pytest.mark.parametrize("model", MODELS)
def test_synced_truncation_and_overwrite_survive(model):
    for seed in range(50):
        disk = new_disk(seed)
        file = durable_file(disk, "/data/log", b"o" * 10_000)
        file.truncate(4_000)
        file.pwrite(10, b"n")
        file.sync()
        assert disk.crash(model).read_file("/data/log") == b"o" * 10 + b"n" + b"o" * 3_989


@pytest.mark.parametrize("model", MODELS)
def test_nothing_pending_nothing_changes(model):
    for seed in range(20):
        disk = new_disk(seed)
        durable_file(disk, "/data/log", b"x" * 5_000)
        assert disk.crash(model).crash(model).read_file("/data/log") == b"x" * 5_000


def test_every_sector_after_a_crash_is_one_of_its_versions():
    """Against a plain model: each sector is what some prefix of the writes made of it."""
    for seed in range(300):
        rng = random.Random(seed)
        durable = rng.randbytes(rng.randint(0, 3_000))
        content, changes, versions = bytearray(durable), [], [bytes(durable)]
        for _ in range(rng.randint(1, 6)):
            if rng.random() < 0.2:
                change = Truncate(rng.randint(0, len(content)))
                del content[change.size :]
            else:
                change = FileWrite(rng.randint(0, len(content)), rng.randbytes(rng.randint(1, 3_000)))
                content[change.position : change.position + len(change.data)] = change.data
            changes.append(change)
            versions.append(bytes(content))
        after = after_crash(durable, changes, rng, CrashModel.HARSH)
        assert len(after) in {len(version) for version in versions}
        for start in range(0, len(after), SECTOR):
            sector = after[start : start + SECTOR]
            length = len(sector)
            allowed = {version[start : start + SECTOR][:length].ljust(length, b"\0") for version in versions}
            assert sector in allowed or sector.rstrip(b"\0") in {one[: len(sector.rstrip(b"\0"))] for one in allowed}


def test_a_killed_process_loses_nothing_it_wrote():
    disk = new_disk(1)
    file = disk.open("/data/log", create=True)
    file.append([b"abc"])
    lock = disk.lock("/data/.lock")
    after = disk.kill()
    assert after.read_file("/data/log") == b"abc"
    after.lock("/data/.lock")
    assert after.pid != disk.pid
    lock.release()
    with pytest.raises(SimulatedCrash):
        file.append([b"from beyond"])
    with pytest.raises(SimulatedCrash):
        disk.listdir("/data")


# Names


@pytest.mark.parametrize("model", MODELS)
def test_a_new_file_needs_its_directory_synced(model):
    def present(seed: int, sync_dir: bool) -> bool:
        disk = new_disk(seed)
        file = disk.open("/data/log", create=True)
        file.append([b"abc"])
        file.sync()
        if sync_dir and seed % 2:
            disk.sync_dir("/data")
        elif sync_dir:
            disk.open_dir("/data").sync()
        after = disk.crash(model)
        if after.exists("/data/log"):
            assert after.read_file("/data/log") == b"abc"
            return True
        return False

    assert all(present(seed, sync_dir=True) for seed in SEEDS)
    assert {present(seed, sync_dir=False) for seed in SEEDS} == {True, False}


@pytest.mark.parametrize("model", MODELS)
def test_a_file_in_a_new_directory_needs_the_parent_synced_too(model):
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.makedirs("/data/t-0")
        disk.open("/data/t-0/log", create=True)
        disk.sync_dir("/data/t-0")
        parent_synced = seed % 2 == 0
        if parent_synced:
            disk.sync_dir("/data")
        there = disk.crash(model).exists("/data/t-0/log")
        assert there or not parent_synced
        if not parent_synced:
            found.add(there)
    assert found == {True, False}


@pytest.mark.parametrize("model", MODELS)
def test_a_rename_is_atomic(model):
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        durable_file(disk, "/data/a", b"new")
        durable_file(disk, "/data/b", b"old")
        disk.rename("/data/a", "/data/b")
        after = disk.crash(model)
        state = tuple(after.listdir("/data")), after.read_file("/data/b")
        assert state in ((("a", "b"), b"old"), (("b",), b"new"))
        seen.add(state)
    assert len(seen) == 2


def test_a_rename_over_another_without_a_sync_may_lose_the_data_only_in_the_harsh_model():
    contents: dict[CrashModel, set[bytes]] = {model: set() for model in MODELS}
    for model in MODELS:
        for seed in SEEDS:
            disk = new_disk(seed)
            durable_file(disk, "/data/b", b"old")
            disk.open("/data/a", create=True).append([b"new"])
            disk.rename("/data/a", "/data/b")
            contents[model].add(disk.crash(model).read_file("/data/b"))
    assert contents[CrashModel.ORDERED] == {b"old", b"new"}
    assert {b"old", b"new", b""} <= contents[CrashModel.HARSH]


@pytest.mark.parametrize("model", MODELS)
def test_replace_file_leaves_the_old_or_the_new_content_wherever_it_dies(model):
    seen = set()
    for seed in range(20):
        for operations in range(12):
            disk = new_disk(seed)
            disk.replace_file("/data/checkpoint", b"old" * 1_000)
            disk.crash_after(operations)
            replaced = False
            try:
                disk.replace_file("/data/checkpoint", b"new" * 1_000)
                replaced = True
            except SimulatedCrash:
                pass
            content = disk.crash(model).read_file("/data/checkpoint")
            assert content in ((b"new" * 1_000,) if replaced else (b"old" * 1_000, b"new" * 1_000))
            seen.add((replaced, content[:3]))
    assert seen == {(True, b"new"), (False, b"new"), (False, b"old")}


@pytest.mark.parametrize("model", MODELS)
def test_a_removal_is_durable_after_sync_dir_only(model):
    there = {True: set(), False: set()}
    for seed in SEEDS:
        synced = seed % 2 == 0
        disk = new_disk(seed)
        durable_file(disk, "/data/a", b"x")
        disk.remove("/data/a")
        if synced:
            disk.sync_dir("/data")
        there[synced].add(disk.crash(model).exists("/data/a"))
    assert there == {True: {False}, False: {True, False}}


def test_harsh_may_keep_a_later_name_and_lose_an_earlier_one():
    seen = set()
    for seed in SEEDS:
        for model in MODELS:
            disk = new_disk(seed)
            disk.open("/data/1", create=True)
            disk.open("/data/2", create=True)
            seen.add((model, tuple(disk.crash(model).listdir("/data"))))
    assert (CrashModel.HARSH, ("2",)) in seen
    assert (CrashModel.ORDERED, ("2",)) not in seen


def test_syncing_one_directory_persists_what_the_moved_name_depends_on():
    for seed in range(30):
        disk = new_disk(seed)
        disk.makedirs("/data/x")
        disk.makedirs("/data/y")
        disk.sync_dir("/data")
        disk.open("/data/x/a", create=True)
        disk.rename("/data/x/a", "/data/y/a")
        disk.sync_dir("/data/y")
        after = disk.crash()
        assert after.listdir("/data/y") == ["a"]
        assert after.listdir("/data/x") == []


@pytest.mark.parametrize("model", MODELS)
def test_the_same_seed_crashes_the_same_way(model):
    def course(seed: int) -> tuple[bytes, list[str], str]:
        host = simulated_host(seed)
        disk = host.disk
        file = durable_file(disk, "/data/log", b"a" * 5_000)
        for i in range(10):
            file.append([bytes([i]) * 3_000])
            disk.open(f"/data/{i}", create=True)
        after = disk.crash(model)
        return after.read_file("/data/log"), after.listdir("/data"), disk.trace.digest()

    assert course(1) == course(1)
    assert len({course(seed)[:1] for seed in range(10)}) > 3


# Faults


def test_a_full_disk_leaves_previous_bytes_intact():
    for seed in range(30):
        disk = new_disk(seed)
        file = disk.open("/data/log", create=True)
        file.append([b"a" * 1_000])
        disk.fill(free_bytes=500)
        with pytest.raises(DiskError, match="ENOSPC") as caught:
            file.append([b"b" * 400, b"c" * 400])
        assert caught.value.rolled_back
        assert (file.size(), disk.free_bytes("/data")) == (1_000, 500)
        assert file.read(0, 9_999) == b"a" * 1_000
        assert file.append([b"d" * 500]) == 1_000
        with pytest.raises(DiskError, match="ENOSPC"):
            file.pwrite(1_400, b"x" * 101)
        disk.remove("/data/log")
        disk.open("/data/other", create=True).append([b"e" * 1_500])


def test_the_nth_operation_fails_and_the_next_ones_work():
    disk = new_disk(1)
    file = disk.open("/data/log", create=True)
    disk.inject(DiskFault("append", skip=2))
    assert [file.append([b"abc"]) for _ in range(2)] == [0, 3]
    with pytest.raises(DiskError) as caught:
        file.append([b"abc"])
    assert (caught.value.errno, caught.value.operation, caught.value.path) == (errno.EIO, "append", "/data/log")
    assert [file.append([b"abc"]) for _ in range(2)] == [6, 9]
    disk.inject(DiskFault("read", times=2))
    for _ in range(2):
        with pytest.raises(DiskError):
            file.read(0, 1)
    assert file.read(0, 1) == b"a"


def test_one_directory_can_fail_for_good_while_another_works():
    disk = new_disk(1)
    disk.makedirs("/data/one")
    disk.makedirs("/data/one-more")
    file = disk.open("/data/one/log", create=True)
    disk.inject(DiskFault("*", under="/data/one", times=None))
    for _ in range(3):
        with pytest.raises(DiskError):
            file.append([b"x"])
        with pytest.raises(DiskError):
            disk.listdir("/data/one")
    disk.open("/data/one-more/log", create=True).append([b"x"])
    disk.heal()
    assert file.append([b"x"]) == 0


def test_an_append_that_cannot_be_cut_back_says_so_and_is_overwritten_next_time():
    disk = new_disk(4)
    file = disk.open("/data/log", create=True)
    file.append([b"abc"])
    disk.inject(DiskFault("append"))
    disk.inject(DiskFault("truncate"))
    with pytest.raises(DiskError) as caught:
        file.append([b"z" * 1_000])
    assert not caught.value.rolled_back
    assert file.size() == 3
    assert file.append([b"def"]) == 3
    assert file.read(0, 6) == b"abcdef"


def test_replace_file_keeps_the_old_content_and_leaves_no_copy_when_it_fails():
    for operation in ("open", "append", "sync", "rename"):
        disk = new_disk(1)
        disk.replace_file("/data/checkpoint", b"old")
        disk.inject(DiskFault(operation, errno.ENOSPC))
        with pytest.raises(DiskError, match=r"replace_file of .*checkpoint'.*ENOSPC"):
            disk.replace_file("/data/checkpoint", b"new")
        assert disk.listdir("/data") == ["checkpoint"]
        assert disk.read_file("/data/checkpoint") == b"old"


def test_a_failed_sync_drops_pages_for_good_even_if_a_new_handle_syncs_happily():
    lost = 0
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "/data/log", b"a" * 100)
        file.append([b"b" * 20_000])
        disk.inject(DiskFault("sync"))
        with pytest.raises(DiskError, match="EIO"):
            file.sync()
        with pytest.raises(DiskError, match="an earlier sync"):
            file.sync()
        assert file.read(0, 30_000) == b"a" * 100 + b"b" * 20_000  # still in memory
        disk.open("/data/log").sync()  # and so it looks well
        after = disk.crash().read_file("/data/log")
        assert after[:100] == b"a" * 100
        lost += after != b"a" * 100 + b"b" * 20_000
    assert lost > len(SEEDS) // 2


def test_cold_reads_do_not_answer_at_once_after_a_crash():
    disk = new_disk(1)
    durable_file(disk, "/data/log", b"a" * 10_000)
    after = disk.crash()
    file = after.open("/data/log")
    assert file.read_nowait(0, 100) is None
    assert file.read(0, 100) == b"a" * 100
    assert file.read_nowait(5_000, 100) is None
    assert any(file.read_nowait(0, 100) == b"a" * 100 for _ in range(3) if file.read(0, 100))


def test_crash_after_counts_operations_and_kills_the_handles():
    disk = new_disk(1)
    file = disk.open("/data/log", create=True)
    disk.crash_after(2)
    file.append([b"a"])
    file.sync()
    with pytest.raises(SimulatedCrash, match="power was lost at append"):
        file.append([b"b"])
    with pytest.raises(SimulatedCrash, match="by a process that is dead"):
        file.read(0, 1)


def test_renames_refuse_what_a_real_disk_refuses():
    disk = new_disk(1)
    disk.makedirs("/data/full/x")
    disk.makedirs("/data/dir")
    disk.open("/data/file", create=True)
    for source, target, number in [
        ("/data/dir", "/data/full", errno.ENOTEMPTY),
        ("/data/dir", "/data/file", errno.ENOTDIR),
        ("/data/file", "/data/dir", errno.EISDIR),
    ]:
        with pytest.raises(DiskError) as caught:
            disk.rename(source, target)
        assert caught.value.errno == number
    disk.rename("/data/file", "/data/file")
    with pytest.raises(FileMissingError):
        disk.rename("/data/file", "/nowhere/file")
    with pytest.raises(DiskError, match="EISDIR"):
        disk.open("/data/dir")
    with pytest.raises(DiskError, match="EEXIST"):
        disk.makedirs("/data/file/x")
