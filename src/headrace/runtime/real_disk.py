"""The real disk: system calls with positions, one handle per file, errors that say what failed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from headrace.runtime.descriptors import NONE_LEFT, DescriptorRoom
from headrace.runtime.errors import DirectoryLockedError, DiskError
from headrace.runtime.interface import Buffer
from headrace.runtime.system import RWF_NOWAIT, lock_alone, read_into, sync_data, sync_file, write_parts

T = TypeVar("T")


class _Descriptor:
    """A file descriptor that is closed when its last user lets go of it.

    A read on a disk thread may be under way when the loop closes the file. Were the number closed at once, the kernel
    could give it to another file and the read would return that file's bytes.
    """

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.number)


class RealFile:
    __slots__ = ("_descriptor", "_end", "_nowait", "_path", "_sync_error")

    def __init__(self, path: str, number: int):
        self._path = path
        self._descriptor: _Descriptor | None = _Descriptor(number)
        self._end = os.fstat(number).st_size
        self._nowait = RWF_NOWAIT != 0
        self._sync_error: DiskError | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._end

    def append(self, parts: Sequence[Buffer]) -> int:
        descriptor = self._descriptor or self._open("append")
        start = self._end
        try:
            written = _write_all(descriptor.number, start, parts)
        except OSError as error:
            raise DiskError.of(error, "append", self._path, rolled_back=_cut(descriptor.number, start)) from error
        self._end = start + written
        return start

    def pwrite(self, position: int, data: Buffer) -> None:
        descriptor = self._open("pwrite")
        try:
            written = _write_all(descriptor.number, position, (data,))
        except OSError as error:
            # Some of it may have been written past the old end.
            self._end = max(self._end, os.fstat(descriptor.number).st_size)
            raise DiskError.of(error, "pwrite", self._path) from error
        self._end = max(self._end, position + written)

    def read(self, position: int, length: int) -> bytes:
        descriptor = self._open("read")
        try:
            data = os.pread(descriptor.number, length, position)
            if len(data) in (length, 0):
                return data
            # Short: the end of the file, or (over 2 GiB, or a signal) a part. Go on until the kernel says end.
            pieces = [data]
            position += len(data)
            length -= len(data)
            while length > 0 and (data := os.pread(descriptor.number, length, position)):
                pieces.append(data)
                position += len(data)
                length -= len(data)
            return b"".join(pieces) if len(pieces) > 1 else pieces[0]
        except OSError as error:
            raise DiskError.of(error, "read", self._path) from error

    def read_nowait(self, position: int, length: int) -> bytearray | None:
        data = bytearray(length)
        count = self.read_into_nowait(position, data)
        if count is None:
            return None
        if count < length:
            del data[count:]
        return data

    def read_into_nowait(self, position: int, buffer: bytearray | memoryview) -> int | None:
        if not self._nowait:
            return None
        descriptor = self._descriptor or self._open("read")
        try:
            count = os.preadv(descriptor.number, (buffer,), position, RWF_NOWAIT)
            if count < len(buffer) and position + count < os.fstat(descriptor.number).st_size:
                return None  # only the first part is in memory
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                self._nowait = False  # this file system cannot tell: always read on a disk thread
                return None
            raise DiskError.of(error, "read", self._path) from error
        return count

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        # What lies between two bytes in memory was written or read ahead together with them.
        for byte in (position, position + length - 1):
            if self.read_into_nowait(byte, bytearray(1)) is None:
                return None
        descriptor = self._open("send")
        try:
            return os.sendfile(socket_number, descriptor.number, position, length)
        except (BlockingIOError, ConnectionError):
            return 0  # of a lost connection its transport learns by the next write
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return 0
            raise DiskError.of(error, "send", self._path) from error

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        descriptor = self._open("read")
        total = 0
        with memoryview(buffer) as view:
            try:
                while total < len(view):
                    with view[total:] as rest:
                        count = read_into(descriptor.number, rest, position + total)
                    if count == 0:
                        break
                    total += count
            except OSError as error:
                raise DiskError.of(error, "read", self._path) from error
        return total

    def truncate(self, size: int) -> None:
        descriptor = self._open("truncate")
        try:
            os.ftruncate(descriptor.number, size)
        except OSError as error:
            raise DiskError.of(error, "truncate", self._path) from error
        self._end = size

    def sync(self) -> None:
        descriptor = self._open("sync")
        if self._sync_error is not None:
            raise DiskError("sync", self._path, self._sync_error.errno, detail="an earlier sync of this file failed")
        try:
            sync_data(descriptor.number)
        except OSError as error:
            self._sync_error = DiskError.of(error, "sync", self._path)
            raise self._sync_error from error

    def close(self) -> None:
        self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            warnings.warn(f"file {self._path!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    def _open(self, operation: str) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise DiskError(operation, self._path, errno.EBADF, detail="the file is closed")
        return descriptor


def _write_all(number: int, position: int, parts: Sequence[Buffer]) -> int:
    """Write every byte of `parts` from `position` on and return how many there were."""
    if len(parts) == 1:
        part = parts[0]
        total = len(part)
        written = os.pwrite(number, part, position)
        if written == total:
            return total
    else:
        total = sum(map(len, parts))
        written = write_parts(number, parts, position) if parts else 0
    while written < total:
        written += _checked(write_parts(number, _rest(parts, written), position + written))
    return total


def _checked(count: int) -> int:
    if count == 0:
        raise OSError(errno.EIO, "the kernel wrote nothing and gave no reason")
    return count


def _rest(parts: Sequence[Buffer], skip: int) -> list[Buffer]:
    """`parts` without their first `skip` bytes."""
    rest: list[Buffer] = []
    for part in parts:
        if skip >= len(part):
            skip -= len(part)
            continue
        rest.append(memoryview(part)[skip:] if skip else part)
        skip = 0
    return rest


def _cut(number: int, size: int) -> bool:
    try:
        os.ftruncate(number, size)
    except OSError:
        return False
    return True


class RealDirectory:
    def __init__(self, path: str, number: int, *, syncs: bool):
        self._path = path
        self._number: int | None = number
        self._syncs = syncs

    def sync(self) -> None:
        assert self._number is not None, f"{self._path} is closed"
        if self._syncs:
            with _as_disk_error("sync_dir", self._path):
                sync_file(self._number)

    def close(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


class RealLock:
    def __init__(self, path: str, number: int, key: str):
        self._path = path
        self._number: int | None = number
        self._key = key

    @property
    def path(self) -> str:
        return self._path

    def release(self) -> None:
        if self._number is None:
            return
        number, self._number = self._number, None
        # The file stays: removing it would let two processes lock two different files of the same name.
        os.close(number)
        _held_here.discard(self._key)


#: What is made here is for its owner alone: records may be secrets, and so is what users log in by.
OWNERS_FILE = 0o600
OWNERS_DIRECTORY = 0o700

# Lock files held by this process. Checked before the file is opened, because closing a second descriptor of it
# would drop this process's POSIX lock.
_held_here: set[str] = set()


@contextlib.contextmanager
def _as_disk_error(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError.of(error, operation, path) from error


class UnsyncedFile(RealFile):
    """A file that nobody wants to find again after a crash."""

    __slots__ = ()

    def sync(self) -> None:
        self._open("sync")


class RealDisk:
    """`syncs`: false for data that is thrown away at the end, as a test's."""

    def __init__(self, *, syncs: bool = True) -> None:
        self._room = DescriptorRoom()
        self._syncs = syncs
        self._file = RealFile if syncs else UnsyncedFile

    def when_short(self, make_room: Callable[[], bool]) -> None:
        self._room.add(make_room)

    def _with_room(self, operation: str, path: str, work: Callable[[], T], *, may_wait: bool = True) -> T:
        """Whatever needs a descriptor: when there is none, others' files are closed and the work is done then."""
        with _as_disk_error(operation, path):
            return self._room.retrying(work, may_wait=may_wait)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return self._file(path, os.open(path, flags, OWNERS_FILE))
        except OSError as error:
            if error.errno not in NONE_LEFT:
                raise DiskError.of(error, "open", path) from error
        # Without a wait: whoever opens a file to keep it open has a lock that others need to close theirs.
        return self._with_room(
            "open", path, lambda: self._file(path, os.open(path, flags, OWNERS_FILE)), may_wait=False
        )

    def exists(self, path: str) -> bool:
        return _stat_or_none(path) is not None

    def is_dir(self, path: str) -> bool:
        found = _stat_or_none(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def size(self, path: str) -> int:
        with _as_disk_error("size", path):
            return os.stat(path).st_size

    def listdir(self, path: str) -> list[str]:
        return self._with_room("listdir", path, lambda: sorted(os.listdir(path)))

    def makedirs(self, path: str) -> None:
        with _as_disk_error("makedirs", path):
            os.makedirs(path, OWNERS_DIRECTORY, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _as_disk_error("rename", source):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _as_disk_error("remove", path):
            os.remove(path)

    def rmtree(self, path: str) -> None:
        # Of a link the link alone: what it leads to is not ours to delete, and `shutil.rmtree` refuses it.
        self._with_room("rmtree", path, lambda: os.unlink(path) if os.path.islink(path) else shutil.rmtree(path))

    def free_bytes(self, path: str) -> int:
        with _as_disk_error("statvfs", path):
            space = os.statvfs(path)
        return space.f_bavail * space.f_frsize

    def total_bytes(self, path: str) -> int:
        with _as_disk_error("statvfs", path):
            space = os.statvfs(path)
        return space.f_blocks * space.f_frsize

    def mtime_ms(self, path: str) -> int:
        with _as_disk_error("stat", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        with _as_disk_error("utime", path):
            os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def sync_dir(self, path: str) -> None:
        if self._syncs:
            self._with_room("sync_dir", path, lambda: _sync_directory(path))

    def open_dir(self, path: str) -> RealDirectory:
        number = self._with_room("open_dir", path, lambda: _open_directory(path))
        return RealDirectory(path, number, syncs=self._syncs)

    def read_file(self, path: str) -> bytes:
        return self._with_room("read", path, lambda: _read_whole(path))

    def replace_file(self, path: str, data: bytes) -> None:
        self._with_room("replace_file", path, lambda: _replace(path, data, syncs=self._syncs))
        self.sync_dir(os.path.dirname(path) or ".")

    def lock(self, path: str) -> RealLock:
        """Among the locks is the one that Apache Kafka's broker takes on the same `.lock` file."""
        key = os.path.realpath(path)
        if key in _held_here:
            raise DirectoryLockedError(path, os.getpid())
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        number = self._with_room("lock", path, lambda: os.open(path, flags, OWNERS_FILE))
        try:
            lock_alone(number)
            os.ftruncate(number, 0)
            os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            holder = _pid_in(number)
            os.close(number)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryLockedError(path, holder) from error
            raise DiskError.of(error, "lock", path) from error
        _held_here.add(key)
        return RealLock(path, number, key)


def _open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _sync_directory(path: str) -> None:
    number = _open_directory(path)
    try:
        sync_file(number)
    finally:
        os.close(number)


def _read_whole(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _owners(path: str, flags: int) -> int:
    return os.open(path, flags, OWNERS_FILE)


def _replace(path: str, data: bytes, *, syncs: bool) -> None:
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb", opener=_owners) as file:
            file.write(data)
            file.flush()
            if syncs:
                sync_file(file.fileno())
        os.replace(temporary, path)
    except OSError:
        # On a full disk the half-written copy would take the room that its owner is about to free.
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def _stat_or_none(path: str) -> os.stat_result | None:
    """None if there is no such path. Any other failure is an error: a broken disk must not look like an empty one."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise DiskError.of(error, "stat", path) from error


def _pid_in(number: int) -> int | None:
    text = os.pread(number, 32, 0).strip()
    return int(text) if text.isdigit() else None
