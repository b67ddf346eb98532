"""Files that are open only while they are used: one handle per segment, a bounded number of descriptors behind them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.runtime import Buffer, Disk, DiskError, File, FileMissingError

T = TypeVar("T")

DEFAULT_OPEN_FILES_MAX = 1024
_TRIES = 3
# What part of the open files is closed when descriptors are short: one eighth.
_ROOM_PARTS = 8


class FileCache:
    """At most `open_max` descriptors for any number of `LogFile`s; the one not used for longest is closed first.

    Second chance instead of a strict order: a use sets a flag, so the hot path takes no lock. Safe from any thread.
    """

    def __init__(self, disk: Disk, open_max: int = DEFAULT_OPEN_FILES_MAX) -> None:
        if open_max < 1:
            raise ValueError(f"a file cache needs room for at least one open file, not {open_max}")
        self.disk = disk
        self.open_max = open_max
        self._open: dict[LogFile, None] = {}
        # Taken again by its own thread when opening a file takes room from others.
        self._lock = threading.RLock()
        disk.when_short(self.make_room)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def open_file(self, file: LogFile) -> File:
        """The handle behind `file`, opened if need be."""
        with self._lock:
            if file.handle is not None:
                return file.handle
            if file.gone:
                raise FileMissingError("open", file.path, errno.ENOENT)
            while len(self._open) >= self.open_max:
                self._evict_one()
            handle = self.disk.open(file.path, create=file.create)
            file.handle = handle
            file.used = True
            self._open[file] = None
            return handle

    def resize(self, open_max: int) -> None:
        """Keep no more than so many files open from now on."""
        if open_max == self.open_max:
            return
        self.open_max = max(1, open_max)
        if len(self._open) > self.open_max:
            with self._lock:
                while len(self._open) > self.open_max:
                    self._evict_one()

    def make_room(self) -> bool:
        """Close some files, as somebody needs descriptors; False when there is none to close."""
        # Whoever holds the lock may wait for another cache's: then there is no room to be had here, just now.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            before = len(self._open)
            for _ in range(-(-before // _ROOM_PARTS)):
                self._evict_one()
            return len(self._open) < before
        finally:
            self._lock.release()

    def held(self, file: LogFile, use: Callable[[File], T]) -> T:
        """Use the handle behind `file` while nobody can take it away."""
        with self._lock:
            return use(self.open_file(file))

    def rename(self, file: LogFile, path: str) -> None:
        """Give `file` another name, on disk and here at once: nobody opens it in between by the one that is gone."""
        with self._lock:
            self.disk.rename(file.path, path)
            file.moved_to(path)

    def release(self, file: LogFile) -> None:
        """Close the handle behind `file`, if there is one."""
        with self._lock:
            self._open.pop(file, None)
            handle, file.handle = file.handle, None
        if handle is not None:
            handle.close()

    def _evict_one(self) -> None:
        # Two rounds at most: the first may only clear flags.
        for _ in range(2 * len(self._open)):
            file = next(iter(self._open))
            del self._open[file]
            if file.used:
                file.used = False
                self._open[file] = None
                continue
            handle, file.handle = file.handle, None
            if handle is not None:
                handle.close()
            return


class LogFile:
    """A file with runtime's `File` interface, opened on first use, closed and reopened as the cache decides."""

    __slots__ = ("_cache", "_path", "create", "gone", "handle", "used")

    def __init__(self, cache: FileCache, path: str, *, create: bool = False) -> None:
        self._cache = cache
        self._path = path
        self.create = create
        self.handle: File | None = None
        self.used = False
        #: Whether it has no name any more, or one that another file has by now: an open handle is good, none is opened.
        self.gone = False

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._with_handle(lambda handle: handle.size())

    def append(self, parts: Sequence[Buffer]) -> int:
        handle = self.handle
        if handle is not None:
            self.used = True
            try:
                start = handle.append(parts)
            except DiskError as error:
                if error.errno != errno.EBADF or self.handle is handle:
                    raise
            else:
                if self.handle is not handle:
                    self._forget_size()
                return start
        return self._change(lambda handle: handle.append(parts))

    def pwrite(self, position: int, data: Buffer) -> None:
        self._change(lambda handle: handle.pwrite(position, data))

    def read(self, position: int, length: int) -> bytes:
        return self._with_handle(lambda handle: handle.read(position, length))

    def read_nowait(self, position: int, length: int) -> bytearray | None:
        handle = self.handle
        if handle is not None:
            self.used = True
            try:
                return handle.read_nowait(position, length)
            except DiskError as error:
                if error.errno != errno.EBADF or self.handle is handle:
                    raise
        return self._with_handle(lambda handle: handle.read_nowait(position, length))

    def read_into_nowait(self, position: int, buffer: bytearray | memoryview) -> int | None:
        return self._with_handle(lambda handle: handle.read_into_nowait(position, buffer))

    def send_nowait(self, position: int, length: int, socket_number: int) -> int | None:
        return self._with_handle(lambda handle: handle.send_nowait(position, length, socket_number))

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        return self._with_handle(lambda handle: handle.read_into(position, buffer))

    def truncate(self, size: int) -> None:
        self._change(lambda handle: handle.truncate(size))

    def sync(self) -> None:
        self._with_handle(lambda handle: handle.sync())

    def close(self) -> None:
        self._cache.release(self)

    def ensure_open(self) -> None:
        """Open it now: with `create`, the file exists afterwards."""
        self._with_handle(lambda handle: None)

    def rename(self, path: str) -> None:
        """Give the file another name; the open handle, if any, stays good."""
        self._cache.rename(self, path)

    def moved_to(self, path: str) -> None:
        """The file has a new name; the open handle, if any, stays good."""
        self._path = path
        self.create = False

    def _change(self, change: Callable[[File], T]) -> T:
        """Use a handle for what changes the file's size."""

        def change_and_check(handle: File) -> T:
            result = change(handle)
            if self.handle is not handle:
                self._forget_size()
            return result

        return self._with_handle(change_and_check)

    def _forget_size(self) -> None:
        """The handle was taken away in the middle of a change. One that a reader has opened since may have found the
        file as it was before, and would append there: the next change gets a new one."""
        self._cache.release(self)

    def _with_handle(self, use: Callable[[File], T]) -> T:
        for _ in range(_TRIES):
            handle = self.handle
            if handle is None:
                handle = self._cache.open_file(self)
            self.used = True
            try:
                return use(handle)
            except DiskError as error:
                # Another thread's need for a descriptor closed this one between our look and our use of it.
                if error.errno != errno.EBADF or self.handle is handle:
                    raise
        # Taken away again and again: there are far more threads than files may be open. Slower, but it comes to an end.
        return self._cache.held(self, use)
