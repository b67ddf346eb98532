"""What both disks, the real and the simulated, promise."""

from __future__ import annotations

import errno
import random

import pytest

from headrace.runtime import DirectoryLockedError, DiskError, FileMissingError


def test_append_returns_where_the_parts_begin(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    assert file.append([b"abc", bytearray(b"de"), memoryview(b"f")]) == 0
    assert file.append([b"gh"]) == 6
    assert file.size() == 8
    assert file.read(0, 100) == b"abcdefgh"
    file.close()


def test_append_of_nothing_writes_nothing(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"abc"])
    assert file.append([]) == 3
    assert file.append([b""]) == 3
    assert file.append([b"", b""]) == 3
    assert file.size() == 3
    file.close()


def test_append_takes_more_parts_than_one_system_call(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    parts = [bytes([i % 256]) * (i % 5) for i in range(5000)]
    file.append([b"x"])
    assert file.append(parts) == 1
    assert file.read(1, 100_000) == b"".join(parts)
    file.close()


def test_reopened_file_appends_at_its_end(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"abc"])
    file.close()
    file = world.runtime.disk.open(f"{world.root}/a")
    assert file.size() == 3
    assert file.append([b"d"]) == 3
    assert world.runtime.disk.size(f"{world.root}/a") == 4
    file.close()


def test_reads_are_short_only_at_the_end(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"0123456789"])
    assert file.read(2, 3) == b"234"
    assert file.read(8, 10) == b"89"
    assert file.read(10, 10) == b""
    assert file.read(50, 10) == b""
    buffer = bytearray(b"....")
    assert file.read_into(1, memoryview(buffer)) == 4
    assert buffer == b"1234"
    assert file.read_into(8, buffer) == 2
    assert buffer == b"8934"
    file.close()


def test_read_nowait_gives_the_bytes_or_none(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"0123456789"])
    for position, length in [(0, 10), (2, 3), (8, 10), (10, 5), (70, 5)]:
        got = file.read_nowait(position, length)
        assert got is None or got == file.read(position, length)
        buffer = bytearray(length)
        count = file.read_into_nowait(position, buffer)
        assert count is None or buffer[:count] == file.read(position, length)
    file.close()


def test_pwrite_overwrites_and_grows(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"0123456789"])
    file.pwrite(2, b"xy")
    assert file.size() == 10
    file.pwrite(12, memoryview(b"end"))
    assert file.size() == 15
    assert file.read(0, 99) == b"01xy456789\0\0end"
    assert file.append([b"!"]) == 15
    file.close()


def test_truncate_cuts_and_later_appends_follow(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size() == 4
    assert file.append([b"ab"]) == 4
    assert file.read(0, 99) == b"0123ab"
    file.truncate(8)
    assert file.read(0, 99) == b"0123ab\0\0"
    file.close()


def test_a_closed_file_refuses_and_says_so(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"abc"])
    file.close()
    file.close()
    for use in (lambda: file.append([b"x"]), lambda: file.read(0, 1), file.sync, lambda: file.truncate(0)):
        with pytest.raises(DiskError, match="the file is closed") as caught:
            use()
        assert caught.value.errno == errno.EBADF
    assert world.runtime.disk.read_file(f"{world.root}/a") == b"abc"


def test_a_missing_path_is_file_missing_with_path_and_operation(world):
    disk, path = world.runtime.disk, f"{world.root}/none/a"
    for operation in ("open", "size", "listdir", "remove", "read_file", "mtime_ms", "rmtree", "sync_dir", "open_dir"):
        with pytest.raises(FileMissingError, match="No such file") as caught:
            getattr(disk, operation)(path)
        assert caught.value.path == path
        assert caught.value.errno == errno.ENOENT
    with pytest.raises(FileMissingError):
        disk.open(path, create=True)
    with pytest.raises(FileMissingError):
        disk.rename(path, f"{world.root}/b")
    assert not disk.exists(path)
    assert not disk.is_dir(path)


