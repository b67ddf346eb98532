"""What can go wrong between Headrace and the operating system."""

from __future__ import annotations

import errno as errno_module
import os

from headrace.errors import HeadraceError


class DiskError(HeadraceError):
    """The operating system refused or failed a disk operation."""

    def __init__(self, operation: str, path: str, errno: int | None, *, detail: str = "", rolled_back: bool = True):
        self.operation = operation
        self.path = path
        self.errno = errno
        self.rolled_back = rolled_back
        reason = detail or (os.strerror(errno) if errno is not None else "unknown reason")
        name = f" [{errno_module.errorcode.get(errno, errno)}]" if errno is not None else ""
        hint = _HINTS.get(errno, "") if errno is not None else ""
        torn = "" if rolled_back else "; the file could not be cut back, so bytes after its end are garbage"
        super().__init__(f"{operation} of {path!r} failed: {reason}{name}{torn}{hint}")

    @property
    def is_shortage(self) -> bool:
        """Whether the process or the machine ran out of something for now, which says nothing about the disk."""
        return self.errno in _SHORTAGES

    @classmethod
    def of(cls, error: OSError, operation: str, path: str, *, rolled_back: bool = True) -> DiskError:
        """The DiskError (or its subclass for a missing path) that stands for an OSError."""
        kind = FileMissingError if error.errno == errno_module.ENOENT else DiskError
        return kind(operation, path, error.errno, rolled_back=rolled_back)


_SHORTAGES = frozenset(
    {errno_module.EMFILE, errno_module.ENFILE, errno_module.ENOMEM, errno_module.EAGAIN, errno_module.EINTR}
)
_HINTS = {
    errno_module.ENOSPC: ". Free space on that file system, or lower the retention",
    errno_module.EDQUOT: ". Raise the disk quota, or lower the retention",
    errno_module.EIO: ". The device reported an error: check the kernel log, and take the directory out of use",
    errno_module.EROFS: ". The file system is mounted read-only: the kernel does that after a device error",
    errno_module.EMFILE: ". Raise the limit on open files (ulimit -n)",
    errno_module.ENFILE: ". The whole machine is out of file handles (fs.file-max)",
    errno_module.EACCES: ". Check owner and permissions",
}


class FileMissingError(DiskError):
    """The path does not exist."""


class DirectoryLockedError(DiskError):
    """Another process (or another broker in this process) uses the directory."""

    def __init__(self, path: str, holder_pid: int | None):
        self.holder_pid = holder_pid
        who = f"process {holder_pid}" if holder_pid is not None else "another process"
        super().__init__("lock", path, None, detail=f"{who} holds it. Stop that process or choose another directory")


class TransportError(HeadraceError):
    """Listening or connecting failed."""

    def __init__(self, message: str, host: str | None, port: int):
        self.host = host
        self.port = port
        super().__init__(message)


class ConnectFailedError(TransportError):
    """A connection could not be made in time, was refused, or its TLS handshake failed."""


class ListenFailedError(TransportError):
    """An address could not be listened on."""


class OverloadedError(HeadraceError):
    """A bounded queue of disk work is full: wait for some of it to finish and try again."""
