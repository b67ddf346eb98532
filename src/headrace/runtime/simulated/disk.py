"""The simulated disk: one process's view of a `Storage`, with faults to inject and crashes to survive."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.runtime.descriptors import DescriptorRoom
from headrace.runtime.errors import DirectoryLockedError, DiskError, FileMissingError
from headrace.runtime.interface import Buffer
from headrace.runtime.simulated.errors import SimulatedCrash
from headrace.runtime.simulated.storage import CrashModel, DirectoryNode, FileNode, Node, Renaming, Storage
from headrace.runtime.simulated.trace import Trace, checksum

_COLD_PROBABILITY = 0.02


@dataclass(slots=True)
class DiskFault:
    """`operation` fails with `errno` below the directory `under`: not the first `skip` times, then `times` times.

    Operations are named as the methods are (append, pwrite, read, truncate, sync, open, rename, remove, sync_dir, ...);
    "*" is each of them. `times=None` is for good.
    """

    operation: str
    errno: int = errno.EIO
    under: str = "/"
    skip: int = 0
    times: int | None = 1

    def strikes(self, operation: str, path: str) -> bool:
        if self.operation not in ("*", operation) or self.times == 0:
            return False
        if self.under != "/" and path != self.under and not path.startswith(self.under + "/"):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode):
        self._disk = disk
        self._path = path
        self._node = node
        self._end = len(node.data)
        self._closed = False
        self._sync_error: DiskError | None = None
        disk.open_count += 1

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._end

    def append(self, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        start = self._end
        try:
            self._begin("append", self._summary(data))
            self._disk.take_space(self._node, start + len(data), "append", self._path)
        except DiskError as error:
            raise self._roll_back(error, start, data) from None
        self._change(start, data)
        self._end = start + len(data)
        return start

    def pwrite(self, position: int, data: Buffer) -> None:
        content = bytes(data)
        self._begin("pwrite", position, self._summary(content))
        self._disk.take_space(self._node, position + len(content), "pwrite", self._path)
        self._change(position, content)
        self._end = max(self._end, position + len(content))

    def read(self, position: int, length: int) -> bytes:
        self._begin("read", position, length)
        _check_range(position, length, self._path)
        self._node.make_resident(position, length)
        return bytes(self._node.data[position : position + length])

    def read_nowait(self, position: int, length: int) -> bytearray | None:
        self._begin("read", position, length)
        _check_range(position, length, self._path)
        if self._disk.rng.random() < _COLD_PROBABILITY:
            self._node.resident.clear()
        if not self._node.is_resident(position, length):
            return None
        return self._node.data[position : position + length]

    def read_into_nowait(self, position: int, buffer: bytearray | memoryview) -> int | None:
        data = self.read_nowait(position, len(buffer))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        return 0  # a simulated file has nothing that a real socket could send

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def truncate(self, size: int) -> None:
        self._begin("truncate", size)
        self._disk.take_space(self._node, size, "truncate", self._path)
        self._cut(size)
        self._end = size

    def sync(self) -> None:
        if self._sync_error is not None:
            raise DiskError("sync", self._path, self._sync_error.errno, detail="an earlier sync of this file failed")
        try:
            self._begin("sync")
        except DiskError as error:
            if not self._closed:
                self._sync_error = error
                self._node.fail_sync(self._disk.rng)
            raise
        # What is written while the device is at work is not covered.
        covered = self._node.changed
        self._disk.pause(self._disk.on_sync)
        self._node.sync(covered)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_count -= 1

    def _summary(self, data: bytes) -> str:
        return checksum(data) if self._disk.trace.is_on else ""

    def _begin(self, operation: str, *details: str | int) -> None:
        if self._closed:
            raise DiskError(operation, self._path, errno.EBADF, detail="the file is closed")
        self._disk.begin(operation, self._path, *details)

    def _change(self, position: int, data: bytes) -> None:
        before = len(self._node.data)
        self._node.write(position, data)
        self._node.mtime_ms = self._disk.now_ms()
        self._disk.storage.used_bytes += len(self._node.data) - before

    def _cut(self, size: int) -> None:
        before = len(self._node.data)
        self._node.truncate(size)
        self._node.mtime_ms = self._disk.now_ms()
        self._disk.storage.used_bytes += len(self._node.data) - before

    def _roll_back(self, error: DiskError, start: int, data: bytes) -> DiskError:
        """A write that failed left a part of itself, which is then cut off again, if that works."""
        if self._closed:
            return error
        room = max(0, self._disk.free_bytes(self._path))
        self._change(start, data[: min(room, self._disk.rng.randint(0, len(data)))])
        try:
            self._begin("truncate", start)
        except DiskError:
            return DiskError("append", self._path, error.errno, rolled_back=False)
        self._cut(start)
        return error


class SimulatedDirectory:
    def __init__(self, disk: SimulatedDisk, path: str, node: DirectoryNode):
        self._disk = disk
        self._path = path
        self._node = node
        self._closed = False
        disk.open_count += 1

    def sync(self) -> None:
        assert not self._closed, f"{self._path} is closed"
        self._disk.begin("sync_dir", self._path)
        self._disk.storage.sync_directory(self._node)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_count -= 1


class SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str):
        self._disk = disk
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimulatedDisk:
    """Dies with its process: `kill` (the kernel lives, all written data stays) or `crash` (power loss).

    Both give the disk that the next process sees; every later use of this one, and of its files, is a `SimulatedCrash`.
    """

    def __init__(self, storage: Storage, trace: Trace, now_ms: Callable[[], int], *, pid: int = 1):
        self.storage = storage
        self.rng = storage.rng
        self.trace = trace
        self.now_ms = now_ms
        self.pid = pid
        self.locks: set[str] = set()
        self.faults: list[DiskFault] = []
        self.alive = True
        #: How many files are open, and how many may be.
        self.open_count = 0
        self.descriptors_max: int | None = None
        self._room = DescriptorRoom()
        #: Called when `crash_after` strikes, before SimulatedCrash is raised.
        self.on_crash: Callable[[], None] | None = None
        #: Called at every operation, and while the device is at work on a sync: others may go on there.
        self.on_operation: Callable[[], None] | None = None
        self.on_sync: Callable[[], None] | None = None
        self._operations_left: int | None = None

    # What a test does to the disk.

    def inject(self, fault: DiskFault) -> DiskFault:
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def fill(self, free_bytes: int = 0) -> None:
        """Leave room for only so many bytes more; then writes fail with ENOSPC."""
        self.storage.capacity_bytes = self.storage.used_bytes + free_bytes

    def crash_after(self, operations: int) -> None:
        """Die at the operation that comes after so many more (reads count too)."""
        self._operations_left = operations

    def kill(self) -> SimulatedDisk:
        self.alive = False
        self.trace.record("disk-kill")
        return SimulatedDisk(self.storage, self.trace, self.now_ms, pid=self.pid + 1)

    def crash(self, model: CrashModel = CrashModel.HARSH) -> SimulatedDisk:
        self.alive = False
        self.storage.crash(model)
        self.trace.record("disk-crash", model.value)
        return SimulatedDisk(self.storage, self.trace, self.now_ms, pid=self.pid + 1)

    # What files call.

    def begin(self, operation: str, path: str, *details: str | int) -> None:
        """Every operation passes here first: trace it, or fail it, or die."""
        if not self.alive:
            raise SimulatedCrash(f"{operation} of {path!r} by a process that is dead")
        self.trace.record(operation, path, *details)
        self.pause(self.on_operation)
        if self._operations_left is not None:
            self._operations_left -= 1
            if self._operations_left < 0:
                self.alive = False
                if self.on_crash is not None:
                    self.on_crash()
                raise SimulatedCrash(f"power was lost at {operation} of {path!r}")
        for fault in self.faults:
            if fault.strikes(operation, path):
                raise DiskError(operation, path, fault.errno)

    def pause(self, hook: Callable[[], None] | None) -> None:
        if hook is not None:
            hook()
            if not self.alive:
                raise SimulatedCrash("power was lost, or the process killed, while this operation waited")

    def take_space(self, node: FileNode, end: int, operation: str, path: str) -> None:
        if end - len(node.data) > max(0, self.storage.capacity_bytes - self.storage.used_bytes):
            raise DiskError(operation, path, errno.ENOSPC)

    def _take_descriptor(self, path: str) -> None:
        while self.descriptors_max is not None and self.open_count >= self.descriptors_max:
            if not self._room.make():
                raise DiskError("open", path, errno.EMFILE)

    # The Disk protocol.

    def when_short(self, make_room: Callable[[], bool]) -> None:
        self._room.add(make_room)

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        path = _absolute(path)
        self.begin("open", path)
        self._take_descriptor(path)
        node = self._find(path)
        if node is None and create:
            directory, name = self._parent("open", path)
            node = FileNode(mtime_ms=self.now_ms())
            self.storage.change_name(Renaming(node, None, (directory, name)))
        if node is None:
            raise FileMissingError("open", path, errno.ENOENT)
        if isinstance(node, DirectoryNode):
            raise DiskError("open", path, errno.EISDIR)
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        self.begin("exists", _absolute(path))
        return self._find(_absolute(path)) is not None

    def is_dir(self, path: str) -> bool:
        self.begin("is_dir", _absolute(path))
        return isinstance(self._find(_absolute(path)), DirectoryNode)

    def size(self, path: str) -> int:
        return len(self._file("size", path).data)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory("listdir", path).entries)

    def makedirs(self, path: str) -> None:
        path = _absolute(path)
        self.begin("makedirs", path)
        directory = self.storage.root
        for name in path.split("/")[1:]:
            node = directory.entries.get(name)
            if node is None:
                node = DirectoryNode(mtime_ms=self.now_ms())
                self.storage.change_name(Renaming(node, None, (directory, name)))
            if isinstance(node, FileNode):
                raise DiskError("makedirs", path, errno.EEXIST)
            directory = node

    def rename(self, source: str, target: str) -> None:
        source, target = _absolute(source), _absolute(target)
        self.begin("rename", source, target)
        node = self._existing("rename", source)
        old = self._find(target)
        if old is node:
            return
        if isinstance(old, DirectoryNode):
            if isinstance(node, FileNode):
                raise DiskError("rename", source, errno.EISDIR)
            if old.entries:
                raise DiskError("rename", source, errno.ENOTEMPTY)
        elif old is not None:
            if isinstance(node, DirectoryNode):
                raise DiskError("rename", source, errno.ENOTDIR)
            self.storage.used_bytes -= len(old.data)
        place = self._parent("rename", target)
        self.storage.change_name(Renaming(node, self._parent("rename", source), place, replaces=old is not None))

    def remove(self, path: str) -> None:
        path = _absolute(path)
        self.begin("remove", path)
        self._unlink("remove", path, self._existing("remove", path))

    def rmtree(self, path: str) -> None:
        path = _absolute(path)
        self.begin("rmtree", path)
        node = self._existing("rmtree", path)
        if isinstance(node, FileNode):
            raise DiskError("rmtree", path, errno.ENOTDIR)
        for name in sorted(node.entries):
            inner = posixpath.join(path, name)
            if isinstance(node.entries[name], DirectoryNode):
                self.rmtree(inner)
            else:
                self.remove(inner)
        self.storage.change_name(Renaming(node, self._parent("rmtree", path), None))

    def free_bytes(self, path: str) -> int:
        return max(0, self.storage.capacity_bytes - self.storage.used_bytes)

    def total_bytes(self, path: str) -> int:
        return self.storage.capacity_bytes

    def mtime_ms(self, path: str) -> int:
        self.begin("mtime_ms", _absolute(path))
        return self._existing("mtime_ms", _absolute(path)).mtime_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self.begin("set_mtime_ms", _absolute(path), mtime_ms)
        self._existing("set_mtime_ms", _absolute(path)).mtime_ms = mtime_ms

    def sync_dir(self, path: str) -> None:
        self.storage.sync_directory(self._directory("sync_dir", path))

    def open_dir(self, path: str) -> SimulatedDirectory:
        node = self._directory("open_dir", path)
        self._take_descriptor(path)
        return SimulatedDirectory(self, _absolute(path), node)

    def read_file(self, path: str) -> bytes:
        return bytes(self._file("read", path).data)

    def replace_file(self, path: str, data: bytes) -> None:
        try:
            file = self.open(path + ".tmp", create=True)
            file.truncate(0)
            file.append((data,))
            file.sync()
            file.close()
            self.rename(path + ".tmp", path)
        except DiskError as error:
            with contextlib.suppress(DiskError):
                self.remove(path + ".tmp")
            raise type(error)("replace_file", path, error.errno) from error
        self.sync_dir(posixpath.dirname(_absolute(path)))

    def lock(self, path: str) -> SimulatedLock:
        path = _absolute(path)
        self.begin("lock", path)
        if path in self.locks:
            raise DirectoryLockedError(path, self.pid)
        self.open(path, create=True).close()
        self.locks.add(path)
        return SimulatedLock(self, path)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.storage.root
        for name in path.split("/")[1:]:
            if not isinstance(node, DirectoryNode):
                return None
            if name:
                node = node.entries.get(name)
        return node

    def _existing(self, operation: str, path: str) -> Node:
        node = self._find(path)
        if node is None:
            raise FileMissingError(operation, path, errno.ENOENT)
        return node

    def _file(self, operation: str, path: str) -> FileNode:
        path = _absolute(path)
        self.begin(operation, path)
        node = self._existing(operation, path)
        if isinstance(node, DirectoryNode):
            raise DiskError(operation, path, errno.EISDIR)
        return node

    def _directory(self, operation: str, path: str) -> DirectoryNode:
        path = _absolute(path)
        self.begin(operation, path)
        node = self._existing(operation, path)
        if isinstance(node, FileNode):
            raise DiskError(operation, path, errno.ENOTDIR)
        return node

    def _parent(self, operation: str, path: str) -> tuple[DirectoryNode, str]:
        head, name = posixpath.split(path)
        directory = self._find(head)
        if not isinstance(directory, DirectoryNode) or not name:
            raise FileMissingError(operation, path, errno.ENOENT)
        return directory, name

    def _unlink(self, operation: str, path: str, node: Node) -> None:
        if isinstance(node, DirectoryNode):
            raise DiskError(operation, path, errno.EISDIR)
        self.storage.used_bytes -= len(node.data)
        self.storage.change_name(Renaming(node, self._parent(operation, path), None))


def _check_range(position: int, length: int, path: str) -> None:
    # A negative number would count from the end, as slices do.
    if position < 0 or length < 0:
        raise DiskError("read", path, errno.EINVAL)


def _absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))