def test_directories_are_made_listed_in_order_and_removed(world):
    disk = world.runtime.disk
    disk.makedirs(f"{world.root}/t-0/inner")
    disk.makedirs(f"{world.root}/t-0/inner")
    for name in ("b", "a", "c"):
        disk.open(f"{world.root}/t-0/{name}", create=True).close()
    assert disk.listdir(f"{world.root}/t-0") == ["a", "b", "c", "inner"]
    assert disk.is_dir(f"{world.root}/t-0")
    assert not disk.is_dir(f"{world.root}/t-0/a")
    disk.sync_dir(f"{world.root}/t-0")
    disk.remove(f"{world.root}/t-0/b")
    disk.rmtree(f"{world.root}/t-0")
    assert not disk.exists(f"{world.root}/t-0")


def test_rename_replaces_a_file_and_moves_a_directory(world):
    disk, root = world.runtime.disk, world.root
    disk.replace_file(f"{root}/a", b"new")
    disk.replace_file(f"{root}/b", b"old")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.read_file(f"{root}/b") == b"new"
    assert not disk.exists(f"{root}/a")
    disk.makedirs(f"{root}/t-0")
    disk.replace_file(f"{root}/t-0/log", b"x")
    disk.rename(f"{root}/t-0", f"{root}/t-0.deleted")
    assert disk.listdir(root) == ["b", "t-0.deleted"]
    assert disk.read_file(f"{root}/t-0.deleted/log") == b"x"


def test_a_file_stays_readable_through_its_handle_after_rename_and_remove(world):
    disk, root = world.runtime.disk, world.root
    file = disk.open(f"{root}/a", create=True)
    file.append([b"abc"])
    disk.rename(f"{root}/a", f"{root}/a.deleted")
    disk.remove(f"{root}/a.deleted")
    assert file.read(0, 9) == b"abc"
    file.close()


def test_replace_file_leaves_no_temporary_behind(world):
    disk = world.runtime.disk
    for content in (b"one", b"twoo", b""):
        disk.replace_file(f"{world.root}/checkpoint", content)
        assert disk.read_file(f"{world.root}/checkpoint") == content
    assert disk.listdir(world.root) == ["checkpoint"]


def test_mtime_can_be_read_and_set(world):
    disk, path = world.runtime.disk, f"{world.root}/a"
    disk.open(path, create=True).close()
    assert abs(disk.mtime_ms(path) - world.runtime.clock.now_ms()) < 60_000
    disk.set_mtime_ms(path, 1_600_000_000_123)
    assert disk.mtime_ms(path) == 1_600_000_000_123


def test_free_and_total_bytes(world):
    disk = world.runtime.disk
    assert 0 < disk.free_bytes(world.root) <= disk.total_bytes(world.root)


def test_a_lock_is_exclusive_names_its_holder_and_can_be_taken_again(world):
    disk, path = world.runtime.disk, f"{world.root}/.lock"
    lock = disk.lock(path)
    assert lock.path == path
    with pytest.raises(DirectoryLockedError, match=r"process \d+ holds it") as caught:
        disk.lock(path)
    assert caught.value.holder_pid is not None
    lock.release()
    lock.release()
    disk.lock(path).release()


def test_reading_before_the_beginning_is_refused(world):
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    file.append([b"abc"])
    with pytest.raises(DiskError, match="EINVAL"):
        file.read(-1, 1)
    file.close()


def test_random_operations_match_a_bytearray(world):
    rng = random.Random(7)
    file = world.runtime.disk.open(f"{world.root}/a", create=True)
    model = bytearray()
    for _ in range(400):
        choice = rng.random()
        if choice < 0.4:
            parts = [rng.randbytes(rng.randint(0, 3000)) for _ in range(rng.randint(1, 5))]
            assert file.append(parts) == len(model)
            model += b"".join(parts)
        elif choice < 0.6:
            position, data = rng.randint(0, len(model) + 100), rng.randbytes(rng.randint(1, 500))
            file.pwrite(position, data)
            model.extend(bytes(max(0, position - len(model))))
            model[position : position + len(data)] = data
        elif choice < 0.65:
            size = rng.randint(0, len(model))
            file.truncate(size)
            del model[size:]
        elif choice < 0.7:
            file.sync()
        position, length = rng.randint(0, len(model) + 10), rng.randint(0, 9000)
        assert file.read(position, length) == model[position : position + length]
        got = file.read_nowait(position, length)
        assert got is None or got == model[position : position + length]
        assert file.size() == len(model)
    file.close()
